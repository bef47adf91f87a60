#!/usr/bin/env bash
# Healthy means: the broker answers a metadata request and counts itself among the live brokers.
set -euo pipefail

exec 3<>/dev/tcp/127.0.0.1/9092
# length 14, Metadata, version 1, correlation 7, no client id, no topics
printf '\0\0\0\016\0\003\0\001\0\0\0\007\377\377\0\0\0\0' >&3
# the reply: length, correlation, number of brokers
[ "$(timeout 3 head -c 12 <&3 | od -An -tx1 -j 4 | tr -d ' \n')" = 0000000700000001 ]
