"""Looks at a running pipeline from outside, without Lockstep or Spark: kafka-python, psql, delta-rs, raw log files."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError

from integration_tests.clients import until_the_end
from integration_tests.targets import Row


@dataclass
class Observer:
    """Reads group offsets and all targets all the time, and notes every broken promise."""

    bootstrap_servers: str
    topic: str
    group: str
    readers: dict[str, Callable[[], list[Row]]]
    checkpoint: str
    violations: list[str] = field(default_factory=list)
    looks: int = 0
    largest_look: int = 0
    offset_moves: set[tuple[tuple[int, int], ...]] = field(default_factory=set)
    partial_views: dict[str, set[int]] = field(
        default_factory=dict
    )  # numbers of rows seen: shows that growth was observed

    def __post_init__(self) -> None:
        self._admin = until_the_end(KafkaAdminClient(bootstrap_servers=self.bootstrap_servers))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
            except Exception as error:
                self.violations.append(f"the observer failed: {error!r}")
                return
            time.sleep(0.5)  # a look costs CPU, and there are few cores

    def look(self) -> None:
        """One look. Offsets are read before the targets: what they promise must be in all of them by then."""
        offsets = self.group_offsets()
        for name, read in self.readers.items():
            counts = Counter(read())
            repeated = [row for row, count in counts.items() if count > 1]
            if repeated:
                self.violations.append(f"{len(repeated)} rows are in {name} twice, first {repeated[0]}")
            for partition, offset in offsets.items():
                missing = [n for n in range(offset) if (partition, n) not in counts]
                if missing:
                    self.violations.append(
                        f"the group is at {offset} of partition {partition}, but row {missing[0]} is not in {name}"
                    )
            self._check_epochs(name, counts)
            self.largest_look = max(self.largest_look, counts.total())
            self.partial_views.setdefault(name, set()).add(counts.total())
        self.looks += 1
        self.offset_moves.add(tuple(sorted(offsets.items())))

    def group_offsets(self) -> dict[int, int]:
        try:
            offsets = self._admin.list_group_offsets(self.group)[self.group]
        except (CoordinatorNotAvailableError, NotCoordinatorError, CoordinatorLoadInProgressError):
            return {}  # the broker makes its offsets topic when the first group is asked for
        return {tp.partition: o.offset for tp, o in offsets.items() if tp.topic == self.topic and o.offset >= 0}

    def _check_epochs(self, name: str, visible: Counter[Row]) -> None:
        """Every epoch is visible whole or not at all, and only if Spark has decided it. Decisions are read last."""
        before: dict[int, int] = {}
        for epoch, ends in sorted(self._barriers().items()):
            rows = [(p, n) for p, end in ends.items() for n in range(before.get(p, 0), end)]
            seen = sum(row in visible for row in rows)
            if 0 < seen < len(rows):
                self.violations.append(f"epoch {epoch} is torn in {name}: {seen} of {len(rows)} rows are visible")
            if seen and epoch > self._decided():
                self.violations.append(f"epoch {epoch} is visible in {name}, and Spark has not decided it")
            before = ends

    def _barriers(self) -> dict[int, dict[int, int]]:
        """End offsets by epoch, from Spark's own log. Only a gapless run from epoch 0 tells where each epoch begins."""
        barriers = {}
        directory = Path(self.checkpoint, "offsets")
        epoch = 0
        while (path := directory / str(epoch)).exists():
            lines = path.read_text().splitlines()
            if len(lines) < 3:
                break
            ends = next(parsed for line in lines[2:] if self.topic in (parsed := json.loads(line)))
            barriers[epoch] = {int(p): end for p, end in ends[self.topic].items()}
            epoch += 1
        return barriers

    def _decided(self) -> int:
        directory = Path(self.checkpoint, "commits")
        return max((int(f.name) for f in directory.glob("[0-9]*")), default=-1) if directory.exists() else -1
