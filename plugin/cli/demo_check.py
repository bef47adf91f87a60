"""Checks a demo's result with other people's clients: delta-rs reads the table, kafka-python the offsets.

Nothing of Lockstep or Spark takes part, so a mistake of theirs can't hide itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.cli.demo_orders import Order

_SAMPLE = 5


@dataclass(frozen=True)
class Comparison:
    """How the rows of the table differ from the orders that were sent."""

    rows_out: int
    missing: int  # orders without a row
    duplicated: int  # rows beyond the first of their order
    unexpected: int  # rows of orders that were never sent
    altered: int  # rows that differ from their order
    examples: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        return not (self.missing or self.duplicated or self.unexpected or self.altered)


def compare(orders: Sequence[Order], rows: Iterable[Order]) -> Comparison:
    """Whether every order is there exactly once, as it was sent."""
    sent = {order.order_id: order for order in orders}
    seen: Counter[int] = Counter()
    altered = []
    for row in rows:
        seen[row.order_id] += 1
        if row.order_id in sent and row != sent[row.order_id]:
            altered.append(row.order_id)
    missing = [number for number in sent if number not in seen]
    repeated = {number: count for number, count in seen.items() if count > 1 and number in sent}
    unexpected = [number for number in seen if number not in sent]
    found = {"missing": missing, "duplicated": list(repeated), "unexpected": unexpected, "altered": altered}
    return Comparison(
        rows_out=sum(seen.values()),
        missing=len(missing),
        duplicated=sum(count - 1 for count in repeated.values()),
        unexpected=sum(seen[number] for number in unexpected),
        altered=len(altered),
        examples=tuple(f"{what}: {_sample(numbers)}" for what, numbers in found.items() if numbers),
    )


def offsets_match(committed: Mapping[int, int], end: Mapping[int, int]) -> bool:
    """Whether the group stands at the end of every partition. One that is empty needs no offset."""
    return all(committed.get(partition, 0) == offset for partition, offset in end.items())


def table_rows(table: Path) -> list[Order]:
    """All rows of the table, as delta-rs reads them."""
    from deltalake import DeltaTable

    columns = list(Order._fields)
    read = DeltaTable(str(table)).to_pyarrow_table(columns=columns)
    return [Order(*values) for values in zip(*(read.column(name).to_pylist() for name in columns), strict=True)]


class VisibleRows:
    """How many rows a reader of the table would count now; cheap, from the table's log."""

    def __init__(self, table: Path) -> None:
        self._path = table
        self._table: Any = None

    def count(self) -> int:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            if self._table is None:
                self._table = DeltaTable(str(self._path))
            self._table.update_incremental()
            return int(self._table.count())
        except (TableNotFoundError, DeltaError):  # not created yet, or just being
            return 0


def topic_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """The end offset of every partition."""
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap_servers)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return {partition.partition: int(end) for partition, end in consumer.end_offsets(partitions).items()}
    finally:
        consumer.close()


def group_offsets(bootstrap_servers: str, topic: str, group: str) -> dict[int, int]:
    """The offset that the group has committed for every partition of the topic."""
    from kafka import KafkaAdminClient

    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        if hasattr(admin, "list_group_offsets"):  # kafka-python 3
            offsets = admin.list_group_offsets([group])[group]
        else:
            offsets = admin.list_consumer_group_offsets(group)
        return {tp.partition: int(found.offset) for tp, found in offsets.items() if tp.topic == topic}
    finally:
        admin.close()


def _sample(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SAMPLE} more" if len(numbers) > _SAMPLE else ""
    return ", ".join(str(number) for number in sorted(numbers)[:_SAMPLE]) + more
