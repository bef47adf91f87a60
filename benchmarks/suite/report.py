"""What the rounds add up to: medians with their spread, ratios, tables and plots."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.suite.contenders import DELTA, LOCKSTEP, PARQUET, TUNED_DELTA
from benchmarks.suite.flink_works import ELEMENT, FLINK, PYFLINK
from benchmarks.suite.kafka_works import EXACTLY_ONCE, SPARK
from benchmarks.suite.work import Figures, Work
from integration_tests.chaos.plot import LEFT, RIGHT, WIDTH, line, page, round_up, text

Result = dict[str, Any]
_BAR, _GAP = 16, 12
_NAMES = 330  # width of the column with the contenders' names
_UNITS = {"rows_per_s": "rows/s", "p50_s": "p50", "p99_s": "p99", "epoch_s": "epoch", "first_s": "first epoch visible"}
_UNITS |= {"create_s": "made in", "restore_s": "restored in", "state_mb": "state"}
_UNITS |= {"longest_before_s": "longest epoch before", "longest_during_s": "longest epoch meanwhile"}
_UNITS |= {"start_s": "start", "rows_recovered": "rows recovered", "cpu_s": "CPU", "peak_mb": "peak memory"}


@dataclass(frozen=True)
class Measured:
    """One contender, once. Round 0 is the warm-up."""

    contender: str
    round: int
    figures: Figures


def machine() -> dict[str, Any]:
    packages = ("pyspark", "delta-spark", "confluent-kafka", "pyarrow", "pandas")
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }


def summary(work: Work, measured: Sequence[Measured]) -> Result:
    """A work's part of build/bench.json."""
    counted = [one for one in measured if one.round > 0]
    return {
        "title": work.title,
        "headline": work.headline,
        "lower_is_better": work.lower_is_better,
        "medians": {
            name: _medians([one.figures for one in counted if one.contender == name]) for name in work.contenders
        },
        "warm_up": [asdict(one) for one in measured if one.round == 0],
        "rounds": [asdict(one) for one in counted],
    }


def _medians(figures: Sequence[Figures]) -> dict[str, dict[str, float]]:
    return {
        name: {
            "median": statistics.median(one[name] for one in figures),
            "min": min(one[name] for one in figures),
            "max": max(one[name] for one in figures),
        }
        for name in figures[0]
    }


def ratios(works: Mapping[str, Result]) -> dict[str, float]:
    """The figures that we promise to keep; those whose work was not run are left out."""
    lockstep, delta = LOCKSTEP.name, DELTA.name
    wanted = {
        "throughput_vs_delta": ("throughput", "rows_per_s", lockstep, delta),
        "throughput_vs_tuned_delta": ("throughput", "rows_per_s", lockstep, TUNED_DELTA.name),
        "time_vs_parquet": ("throughput", "epoch_s", lockstep, PARQUET.name),
        "small_epoch_vs_delta": ("small", "epoch_s", lockstep, delta),
        "small_epoch_vs_parquet": ("small", "epoch_s", lockstep, PARQUET.name),
        "latency_p50_vs_delta": ("latency", "p50_s", lockstep, delta),
        "latency_p99_vs_delta": ("latency", "p99_s", lockstep, delta),
        "state_element": ("state", "rows_per_s", "process_element, hdfs", "idiomatic, hdfs"),
        "state_batch": ("state", "rows_per_s", "process_batch, hdfs", "idiomatic, hdfs"),
        "throughput_vs_flink": ("throughput_flink", "rows_per_s", lockstep, FLINK),
        "state_vs_pyflink": ("state_flink", "rows_per_s", ELEMENT, PYFLINK),
        "kafka_sink": ("kafka_sink", "rows_per_s", EXACTLY_ONCE, SPARK),
        **{
            f"growth_{name}_{backend}": (
                "state_growth",
                "rows_per_s",
                f"process_{name}, {backend}, 10,000 keys",
                f"process_{name}, {backend}, 1,000,000 keys",
            )
            for name in ("element", "batch")
            for backend in ("hdfs", "rocksdb")
        },
    }
    found = {}
    for name, (work, figure, mine, other) in wanted.items():
        medians = works.get(work, {}).get("medians", {})
        if mine in medians and other in medians:
            found[name] = round(medians[mine][figure]["median"] / medians[other][figure]["median"], 3)
    return found


