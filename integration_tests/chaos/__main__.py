"""``make chaos``: faults against a real pipeline, by a seed.

    make chaos ARGS="--rounds 20 --seed 7"
    make chaos ARGS="--nemesis pause-driver,kill-broker --minutes 10"

Writes build/chaos.json and build/chaos.svg; exit code 1 when any promise was broken. The same seed draws the same faults.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from integration_tests.chaos.nemeses import NEMESES
from integration_tests.chaos.report import draw, write_docs
from integration_tests.chaos.run import KINDS, Chaos, Tally

BUILD = Path(__file__).parents[2] / "build"
LOCAL, CLUSTER = "local[2,4]", "local-cluster[2,1,1024]"
MASTERS = {"local": (LOCAL,), "cluster": (CLUSTER,), "both": (LOCAL, CLUSTER)}
ROOMY = 8 << 30  # bytes of memory from which on there are three brokers
screen = Console(stderr=True)


def parse() -> argparse.Namespace:
    names = [one.name for one in NEMESES]
    parser = argparse.ArgumentParser(
        prog="make chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="how many faults (20)")
    parser.add_argument("--seed", type=int, default=1, help="draws the faults and the set-ups (1)")
    parser.add_argument("--minutes", type=float, help="begin no round so many minutes after the first pipeline is up")
    parser.add_argument("--nemesis", default="", help=f"only these, separated by commas: {', '.join(names)}")
    parser.add_argument("--brokers", type=int, choices=(1, 3), help="3 where there is memory for them, else 1")
    parser.add_argument("--segment", type=int, default=20, help="faults before a new pipeline is begun (20)")
    parser.add_argument("--spark", choices=MASTERS, default="both", help="one JVM, executors of their own, or in turn")
    parser.add_argument("--rows-per-second", type=int, default=100, help="the load (100)")
    parser.add_argument("--docs", action="store_true", help="write the result into docs/reliability.md")
    args = parser.parse_args()
    args.nemesis = [name.strip() for name in args.nemesis.split(",") if name.strip()]
    if unknown := sorted(set(args.nemesis) - set(names)):
        parser.error(f"--nemesis {', '.join(unknown)}: no such nemesis; there are {', '.join(names)}")
    if args.brokers is None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
        args.brokers = 3 if memory > ROOMY else 1
    return args


def main() -> int:
    args = parse()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[tally]}"),
    )
    with Progress(*columns, console=screen) as progress:
        bar = progress.add_task("chaos", total=args.rounds, tally="")

        def told(tally: Tally, line: str) -> None:
            counts = " · ".join(f"{kind} {tally.count(kind)}" for kind in KINDS[:3])
            progress.update(bar, completed=len(tally.rounds), tally=counts)
            progress.console.print(line, markup=False, highlight=False)
            _store(tally)

        tally = Chaos(
            seed=args.seed,
            rounds=args.rounds,
            minutes=args.minutes,
            nemeses=args.nemesis,
            brokers=args.brokers,
            segment=args.segment,
            rows_per_second=args.rows_per_second,
            masters=MASTERS[args.spark],
            told=told,
        ).run()
    _store(tally)
    _show(tally)
    if args.docs:
        write_docs(tally.as_json(), args)
    return 1 if tally.violations or not tally.rounds else 0


def _store(tally: Tally) -> None:
    BUILD.mkdir(exist_ok=True)
    result = tally.as_json()
    (BUILD / "chaos.json").write_text(json.dumps(result, indent=1))
    (BUILD / "chaos.svg").write_text(draw(result))


def _show(tally: Tally) -> None:
    result = tally.as_json()
    table = Table(title=f"{result['rounds']} faults, {result['rows']:,} rows, {result['epochs']:,} epochs")
    for column in ("nemesis", "faults", "median recovery", "longest"):
        table.add_column(column, justify="left" if column == "nemesis" else "right")
    for name, spread in result["recovery"].items():
        table.add_row(name, str(spread["rounds"]), f"{spread['median']:.1f} s", f"{spread['longest']:.1f} s")
    screen.print(table)
    screen.print(" · ".join(f"{kind} {result[kind]}" for kind in KINDS))
    for violation in tally.violations[:20]:
        screen.print(f"{violation.kind}: {violation.text}", style="red", markup=False)


if __name__ == "__main__":
    sys.exit(main())
