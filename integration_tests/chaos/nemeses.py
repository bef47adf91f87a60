"""The faults. Each strikes a running pipeline, heals what it has done, and says in a line what that was.

After every one of them everything must come back by itself, or with what any supervisor does: start a driver that ended.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable, Field, write_deltalake
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType

from integration_tests.chaos.site import Site, wait_until
from integration_tests.chaos.watchers import FOREIGN, Seen
from lockstep.testing import failpoints

POINTS_HERE = (
    *failpoints.POINTS,
    *failpoints.SOURCE_POINTS,
    *failpoints.OPERATOR_POINTS,
    *(point for point in failpoints.SINK_POINTS if point.startswith(("delta", "kafka"))),
    *failpoints.START_POINTS,
    *failpoints.RARE_POINTS,
)
OVERTAKEN = ("was overtaken by driver", "CONCURRENT_STREAM_LOG_UPDATE", "is decided already")


@dataclass(frozen=True)
class Strike:
    """What a nemesis works with."""

    site: Site
    seen: Seen
    rng: random.Random

    def moments(self, least: float, most: float) -> None:
        time.sleep(self.rng.uniform(least, most))


@dataclass(frozen=True)
class Nemesis:
    """``gentle`` ones must not end the driver."""

    name: str
    strike: Callable[[Strike], str]
    gentle: bool = False
    possible: Callable[[Site], bool] = lambda site: True


# --- drivers --------------------------------------------------------------------------------------------------------


def kill_driver(given: Strike) -> str:
    given.moments(0.0, 2.0)
    given.site.driver.signal(signal.SIGKILL)
    return "SIGKILL to the driver"


def kill_at_point(given: Strike) -> str:
    """At a failpoint; where that is not reached in time (it may be rare), just so."""
    point, hit = given.rng.choice(POINTS_HERE), given.rng.randint(1, 2)
    site = given.site
    if point in failpoints.START_POINTS or point.startswith("sink.abort"):
        site.driver.signal(signal.SIGKILL)
        site.driver.end()
        site.start(failpoint=point)
        reached = site.driver.wait(60) is not None
    else:
        site.driver.tell(failpoint=point, hit=hit)
        if point.startswith("refresh"):
            _add_column(site)
        reached = site.driver.wait(10) is not None
    if not reached:
        site.driver.signal(signal.SIGKILL)
    return f"SIGKILL to the driver at {point}" if reached else f"SIGKILL to the driver, which did not reach {point}"


def pause_driver(given: Strike) -> str:
    """The old driver stands still, a new one takes over and commits, then the old one goes on."""
    site = given.site
    old = site.driver
    point = given.rng.choice((None, "epoch.end", "record.after", "sink.commit.before", "kafka.commit.before"))
    if point is None:
        given.moments(0.0, 1.0)
        old.signal(signal.SIGSTOP)
    else:
        old.tell(failpoint=point, action="pause")
        given.moments(2.0, 3.0)
        old.signal(signal.SIGSTOP)  # if it has not come there
    try:
        site.start()
        goal = dict(site.load.acknowledged)
        wait_until(lambda: given.seen.reaches(goal), 240, f"the new driver takes over; {site.driver.log}")
        old.signal(signal.SIGCONT)
        code = old.wait(120)
        if code is None or code == 0:
            given.seen.broken("undecided", 0, f"the overtaken driver went on (exit code {code}): {old.log}")
        elif not any(words in old.log.read_text(errors="replace") for words in OVERTAKEN):
            given.seen.broken("undecided", 0, f"the overtaken driver does not say why it ended: {old.log}")
    finally:
        old.end()
    return f"SIGSTOP to the driver {f'at {point}' if point else ''}, overtaken, SIGCONT"


def kill_executor(given: Strike) -> str:
    given.moments(0.0, 1.0)
    executors = given.site.driver.executors()
    if not executors:
        return "no executor was there yet"
    os.kill(given.rng.choice(executors), signal.SIGKILL)
    return f"SIGKILL to one of {len(executors)} executors"


def kill_worker(given: Strike) -> str:
    point = given.rng.choice(failpoints.WORKER_POINTS)
    failpoints.kill_worker(given.site.workers, point)
    armed = given.site.workers / point
    wait_until(lambda: not armed.exists() or not given.site.driver.running, 60, f"a Python worker reaches {point}")
    armed.unlink(missing_ok=True)
    return f"SIGKILL to a Python worker at {point}"


# --- Kafka ----------------------------------------------------------------------------------------------------------


def kill_broker(given: Strike) -> str:
    cluster = given.site.cluster
    everyone = list(range(cluster.size))
    victims = everyone if given.rng.random() < 0.25 else [given.rng.choice(everyone)]
    cluster.kill(victims)
    given.moments(0.0, 4.0)
    cluster.start(victims)
    return f"SIGKILL to {len(victims)} of {cluster.size} brokers"


def pause_broker(given: Strike) -> str:
    cluster = given.site.cluster
    victim = given.rng.randrange(cluster.size)
    seconds = given.rng.uniform(2.0, 12.0)
    cluster.pause(victim)
    try:
        time.sleep(seconds)
    finally:
        cluster.resume(victim)
    return f"SIGSTOP to a broker for {seconds:.0f} s"


def cut_network(given: Strike) -> str:
    network = given.site.cluster.network
    mode, seconds = given.rng.choice(("silent", "reset")), given.rng.uniform(1.0, 10.0)
    network.cut(mode)
    try:
        time.sleep(seconds)
    finally:
        network.heal()
    return f"network between driver and brokers cut ({mode}) for {seconds:.0f} s"


# --- the checkpoint directory ---------------------------------------------------------------------------------------


def read_only(given: Strike) -> str:
    volume = given.site.volume
    volume.make_read_only()
    try:
        given.moments(0.5, 4.0)
    finally:
        volume.make_writable()
    return "checkpoint directory read-only"


def disk_full(given: Strike) -> str:
    volume = given.site.volume
    volume.fill()
    try:
        given.moments(0.5, 4.0)
    finally:
        volume.empty()
    return "checkpoint directory full"


# --- the table ------------------------------------------------------------------------------------------------------


def optimize(given: Strike) -> str:
    metrics = _retried(lambda: DeltaTable(str(given.site.table)).optimize.compact())
    return f"OPTIMIZE: {metrics['numFilesRemoved']} files into {metrics['numFilesAdded']}"


def vacuum(given: Strike) -> str:
    """With the retention that the table asks for."""
    removed = _retried(
        lambda: DeltaTable(str(given.site.table)).vacuum(dry_run=False, enforce_retention_duration=False, full=True)
    )
    return f"VACUUM: {len(removed)} files"


def alter(given: Strike) -> str:
    if given.rng.random() < 0.5:
        return f"ALTER TABLE: column {_add_column(given.site)} added"
    days = given.rng.randint(20, 60)
    properties = {"delta.logRetentionDuration": f"interval {days} days"}
    _retried(lambda: DeltaTable(str(given.site.table)).alter.set_table_properties(properties))
    return "ALTER TABLE: property set"


def second_writer(given: Strike) -> str:
    """Another program appends to the same table, in several commits."""
    commits = given.rng.randint(2, 6)
    for _ in range(commits):
        _append_foreign(given.site, given.rng.randint(1, 5))
        given.moments(0.0, 0.3)
    return f"{commits} commits of another writer"


def _append_foreign(site: Site, rows: int) -> None:
    first = len(site.foreign)
    numbers = list(range(first, first + rows))
    table = pa.table(
        {
            "partition": pa.array([FOREIGN] * rows, pa.int32()),
            "offset": pa.array(numbers, pa.int64()),
            "id": pa.array([-1] * rows, pa.int64()),
            "account": pa.array(["other"] * rows, pa.string()),
            "count": pa.array([0] * rows, pa.int64()),
        }
    )
    _retried(lambda: write_deltalake(str(site.table), table, mode="append", schema_mode="merge"))
    site.foreign += numbers


def _add_column(site: Site) -> str:
    name = f"extra_{site.altered}"
    _retried(
        lambda: DeltaTable(str(site.table)).alter.add_columns([Field(name, PrimitiveType("string"), nullable=True)])
    )
    site.altered += 1
    return name


def _retried(work: Callable[[], object]) -> object:
    """Delta lets one of two writers that conflict try again; it must then succeed."""
    for _ in range(20):
        try:
            return work()
        except DeltaError as error:
            last = error
            time.sleep(0.1)
    raise last


NEMESES = (
    Nemesis("kill-driver", kill_driver),
    Nemesis("kill-at-point", kill_at_point),
    Nemesis("pause-driver", pause_driver),
    Nemesis("kill-executor", kill_executor, possible=lambda site: site.setup.has_executors),
    Nemesis("kill-worker", kill_worker),
    Nemesis("kill-broker", kill_broker),
    Nemesis("pause-broker", pause_broker),
    Nemesis("cut-network", cut_network),
    Nemesis("read-only", read_only, possible=lambda site: site.volume.is_own),
    Nemesis("disk-full", disk_full, possible=lambda site: site.volume.is_own),
    Nemesis("optimize", optimize, gentle=True),
    Nemesis("vacuum", vacuum, gentle=True),
    Nemesis("alter", alter, gentle=True),
    Nemesis("second-writer", second_writer, gentle=True),
)
