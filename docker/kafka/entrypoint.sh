#!/usr/bin/env bash
# Formats the data directory at its first start, then becomes the broker.
#
#   KAFKA_INSIDE      what containers of the same network connect to (listens on 9092)   default: <hostname>:9092
#   KAFKA_OUTSIDE     what clients on the host connect to (listens on 9094)              default: localhost:9094
#   KAFKA_PARTITIONS  how many partitions a topic gets unless told otherwise             default: 1
#   KAFKA_HEAP        the most memory for the broker's heap                              default: 512m
#   KAFKA_PROPERTIES  more server properties, one to a line; they win
set -euo pipefail

HOME_DIR=/opt/kafka
DATA=/var/lib/kafka/data
CONFIG=/etc/kafka/server.properties
CLASSPATH="$HOME_DIR/jars/*"
export CLASSPATH

# In a properties file the last of two equal keys wins.
cat "$HOME_DIR/single-broker.properties" - >"$CONFIG" <<END
listeners=INSIDE://0.0.0.0:9092,OUTSIDE://0.0.0.0:9094,CONTROLLER://127.0.0.1:9093
advertised.listeners=INSIDE://${KAFKA_INSIDE:-$(hostname):9092},OUTSIDE://${KAFKA_OUTSIDE:-localhost:9094}
listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=INSIDE
controller.quorum.voters=1@127.0.0.1:9093
log.dirs=$DATA
num.partitions=${KAFKA_PARTITIONS:-1}
${KAFKA_PROPERTIES:-}
END

if [ ! -f "$DATA/meta.properties" ]; then
    # 16 bytes in URL-safe base64; the fixed first one keeps it from starting with a dash.
    cluster_id=$({ printf L; head -c 15 /dev/urandom; } | base64 | tr '+/' '-_' | tr -d '=')
    java -Xmx128m -XX:TieredStopAtLevel=1 kafka.tools.StorageTool format -t "$cluster_id" -c "$CONFIG"
fi
exec java "-Xmx${KAFKA_HEAP:-512m}" -XX:+ExitOnOutOfMemoryError \
    "-Dlog4j2.configurationFile=$HOME_DIR/log4j2.properties" kafka.Kafka "$CONFIG"
