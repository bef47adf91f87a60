"""The SQL that JdbcSink speaks to PostgreSQL. Text in, text out; nothing here talks to a server."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from lockstep.errors import ConfigurationError
from lockstep.protocol.fields import parse_json

ROW = "__lockstep_row"
"""Staging tables' extra column: the row's number in its epoch."""

_LONGEST_NAME = 63  # bytes; PostgreSQL cuts off what is longer
_PLAIN = re.compile(r"[a-z_][a-z0-9_$]*\Z")
_UNQUOTED = re.compile(r"[A-Za-z_\u0080-\uffff][A-Za-z0-9_$\u0080-\uffff]*\Z")
_PARTS = re.compile(r'("(?:[^"]|"")+"|[^".]+)(\.|\Z)')


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def too_long(name: str) -> bool:
    """Whether PostgreSQL would silently shorten this name."""
    return len(name.encode()) > _LONGEST_NAME


@dataclass(frozen=True)
class TableName:
    """A table in a schema. ``str()`` is for people, ``sql`` for the server."""

    schema: str
    name: str

    @classmethod
    def parse(cls, text: str, default_schema: str) -> TableName:
        """As PostgreSQL reads it: parts without double quotes are folded to lower case."""
        parts, position = [], 0
        while position < len(text) and (match := _PARTS.match(text, position)) is not None:
            parts.append(_part(match.group(1), text))
            position = match.end()
            if match.group(2) != ".":
                break
        if position < len(text) or text.endswith(".") or len(parts) not in (1, 2):
            raise _bad_name(text)
        schema, name = parts if len(parts) == 2 else (default_schema, parts[0])
        return cls(schema, name)

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def sibling(self, name: str) -> TableName:
        return TableName(self.schema, name)

    def __str__(self) -> str:
        return ".".join(part if _PLAIN.match(part) else quoted(part) for part in (self.schema, self.name))


def _part(text: str, whole: str) -> str:
    if text.startswith('"'):
        name = text[1:-1].replace('""', '"')
    elif _UNQUOTED.match(text):
        name = "".join(c.lower() if c.isascii() else c for c in text)
    else:
        raise _bad_name(whole)
    if too_long(name):
        raise ConfigurationError(f"JdbcSink(table=...): {name!r} is longer than PostgreSQL's {_LONGEST_NAME} bytes.")
    return name


def _bad_name(text: str) -> ConfigurationError:
    return ConfigurationError(
        f"JdbcSink(table={text!r}) is not a table name. Write name or schema.name, with double quotes around a part that "
        "has anything but letters, digits and underscores, or capitals: 'sales.\"Order Lines\"'."
    )


# --- types ----------------------------------------------------------------------------------------------------------


def column_type(data_type: Any) -> str | None:
    """The PostgreSQL type that holds every value of a Spark type; ``None`` when JDBC has none."""
    from pyspark.sql import types as t

    if isinstance(data_type, t.DecimalType):
        return f"numeric({data_type.precision},{data_type.scale})"
    if isinstance(data_type, (t.CharType, t.VarcharType)):
        return f"varchar({data_type.length})"
    if isinstance(data_type, t.ArrayType):
        if isinstance(data_type.elementType, t.ArrayType):
            return None  # PostgreSQL's arrays are rectangular, Spark's need not be
        element = column_type(data_type.elementType)
        return None if element is None or isinstance(data_type.elementType, t.BinaryType) else f"{element}[]"
    simple: dict[Any, str] = {
        t.BooleanType: "boolean",
        t.ByteType: "smallint",
        t.ShortType: "smallint",
        t.IntegerType: "integer",
        t.LongType: "bigint",
        t.FloatType: "real",
        t.DoubleType: "double precision",
        t.StringType: "text",
        t.BinaryType: "bytea",
        t.DateType: "date",
        t.TimestampType: "timestamp with time zone",
        t.TimestampNTZType: "timestamp without time zone",
    }
    return simple.get(type(data_type))


# --- the target -----------------------------------------------------------------------------------------------------


def create_table(table: TableName, columns: Sequence[tuple[str, str]], key: Sequence[str] = ()) -> str:
    lines = [f"{quoted(name)} {kind}" for name, kind in columns]
    if key:
        lines.append(f"PRIMARY KEY ({_list(key)})")
    return f"CREATE TABLE {table.sql} ({', '.join(lines)})"


def try_insert(table: TableName, columns: Sequence[tuple[str, str]], key: Sequence[str] = ()) -> str:
    """Plans what a commit does with the rows' types, and so tells whether it can and may be done. Inserts nothing."""
    # Text arrives without a type (stringtype=unspecified), and the column decides what to make of it.
    values = ["NULL" if kind == "text" else f"CAST(NULL AS {kind})" for _, kind in columns]
    names = [name for name, _ in columns]
    insert = f"EXPLAIN INSERT INTO {table.sql} ({_list(names)}) SELECT {', '.join(values)} FROM {table.sql}"
    return f"{insert} {_on_conflict(names, key)}" if key else insert


def insert(target: TableName, stage: TableName, columns: Sequence[str]) -> str:
    return (
        f"INSERT INTO {target.sql} ({_list(columns)}) SELECT {_list(staged_names(columns))} FROM {stage.sql} "
        f"ORDER BY {quoted(ROW)}"
    )


