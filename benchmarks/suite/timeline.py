"""When rows became visible to others, read from the files that make them so. Nothing here asks the contenders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


@dataclass(frozen=True)
class Moment:
    """From ``at`` on (seconds since 1970) a reader sees ``rows`` rows in all; ``files`` are the new ones."""

    at: float
    rows: int
    files: tuple[Path, ...] = ()


def of_delta(table: Path) -> list[Moment]:
    """By the entries of the table's log: each appears under its name by a rename, which the change time tells."""
    found: list[Moment] = []
    rows = 0
    for entry in sorted((table / "_delta_log").glob("[0-9]*.json")):
        adds = [action["add"] for action in map(json.loads, entry.read_text().splitlines()) if "add" in action]
        if adds:
            rows += sum(json.loads(add["stats"])["numRecords"] for add in adds)
            found.append(Moment(entry.stat().st_ctime, rows, tuple(table / add["path"] for add in adds)))
    return found


def of_parquet(directory: Path) -> list[Moment]:
    """By the entries of Spark's log of files, which its own readers go by."""
    found: list[Moment] = []
    rows = 0
    entries = [entry for entry in (directory / "_spark_metadata").iterdir() if entry.name.partition(".")[0].isdigit()]
    seen: set[str] = set()
    for entry in sorted(entries, key=lambda one: int(one.name.partition(".")[0])):
        paths = [json.loads(line)["path"] for line in entry.read_text().splitlines()[1:]]  # compacted ones hold all
        new = tuple(Path(path.removeprefix("file://")) for path in paths if path not in seen)
        seen.update(paths)
        if new:
            rows += sum(pq.read_metadata(path).num_rows for path in new)
            found.append(Moment(entry.stat().st_ctime, rows, new))
    return found


def of_files(directory: Path, together: float) -> list[Moment]:
    """By the names of files that are written under hidden ones: a rename shows them, and its change time tells when.

    Writers that commit the same checkpoint do so side by side: what appears within ``together`` seconds is one moment.
    """
    found: list[Moment] = []
    rows = 0
    shown = [path for path in directory.rglob("*") if path.is_file() and not path.name.startswith(".")]
    for path in sorted(shown, key=lambda one: one.stat().st_ctime):
        rows += pq.read_metadata(path).num_rows
        at, files = path.stat().st_ctime, (path,)
        if found and at - found[-1].at < together:
            files = (*found.pop().files, path)
        found.append(Moment(at, rows, files))
    return found


def of_marks(directory: Path) -> list[Moment]:
    """By what workers have written down, a file each: lines of a time and how many rows the worker had seen by then."""
    found: list[Moment] = []
    seen: dict[Path, int] = {}
    marks = [(*line.split(), path) for path in directory.iterdir() for line in path.read_text().splitlines()]
    for at, count, path in sorted(marks, key=lambda mark: float(mark[0])):
        seen[path] = int(count)
        found.append(Moment(float(at), sum(seen.values())))
    return found


def of_progress(progress: Sequence[Any]) -> list[Moment]:
    """By Spark's own reports, for a sink that leaves nothing behind: the end of each epoch."""
    found: list[Moment] = []
    rows = 0
    for one in progress:
        if one.numInputRows:
            rows += one.numInputRows
            found.append(Moment(began(one) + one.durationMs["triggerExecution"] / 1000, rows))
    return found


def began(progress: Any) -> float:
    """When the epoch of a report began."""
    return datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")).timestamp()


def latencies(moments: Sequence[Moment], after: float) -> Iterator[float]:
    """Seconds from produce to visible of every row that was produced ``after`` that time."""
    for moment in moments:
        for file in moment.files:
            for at in pq.read_table(file, columns=["at"])["at"].to_pylist():
                if at / 1e6 >= after:
                    yield moment.at - at / 1e6
