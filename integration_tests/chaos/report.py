"""The run as a picture, and as a section of docs/reliability.md."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from integration_tests.chaos.plot import LEFT, RIGHT, ROW, WIDTH, Series, chart, line, page, text

DOCS = Path(__file__).parents[2] / "docs"


def draw(result: dict[str, Any]) -> str:
    """Throughput and backlog over the run, with its faults; and recovery times by nemesis."""
    names = sorted(result["recovery"])
    samples, history = result["samples"], result["history"]
    faults = [one["at"] / 60 for one in history]
    span = (0.0, max([at / 60 for at, *_ in samples] + [0.1]))
    backlog = [(at / 60, produced - visible) for at, produced, visible in samples]
    body = [
        chart(Series("Rows that become visible, per second", _per_second(samples), faults, span), 20, "minute"),
        chart(Series("Rows that came in and are not visible yet", backlog, faults, span), 20 + ROW, "minute"),
        _strips(history, names, 20 + 2 * ROW),
    ]
    title = f"{result['rounds']} faults: {result['lost']} rows lost, {result['duplicated']} duplicated"
    return page(title, 80 + 2 * ROW + 26 * len(names), "\n".join(body))


def _per_second(samples: Sequence[Sequence[float]], window: int = 5) -> list[tuple[float, float]]:
    pairs = zip(samples, samples[window:], strict=False)
    return [(new[0] / 60, (new[2] - old[2]) / (new[0] - old[0])) for old, new in pairs if new[0] > old[0]]


def _strips(history: Sequence[dict[str, Any]], names: Sequence[str], top: float) -> str:
    """One line of dots for each nemesis; seconds grow by ratio, not by difference."""
    longest = max([one["recovery_seconds"] for one in history] + [1.0])
    bottom = top + 26 * len(names) + 16

    def x(seconds: float) -> float:
        return LEFT + math.log1p(seconds) / math.log1p(longest) * (WIDTH - LEFT - RIGHT - 30)

    words = "Seconds from the end of a fault until everything is visible everywhere (the bar: median)"
    parts = [text(LEFT, top + 4, words, css="title")]
    for tick in (0, 1, 2, 5, 10, 20, 50, 100, 200):
        if tick <= longest:
            parts.append(line("grid", x(tick), top + 14, x(tick), bottom))
            parts.append(text(x(tick), bottom + 17, str(tick), anchor="middle"))
    for row, name in enumerate(names):
        middle = top + 30 + 26 * row
        times = sorted(one["recovery_seconds"] for one in history if one["nemesis"] == name)
        parts.append(text(LEFT - 8, middle + 4, name, anchor="end"))
        parts += [f'<circle class="dot" cx="{x(time):.1f}" cy="{middle:.1f}" r="4"/>' for time in times]
        median = x(times[len(times) // 2])
        parts.append(line("median", median, middle - 9, median, middle + 9))
    return "\n".join(parts)


def write_docs(result: dict[str, Any], args: argparse.Namespace) -> None:
    write_section("chaos", _section(result, args), draw(result))


def write_section(name: str, words: str, picture: str) -> None:
    """Put the words between the section's marks in docs/reliability.md, and the picture beside it."""
    (DOCS / "pictures" / f"{name}.svg").write_text(picture)
    page = DOCS / "reliability.md"
    pattern = rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)"
    page.write_text(re.sub(pattern, lambda found: found[1] + words + found[2], page.read_text(), flags=re.DOTALL))


def _section(result: dict[str, Any], args: argparse.Namespace) -> str:
    lines = [
        f'`make chaos ARGS="--rounds {args.rounds} --seed {args.seed}"`, {result["brokers"]} brokers: '
        f"**{result['rounds']} faults, {result['lost']} rows lost, {result['duplicated']} duplicated, {result['torn']} torn "
        f"epochs**; {result['rows']:,} rows in {result['epochs']:,} epochs, {result['seconds'] / 60:.0f} minutes. Outside "
        f"readers looked {result['looks'].get('table', 0):,} times at the table and {result['looks'].get('topic', 0):,} "
        "times at the topic.",
        "",
        "| nemesis | faults | median recovery | longest |",
        "| --- | --- | --- | --- |",
    ]
    for name, spread in result["recovery"].items():
        lines.append(f"| {name} | {spread['rounds']} | {spread['median']:.1f} s | {spread['longest']:.1f} s |")
    return "\n".join([*lines, "", "![Throughput, backlog and recovery times](pictures/chaos.svg)", ""])
