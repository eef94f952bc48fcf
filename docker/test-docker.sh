#!/usr/bin/env bash
# Runs the tests of the Docker way for real. Where a daemon answers, it is used as it is. Where none does, and we are root
# on Debian or Ubuntu: installs docker.io, starts a daemon of our own (nothing of it outlives the script), builds a base
# image by debootstrap, since an image registry may be out of reach, and the broker's image on it.
#
#   test-docker.sh [PYTEST ARGUMENTS]
#
# CORAL_KAFKA_IMAGE: use this image, and build none.
set -euo pipefail
cd "$(dirname "$0")/.."
image="${CORAL_KAFKA_IMAGE:-coral-kafka:4.3.1}"
work="$(mktemp -d)"
daemon=""

say() { echo "[$SECONDS s] $*" >&2; }

clean_up() {
  if [ -n "$daemon" ]; then
    kill "$daemon" 2>/dev/null || true
    wait "$daemon" 2>/dev/null || true
  fi
  rm -rf "$work" || true
}
trap clean_up EXIT

answers() { command -v docker >/dev/null && timeout 10 docker info >/dev/null 2>&1; }

need_packages() {
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "No Docker daemon answers. Start one, or run this as root on Debian or Ubuntu." >&2
    exit 2
  fi
  local missing=()
  command -v dockerd >/dev/null || missing+=(docker.io)
  command -v debootstrap >/dev/null || missing+=(debootstrap)
  if [ "${#missing[@]}" -gt 0 ]; then
    say "installing ${missing[*]}"
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${missing[@]}" >/dev/null
  fi
}

# Works in containers and small virtual machines too: vfs needs no kernel module, cgroupfs no systemd. Published ports go
# through Docker's own proxy, on loopback only, so no firewall rule is touched.
start_daemon() {
  export DOCKER_HOST="unix://$work/d.sock"
  dockerd --host "$DOCKER_HOST" --data-root "$work/data" --exec-root "$work/exec" --pidfile "$work/d.pid" \
    --storage-driver vfs --bip 172.30.77.1/24 --ip 127.0.0.1 --iptables=false \
    --exec-opt native.cgroupdriver=cgroupfs >"$work/dockerd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 60); do
    if answers; then
      return
    fi
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.5
  done
  echo "dockerd did not start:" >&2
  tail -n 20 "$work/dockerd.log" >&2
  exit 1
}

build_base() {
  local codename uri
  codename="$(. /etc/os-release && echo "$VERSION_CODENAME")"
  # The mirror this machine installs from, whatever it is; other publishers' sources are passed over.
  uri="$(apt-get indextargets --format '$(RELEASE) $(ORIGIN) $(REPO_URI)' 'Created-By: Packages' |
    awk -v codename="$codename" '$1 == codename && ($2 == "Debian" || $2 == "Ubuntu") { print $3; exit }')"
  debootstrap --variant=minbase --include=openjdk-17-jre-headless,ca-certificates-java \
    "$codename" "$work/base" "$uri" >"$work/debootstrap.log" 2>&1 || {
    tail -n 20 "$work/debootstrap.log" >&2
    exit 1
  }
  tar -C "$work/base" -c . | docker import - coral-base:local >/dev/null
  rm -rf "$work/base"
}

build_image() {
  local jars
  jars="$(.venv/bin/python -c 'from agents.broker import DEFAULT_CACHE
from agents.kafka_jars import fetch_jars
print(fetch_jars(DEFAULT_CACHE))')"
  mkdir "$work/context"
  cp docker/kafka/Dockerfile docker/kafka/entrypoint.sh docker/kafka/log4j2.properties "$work/context"
  cp -r "$jars" "$work/context/libs"
  # Without BuildKit: Debian's docker.io brings no buildx.
  DOCKER_BUILDKIT=0 docker build -q --build-arg BASE=coral-base:local -t "$image" "$work/context" >/dev/null
}

if answers; then
  say "a Docker daemon answers"
else
  need_packages
  start_daemon
  say "started a Docker daemon of our own"
fi
if [ -z "${CORAL_KAFKA_IMAGE:-}" ] && [ -n "$daemon" ]; then
  build_base
  say "built the base"
  build_image
  say "built $image"
  export CORAL_KAFKA_IMAGE="$image"
  # Ryuk's image is in a registry as well; here the daemon ends with this script, and all containers with it.
  export TESTCONTAINERS_RYUK_DISABLED=true
fi
CORAL_REQUIRE=docker .venv/bin/pytest -m docker "$@"
say "done"
