"""``lockstep demo``: kill a pipeline at random moments, and count its rows."""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.broker.java import require_java
from lockstep.cli.demo_plan import DemoPlan
from lockstep.cli.demo_run import run_demo
from lockstep.cli.demo_screen import DemoScreen, show_report
from lockstep.cli.terminal import at_least, command, console, interruptible
from lockstep.errors import ConfigurationError, EnvironmentProblemError

if TYPE_CHECKING:
    from lockstep.cli.terminal import Commands

_DIFFERENCE = 1
_SEEDS = 10_000
_SECONDS_PER_LIFE = 15  # how long orders flow for each life of the pipeline, unless a rate is given
_EXTRA = {"confluent_kafka": "confluent-kafka", "kafka": "kafka-python", "deltalake": "deltalake"}

_DESCRIPTION = """\
See for yourself that no row is lost or doubled when a pipeline is killed.

A Kafka broker is started, and orders flow into a topic. A Spark pipeline with
Lockstep carries them into a Delta table. At random moments its process is
killed with SIGKILL, Python and JVM alike, and started again. At the end every
order is looked for in the table, with clients that know neither Spark nor
Lockstep (delta-rs and kafka-python), and the consumer group must stand at the
end of the topic.

It takes about a minute, needs Java 17 and the packages of spark-lockstep[demo],
and leaves nothing running, and no files but its report. The exit code is 0 only
if every order is there exactly once."""

_EXAMPLES = """\
  lockstep demo                            20,000 orders, 2 kills
  lockstep demo --rows 100_000 --kills 5   longer, and rougher
  lockstep demo --seed 7                   the same orders, and kills after the
                                           same epochs, as in an earlier run
  lockstep demo --keep /tmp/look           keep table, checkpoints and log:
    lockstep checkpoints /tmp/look/checkpoint"""


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "demo",
        run,
        summary="kill a pipeline at random moments, and see that every row arrives exactly once",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("--rows", type=at_least(1), default=20_000, metavar="N", help="orders (default: %(default)s)")
    parser.add_argument("--kills", type=at_least(0), default=2, metavar="N", help="kills (default: %(default)s)")
    parser.add_argument(
        "--partitions", type=at_least(1), default=3, metavar="N", help="of the topic (default: %(default)s)"
    )
    parser.add_argument(
        "--rate",
        type=at_least(1),
        metavar="N",
        help=f"orders a second (default: so many that they last {_SECONDS_PER_LIFE} seconds for each start)",
    )
    parser.add_argument("--seed", type=at_least(0), metavar="N", help="of all randomness (default: a new one, shown)")
    parser.add_argument(
        "--out", type=Path, default=Path("build/demo.json"), metavar="FILE", help="the report (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work in this new directory, and keep it")


def run(arguments: argparse.Namespace) -> int:
    _require_extra()
    require_java()
    rate = arguments.rate or max(1, arguments.rows // ((arguments.kills + 1) * _SECONDS_PER_LIFE))
    seed = arguments.seed if arguments.seed is not None else random.SystemRandom().randrange(_SEEDS)
    plan = DemoPlan(arguments.rows, arguments.kills, arguments.partitions, rate, seed)
    _begin_report(arguments.out)
    screen = console()
    with interruptible(), _workspace(arguments.keep) as directory, DemoScreen(screen, plan) as drawing:
        report = run_demo(plan, directory, drawing)
    show_report(screen, report)
    arguments.out.write_text(json.dumps(report.to_json(), indent=2) + "\n")
    screen.print(f"Report: {arguments.out}", soft_wrap=True)
    if arguments.keep is not None:
        screen.print(f"Kept:   {arguments.keep}; see lockstep checkpoints {arguments.keep}/checkpoint", soft_wrap=True)
    return 0 if report.exactly_once else _DIFFERENCE


def _require_extra() -> None:
    missing = [name for module, name in _EXTRA.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise EnvironmentProblemError(
            f"the demo needs {', '.join(missing)}, not installed here: pip install 'spark-lockstep[demo]'"
        )


def _begin_report(path: Path) -> None:
    """Find out now, and not in a minute, that the report can't be written; and leave no old one to be taken for ours."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
        path.unlink()
    except OSError as error:
        raise ConfigurationError(f"--out {path} can't be written: {error.strerror}. Choose another file.") from error


@contextmanager
def _workspace(keep: Path | None) -> Iterator[Path]:
    """The directory of a demo: a temporary one, gone at the end, or a new one that stays."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="lockstep-demo-", ignore_cleanup_errors=True) as directory:
            yield Path(directory).resolve()
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        if any(keep.iterdir()):
            raise ConfigurationError(f"--keep {keep} is not empty. Name a new directory.")
    except OSError as error:
        raise ConfigurationError(f"--keep {keep} can't be used: {error.strerror}. Name a new directory.") from error
    directory_to_keep = keep.resolve()
    try:
        yield directory_to_keep
    finally:
        for litter in ("tmp", "artifacts"):  # of Spark
            shutil.rmtree(directory_to_keep / litter, ignore_errors=True)
