#!/usr/bin/env bash
# Makes a Docker engine and our base image available, also where there is neither an engine nor an image registry.
#
#   docker/engine.sh          an engine answers and the base image is there afterwards; quick when both are there already
#   docker/engine.sh stop     ends the engine that this script started, and no other
#
# 1. An engine that answers is used as it is. Otherwise one is installed by apt and started (root only).
# 2. A base image that is there is used as it is. Otherwise it is pulled. Where that fails within PULL_SECONDS, a stand-in
#    with the same name is made from Debian packages (root only), so that the same Dockerfiles build everywhere.
set -euo pipefail

BASE_IMAGE=${LOCKSTEP_BASE_IMAGE:-eclipse-temurin:17-jre}
PULL_SECONDS=${LOCKSTEP_PULL_SECONDS:-120}
START_SECONDS=60
DEBIAN_SUITE=bookworm
DEBIAN_MIRROR=${LOCKSTEP_DEBIAN_MIRROR:-} # debootstrap's own default when empty
STATE=/var/run/lockstep-docker
PID_FILE=$STATE/dockerd.pid
LOG_FILE=$STATE/dockerd.log

say() { echo "docker/engine.sh: $*" >&2; }
fail() { say "$*"; exit 1; }
need_root() { [ "$(id -u)" = 0 ] || fail "$1 needs root. Run 'sudo docker/engine.sh', or $2."; }
engine_answers() { timeout 10 docker info >/dev/null 2>&1; }
ours_runs() { [ -s "$PID_FILE" ] && [ "$(cat "/proc/$(cat "$PID_FILE")/comm" 2>/dev/null)" = dockerd ]; }

install_packages() {
    need_root "installing $*" "install them yourself"
    command -v apt-get >/dev/null || fail "cannot install $* without apt. Install them yourself, then run this again."
    say "installing $*"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@"; } >&2 ||
        fail "apt could not install $*. See above; 'apt-get update' must reach a Debian mirror."
}

start_engine() {
    engine_answers && return
    [ -z "${DOCKER_HOST:-}" ] || fail "no engine answers at DOCKER_HOST=$DOCKER_HOST. Start it, or unset DOCKER_HOST."
    need_root "starting a Docker engine" "start Docker yourself"
    command -v dockerd >/dev/null || install_packages docker.io
    engine_answers && return # some systems start the service when the package is installed
    mkdir -p "$STATE"
    if ! ours_runs; then
        say "starting dockerd, log in $LOG_FILE"
        setsid dockerd --pidfile "$PID_FILE" >"$LOG_FILE" 2>&1 </dev/null &
    fi
    for _ in $(seq "$START_SECONDS"); do
        engine_answers && return
        sleep 1
    done
    tail -n 20 "$LOG_FILE" >&2
    fail "dockerd did not answer within $START_SECONDS s. The end of $LOG_FILE is above."
}

stop_engine() {
    ours_runs || { say "no engine of ours is running"; return; }
    need_root "stopping the engine" "leave it running"
    local pid
    pid=$(cat "$PID_FILE")
    kill "$pid"
    for _ in $(seq 30); do
        [ -d "/proc/$pid" ] || { say "stopped dockerd $pid"; return; }
        sleep 1
    done
    fail "dockerd $pid is still running after 30 s. See $LOG_FILE."
}

# The stand-in also trusts the authorities that this machine was told to trust, so that builds work behind a proxy.
make_base_image() {
    need_root "making $BASE_IMAGE from Debian packages" "make an image registry reachable"
    command -v debootstrap >/dev/null || install_packages debootstrap debian-archive-keyring
    say "$BASE_IMAGE cannot be pulled: making a stand-in from Debian $DEBIAN_SUITE"
    local root java_home
    root=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$root'" EXIT
    debootstrap --variant=minbase --include=openjdk-17-jre-headless,ca-certificates \
        "$DEBIAN_SUITE" "$root/fs" ${DEBIAN_MIRROR:+"$DEBIAN_MIRROR"} >"$root/log" 2>&1 ||
        { tail -n 20 "$root/log" >&2; fail "debootstrap failed. Its last lines are above."; }
    if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
        cp /usr/local/share/ca-certificates/*.crt "$root/fs/usr/local/share/ca-certificates/"
        chroot "$root/fs" update-ca-certificates >>"$root/log" 2>&1
    fi
    java_home=$(cd "$root/fs" && echo usr/lib/jvm/java-17-openjdk-*)
    rm -rf "$root"/fs/var/cache/apt/archives/*.deb
    tar -C "$root/fs" -c . | docker import \
        --change "ENV JAVA_HOME=/$java_home" \
        --change "ENV PATH=/$java_home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
        --change "ENV LANG=C.UTF-8" \
        --change "LABEL lockstep.stand-in=true" \
        - "$BASE_IMAGE" >/dev/null
}

have_base_image() {
    docker image inspect "$BASE_IMAGE" >/dev/null 2>&1 && return
    say "pulling $BASE_IMAGE"
    timeout "$PULL_SECONDS" docker pull --quiet "$BASE_IMAGE" >&2 && return
    make_base_image
}

case ${1:-start} in
    start) start_engine && have_base_image ;;
    stop) stop_engine ;;
    *) fail "unknown command '$1'. Use: docker/engine.sh [start|stop]" ;;
esac
