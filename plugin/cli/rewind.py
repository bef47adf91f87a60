"""``lockstep rewind``: take a stopped pipeline back to an epoch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lockstep.cli.spark import spark_session
from lockstep.cli.terminal import at_least, command, confirmed, console
from lockstep.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.cli.terminal import Commands
    from lockstep.savepoint.rewind import RewindPlan

_DESCRIPTION = """\
Take a stopped pipeline back to an epoch: where it reads, the state of its
operators, its Delta tables (RESTORE) and its consumer groups, together. Then fix
the code and start it: what comes out is as if the mistake had never been made.

It says what it will do, and what nobody can take back (rows that are in Kafka or
a database stay there), and asks. It refuses when data is gone that it would need,
and when others have changed the tables since. An interrupted one is finished by
the next call."""

_EXAMPLES = """\
  lockstep rewind /checkpoints/orders --to-epoch 41
  lockstep rewind /checkpoints/orders --to-epoch 41 --dry-run
  lockstep rewind /checkpoints/orders --to-epoch 41 --yes --kafka-config client.properties"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "rewind",
        run,
        summary="take a stopped pipeline and its tables back to an epoch",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("directory", metavar="DIR", help="the query's checkpointLocation")
    parser.add_argument("--to-epoch", metavar="N", type=at_least(0), help="the last epoch that stays")
    parser.add_argument("--yes", action="store_true", help="don't ask")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    parser.add_argument("--undo-others", action="store_true", help="even if that undoes commits of other programs")
    parser.add_argument("--kafka-config", metavar="FILE", help="client settings (security.protocol=..., one a line)")


def run(arguments: argparse.Namespace) -> int:
    screen = console()
    settings = _properties(arguments.kafka_config)
    with spark_session("lockstep rewind", jars=True) as spark:
        from lockstep.savepoint.rewind import plan_rewind, rewind, unfinished_rewind

        plan = unfinished_rewind(spark, arguments.directory)
        if plan is not None:
            screen.print("A rewind was interrupted; this finishes it.")
        elif arguments.to_epoch is None:
            raise ConfigurationError("--to-epoch is missing: say which epoch is the last that stays.")
        else:
            plan = plan_rewind(spark, arguments.directory, arguments.to_epoch, settings)
        _show(screen, plan)
        if arguments.dry_run:
            return 0
        if not arguments.yes and not confirmed("Go on?"):
            screen.print("Nothing was changed.")
            return 0
        rewind(spark, plan, undo_others=arguments.undo_others, kafka_settings=settings)
    screen.print(
        f"Done. Start the query on {plan.directory}: it goes on after epoch {plan.epoch}, which is its epoch 0 now.",
        markup=False,
        soft_wrap=True,
    )
    return 0


def _show(screen: Console, plan: RewindPlan) -> None:
    lines = [f"{plan.directory} goes from epoch {plan.newest} back to epoch {plan.epoch}:"]
    lines += [f"  {words}" for words in plan.positions]
    lines += [f"  Delta table {table.words}" for table in plan.tables]
    lines += [f"  consumer group {group}: to the same offsets" for group in plan.groups]
    lines += [f"  can't be taken back: {words}" for words in plan.beyond_reach]
    lines += [f"  commits of others that would be undone: {words}" for words in plan.undone_for_others]
    for line in lines:
        screen.print(line, markup=False, soft_wrap=True)


def _properties(path: str | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file if line.strip() and not line.lstrip().startswith("#")]
    except OSError as error:
        raise ConfigurationError(f"--kafka-config {path}: {error.strerror}.") from error
    return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}
