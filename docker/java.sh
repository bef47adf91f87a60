#!/usr/bin/env bash
# Makes Java 17 available: nothing to do where it is there, installed on Debian and its kin as root, a clear line otherwise.
set -euo pipefail

version() { java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }

have=$(command -v java >/dev/null && version || true)
if [ "${have:-0}" -ge 17 ]; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq openjdk-17-jre-headless >/dev/null
    exit 0
fi
echo "Java 17 or newer is needed (found: ${have:-none}): install it, for example with 'apt-get install openjdk-17-jre-headless'." >&2
exit 1
