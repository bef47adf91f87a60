"""``make soak``: a thousand epochs of one driver, under load: nothing may grow that has no reason to.

    make soak                              # 1,000 epochs, about a quarter of an hour
    make soak ARGS="--epochs 300"

Kafka → keyed state → Delta and Kafka. Measured as the epochs go by: the time of an epoch, the JVM's heap after a collection,
the memory of the Python process, open files, prepare records, and the files and bytes of the checkpoint directory. Each must
be about the same in the last tenth of the run as in the second (in the first, caches fill). Writes build/soak.json and
build/soak.svg; exit code 1 when something has grown.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from integration_tests.chaos.cluster import Cluster
from integration_tests.chaos.plot import Series, line_charts
from integration_tests.chaos.report import write_section
from integration_tests.chaos.site import Driver, Setup, Site, wait_until

ROOT = Path(__file__).parents[1]
screen = Console(stderr=True)


@dataclass(frozen=True)
class Sample:
    """The pipeline after so many epochs."""

    epoch: int
    epoch_seconds: float  # median of the epochs since the sample before
    heap_mb: float
    python_mb: float
    open_files: int
    prepare_records: int
    checkpoint_files: int
    checkpoint_mb: float


@dataclass(frozen=True)
class Limit:
    """How much more the last tenth of a run may have than the second: by a factor, plus an amount."""

    factor: float
    plus: float
    unit: str


LIMITS = {
    "epoch_seconds": Limit(1.15, 0, "s"),
    "heap_mb": Limit(1.10, 0, "MB"),
    "python_mb": Limit(1.10, 0, "MB"),
    "open_files": Limit(1.05, 10, ""),
    "prepare_records": Limit(1.0, 5, ""),
    "checkpoint_files": Limit(1.15, 20, ""),
    "checkpoint_mb": Limit(1.15, 1, "MB"),
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=1000, help="how long (1000)")
    parser.add_argument("--every", type=int, default=10, help="epochs between two measurements (10)")
    parser.add_argument("--rows-per-second", type=int, default=500, help="the load (500)")
    parser.add_argument("--state", choices=("hdfs", "rocksdb"), default="rocksdb", help="the state backend (rocksdb)")
    parser.add_argument("--docs", action="store_true", help="write the result into docs/reliability.md")
    args = parser.parse_args()
    samples = run(args)
    verdicts = {name: judge(samples, name) for name in LIMITS}
    result = {"epochs": args.epochs, "verdicts": verdicts, "samples": [asdict(sample) for sample in samples]}
    picture = draw(samples)
    (ROOT / "build").mkdir(exist_ok=True)
    (ROOT / "build" / "soak.json").write_text(json.dumps(result, indent=1))
    (ROOT / "build" / "soak.svg").write_text(picture)
    if args.docs:
        write_section("soak", section(verdicts, args.epochs), picture)
    show(verdicts, args.epochs)
    return 0 if all(one["flat"] for one in verdicts.values()) else 1


def run(args: argparse.Namespace) -> list[Sample]:
    root = Path(tempfile.mkdtemp(prefix="lockstep-soak-"))
    setup = Setup("local[2]", args.state, None, args.rows_per_second)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Cluster(1, root) as cluster, Progress(*columns, console=screen) as progress:
        bar = progress.add_task("epochs", total=args.epochs)
        site = Site(root, cluster, setup, "soak")
        with site.ended():
            wait_until(lambda: newest_epoch(site) >= 0, 240, f"the first epoch; {site.driver.log}")
            samples: list[Sample] = []
            times = EpochTimes(site)
            while newest_epoch(site) < args.epochs:
                if not site.driver.running:
                    raise SystemExit(f"the driver ended:\n{site.driver.tail()}")
                times.look()
                epoch = newest_epoch(site)
                progress.update(bar, completed=epoch)
                if epoch >= (samples[-1].epoch if samples else 0) + args.every:
                    samples.append(measure(site, site.driver, epoch, times.take()))
                time.sleep(0.2)
    shutil.rmtree(root, ignore_errors=True)
    return samples


class EpochTimes:
    """How long epochs take, from the times of Spark's commit log files."""

    def __init__(self, site: Site) -> None:
        self._commits = site.checkpoint / "commits"
        self._decided: dict[int, float] = {}
        self._taken = 0

    def look(self) -> None:
        for file in self._commits.iterdir():
            if file.name.isdigit() and int(file.name) not in self._decided:
                self._decided[int(file.name)] = file.stat().st_mtime

    def take(self) -> float:
        """The median of what is new."""
        known = sorted(self._decided)[self._taken :]
        self._taken = len(self._decided) - 1
        return statistics.median(self._decided[b] - self._decided[a] for a, b in itertools.pairwise(known))


