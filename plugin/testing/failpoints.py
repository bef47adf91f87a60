"""Crash the driver at a named step of the protocol.

Points, in the order in which an epoch passes them: ``epoch.start``, ``sink.begin.after``, ``sink.write.after``,
``sink.pre_commit.after``, ``record.before``, ``record.after``, ``epoch.end`` on the query's thread; then, once Spark has
decided the epoch, ``metadata.before``, ``metadata.after``, ``sink.commit.before``, ``sink.commit.after``,
``offsets.before``, ``offsets.after``, ``retire.before``, ``retire.after`` on the committer's.

Inside of a sink's commit: ``kafka.commit.before`` and ``kafka.commit.after`` (a transaction is open, is committed),
``files.move.after`` (each file that became visible), ``jdbc.commit.before`` (the database's transaction is open).
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable

from lockstep.protocol import failpoint

POINTS = (
    "epoch.start",
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
SINK_POINTS = ("kafka.commit.before", "kafka.commit.after", "files.move.after", "jdbc.commit.before")


def kill_process_group() -> None:
    """SIGKILL this process and its JVM. Start the driver in a session of its own (``start_new_session=True``)."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def at(point: str, action: Callable[[], None], hit: int = 1) -> None:
    """Run ``action`` when ``point`` is reached for the ``hit``-th time. Replaces what was set before."""
    if point not in POINTS + SINK_POINTS:
        raise ValueError(f"unknown failpoint {point!r}: use one of {', '.join(POINTS + SINK_POINTS)}")
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
    """Turn failpoints off."""
    failpoint.install(None)
