"""Starts, kills and restarts drivers on one checkpoint directory, while rows keep coming."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from integration_tests.observer import Observer
from integration_tests.targets import Row, Targets, read_rows
from lockstep.testing.temporary import environment_with_temporary

DRIVER = Path(__file__).with_name("driver.py")


@dataclass
class CrashSite:
    """A topic, a table, perhaps more targets, and a checkpoint directory that outlive their drivers."""

    root: Path
    bootstrap_servers: str
    topic: str
    targets: Targets | None = None
    rows_per_epoch: int = 100
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.table = self.targets.table if self.targets else str(self.root / "table")
        self.checkpoint = str(self.root / "checkpoint")
        self.produced = 0
        self._runs = 0
        self._producer = Producer({"bootstrap.servers": self.bootstrap_servers, "linger.ms": 5})

    def produce(self, rows: int) -> None:
        for _ in range(rows):
            self._producer.produce(self.topic, value=str(self.produced), partition=self.produced % 2)
            self.produced += 1
        self._producer.flush()

    @contextlib.contextmanager
    def producing(self, rows_per_second: int) -> Iterator[None]:
        """Rows keep coming meanwhile."""
        stop = threading.Event()

        def keep_going() -> None:
            while not stop.wait(0.1):
                self.produce(max(1, rows_per_second // 10))

        thread = threading.Thread(target=keep_going, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def start(self, **settings: Any) -> subprocess.Popen[bytes]:
        self._runs += 1
        everything = {
            "bootstrap_servers": self.bootstrap_servers,
            "topic": self.topic,
            "group": self.group,
            "table": self.table,
            "checkpoint": self.checkpoint,
            "started": str(self.root / f"started-{self._runs}"),
            "rows_per_epoch": self.rows_per_epoch,
            "options": self.options,
            **(self.targets.settings() if self.targets else {}),
            **settings,
        }
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps(everything)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment_with_temporary(self.temporary),
            )

    @property
    def temporary(self) -> Path:
        """What killed drivers leave behind, 100 MB each; to be removed when all have ended."""
        return self.root / "temporary"

    @property
    def log(self) -> Path:
        """What the newest driver printed."""
        return self.root / f"driver-{self._runs}.log"

    def run_to_end(self, **settings: Any) -> None:
        """A driver that takes all that is there and ends by itself."""
        driver = self.start(available_now=True, **settings)
        try:
            assert driver.wait(timeout=180) == 0, self.tail()
        finally:
            end(driver)

    def tail(self) -> str:
        return f"{self.log.name}:\n" + self.log.read_text(errors="replace")[-6000:]

    def decided(self) -> int:
        commits = Path(self.checkpoint, "commits")
        return max((int(f.name) for f in commits.glob("[0-9]*")), default=-1) if commits.exists() else -1

    def readers(self) -> dict[str, Callable[[], list[Row]]]:
        others = self.targets.readers() if self.targets else {}
        return {"the Delta table": lambda: read_rows(self.table), **others}

    def expected_rows(self) -> list[tuple[int, int]]:
        return sorted((i % 2, i // 2) for i in range(self.produced))


def end(driver: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of a driver."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    if driver.stdin is not None:
        driver.stdin.close()


def wait_until(condition: Any, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def die_at_each(
    site: CrashSite, points: tuple[str, ...], while_dead: Callable[[str, Observer], None] = lambda point, observer: None
) -> None:
    """One directory, one kill per point: every start recovers from the kill before it, under load."""
    site.produce(300)
    with observe(site) as observer:
        with site.producing(rows_per_second=30):
            for number, point in enumerate(points):
                driver = site.start(failpoint=point, hit=2 + number % 2)
                try:
                    assert driver.wait(timeout=120) == -signal.SIGKILL, f"{point}: {site.tail()}"
                finally:
                    end(driver)
                while_dead(point, observer)
                assert not observer.violations, f"{point}: {observer.violations[:5]}"
        site.run_to_end(rows_per_epoch=1000)
    assert_exactly_once(site, observer)
    assert observer.looks > 20
    for name, views in observer.partial_views.items():
        assert len(views) > 5, f"the observer must have seen {name} grow"
    assert len(observer.offset_moves) > 3, "the observer must have seen the group move"


def observe(site: CrashSite) -> Observer:
    return Observer(site.bootstrap_servers, site.topic, site.group, site.readers(), site.checkpoint)


def assert_exactly_once(site: CrashSite, observer: Observer) -> None:
    assert not observer.violations, observer.violations[:5]
    for name, read in site.readers().items():
        assert sorted(read()) == site.expected_rows(), name
    if site.targets:
        assert_same_rows_and_state(site.targets, site.produced)
    assert sum(observer.group_offsets().values()) == site.produced
    assert not [f for f in Path(site.checkpoint, "lockstep", "prepared").glob("*") if f.name[0].isdigit()]


def assert_same_rows_and_state(targets: Targets, produced: int) -> None:
    """All targets hold the same rows, and the state behind them has counted each input row once."""
    table = sorted(targets.read_table())
    assert table == sorted(targets.read_topic())
    assert table == sorted(targets.read_postgres())
    assert table == sorted(targets.read_files())
    assert sorted(row[2] for row in table) == list(range(produced))
    counts = defaultdict(list)
    for *_, account, count in table:
        counts[account].append(count)
    assert all(sorted(seen) == list(range(1, len(seen) + 1)) for seen in counts.values())
