"""``lockstep demo`` as a user runs it: every row exactly once through a kill, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from lockstep.cli.demo_check import VisibleRows, compare, table_rows
from lockstep.cli.demo_orders import Order, make_orders
from lockstep.cli.demo_plan import DemoPlan

MARKER = "LOCKSTEP_DEMO_TEST"
LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
PATIENCE_SECONDS = 240.0


@dataclass(frozen=True)
class Demo:
    """A demo in a directory of its own, whose processes can be told from everybody else's."""

    directory: Path
    marker: str

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        self.temporary.mkdir()
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", "demo", *arguments],
            cwd=self.directory,
            env={**os.environ, MARKER: self.marker, "TMPDIR": str(self.temporary)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A shell that runs these tests in the background ignores SIGINT, and the demo would rightly do so too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def processes(self) -> dict[int, str]:
        """Command lines of all that the demo has started and that still runs: they inherit its environment."""
        mark = f"{MARKER}={self.marker}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue  # ended meanwhile
        return found


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    demo = Demo(tmp_path, uuid.uuid4().hex)
    yield demo
    for pid in demo.processes():  # of a failed test
        os.kill(pid, signal.SIGKILL)


def wait_until(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


@LINUX_ONLY
@pytest.mark.timeout(600)
def test_every_order_arrives_exactly_once_through_a_kill_and_nothing_is_left(demo: Demo) -> None:
    process = demo.start("--rows", "4000", "--kills", "1", "--seed", "7", "--out", "report/demo.json")
    output, _ = process.communicate()
    assert process.returncode == 0, output
    report = json.loads((demo.directory / "report" / "demo.json").read_text())
    assert report["rows_in"] == report["rows_out"] == 4000
    assert report["missing"] == report["duplicated"] == report["unexpected"] == report["altered"] == 0
    assert report["offsets_match"] is True
    assert report["kills"] == report["restarts"] == 1
    assert report["seed"] == 7
    assert report["epochs"] > 4
    assert report["seconds"] > 0
    assert "kill 1" in output
    assert "Exactly once" in output
    assert demo.processes() == {}
    assert list(demo.temporary.iterdir()) == []
    assert sorted(path.name for path in demo.directory.iterdir()) == ["report", "tmp"]


@LINUX_ONLY
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_demo_leaves_nothing_running_and_no_files(demo: Demo, name: str) -> None:
    process = demo.start("--rows", "4000", "--kills", "1")
    wait_until(lambda: process.poll() is not None or any("SparkSubmit" in line for line in demo.processes().values()))
    process.send_signal(signal.Signals[name])
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert demo.processes() == {}
    assert list(demo.temporary.iterdir()) == []


def test_the_checker_reads_the_table_itself_and_can_fail(tmp_path: Path) -> None:
    orders = make_orders(DemoPlan(rows=300, kills=0, partitions=1, rate=100, seed=1))
    table = tmp_path / "table"
    assert VisibleRows(table).count() == 0
    append(table, orders[:200])
    watching = VisibleRows(table)
    assert watching.count() == 200
    append(table, orders[200:])
    assert watching.count() == 300
    assert compare(orders, table_rows(table)).exact
    append(table, orders[:3])
    found = compare(orders, table_rows(table))
    assert (found.missing, found.duplicated) == (0, 3)
    found = compare([*orders, orders[0]._replace(order_id=300)], table_rows(table))
    assert (found.missing, found.duplicated) == (1, 3)


def append(table: Path, rows: list[Order]) -> None:
    write_deltalake(str(table), pa.Table.from_pylist([row._asdict() for row in rows]), mode="append")
