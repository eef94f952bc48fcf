#!/usr/bin/env bash
# Names what is missing on this machine before anything is installed, and how to get it. Exit 2 if something is.
#
#   prerequisites.sh PYTHON [vllm]
#
# Java and Maven are only for the local Kafka: not needed if CORAL_KAFKA__BOOTSTRAP_SERVERS is set or a Docker daemon answers.
set -euo pipefail
python="${1:-python3.11}"
missing=0

lacking() { # name, Debian/Ubuntu, macOS
  echo "missing: $1" >&2
  echo "  Debian/Ubuntu: $2" >&2
  echo "  macOS:         $3" >&2
  missing=1
}

# Debian splits venv and ensurepip off: a python3.11 without them cannot make an environment.
if ! "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
  lacking "Python 3.11 with venv ($python)" "apt-get install python3.11 python3.11-venv" "brew install python@3.11"
fi

java_major() { java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1; }

docker_answers() { command -v docker >/dev/null && timeout 5 docker info >/dev/null 2>&1; }

if [ -z "${CORAL_KAFKA__BOOTSTRAP_SERVERS:-}" ] && ! docker_answers; then
  major="$(java_major || true)"
  if [ "${major:-0}" -lt 17 ]; then
    lacking "Java 17 or newer (for the local Kafka)" "apt-get install openjdk-17-jre-headless" "brew install openjdk@17"
  fi
  if ! command -v mvn >/dev/null; then
    lacking "Maven (fetches the local Kafka)" "apt-get install maven" "brew install maven"
  fi
  if [ "$missing" -ne 0 ]; then
    echo "Java and Maven are not needed with CORAL_KAFKA__BOOTSTRAP_SERVERS=host:port or a running Docker daemon." >&2
  fi
fi

if [ "${2:-}" = vllm ] && command -v ldconfig >/dev/null && ! ldconfig -p | grep 'libnuma\.so\.1 ' >/dev/null; then
  lacking "libnuma (vLLM on the CPU links it)" "apt-get install libnuma1" "none: vLLM for the CPU needs Linux"
fi

[ "$missing" -eq 0 ] || exit 2
