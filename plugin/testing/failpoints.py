"""Crash the driver, or a Python worker, at a named step.

``POINTS`` are passed by every epoch of every query, in this order: first on the query's thread, up to ``epoch.end``; then,
once Spark has decided the epoch, on the committer's. The others are passed by those who have such a part, or when it comes
to it: ``SOURCE_POINTS`` (offsets go to a consumer group), ``OPERATOR_POINTS`` (a keyed operator, in the driver),
``WORKER_POINTS`` (the same, in a Python worker, for each key group), ``SINK_POINTS`` (inside of a sink's commit),
``START_POINTS`` (a driver takes over a directory), ``RARE_POINTS`` (staged rows are aborted; a target has changed, and
they are staged again), ``SAVEPOINT_POINTS`` (a savepoint is made, a directory is restored from one).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lockstep.protocol import failpoint

POINTS = (
    "epoch.start",
    "source.barrier.after",
    "sink.begin.after",
    "sink.write.after",
    "sink.pre_commit.after",
    "record.before",
    "record.after",
    "epoch.end",
    "metadata.before",
    "metadata.after",
    "sink.commit.before",
    "sink.commit.after",
    "offsets.before",
    "offsets.after",
    "retire.before",
    "retire.after",
)
SOURCE_POINTS = ("source.commit.before", "source.commit.after")
OPERATOR_POINTS = ("operator.begin.after", "operator.acknowledge.after")
WORKER_POINTS = ("operator.state.before", "operator.state.after")
SINK_POINTS = (
    "delta.commit.before",
    "delta.commit.after",
    "kafka.commit.before",
    "kafka.commit.after",
    "files.move.after",
    "files.marker.before",
    "jdbc.commit.before",
    "jdbc.commit.after",
)
START_POINTS = ("recovery.before", "recovery.after")
SAVEPOINT_POINTS = (
    "savepoint.before",
    "restore.marked",
    "restore.copied",
    "restore.state.after",
    "restore.offsets.after",
    "restore.before",
    "restore.after",
    "rewind.planned",
    "rewind.table.after",
    "rewind.restored",
)
RARE_POINTS = ("sink.abort.before", "sink.abort.after", "refresh.before", "refresh.after")
DRIVER_POINTS = POINTS + SOURCE_POINTS + OPERATOR_POINTS + SINK_POINTS + START_POINTS + RARE_POINTS + SAVEPOINT_POINTS


def kill_process_group() -> None:
    """SIGKILL this process and its JVM. Start the driver in a session of its own (``start_new_session=True``)."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def at(point: str, action: Callable[[], None], hit: int = 1) -> None:
    """Run ``action`` when ``point`` is reached for the ``hit``-th time. Replaces what was set before."""
    _require_known(point, DRIVER_POINTS)
    hits: Counter[str] = Counter()

    def reached(name: str) -> None:
        hits[name] += 1
        if name == point and hits[name] == hit:
            action()

    failpoint.install(reached)


def watch(hook: Callable[[str], None]) -> None:
    """Call ``hook`` with the name of every point that is reached."""
    failpoint.install(hook)


def clear() -> None:
    """Turn failpoints off; in workers, for operators that are made from now on."""
    failpoint.install(None)
    failpoint.install_in_workers(None)


def kill_workers_through(directory: str | Path) -> None:
    """Let the workers of operators that are made from now on look into ``directory`` for what :func:`kill_worker` asks.

    It must be a directory that driver and workers share.
    """
    failpoint.install_in_workers(_KillWorker(str(directory)))


def kill_worker(directory: str | Path, point: str) -> None:
    """The next Python worker that reaches ``point`` dies by SIGKILL; one, once."""
    _require_known(point, WORKER_POINTS)
    Path(directory).mkdir(parents=True, exist_ok=True)
    Path(directory, point).touch()


@dataclass(frozen=True)
class _KillWorker:
    directory: str

    def __call__(self, point: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            Path(self.directory, point).unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def _require_known(point: str, known: tuple[str, ...]) -> None:
    if point not in known:
        raise ValueError(f"unknown failpoint {point!r}: use one of {', '.join(known)}")