def upsert(target: TableName, stage: TableName, columns: Sequence[str], key: Sequence[str]) -> str:
    """Of rows with the same key, the last one of the epoch wins."""
    names = dict(zip(columns, staged_names(columns), strict=True))
    by_key = _list([names[one] for one in key])
    return (
        f"INSERT INTO {target.sql} ({_list(columns)}) SELECT DISTINCT ON ({by_key}) {_list(list(names.values()))} "
        f"FROM {stage.sql} ORDER BY {by_key}, {quoted(ROW)} DESC "
        f"{_on_conflict(columns, key)}"
    )


def _on_conflict(columns: Sequence[str], key: Sequence[str]) -> str:
    updates = ", ".join(f"{quoted(c)} = EXCLUDED.{quoted(c)}" for c in columns if c not in key)
    return f"ON CONFLICT ({_list(key)}) DO {f'UPDATE SET {updates}' if updates else 'NOTHING'}"


# --- staging tables -------------------------------------------------------------------------------------------------


def stage_prefix(lineage: str, uid: str) -> str:
    return f"lockstep_stage_{hashlib.sha256(f'{lineage}/{uid}'.encode()).hexdigest()[:8]}_"


def stage_name(lineage: str, uid: str, attempt_id: str) -> str:
    """Of a long attempt id, the end is cut off: enough of its random part stays. The comment has all of it."""
    return (stage_prefix(lineage, uid) + attempt_id.replace("-", "_"))[:_LONGEST_NAME]


def stage_comment(lineage: str, uid: str, attempt_id: str) -> str:
    return json.dumps({"lockstep": {"lineage": lineage, "uid": uid, "attempt": attempt_id}})


def staged_attempt(comment: str | None, lineage: str, uid: str) -> str | None:
    """The attempt that a staging table belongs to, if it is one of this sink's."""
    try:
        owner = parse_json(comment or "")["lockstep"]
        return str(owner["attempt"]) if (owner["lineage"], owner["uid"]) == (lineage, uid) else None
    except (ValueError, TypeError, KeyError):
        return None  # somebody else's words


def staged_names(columns: Sequence[str]) -> list[str]:
    """The columns' names in a staging table: Spark's JDBC writer does not escape a double quote."""
    spare = (name for n in count() if (name := f"__lockstep_{n}") not in columns)
    return [next(spare) if '"' in name else name for name in columns]


def create_stage(
    target: TableName,
    stage: TableName,
    *,
    columns: Sequence[str],
    table_columns: Sequence[str],
    key: Sequence[str] = (),
    comment: str,
) -> list[str]:
    """Statements that make an empty table of ``columns`` with the target's types, NOT NULLs and CHECKs."""
    names = dict(zip(columns, staged_names(columns), strict=True))
    changes = [f"DROP COLUMN {quoted(name)}" for name in table_columns if name not in names]
    changes += [f"ALTER COLUMN {quoted(name)} SET NOT NULL" for name in key]
    # A task that Spark runs twice collides with itself here instead of doubling its rows.
    changes.append(f"ADD COLUMN {quoted(ROW)} bigint PRIMARY KEY")
    renames = [
        f"ALTER TABLE {stage.sql} RENAME COLUMN {quoted(old)} TO {quoted(new)}"
        for old, new in names.items()
        if old != new
    ]
    return [
        f"CREATE TABLE {stage.sql} (LIKE {target.sql} INCLUDING CONSTRAINTS)",
        f"ALTER TABLE {stage.sql} {', '.join(changes)}",
        *renames,
        comment_on(stage, comment),
    ]


def comment_on(stage: TableName, comment: str) -> str:
    return f"COMMENT ON TABLE {stage.sql} IS {literal(comment)}"


def drop_stage(stage: TableName) -> str:
    return f"DROP TABLE IF EXISTS {stage.sql}"


# --- the marker: which epoch of which sink is in the database -------------------------------------------------------

MARKER = "lockstep_epochs"


def create_marker(marker: TableName) -> str:
    return (
        f"CREATE TABLE IF NOT EXISTS {marker.sql} (lineage text NOT NULL, uid text NOT NULL, epoch bigint NOT NULL, "
        "attempt text NOT NULL, token bigint NOT NULL, committed_at timestamp with time zone NOT NULL, "
        "PRIMARY KEY (lineage, uid))"
    )


def add_marker_row(marker: TableName) -> str:
    """Parameters: lineage, uid."""
    return f"INSERT INTO {marker.sql} VALUES (?, ?, -1, '', 0, now()) ON CONFLICT DO NOTHING"


def read_marker(marker: TableName, *, lock: bool) -> str:
    """Parameters: lineage, uid."""
    select = f"SELECT epoch, attempt, token FROM {marker.sql} WHERE lineage = ? AND uid = ?"
    return f"{select} FOR UPDATE" if lock else select


def advance_marker(marker: TableName) -> str:
    """Parameters: epoch, attempt, token, lineage, uid."""
    return (
        f"UPDATE {marker.sql} SET epoch = ?, attempt = ?, token = ?, committed_at = now() WHERE lineage = ? AND uid = ?"
    )


def _list(names: Sequence[str]) -> str:
    return ", ".join(quoted(name) for name in names)