def newest_epoch(site: Site) -> int:
    commits = site.checkpoint / "commits"
    return max((int(f.name) for f in commits.iterdir() if f.name.isdigit()), default=-1) if commits.exists() else -1


def measure(site: Site, driver: Driver, epoch: int, epoch_seconds: float) -> Sample:
    answer = site.root / f"measured-{epoch}"
    driver.tell(measure=str(answer))
    wait_until(answer.exists, 60, "the driver measures itself")
    used = json.loads(answer.read_text())
    files = _files(site.checkpoint)
    return Sample(
        epoch=epoch,
        epoch_seconds=round(epoch_seconds, 3),
        heap_mb=round(used["heap"] / 1e6, 1),
        python_mb=round(used["python"] / 1e6, 1),
        open_files=sum(used["files"].values()),
        prepare_records=sum(1 for path in files if path.parent.name == "prepared"),
        checkpoint_files=len(files),
        checkpoint_mb=round(sum(files.values()) / 1e6, 2),
    )


def _files(directory: Path) -> dict[Path, int]:
    """Files and their sizes; one that goes meanwhile is left out."""
    found = {}
    for path in directory.rglob("*"):
        try:
            if path.is_file():
                found[path] = path.stat().st_size
        except FileNotFoundError:
            continue
    return found


def judge(samples: Sequence[Sample], name: str) -> dict[str, Any]:
    """The second tenth against the last."""
    values = [float(getattr(sample, name)) for sample in samples]
    tenth = max(1, len(values) // 10)
    early, late = statistics.median(values[tenth : 2 * tenth]), statistics.median(values[-tenth:])
    limit = LIMITS[name]
    return {"second_tenth": early, "last_tenth": late, "flat": late <= early * limit.factor + limit.plus}


def draw(samples: Sequence[Sample]) -> str:
    def series(name: str, title: str) -> Series:
        return Series(title, [(sample.epoch, float(getattr(sample, name))) for sample in samples])

    charts = [
        series("epoch_seconds", "Seconds per epoch"),
        series("heap_mb", "JVM heap after a collection, MB"),
        series("python_mb", "Memory of the Python driver, MB"),
        series("open_files", "Open files"),
        series("prepare_records", "Prepare records"),
        series("checkpoint_files", "Files in the checkpoint directory"),
        series("checkpoint_mb", "Checkpoint directory, MB"),
    ]
    return line_charts("A soak of the pipeline: what it uses, by epoch", charts, "epoch")


def rows_of(verdicts: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """One for each measure, as people read it."""
    found = []
    for name, one in verdicts.items():
        limit = LIMITS[name]
        values = [f"{one[tenth]:g} {limit.unit}".strip() for tenth in ("second_tenth", "last_tenth")]
        found.append((name.replace("_", " "), *values, "yes" if one["flat"] else "NO"))
    return found


def section(verdicts: dict[str, dict[str, Any]], epochs: int) -> str:
    """The part of docs/reliability.md."""
    hundreds = f"{epochs // 10:,} epochs"
    lines = [
        f'`make soak ARGS="--epochs {epochs}"`: one driver, Kafka → keyed state → Delta and Kafka, {epochs:,} epochs.',
        "",
        f"| measure (median) | second {hundreds} | last {hundreds} | flat |",
        "| --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in rows_of(verdicts)),
        "",
        "![What the pipeline uses, by epoch](pictures/soak.svg)",
        "",
    ]
    return "\n".join(lines)


def show(verdicts: dict[str, dict[str, Any]], epochs: int) -> None:
    table = Table(title=f"{epochs} epochs")
    for column in ("measure", "second tenth", "last tenth", "flat"):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for row in rows_of(verdicts):
        table.add_row(*row)
    screen.print(table)


if __name__ == "__main__":
    sys.exit(main())
