"""``lockstep checkpoints``: what a query has committed, and what it will commit when it starts again."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from lockstep.cli.checkpoint_directory import read_directory
from lockstep.cli.checkpoint_view import show_checkpoint, show_directory
from lockstep.cli.terminal import at_least, command, console

if TYPE_CHECKING:
    from lockstep.cli.terminal import Commands

_DESCRIPTION = """\
Show the checkpoints of a query, from its checkpoint directory alone: no JVM is
started, nothing is written, and the query may be running.

A checkpoint is "completed" once Spark has decided its epochs, and "committed"
once every sink shows their rows. Prepared epochs are staged in the sinks and
invisible: a decided one is committed at the latest when the query starts again;
an undecided one is run again."""

_EXAMPLES = """\
  lockstep checkpoints /checkpoints/orders      all that are kept
  lockstep checkpoints /checkpoints/orders 42   one: positions and reports
  lockstep checkpoints /checkpoints/orders --json | jq '.checkpoints[-1]'"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "checkpoints",
        run,
        summary="show what a query has committed, and what is pending",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("directory", metavar="DIR", help="the query's checkpointLocation, on this machine")
    parser.add_argument("id", metavar="ID", nargs="?", type=at_least(0), help="show this checkpoint alone")
    parser.add_argument("--json", action="store_true", help="print JSON; times are milliseconds since 1970")


def run(arguments: argparse.Namespace) -> int:
    directory = read_directory(arguments.directory)
    checkpoint = None if arguments.id is None else directory.checkpoint(arguments.id)
    screen = console()
    if arguments.json:
        shown = directory.to_json() if checkpoint is None else checkpoint.to_json()
        screen.print(json.dumps(shown, indent=2), soft_wrap=True, markup=False)
    elif checkpoint is not None:
        show_checkpoint(screen, directory, checkpoint)
    else:
        show_directory(screen, directory)
    return 0
