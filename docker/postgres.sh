#!/usr/bin/env bash
# Makes PostgreSQL's programs available for the tests: nothing to do where they are there, installed on Debian and its kin
# as root, a clear line otherwise. No cluster is created and no service is started.
set -euo pipefail

if compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null; then
    exit 0
fi
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
    mkdir -p /etc/postgresql-common
    [ -e /etc/postgresql-common/createcluster.conf ] ||
        echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
    apt-get update -qq
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends -o Dpkg::Options::=--force-confold postgresql >/dev/null
    exit 0
fi
echo "PostgreSQL's server programs are needed in /usr/lib/postgresql: 'apt-get install postgresql'." >&2
exit 1