def table(work: Result) -> Table:
    headers, lines = _lines(work)
    shown = Table(*headers, title=work["title"])
    for cells in lines:
        shown.add_row(*cells)
    return shown


def _lines(work: Result) -> tuple[list[str], list[list[str]]]:
    medians = work["medians"]
    figures = [name for name in next(iter(medians.values())) if name in _UNITS]
    figures.sort(key=lambda name: name != work["headline"])
    lines = []
    for contender, found in medians.items():
        head = found[figures[0]]
        spread = f"{shown(figures[0], head['min'])} to {shown(figures[0], head['max'])}"
        lines.append([contender, shown(figures[0], head["median"]), spread])
        lines[-1] += [shown(name, found[name]["median"]) for name in figures[1:]]
    return ["", _UNITS[figures[0]], "least to most", *[_UNITS[name] for name in figures[1:]]], lines


def shown(figure: str, value: float) -> str:
    if figure.endswith("_s") and figure != "rows_per_s":
        return f"{value:.2f} s"
    return f"{value:,.0f} MB" if figure.endswith("_mb") else f"{value:,.0f}"


def markdown(result: Result) -> str:
    """The generated part of docs/benchmarks.md."""
    found = [f"| `{name}` | {ratio:.2f} |" for name, ratio in result["ratios"].items()]
    parts = ["\n".join(["| ratio | |", "|---|---|", *found])] if found else []
    for key, work in result["works"].items():
        headers, lines = _lines(work)
        rows = [headers, ["---"] * len(headers), *lines]
        cells = "\n".join("| " + " | ".join(row) + " |" for row in rows)
        parts.append(f"### {work['title']}\n\n![{work['title']}](pictures/bench-{key}.svg)\n\n{cells}")
    return "\n\n".join(parts)


def picture(work: Result) -> str:
    """Bars of the headline figure, with the least and the most of the rounds."""
    figure, medians = work["headline"], work["medians"]
    most = round_up(max(found[figure]["max"] for found in medians.values()))
    bottom = 40 + len(medians) * (_BAR + _GAP)

    def x(value: float) -> float:
        return _NAMES + value / most * (WIDTH - _NAMES - RIGHT - 40)

    better = "less is better" if work["lower_is_better"] else "more is better"
    parts = [text(LEFT - 110, 20, f"{work['title']}: {_UNITS[figure]}, {better}", css="title")]
    for value in (0, most / 2, most):
        parts.append(line("grid", x(value), 34, x(value), bottom))
        parts.append(text(x(value), bottom + 17, f"{value:,.10g}", anchor="middle"))
    for row, (contender, found) in enumerate(medians.items()):
        top = 42 + row * (_BAR + _GAP)
        parts.append(text(_NAMES - 8, top + 13, contender, anchor="end"))
        parts.append(
            f'<rect class="dot" x="{_NAMES}" y="{top}" width="{x(found[figure]["median"]) - _NAMES:.1f}" height="{_BAR}"/>'
        )
        parts.append(line("median", x(found[figure]["min"]), top + _BAR / 2, x(found[figure]["max"]), top + _BAR / 2))
    return page(work["title"], bottom + 30, "\n".join(parts))


def write(result: Result, root: Path, docs: bool) -> None:
    (root / "build").mkdir(exist_ok=True)
    (root / "build" / "bench.json").write_text(json.dumps(result, indent=2) + "\n")
    pictures = root / ("docs/pictures" if docs else "build")
    for key, work in result["works"].items():
        (pictures / f"bench-{key}.svg").write_text(picture(work))
    if docs:
        document = root / "docs" / "benchmarks.md"
        before, mark, _ = document.read_text().partition("<!-- figures -->")
        document.write_text(f"{before}{mark}\n{markdown(result)}\n")
