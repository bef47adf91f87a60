"""Lockstep beside the other ways, in one run on one machine.

    make bench                                     # everything, 3 rounds: about two hours on two cores
    make bench ARGS=--quick                        # a short one, to see that it runs
    make bench ARGS="--only throughput,latency"    # some of the works; the others keep their last figures
    make bench-flink                               # beside Apache Flink, which it installs first: about half an hour

Contenders take turns, after one round that warms the JVM up and is reported apart. All read the same topics. When rows are
visible is read from the files that make them so. Writes build/bench.json (every round's figures, medians, and
the ratios between them) and plots; with --docs, docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.suite import delta_works, flink_works, kafka_works, savepoint_works, state_works
from benchmarks.suite.ground import Ground, session
from benchmarks.suite.report import Measured, machine, ratios, summary, table, write
from benchmarks.suite.work import Work
from lockstep.broker import EmbeddedBroker

ROOT = Path(__file__).parent.parent.parent
screen = Console(stderr=True)


def works(quick: bool) -> list[Work]:
    if quick:
        return [
            delta_works.throughput("throughput", 300_000, 50_000),
            delta_works.throughput("small", 1_000, 100, "epoch_s"),
            delta_works.latency(15),
            delta_works.several_sinks(100_000, 20_000),
            delta_works.recovery(100),
            delta_works.alone(100_000, 20_000),
            kafka_works.kafka_sink(300_000, 100_000),
            state_works.operators(200_000, 50_000, keys=1_000),
            state_works.growth(200_000, 50_000, most=10_000),
            savepoint_works.savepoints(most=10_000),
        ]
    return [
        delta_works.throughput("throughput", 2_000_000, 100_000),
        delta_works.throughput("throughput_500k", 2_000_000, 500_000),
        delta_works.throughput("throughput_10k", 600_000, 10_000),
        delta_works.throughput("small", 20_000, 100, "epoch_s"),
        delta_works.latency(60),
        delta_works.several_sinks(1_000_000, 100_000),
        delta_works.recovery(1_000),
        delta_works.alone(2_000_000, 100_000),
        kafka_works.kafka_sink(2_000_000, 200_000),
        state_works.operators(2_000_000, 200_000),
        state_works.growth(2_000_000, 200_000),
        savepoint_works.savepoints(most=1_000_000),
    ]


def on_request(quick: bool) -> list[Work]:
    """What needs more than a plain ``make bench`` may ask for: run when it is named."""
    if quick:
        return [flink_works.throughput(1_000_000, 100_000, 1.0), flink_works.state(100_000, 20_000, 1_000, 1.0)]
    return [flink_works.throughput(5_000_000, 500_000), flink_works.state(2_000_000, 200_000)]


def main() -> int:
    options = _options()
    chosen = _chosen(works(options.quick), on_request(options.quick), options.only)
    for work in chosen:
        work.ready()
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
    stored = ROOT / "build" / "bench.json"
    result = {"machine": machine(), "quick": options.quick, "works": {}, "ratios": {}}
    if options.only and stored.exists() and (before := json.loads(stored.read_text()))["quick"] == options.quick:
        result["works"] = before["works"]
    with EmbeddedBroker(heap="1g") as broker, Progress(*columns, console=screen) as progress:
        ground = Ground(broker, session(options.driver_memory), progress)
        for work in chosen:
            result["works"][work.key] = summary(work, _measure(ground, work, options.rounds))
            result["ratios"] = ratios(result["works"])
            write(result, ROOT, options.docs)
            screen.print(table(result["works"][work.key]))
        ground.spark.stop()
    for name, ratio in result["ratios"].items():
        screen.print(f"{name:>28} {ratio:.2f}")
    return 0


def _measure(ground: Ground, work: Work, rounds: int) -> list[Measured]:
    bar = ground.progress.add_task(work.key, total=(rounds + 1) * len(work.contenders))
    measured = []
    with work.around:
        for number in range(rounds + 1):  # the first is for the JVM's compiler
            turn = number % len(work.contenders)
            for contender in work.contenders[turn:] + work.contenders[:turn]:
                ground.progress.update(bar, description=f"{work.key}: {contender}{'' if number else ' (warm-up)'}")
                measured.append(Measured(contender, number, work.run(ground, contender)))
                ground.progress.advance(bar)
    ground.progress.remove_task(bar)
    return measured


def _chosen(every: Sequence[Work], on_request: Sequence[Work], only: str | None) -> list[Work]:
    if only is None:
        return list(every)
    known = {work.key: work for work in (*every, *on_request)}
    names = only.split(",")
    unknown = set(names) - known.keys()
    if unknown:
        raise SystemExit(f"--only: no work is called {', '.join(sorted(unknown))}. There are: {', '.join(known)}.")
    return [work for key, work in known.items() if key in names]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, for a look")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--only", metavar="WORKS", help="some of the works, with commas")
    parser.add_argument("--driver-memory", default="4g", help="default: %(default)s")
    parser.add_argument("--docs", action="store_true", help="write docs/benchmarks.md and its pictures")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
