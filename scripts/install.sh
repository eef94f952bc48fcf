#!/usr/bin/env bash
# Installs requirements.lock, hashes checked, and this checkout (editable) into a virtual environment.
#
#   install.sh PYTHON VENV
set -euo pipefail
python="$1" venv="$2"

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"

# uv comes out of the lock itself, so pip checks its hash; it then installs the rest in seconds.
uv_lock="$(mktemp)"
trap 'rm -f "$uv_lock"' EXIT
awk '/^uv==/ { take = 1 } take { print } take && !/\\$/ { exit }' requirements.lock >"$uv_lock"
"$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$uv_lock"

# Compiled once here: where PYTHONDONTWRITEBYTECODE is set, every process would compile all it imports, for seconds.
uv_install() { VIRTUAL_ENV="$venv" "$venv/bin/uv" pip install --quiet --compile-bytecode "$@"; }
pip_install() { "$venv/bin/pip" install --quiet --disable-pip-version-check "$@"; }

# pip as the second way: it reads pip.conf, which is where some sites configure their package mirror.
uv_install --require-hashes -r requirements.lock || pip_install --require-hashes -r requirements.lock
# The build backend is in the lock too, so nothing is fetched here.
uv_install --no-deps --no-build-isolation --editable .
