"""Apache Flink in a virtualenv and a JVM of its own, which take jobs until the session ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from benchmarks.suite.ground import place
from lockstep.broker.jars import fetch
from lockstep.sources.kafka import CLIENT_DEFAULTS

ROOT = Path(__file__).parent.parent.parent
PYTHON = ROOT / "build" / "flink-venv" / "bin" / "python"
_REQUIREMENTS = (ROOT / "benchmarks" / "flink" / "requirements.txt").read_text()
VERSION = re.findall(r"^apache-flink==(\S+)$", _REQUIREMENTS, re.MULTILINE)[0]
JARS = (
    "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2",
    "org.apache.flink:flink-parquet:2.2.0",
    "org.apache.hadoop:hadoop-client-api:3.3.6",  # Parquet's own writer needs it
    "org.apache.hadoop:hadoop-client-runtime:3.3.6",
)
_END_SECONDS = 30
_TAIL_LINES = 30


class FlinkSession:
    """One Flink for all rounds of a work: entered before the first, left after the last.

    Promised: :meth:`ready` starts nothing, and says what to do when something is missing. Java, Flink's Python workers and
    all their files are gone when the session ends. If this process is killed, Flink ends by itself.
    """

    def __init__(self, heap: str = "4g") -> None:
        self._heap = heap

    def ready(self) -> None:
        if not PYTHON.exists():
            raise SystemExit(
                f"Flink is not there: {PYTHON.relative_to(ROOT)} is missing. 'make bench-flink' installs it."
            )
        _jars()

    def __enter__(self) -> FlinkSession:
        with ExitStack() as stack:
            self._directory = stack.enter_context(place())
            self._log = stack.enter_context((self._directory / "log").open("wb"))
            self._process = subprocess.Popen(
                [PYTHON, "-m", "benchmarks.flink.serve"],
                cwd=ROOT,
                env={**os.environ, **_environment(self._directory, self._heap)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                start_new_session=True,
            )
            stack.callback(self._end)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, job: str, servers: str, topic: str, directory: Path, checkpoint_seconds: float) -> float:
        """Run a job of ``benchmarks.flink.serve`` until it has ended, and tell when it was submitted."""
        client = {name.removeprefix("kafka."): setting for name, setting in CLIENT_DEFAULTS.items()}
        order = {"job": job, "servers": servers, "topic": topic, "directory": str(directory), "client": client}
        answer = self._ask({**order, "checkpoint_seconds": checkpoint_seconds})
        if "begun" not in answer:
            raise SystemExit(f"Flink, {job}: {answer.get('failed', 'its process has ended')}\n{self._tail()}")
        return float(answer["begun"])

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        return dict(json.loads(self._process.stdout.readline() or "{}"))

    def _tail(self) -> str:
        return "\n".join((self._directory / "log").read_text(errors="replace").splitlines()[-_TAIL_LINES:])

    def _end(self) -> None:
        """It ends when nobody talks to it any more; what is left of its process group then is killed."""
        assert self._process.stdin  # noqa: S101
        assert self._process.stdout  # noqa: S101
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()


def _jars() -> Path:
    return fetch(JARS, f"flink-{VERSION}")


def _environment(directory: Path, heap: str) -> dict[str, str]:
    return {
        "JVM_ARGS": f"-Xms{heap} -Xmx{heap} -Djava.io.tmpdir={directory}",
        "HADOOP_CLASSPATH": f"{_jars()}/*",  # for all jars: what Java itself loads stays compiled from job to job
        "FLINK_LOG_DIR": str(directory),
        "TMPDIR": str(directory),
        "PYTHONPATH": str(ROOT),  # for the workers
        "_python_worker_execution_mode": "process",  # in a mini-cluster they would be threads of the client
    }
