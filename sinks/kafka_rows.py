"""How rows become Kafka records: which columns are used, and what is refused before an epoch is prepared.

Everything that Kafka would refuse for ever is found while the rows are staged: a decided epoch must not be wedged.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.errors import ConfigurationError
from lockstep.quoting import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

COLUMNS = ("topic", "partition", "key", "value", "headers", "timestamp")
# As Spark's Kafka sink does. The rows of a Kafka source have the others too, and mean something else by them.
BY_NAME = ("topic", "key", "value", "headers")
ALL_AS_JSON = "*"
_ROW = "__lockstep_row"
_OVERHEAD = 96  # of a batch with one record, at most; each header takes a few bytes more
_REFUSED = "lockstep refuses "
_RAISE_SIZE = ": raise max.message.bytes of the topic and kafka.max.request.size"
_RAISE_TIME = ": the topic's message.timestamp.before.max.ms or message.timestamp.after.max.ms forbids it"
_HEADERS = "array<struct<key: string, value: binary>>"


@dataclass(frozen=True)
class RecordColumns:
    """Names of the columns that make up a record. ``value`` None: all columns, as JSON."""

    topic: str | None = None
    partition: str | None = None
    key: str | None = None
    value: str | None = None
    headers: str | None = None
    timestamp: str | None = None


@dataclass(frozen=True)
class TopicRules:
    """What a topic asks of its records; ``None`` where it is not known."""

    largest: int | None = None  # bytes
    needs_key: bool = False
    most_behind_ms: int | None = None  # of a timestamp, and the clock
    most_ahead_ms: int | None = None

    @classmethod
    def read(cls, settings: Mapping[str, str]) -> TopicRules:
        """From the topic's configuration."""
        own_time = settings.get("message.timestamp.type") == "LogAppendTime"  # the record's is not looked at
        return cls(
            largest=int(settings["max.message.bytes"]),
            needs_key="compact" in settings.get("cleanup.policy", ""),
            most_behind_ms=None if own_time else _number(settings.get("message.timestamp.before.max.ms")),
            most_ahead_ms=None if own_time else _number(settings.get("message.timestamp.after.max.ms")),
        )

    def problem(self, size: int, keyless: int, oldest: int | None, newest: int | None, now_ms: int) -> str | None:
        """What the topic refuses among rows with these extremes."""
        if self.largest is not None and size > self.largest:
            return f"a record of {size} bytes; the limit is {self.largest}{_RAISE_SIZE}"
        if self.needs_key and keyless:
            return f"{keyless} rows without a key: it is compacted"
        earliest, latest = self.earliest(now_ms), self.latest(now_ms)
        if earliest is not None and oldest is not None and oldest < earliest:
            return f"the timestamp {oldest}{_RAISE_TIME}"
        if latest is not None and newest is not None and newest > latest:
            return f"the timestamp {newest}{_RAISE_TIME}"
        return None

    def earliest(self, now_ms: int) -> int | None:
        return None if self.most_behind_ms is None else now_ms - self.most_behind_ms

    def latest(self, now_ms: int) -> int | None:
        return None if self.most_ahead_ms is None else now_ms + self.most_ahead_ms


def _number(text: str | None) -> int | None:
    """A limit in milliseconds; Kafka's largest number stands for none."""
    return None if text is None or int(text) > 1 << 60 else int(text)


def find_columns(schema: StructType, given: RecordColumns, fixed_topic: str | None, sink: str) -> RecordColumns:
    """The columns to use: those that were ``given``, else those with the names that Spark's Kafka sink knows.

    Raises :class:`ConfigurationError` that names the option, the column and the remedy.
    """
    used: dict[str, str | None] = {}
    for role in COLUMNS:
        name = getattr(given, role)
        if role == "value" and name == ALL_AS_JSON:
            used[role] = None
            continue
        if name is not None and name not in schema.names:
            option = "topic_column" if role == "topic" else role
            raise ConfigurationError(
                f"{sink}: {option}={name!r} is no column of the rows, which have {', '.join(schema.names)}."
            )
        by_name = role if role in schema.names and role in BY_NAME else None
        used[role] = name if name is not None else by_name
    if fixed_topic is not None:
        used["topic"] = None
    elif used["topic"] is None:
        raise ConfigurationError(f"{sink}: give topic= (a name) or topic_column= (a column that names it, row by row).")
    for role, name in used.items():
        if name is not None:
            _check_type(role, name, schema[name].dataType, given, sink)
    return RecordColumns(**used)


def _check_type(role: str, name: str, kind: DataType, given: RecordColumns, sink: str) -> None:
    from pyspark.sql import types as T

    text_or_bytes = (T.StringType, T.BinaryType)
    as_key = (*text_or_bytes, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.BooleanType, T.DecimalType)
    accepted: dict[str, tuple[tuple[type, ...], str]] = {
        "topic": ((T.StringType,), "string"),
        "partition": ((T.IntegerType,), "int"),
        "key": (as_key, "string or binary (or a number, which becomes its text)"),
        "value": (text_or_bytes, "string or binary; use to_json or to_avro"),
        "timestamp": ((T.TimestampType, T.LongType), "timestamp, or long with milliseconds since 1970"),
    }
    if role == "headers":
        good = (
            isinstance(kind, T.ArrayType)
            and isinstance(kind.elementType, T.StructType)
            and [(f.name, type(f.dataType)) for f in kind.elementType.fields]
            == [("key", T.StringType), ("value", T.BinaryType)]
        )
        wanted = _HEADERS
    else:
        types, wanted = accepted[role]
        good = isinstance(kind, types)
    if not good:
        other = f"give {role}='*' for all columns as JSON" if role == "value" else "rename it"
        hint = "" if getattr(given, role) else f" It is used because of its name: {other} if it is not meant."
        raise ConfigurationError(
            f"{sink}: column {name!r} is {kind.simpleString()}, and the {role} of a record must be {wanted}.{hint}"
        )


