"""``lockstep packages``: the jars that spark-submit needs."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lockstep.cli.terminal import command, console
from lockstep.engine.versions import packages

if TYPE_CHECKING:
    from lockstep.cli.terminal import Commands

_DESCRIPTION = """\
Print the Maven coordinates of the jars that match the installed pyspark and
delta-spark, with commas in between.

A program that you start with python needs none of this: lockstep.configure adds
them. Under spark-submit the JVM is up before Python runs, so they are given on
the command line."""

_EXAMPLES = """\
  spark-submit --packages "$(lockstep packages)" app.py
  lockstep packages --lines               one on each line"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "packages",
        run,
        summary="print the jars for spark-submit --packages",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("--lines", action="store_true", help="one on each line")


def run(arguments: argparse.Namespace) -> int:
    console().print(("\n" if arguments.lines else ",").join(packages()), soft_wrap=True, markup=False)
    return 0
