"""Readers that look at everything all the time: delta-rs, kafka-python and raw files; nothing of Lockstep or Spark.

A look at the table must show the cut of exactly one epoch that Spark has decided: in every partition the rows from the
first to that epoch's end, none missing, none twice; and the state's own numbers in these rows must count them.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from integration_tests.chaos.site import PARTITIONS, Site

FOREIGN = -1  # the partition in rows of another writer
COLUMNS = ["partition", "offset", "id", "account", "count"]
Positions = dict[int, int]  # by partition: rows before this offset


@dataclass(frozen=True)
class Violation:
    """A broken promise: ``lost``, ``duplicated``, ``torn``, ``undecided``, ``ahead`` (the group), ``state``, ``orphan``."""

    kind: str
    rows: int
    text: str


@dataclass
class Seen:
    """What all watchers share."""

    violations: list[Violation] = field(default_factory=list)
    looks: Counter[str] = field(default_factory=Counter)
    blinks: Counter[str] = field(default_factory=Counter)  # looks that the fault itself made impossible
    offsets: Positions = field(default_factory=dict)  # of the group
    table: Positions = field(default_factory=dict)
    topic: Positions = field(default_factory=dict)

    def broken(self, kind: str, rows: int, text: str) -> None:
        self.violations.append(Violation(kind, rows, text))

    def reaches(self, goal: Positions) -> bool:
        """Whether everybody can see the rows up to ``goal``."""
        return all(
            self.table.get(partition, 0) >= end and self.topic.get(partition, 0) >= end
            for partition, end in goal.items()
        )


class Watchers:
    """Runs the watchers of a site in threads of their own."""

    def __init__(self, site: Site) -> None:
        self.seen = Seen()
        self.barriers = Barriers(site)
        self.topic = TopicWatcher(site, self.seen, self.barriers)
        self._offsets = OffsetWatcher(site, self.seen)
        self._stop = threading.Event()
        looks = {
            "barriers": self.barriers.look,
            "offsets": self._offsets.look,
            "table": TableWatcher(site, self.seen, self.barriers).look,
            "topic": self.topic.look,
        }
        pauses = {"barriers": 0.1, "offsets": 0.5, "table": 0.7, "topic": 0.4}
        self._threads = [
            threading.Thread(target=self._run, args=(name, look, pauses[name]), daemon=True)
            for name, look in looks.items()
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self.topic.close()
        self._offsets.close()

    def _run(self, name: str, look: Any, pause: float) -> None:
        while not self._stop.wait(pause):
            try:
                look()
                self.seen.looks[name] += 1
            except (KafkaError, TimeoutError):
                self.seen.blinks[name] += 1  # brokers are down: nobody can look
            except Exception as error:
                self.seen.broken("lost", 0, f"the reader of {name} failed: {error!r}")
                return


class Barriers:
    """Where each epoch ends, remembered from Spark's offset log, of which Spark keeps only the newest."""

    def __init__(self, site: Site) -> None:
        self._directory = site.checkpoint / "offsets"
        self._commits = site.checkpoint / "commits"
        self._topic = site.topic
        self.ends: dict[int, Positions] = {}
        self._first_at: dict[tuple[tuple[int, int], ...], int] = {}  # empty epochs end where the one before does

    def look(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for file in self._directory.iterdir():
                if file.name.isdigit() and int(file.name) not in self.ends:
                    self._read(file)

    def _read(self, file: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            for line in file.read_text().splitlines()[2:]:
                positions = json.loads(line) if line.startswith("{") else {}
                if self._topic in positions:
                    epoch, ends = int(file.name), {int(p): end for p, end in positions[self._topic].items()}
                    self.ends[epoch] = ends
                    cut = tuple(sorted(ends.items()))
                    self._first_at[cut] = min(epoch, self._first_at.get(cut, epoch))

    def epoch_at(self, positions: Positions) -> int | None:
        """The first epoch whose cut this is."""
        self.look()
        return self._first_at.get(tuple(sorted(positions.items())))

    def decided(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return max((int(file.name) for file in self._commits.iterdir() if file.name.isdigit()), default=-1)
        return -1


class OffsetWatcher:
    """The consumer group, as any lag monitor sees it."""

    def __init__(self, site: Site, seen: Seen) -> None:
        self._site, self._seen = site, seen
        self._admin = admin_client(site)

    def look(self) -> None:
        self._seen.offsets = group_offsets(self._admin, self._site)

    def close(self) -> None:
        self._admin.close()


class TableWatcher:
    """The Delta table, as delta-rs reads it."""

    def __init__(self, site: Site, seen: Seen, barriers: Barriers) -> None:
        self._site, self._seen, self._barriers = site, seen, barriers

    def look(self) -> None:
        promised, foreign = self._seen.offsets, len(self._site.foreign)  # before the table: it must have them by then
        try:
            rows = read_table(self._site.table)
        except TableNotFoundError:
            return
        self._check_foreign(rows, foreign)
        positions = self._check_rows(rows)
        if positions is None:
            return
        if any(positions.values()):
            epoch = self._barriers.epoch_at(positions)
            if epoch is None:
                self._seen.broken("torn", 1, f"the table shows {positions}, which is no epoch's end")
            elif epoch > self._barriers.decided():
                self._seen.broken("undecided", 1, f"the table shows epoch {epoch}, which Spark has not decided")
        _check_group(self._seen, promised, positions, "the table")
        self._seen.table = positions

    def _check_rows(self, rows: pa.Table) -> Positions | None:
        partition, offset = rows["partition"].to_numpy(), rows["offset"].to_numpy()
        positions: Positions = {}
        whole = True
        for number in range(PARTITIONS):
            offsets = offset[partition == number]
            distinct = np.unique(offsets)
            if len(distinct) < len(offsets):
                self._seen.broken(
                    "duplicated", len(offsets) - len(distinct), f"rows of partition {number} in the table"
                )
            end = int(distinct[-1]) + 1 if len(distinct) else 0
            if end > len(distinct):
                missing = sorted(set(range(end)) - set(distinct.tolist()))
                self._seen.broken("torn", len(missing), f"partition {number} in the table: {missing[:5]}… not visible")
                whole = False
            positions[number] = end
        own = partition >= 0
        for problem in check_counts(rows.filter(pa.array(own))):
            self._seen.broken("state", 1, f"in the table: {problem}")
        return positions if whole else None

    def _check_foreign(self, rows: pa.Table, acknowledged: int) -> None:
        there = Counter(rows["offset"].to_numpy()[rows["partition"].to_numpy() == FOREIGN].tolist())
        lost = [number for number in self._site.foreign[:acknowledged] if number not in there]
        twice = [number for number, count in there.items() if count > 1]
        if lost:
            self._seen.broken("lost", len(lost), f"rows of the other writer: {lost[:5]}")
        if twice:
            self._seen.broken("duplicated", len(twice), f"rows of the other writer: {twice[:5]}")


class TopicWatcher:
    """The output topic, as a read-committed consumer sees it. It remembers when it saw each row first."""

    def __init__(self, site: Site, seen: Seen, barriers: Barriers) -> None:
        self._site, self._seen, self._barriers = site, seen, barriers
        self._consumer: KafkaConsumer | None = None
        self._look = 0
        self._rows: dict[tuple[int, int], tuple[int, int]] = {}  # row → partition of the topic, first look
        self._end = dict.fromkeys(range(PARTITIONS), 0)
        self._partitions = [TopicPartition(site.out, number) for number in range(PARTITIONS)]

    def look(self) -> None:
        promised = self._seen.offsets
        if self._consumer is None:
            self._consumer = consumer(self._site)
            self._consumer.assign(self._partitions)
            self._consumer.seek_to_beginning(*self._partitions)
        ends = self._consumer.end_offsets(self._partitions)
        self._look += 1
        deadline = time.monotonic() + 20
        while any(self._consumer.position(one) < ends[one] for one in self._partitions):
            if time.monotonic() > deadline:
                raise TimeoutError("the topic can't be read up to its end")
            for records in self._consumer.poll(timeout_ms=200).values():
                for record in records:
                    in_time = record.offset < ends[TopicPartition(record.topic, record.partition)]
                    self._note(record, self._look if in_time else self._look + 1)
        self._advance()
        _check_group(self._seen, promised, self._end, "the topic")
        self._seen.topic = dict(self._end)

    def _note(self, record: Any, look: int) -> None:
        value = json.loads(record.value)
        row = (int(value["partition"]), int(value["offset"]))
        if row in self._rows:
            self._seen.broken(
                "duplicated", 1, f"row {row} is in the topic twice, at {record.partition}/{record.offset}"
            )
        self._rows[row] = (record.partition, look)

    def _advance(self) -> None:
        for partition in self._end:
            while (partition, self._end[partition]) in self._rows:
                self._end[partition] += 1

    def check_torn(self) -> None:
        """A reader sees an epoch's rows in a partition of the topic all at once. Called at the end."""
        first_look: dict[tuple[int, int], int] = {}
        torn = set()
        for row, (partition, look) in self._rows.items():
            epoch = self._epoch_of(row)
            if first_look.setdefault((epoch, partition), look) != look:
                torn.add((epoch, partition))
        for epoch, partition in sorted(torn):
            self._seen.broken("torn", 1, f"epoch {epoch} came in parts in partition {partition} of the topic")

    def _epoch_of(self, row: tuple[int, int]) -> int:
        partition, offset = row
        return min((e for e, ends in self._barriers.ends.items() if ends.get(partition, 0) > offset), default=-1)

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def _check_group(seen: Seen, promised: Positions, positions: Positions, where: str) -> None:
    for partition, offset in promised.items():
        if offset > positions.get(partition, 0):
            seen.broken(
                "ahead", 1, f"the group is at {offset} of partition {partition}, {where} at {positions.get(partition)}"
            )


def check_counts(rows: pa.Table) -> list[str]:
    """The rows of each account are numbered from 1 by the operator's state: each number must be there once."""
    account, count = np.array(rows["account"].to_pylist()), rows["count"].to_numpy()
    problems = []
    for name in np.unique(account):
        numbers = np.sort(count[account == name])
        if not np.array_equal(numbers, np.arange(1, len(numbers) + 1)):
            problems.append(f"account {name}: {len(numbers)} rows, counted to {numbers[-1]}")
    return problems


def read_table(path: Path) -> pa.Table:
    return DeltaTable(str(path)).to_pyarrow_table(columns=COLUMNS)


def consumer(site: Site) -> KafkaConsumer:
    return KafkaConsumer(isolation_level="read_committed", enable_auto_commit=False, **_client(site))


def admin_client(site: Site) -> KafkaAdminClient:
    return KafkaAdminClient(**_client(site))


def _client(site: Site) -> dict[str, Any]:
    """By itself kafka-python looks for new leaders every five minutes."""
    return {
        "bootstrap_servers": site.cluster.bootstrap_servers.split(","),
        "metadata_max_age_ms": 1000,
        "request_timeout_ms": 10_000,
        "retry_backoff_ms": 100,
        "reconnect_backoff_max_ms": 1000,
    }


def group_offsets(admin: KafkaAdminClient, site: Site) -> Positions:
    offsets = admin.list_group_offsets(site.group)[site.group]
    return {tp.partition: o.offset for tp, o in offsets.items() if tp.topic == site.topic and o.offset >= 0}
