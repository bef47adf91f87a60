"""The pipeline under test: two topics, a table, a checkpoint directory, rows that keep coming, and the drivers."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
from confluent_kafka import Producer

from integration_tests.chaos.cluster import Cluster
from integration_tests.chaos.volume import Volume
from lockstep.testing.temporary import environment_with_temporary

WORK = Path(pyspark.__file__).with_name("work")  # of local clusters
DRIVER = Path(__file__).parents[1] / "driver.py"
PARTITIONS = 2
RETENTION_MINUTES = 2  # of files that the table has let go: VACUUM really removes some


@dataclass(frozen=True)
class Setup:
    """How the pipeline runs. The seed draws one for each segment of the run."""

    master: str
    state_backend: str
    checkpoint_interval: str | None
    rows_per_second: int

    @property
    def has_executors(self) -> bool:
        return self.master.startswith("local-cluster")

    def options(self) -> dict[str, str]:
        options = {"spark.lockstep.stateBackend": self.state_backend}
        if self.checkpoint_interval is not None:
            options["spark.lockstep.interval"] = self.checkpoint_interval
        return options


class Load:
    """Rows that keep coming, numbered, from a producer that repeats none by itself."""

    def __init__(self, servers: str, topic: str, rows_per_second: int) -> None:
        self._topic = topic
        self._each = max(1, rows_per_second // 20)
        self._producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 5})
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._sent = 0
        self.acknowledged = dict.fromkeys(range(PARTITIONS), 0)  # rows, by partition
        self.problems: list[str] = []
        self._thread.start()

    def stop(self) -> int:
        """How many rows were produced in all."""
        self._stop.set()
        self._thread.join()
        self._producer.flush()
        return self._sent

    def _run(self) -> None:
        try:
            self._produce()
        except Exception as error:
            self.problems.append(f"the load has ended: {error!r}")

    def _produce(self) -> None:
        while not self._stop.wait(0.05):
            for _ in range(self._each):
                with contextlib.suppress(BufferError):
                    partition = self._sent % PARTITIONS
                    self._producer.produce(
                        self._topic, value=str(self._sent), partition=partition, on_delivery=self._delivered
                    )
                    self._sent += 1
            self._producer.poll(0)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.problems.append(f"a row was not produced: {error}")
        else:  # counted: when the answer was lost and the broker knows the row already, its offset is not told
            self.acknowledged[message.partition()] += 1


class Driver:
    """One driver process, in a session of its own."""

    def __init__(self, settings: dict[str, Any], log: Path, started: Path) -> None:
        self.log = log
        self._started = started
        self._temporary = started.with_suffix(".temporary")
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, str(DRIVER), json.dumps({**settings, "started": str(started)})],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=environment_with_temporary(self._temporary),
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def has_started(self) -> bool:
        return self._started.exists()

    def tell(self, **command: Any) -> None:
        """A command; one that comes too late is lost with its driver."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def signal(self, what: signal.Signals) -> None:
        """To Python, the JVM, its executors and all workers."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, what)

    def wait(self, seconds: float) -> int | None:
        """The exit code; ``None`` when it still runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def end(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def executors(self) -> list[int]:
        """Process ids of the executors' JVMs."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                session = int((process / "stat").read_text().rpartition(")")[2].split()[3])
                is_executor = b"CoarseGrainedExecutorBackend" in (process / "cmdline").read_bytes()
                if session == self._process.pid and is_executor:
                    found.append(int(process.name))
        return found

    def tail(self, characters: int = 5000) -> str:
        return self.log.read_text(errors="replace")[-characters:]


class Site:
    """Everything of one segment. It outlives its drivers."""

    def __init__(self, root: Path, cluster: Cluster, setup: Setup, name: str) -> None:
        self.root = root
        self.cluster = cluster
        self.setup = setup
        self._began = time.time()
        self.topic, self.out, self.group = f"in-{name}", f"out-{name}", f"group-{name}"
        self.table = root / "table"
        self.volume = Volume(root / "volume")
        self.checkpoint = self.volume.path / "checkpoint"
        self.workers = root / "workers"
        self.workers.mkdir()
        self.starts = 0
        self.foreign: list[int] = []  # numbers of rows that another writer has committed to the table
        self.altered = 0
        for topic in (self.topic, self.out):
            cluster.create_topic(topic, PARTITIONS)
        self.load = Load(cluster.bootstrap_servers, self.topic, setup.rows_per_second)
        self.driver = self.start()

    def start(self, **settings: Any) -> Driver:
        """A new driver on the directory; whoever has the old one minds it."""
        self.starts += 1
        everything = {
            "bootstrap_servers": self.cluster.servers_of_drivers,
            "topic": self.topic,
            "group": self.group,
            "out": self.out,
            "table": str(self.table),
            "table_properties": {"delta.deletedFileRetentionDuration": f"interval {RETENTION_MINUTES} minutes"},
            "checkpoint": str(self.checkpoint),
            "workers": str(self.workers),
            "rows_per_epoch": 5000,
            "master": self.setup.master,
            "options": self.setup.options(),
            **settings,
        }
        name = f"driver-{self.starts}"
        self.driver = Driver(everything, self.root / f"{name}.log", self.root / f"{name}.started")
        return self.driver

    def revive(self) -> None:
        """What a supervisor does: start a new driver when the last one has ended."""
        if not self.driver.running:
            self.driver.end()
            self.start()

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Whatever happens, no process and no mount is left."""
        try:
            yield
        finally:
            self.load.stop()
            self.driver.end()
            self.volume.release()
            for application in WORK.glob("app-*"):  # a local cluster's copies of the jars
                if application.stat().st_mtime >= self._began:
                    shutil.rmtree(application, ignore_errors=True)


def wait_until(condition: Any, seconds: float, what: str) -> float:
    """How long it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > seconds:
            raise TimeoutError(f"not within {seconds:g} s: {what}")
        time.sleep(0.05)
    return time.monotonic() - began
