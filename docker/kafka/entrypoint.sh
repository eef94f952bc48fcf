#!/bin/sh
# Starts Kafka in a container from KAFKA_* variables (KAFKA_NODE_ID=1 -> node.id=1), the convention of the official
# apache/kafka image, so that either image fits compose.yaml and agents/kafka_docker.py.
set -eu
config=/tmp/server.properties
env | sed -n 's/^KAFKA_\([A-Z_]*\)=\(.*\)/\1 \2/p' | while read -r name value; do
  case "$name" in HEAP_OPTS) continue ;; esac
  printf '%s=%s\n' "$(printf %s "$name" | tr 'A-Z_' 'a-z.')" "$value"
done >"$config"

cp='/opt/kafka/libs/*'
java -cp "$cp" kafka.tools.StorageTool format --ignore-formatted -t "${CLUSTER_ID:-4L6g3nShT-eMCtK--X86sw}" -c "$config"
# exec: the signal that stops the container reaches Kafka.
# shellcheck disable=SC2086 # several options in one variable
exec java ${KAFKA_HEAP_OPTS:--Xms256m -Xmx512m} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 \
  -Dlog4j2.configurationFile=file:/opt/kafka/log4j2.properties -cp "$cp" kafka.Kafka "$config"
