"""``lockstep savepoint``: make, look at, list and dispose of savepoints."""

from __future__ import annotations

import argparse
import json
import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from lockstep.cli.spark import spark_session
from lockstep.cli.terminal import at_least, command, confirmed, console, plain
from lockstep.config import StateBackend
from lockstep.engine.local_storage import LocalStorage
from lockstep.engine.storage import local_path
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.protocol.savepoint import METADATA, Savepoint, read_savepoint

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.cli.terminal import Commands

_DESCRIPTION = """\
A savepoint holds everything that a query needs to go on from an epoch, in another
directory, with other parallelism or changed code: positions, state of every
operator, timers, watermark. It depends on nothing else and may be moved.

Start a query from one with .option("restoreFrom", PATH)."""

_EXAMPLES = """\
  lockstep savepoint create /checkpoints/orders /savepoints/orders-1
  lockstep savepoint create /checkpoints/orders /savepoints/orders-41 --epoch 41
  lockstep savepoint show /savepoints/orders-1
  lockstep savepoint restore /savepoints/orders-1 /checkpoints/orders-2 --partitions 16
  lockstep savepoint list /savepoints
  lockstep savepoint dispose /savepoints/orders-1"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "savepoint",
        run,
        summary="make, show, list and dispose of savepoints",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, dest="action")
    create = actions.add_parser("create", help="of a query's latest epoch, or an earlier one; the query may be running")
    create.add_argument("directory", metavar="DIR", help="the query's checkpointLocation")
    create.add_argument("path", metavar="PATH", help="a new directory")
    create.add_argument("--epoch", metavar="N", type=at_least(0), help="default: the last one that is committed")
    show = actions.add_parser("show", help="what is in it")
    show.add_argument("path", metavar="PATH")
    restore = actions.add_parser("restore", help="make a checkpoint directory of it, on which the query then starts")
    restore.add_argument("path", metavar="PATH")
    restore.add_argument("directory", metavar="DIR", help="a new checkpointLocation")
    restore.add_argument(
        "--partitions", metavar="N", type=at_least(1), help="spark.sql.shuffle.partitions of the query"
    )
    restore.add_argument("--state-backend", choices=[one.value for one in StateBackend], help="default: hdfs")
    every = actions.add_parser("list", help="the savepoints in a directory")
    every.add_argument("path", metavar="DIR", help="a directory on this machine")
    dispose = actions.add_parser("dispose", help="remove it")
    dispose.add_argument("path", metavar="PATH")
    dispose.add_argument("--yes", action="store_true", help="don't ask")
    for action in (create, show, every):
        action.add_argument("--json", action="store_true", help="print JSON; times are milliseconds since 1970")


def run(arguments: argparse.Namespace) -> int:
    actions = {"create": _create, "show": _show, "restore": _restore, "list": _list, "dispose": _dispose}
    return actions[arguments.action](arguments, console())


def _create(arguments: argparse.Namespace, screen: Console) -> int:
    from lockstep.savepoint.create import create_savepoint

    with spark_session("lockstep savepoint") as spark:
        made = create_savepoint(spark, arguments.directory, arguments.path, arguments.epoch)
    _print(screen, arguments.path, made, arguments.json)
    return 0


def _restore(arguments: argparse.Namespace, screen: Console) -> int:
    from lockstep.savepoint.directory import restore_directory

    backend = StateBackend(arguments.state_backend or StateBackend.HDFS.value)
    with spark_session("lockstep savepoint") as spark:
        restore_directory(spark, arguments.path, arguments.directory, partitions=arguments.partitions, backend=backend)
    screen.print(f"{arguments.directory} is ready: start the query on it.", markup=False, soft_wrap=True)
    return 0


def _show(arguments: argparse.Namespace, screen: Console) -> int:
    _print(screen, arguments.path, read_savepoint(_storage(arguments.path)), arguments.json)
    return 0


def _list(arguments: argparse.Namespace, screen: Console) -> int:
    found: list[tuple[str, Savepoint]] = []
    root = Path(_local(arguments.path))
    for place in sorted(root.glob(f"*/{METADATA}")) + sorted(root.glob(METADATA)):
        try:
            found.append((str(place.parent), read_savepoint(LocalStorage(place.parent))))
        except CheckpointDirectoryError as error:
            screen.print(f"{place.parent}: {error}", style="red", markup=False, soft_wrap=True)
    if arguments.json:
        screen.print(json.dumps([{"path": path, **one.to_json()} for path, one in found]), soft_wrap=True, markup=False)
        return 0
    if not found:
        screen.print(f"{root} holds no savepoints.", markup=False)
        return 0
    screen.print(f"savepoints in {root}", markup=False, soft_wrap=True)
    table = Table("savepoint", "made", "query", "epoch", "operators", "state", box=box.SIMPLE)
    for path, one in found:
        facts = (
            os.path.relpath(path, root),
            _time(one.created_ms),
            one.query_name or "",
            str(one.epoch),
            ", ".join(one.operators),
        )
        table.add_row(*map(plain, facts), _size(one.state_bytes))
    screen.print(table)
    return 0


def _dispose(arguments: argparse.Namespace, screen: Console) -> int:
    from lockstep.savepoint.disposal import dispose

    storage = _storage(arguments.path)
    saved = read_savepoint(storage)  # nothing else is ever removed
    _print(screen, arguments.path, saved, False)
    if not arguments.yes and not confirmed("Remove it?"):
        screen.print("It stays.")
        return 0
    dispose(storage)
    screen.print(f"{storage.describe()} is gone.", markup=False)
    return 0


def _storage(path: str) -> LocalStorage:
    return LocalStorage(_local(path))


def _local(path: str) -> str:
    local = local_path(path)
    if local is None:
        raise ConfigurationError(f"{path} is on a remote file system; this command reads local directories.")
    if not Path(local).is_dir():
        raise ConfigurationError(f"there is no directory {local}.")
    return local


def _print(screen: Console, path: str, saved: Savepoint, as_json: bool) -> None:
    if as_json:
        screen.print(json.dumps({"path": path, **saved.to_json()}, indent=2), soft_wrap=True, markup=False)
        return
    screen.print(f"savepoint {path}", markup=False, style="bold")
    name = f" of {saved.query_name}" if saved.query_name else ""
    screen.print(f"epoch {saved.epoch}{name}, made {_time(saved.created_ms)}, lineage {saved.lineage}", markup=False)
    sources = Table("source", "next to read", box=box.SIMPLE)
    for description, position in zip(saved.sources, saved.barrier.positions, strict=False):
        sources.add_row(plain(description), plain(position or "as at a first start"))
    operators = Table("operator", "key", "states", "key groups", "size", box=box.SIMPLE)
    for uid, operator in saved.operators.items():
        key = ", ".join(f"{part['name']} {part['type']}" for part in operator.description["key"])
        states = ", ".join(f"{state} ({one['kind']})" for state, one in operator.description["states"].items())
        groups = f"{operator.contents.groups} of {operator.description['max_parallelism']}"
        operators.add_row(plain(uid), plain(key), plain(states), groups, _size(operator.contents.bytes))
    sinks = Table("sink", "target", "at", box=box.SIMPLE)
    for uid, sink in saved.sinks.items():
        at = f"version {sink.details['version']}" if "version" in sink.details else ""
        sinks.add_row(plain(uid), plain(sink.description), plain(at))
    for table in (sources, operators, sinks):
        if table.row_count:
            screen.print(table)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
