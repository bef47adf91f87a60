"""The ``lockstep`` command: finds the subcommand, and turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from importlib import metadata

from lockstep.cli import broker, checkpoints, demo, packages, rewind, savepoint, state
from lockstep.cli.terminal import complain
from lockstep.errors import LockstepError

WRONG_INPUT = 2
INTERRUPTED = 130

_DESCRIPTION = """\
Flink's checkpointing for Spark Structured Streaming: Kafka to Delta, exactly
once. The package is used from Python (import lockstep); this command shows it
at work, and what it has stored."""

_EPILOG = """\
start here:
  lockstep demo                      kill a pipeline at random moments, and see
                                     that every row arrives exactly once
  lockstep broker --topic orders:3   a Kafka broker, to try things with
  lockstep checkpoints DIR           what a query has committed
  lockstep state DIR                 what its keyed operators have stored
  lockstep savepoint create DIR PATH all that another query needs to go on
  lockstep rewind DIR --to-epoch N   back in time: positions, state, tables

'lockstep COMMAND --help' explains each, with examples. Exit codes: 0 all is
well; 1 the demo found a difference; 2 something is wrong with the input or the
machine, and standard error says what; 130 interrupted."""


def main(arguments: Sequence[str] | None = None) -> int:
    parsed = parser().parse_args(arguments)
    if parsed.debug:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("lockstep").setLevel(logging.DEBUG)
    try:
        return int(parsed.run(parsed))
    except LockstepError as error:
        if parsed.debug:
            raise
        complain(str(error))
        return WRONG_INPUT
    except KeyboardInterrupt:
        complain("interrupted; nothing was left running.")
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="lockstep",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("--version", action="version", version=f"spark-lockstep {metadata.version('spark-lockstep')}")
    root.add_argument("--debug", action="store_true", help="show log messages, and tracebacks of errors")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (demo, broker, checkpoints, state, savepoint, rewind, packages):
        command.add_parser(commands)
    return root


if __name__ == "__main__":
    sys.exit(main())
