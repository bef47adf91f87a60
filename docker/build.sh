#!/usr/bin/env bash
# Builds our images. Needs a Docker engine (see docker/engine.sh) and a Python in which lockstep is installed.
#
#   docker/build.sh [kafka|pipeline]...     both when none is named; PYTHON names the interpreter
#
#   lockstep-kafka:4.3.1        a single broker, from jars that lockstep.broker.jars fetches
#   lockstep-pipeline:latest    the example pipeline, from this tree's wheel
set -euo pipefail

cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
CONTEXTS=build/docker

fail() { echo "docker/build.sh: $*" >&2; exit 1; }
clean_context() { rm -rf "${CONTEXTS:?}/$1" && mkdir -p "$CONTEXTS" && cp -R "docker/$1" "$CONTEXTS/$1"; }

build_kafka() {
    clean_context kafka
    "$PYTHON" - "$CONTEXTS/kafka" <<'END'
import shutil, sys
from pathlib import Path
from lockstep.broker import jars, kraft

context = Path(sys.argv[1])
shutil.copytree(jars.kafka_jars(), context / "jars")
(context / "single-broker.properties").write_text(kraft.render(kraft.SINGLE_BROKER))
(context / "log4j2.properties").write_text(kraft.LOG4J)
(context / "version").write_text(jars.KAFKA_VERSION)
END
    docker build --quiet --tag "lockstep-kafka:$(cat "$CONTEXTS/kafka/version")" "$CONTEXTS/kafka"
}

build_pipeline() {
    clean_context pipeline
    rm -rf build/lib # setuptools would pack modules that are gone from the tree
    "$PYTHON" -m pip wheel --quiet --no-deps --wheel-dir "$CONTEXTS/pipeline/wheels" .
    cp -R examples "$CONTEXTS/pipeline/examples"
    docker build --quiet --tag lockstep-pipeline:latest "$CONTEXTS/pipeline"
}

docker info >/dev/null 2>&1 || fail "no Docker engine answers. Run docker/engine.sh, or start Docker."
"$PYTHON" -c 'import lockstep' 2>/dev/null || fail "$PYTHON has no lockstep. Run 'pip install -e .', or set PYTHON."
[ $# -gt 0 ] || set -- kafka pipeline
for image in "$@"; do
    case $image in
        kafka | pipeline) "build_$image" ;;
        *) fail "unknown image '$image'. Use: docker/build.sh [kafka|pipeline]..." ;;
    esac
done
