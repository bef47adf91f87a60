"""``lockstep state``: what the keyed operators of a query have stored, at any epoch that Spark still keeps."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from lockstep.cli.checkpoint_directory import read_directory
from lockstep.cli.spark import spark_session
from lockstep.cli.terminal import at_least, command, console, plain
from lockstep.errors import CheckpointDirectoryError, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from rich.console import Console

    from lockstep.cli.checkpoint_directory import CheckpointDirectory
    from lockstep.cli.terminal import Commands

_DESCRIPTION = """\
Show the state of a query's keyed operators, from its checkpoint directory; the
query may be running. Without --uid, the operators and what they declare are
listed, at once. With it, the stored values are read with Spark, which takes some
seconds to start.

Values are shown as JSON. Spark keeps the state of the last 100 epochs."""

_EXAMPLES = """\
  lockstep state /checkpoints/orders                        the operators
  lockstep state /checkpoints/orders --uid totals           their values
  lockstep state /checkpoints/orders --uid totals --key alice --epoch 41
  lockstep state /checkpoints/orders --uid totals --json | jq .value"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "state",
        run,
        summary="show what keyed operators have stored",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("directory", metavar="DIR", help="the query's checkpointLocation, on this machine")
    parser.add_argument("--uid", help="the operator, as named in process(uid=...)")
    parser.add_argument("--key", action="append", help="this key alone; once for each column of the key, in order")
    parser.add_argument("--state", metavar="NAME", help="this state alone ('timers' for timers)")
    parser.add_argument("--epoch", metavar="N", type=at_least(0), help="at the end of this epoch; default: the newest")
    parser.add_argument(
        "--limit", metavar="N", type=at_least(1), default=100, help="most rows to show; default: %(default)s"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object per line with --uid")


def run(arguments: argparse.Namespace) -> int:
    directory = read_directory(arguments.directory)
    screen = console()
    if arguments.uid is None:
        for option in ("key", "state", "epoch"):
            if getattr(arguments, option) is not None:
                raise ConfigurationError(f"--{option} needs --uid: say which operator.")
        _show_operators(screen, directory, arguments.json)
        return 0
    _require_operator(directory, arguments.uid, arguments.key)
    with spark_session("lockstep state") as spark:
        rows, more = _read(spark, directory, arguments)
    if arguments.json:
        for row in rows:
            parsed = {name: json.loads(row[name]) for name in ("map_key", "value") if row[name] is not None}
            screen.print(json.dumps({**row, **parsed}, ensure_ascii=False, default=str), soft_wrap=True, markup=False)
    else:
        _show_rows(screen, rows, arguments.limit if more else None)
    return 0


def _require_operator(directory: CheckpointDirectory, uid: str, key: list[str] | None) -> None:
    """Before Spark is started: what can be known without it."""
    known = directory.lineage.operators
    if uid not in known:
        raise ConfigurationError(
            f"--uid {uid}: {directory.location} has no such keyed operator; there is: {', '.join(sorted(known)) or 'none'}."
        )
    columns = [part["name"] for part in known[uid]["key"]]
    if key is not None and len(key) != len(columns):
        raise ConfigurationError(f"--key: the key of {uid!r} is {', '.join(columns)}; give --key once for each.")


def _read(spark: SparkSession, directory: CheckpointDirectory, arguments: argparse.Namespace) -> tuple[list[Any], bool]:
    from pyspark.errors import PySparkException

    from lockstep.operators.failure import operator_failure
    from lockstep.operators.state_reader import read_state

    try:
        frame = read_state(spark, directory.location, arguments.uid, epoch=arguments.epoch)
        return _rows(frame, arguments)
    except PySparkException as error:
        cause = operator_failure(error) or CheckpointDirectoryError(
            f"the state in {directory.location} can't be read: {str(error).strip().splitlines()[0]}"
        )
        raise cause from error


def _rows(frame: DataFrame, arguments: argparse.Namespace) -> tuple[list[Any], bool]:
    from pyspark.sql import functions as F

    from lockstep.quoting import quoted

    columns = [F.col(quoted(name)) for name in frame.columns]
    if arguments.state is not None:
        frame = frame.where(F.col("state") == arguments.state)
    for column, value in zip(columns, arguments.key or [], strict=False):
        frame = frame.where(column.cast("string") == value)
    rows = frame.orderBy(*columns).limit(arguments.limit + 1).collect()
    return [row.asDict() for row in rows[: arguments.limit]], len(rows) > arguments.limit


def _show_operators(screen: Console, directory: CheckpointDirectory, as_json: bool) -> None:
    operators = directory.lineage.operators
    if as_json:
        screen.print(json.dumps(operators, indent=2), soft_wrap=True, markup=False)
        return
    if not operators:
        screen.print(f"{directory.location} has no keyed operators.", markup=False)
        return
    table = Table("operator", "key", "state", "kind", "type", "ttl", "timers", "key groups", "backend", box=box.SIMPLE)
    for uid, operator in sorted(operators.items()):
        key = ", ".join(f"{part['name']} {part['type']}" for part in operator["key"])
        facts = ["yes" if operator["timers"] else "no", str(operator["max_parallelism"]), str(operator["backend"])]
        states = sorted(operator["states"].items()) or [("", {"kind": "", "types": {}})]
        for number, (name, state) in enumerate(states):
            head, tail = ([uid, key], facts) if number == 0 else (["", ""], ["", "", ""])
            kinds = ", ".join(state["types"].values())
            ttl = f"{state['ttl']['millis'] / 1000:g} s" if "ttl" in state else ""
            table.add_row(*map(plain, [*head, name, state["kind"], kinds, ttl, *tail]))
    screen.print(table)


def _show_rows(screen: Console, rows: list[dict[str, Any]], cut_at: int | None) -> None:
    if not rows:
        screen.print("nothing is stored.")
        return
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    table = Table(*map(plain, columns), box=box.SIMPLE)
    for row in rows:
        table.add_row(*("" if row[name] is None else plain(str(row[name])) for name in columns))
    screen.print(table)
    if cut_at is not None:
        screen.print(f"only the first {cut_at:,} rows; --limit shows more.")