class RecordPlan:
    """The expressions that turn rows into records. Made once: making them takes longer than using them."""

    def __init__(self, schema: StructType, columns: RecordColumns) -> None:
        from pyspark.sql import functions as F

        rest = [F.col(quoted(name)) for name in schema.names if name not in _routing(columns)]
        value = F.to_json(F.struct(*rest)) if columns.value is None else F.col(quoted(columns.value))
        parts: dict[str, Column] = {"key": _bytes(columns.key, schema), "value": value.cast("binary")}
        for role in ("topic", "partition", "headers"):
            if (name := getattr(columns, role)) is not None:
                parts[role] = F.col(quoted(name))
        if columns.timestamp is not None:
            parts["timestamp"] = _milliseconds(F.col(quoted(columns.timestamp)), schema[columns.timestamp].dataType)
        self._names = tuple(parts)
        self._parts = [F.monotonically_increasing_id().alias(_ROW), *(part.alias(name) for name, part in parts.items())]
        self._checked: tuple[object, list[Column]] = (None, [])

    def apply(self, rows: DataFrame, rules: TopicRules, partitions: int | None, now_ms: int) -> DataFrame:
        """The rows as they are staged. A row that Kafka would refuse fails the job, with its position.

        ``rules`` and ``partitions`` are those of the fixed topic.
        """
        circumstances = (rules, partitions, now_ms if "timestamp" in self._names else 0)
        if self._checked[0] != circumstances:
            self._checked = circumstances, self._with_checks(*circumstances)
        return rows.select(*self._parts).select(*self._checked[1])

    def _with_checks(self, rules: TopicRules, partitions: int | None, now_ms: int) -> list[Column]:
        from pyspark.sql import functions as F

        problem = _problem(self._names, rules, partitions, now_ms)
        position = F.concat(
            F.lit(" (row "),
            F.col(_ROW).bitwiseAND(F.lit((1 << 33) - 1)),
            F.lit(" of partition "),
            F.shiftright(F.col(_ROW), 33),
            F.lit(" of the batch)."),
        )
        checked = F.when(problem.isNull(), F.col("value")).otherwise(
            F.raise_error(F.concat(F.lit(_REFUSED), problem, position)).cast("binary")
        )
        return [checked.alias("value") if name == "value" else F.col(name) for name in self._names]


def refusal(error: Exception) -> str | None:
    """The sentence about a refused row in Spark's error, if that is what it is."""
    found = re.search(rf"{_REFUSED}(.*? of the batch\)\.)", str(error), re.DOTALL)
    return found.group(1) if found else None


def _routing(columns: RecordColumns) -> set[str | None]:
    """Columns that say where a record goes, not what it says: they are left out of a JSON value."""
    return {columns.topic, columns.partition, columns.headers, columns.timestamp}


def _bytes(name: str | None, schema: StructType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import BinaryType

    if name is None:
        return F.lit(None).cast("binary")
    column = F.col(quoted(name))
    return column if isinstance(schema[name].dataType, BinaryType) else column.cast("string").cast("binary")


def _milliseconds(column: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import LongType

    return column if isinstance(kind, LongType) else F.unix_millis(column)


def record_size(parts: Collection[str]) -> Column:
    """The most bytes that a staged row takes as a record in a batch of its own, before compression."""
    from pyspark.sql import functions as F

    zero = F.lit(0)
    size = F.lit(_OVERHEAD) + F.coalesce(F.length("key"), zero) + F.coalesce(F.length("value"), zero)
    if "headers" not in parts:
        return size
    headers = F.aggregate(
        "headers",
        zero,
        lambda sum_, header: (
            sum_ + F.coalesce(F.octet_length(header["key"]), zero) + F.coalesce(F.length(header["value"]), zero) + 10
        ),
    )
    return size + F.coalesce(headers, zero)


def _problem(parts: Collection[str], rules: TopicRules, partitions: int | None, now_ms: int) -> Column:
    """Null for a row that Kafka takes."""
    from pyspark.sql import functions as F

    problems: list[Column] = []
    if "topic" in parts:
        problems.append(F.when(F.col("topic").isNull() | (F.col("topic") == ""), F.lit("a row without a topic")))
    if "partition" in parts:
        low = F.col("partition") < 0
        bad = low if partitions is None else low | (F.col("partition") >= partitions)
        there = "" if partitions is None else f", and the topic has {partitions}"
        problems.append(F.when(bad, F.concat(F.lit("partition "), F.col("partition"), F.lit(there))))
    if "timestamp" in parts:
        told = F.concat(F.lit("the timestamp "), F.col("timestamp"))
        problems.append(F.when(F.col("timestamp") < 0, told))
        told = F.concat(told, F.lit(_RAISE_TIME))
        if (earliest := rules.earliest(now_ms)) is not None:
            problems.append(F.when(F.col("timestamp") < earliest, told))
        if (latest := rules.latest(now_ms)) is not None:
            problems.append(F.when(F.col("timestamp") > latest, told))
    if rules.needs_key:
        problems.append(F.when(F.col("key").isNull(), F.lit("a row without a key: the topic is compacted")))
    if "headers" in parts:
        nameless = F.exists("headers", lambda header: header.isNull() | header["key"].isNull())
        problems.append(F.when(nameless, F.lit("a header without a key")))
    if rules.largest is not None:
        size = record_size(parts)
        remedy = f" bytes; the limit is {rules.largest}{_RAISE_SIZE}"
        problems.append(F.when(size > rules.largest, F.concat(F.lit("a record of "), size, F.lit(remedy))))
    return F.coalesce(*problems, F.lit(None).cast("string"))
