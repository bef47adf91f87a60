"""The four places that a crash test writes to, and readers of each that know nothing of Lockstep or Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kafka import KafkaConsumer, TopicPartition

from integration_tests.clients import until_the_end
from integration_tests.postgres import PostgresServer

Row = tuple[int, int]  # partition, offset
COLUMNS = ("partition", "offset", "id", "account", "count")


@dataclass(frozen=True)
class Targets:
    """A Delta table, a Kafka topic, a PostgreSQL table and a directory of JSON files."""

    table: str
    files: str
    bootstrap_servers: str
    topic: str
    postgres: PostgresServer
    rows: str  # the PostgreSQL table

    def create(self) -> None:
        """The PostgreSQL table is there before the query, with a key that no row may be there twice under."""
        self.postgres.execute(
            f'CREATE TABLE {self.rows} ("partition" int, "offset" bigint, id bigint NOT NULL, account text, count bigint, '
            'PRIMARY KEY ("partition", "offset"))'
        )

    def settings(self) -> dict[str, Any]:
        """For the driver."""
        server = self.postgres
        jdbc = {"url": server.url, "table": self.rows, "user": server.user, "password": server.password}
        return {"files": self.files, "out": self.topic, "jdbc": jdbc}

    def readers(self) -> dict[str, Callable[[], list[Row]]]:
        """By name, what each shows now, row by row. The topic is read once, as it grows."""
        watching = until_the_end(TopicReader(self.bootstrap_servers, self.topic))
        return {
            "the Kafka topic": lambda: [(row[0], row[1]) for row in _parsed(watching.catch_up())],
            "the PostgreSQL table": lambda: [(row[0], row[1]) for row in self.read_postgres()],
            "the files": lambda: [(row[0], row[1]) for row in self.read_files()],
        }

    def read_table(self) -> list[tuple[Any, ...]]:
        data = DeltaTable(self.table).to_pyarrow_table(columns=list(COLUMNS))
        return [tuple(row[name] for name in COLUMNS) for row in data.to_pylist()]

    def read_topic(self) -> list[tuple[Any, ...]]:
        return _parsed(read_records(self.bootstrap_servers, self.topic))

    def read_postgres(self) -> list[tuple[Any, ...]]:
        names = ", ".join(f'"{name}"' for name in COLUMNS)
        rows = self.postgres.query(f"SELECT {names} FROM {self.rows}")
        return [(int(row[0]), int(row[1]), int(row[2]), row[3], int(row[4])) for row in rows]

    def read_files(self) -> list[tuple[Any, ...]]:
        """As any tool would that lists a directory."""
        lines = [line for file in Path(self.files).glob("part-*.json") for line in file.read_text().splitlines()]
        return [tuple(json.loads(line)[name] for name in COLUMNS) for line in lines]


def _parsed(records: list[Any]) -> list[tuple[Any, ...]]:
    """Records of other producers are left out: they are no JSON."""
    values = [record.value for record in records if record.value.startswith(b"{")]
    return [tuple(json.loads(value)[name] for name in COLUMNS) for value in values]


class TopicReader:
    """A read-committed reader of one topic, by kafka-python. It goes on where it stopped, and remembers what it saw."""

    def __init__(self, servers: str, topic: str) -> None:
        self._consumer = KafkaConsumer(
            bootstrap_servers=servers, isolation_level="read_committed", enable_auto_commit=False
        )
        self._partitions = [TopicPartition(topic, one) for one in self._consumer.partitions_for_topic(topic) or ()]
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)
        self._seen: list[Any] = []

    def catch_up(self) -> list[Any]:
        """Everything that was visible at the time of the call: up to the last stable offset of each partition."""
        ends = self._consumer.end_offsets(self._partitions)
        while any(self._consumer.position(one) < ends[one] for one in self._partitions):
            for records in self._consumer.poll(timeout_ms=200).values():
                self._seen += records
        # What became visible since may have come along, and not all of it.
        return [one for one in self._seen if one.offset < ends[TopicPartition(one.topic, one.partition)]]

    def close(self) -> None:
        self._consumer.close()


def read_records(servers: str, topic: str) -> list[Any]:
    """The records that a read-committed reader that starts now sees of the topic."""
    with closing(TopicReader(servers, topic)) as reader:
        return reader.catch_up()


def read_committed(servers: str, topic: str) -> list[bytes]:
    """Their values."""
    return [record.value for record in read_records(servers, topic)]


def read_rows(table: str) -> list[Row]:
    """All rows of a Delta table, by delta-rs."""
    try:
        data = DeltaTable(table).to_pyarrow_table(columns=["partition", "offset"])
    except TableNotFoundError:
        return []
    return list(zip(data["partition"].to_pylist(), data["offset"].to_pylist(), strict=True))
