"""Small line charts as SVG, for light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, ROW = 960, 130, 20, 170
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #333 } .title { font-size: 15px; font-weight: 600 } .page { fill: #fff }
  .grid { stroke: #ddd } .mark { stroke: #c2410c; opacity: .55 } .line { fill: none; stroke: #1d4ed8; stroke-width: 1.5 }
  .dot { fill: #1d4ed8; opacity: .6 } .median { stroke: #c2410c; stroke-width: 2.5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #ddd } .page { fill: #111 } .grid { stroke: #333 } .mark, .median { stroke: #fb923c }
    .line { stroke: #93c5fd } .dot { fill: #93c5fd }
  }
"""


@dataclass(frozen=True)
class Series:
    """One chart: its line, and perhaps moments to mark."""

    title: str
    points: Sequence[tuple[float, float]]
    marks: Sequence[float] = ()
    span: tuple[float, float] | None = None  # of the horizontal axis, where it is not that of the points


def line_charts(title: str, charts: Sequence[Series], along: str) -> str:
    """One above the other, with a common horizontal axis named ``along``."""
    body = "\n".join(chart(one, 20 + ROW * row, along) for row, one in enumerate(charts))
    return page(title, ROW * len(charts) + 30, body)


def page(title: str, height: float, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" role="img">\n'
        f"<title>{escape(title)}</title><style>{STYLE}</style>\n"
        f'<rect class="page" width="{WIDTH}" height="{height:g}"/>\n{body}\n</svg>\n'
    )


def chart(series: Series, top: float, along: str, tall: float = 100) -> str:
    bottom = top + 20 + tall
    first, last = series.span or ((series.points[0][0], series.points[-1][0]) if series.points else (0, 1))
    most = round_up(max([y for _, y in series.points] + [1e-9]))

    def x(at: float) -> float:
        return LEFT + (at - first) / max(last - first, 1e-9) * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return bottom - max(0.0, value) / most * tall

    parts = [text(LEFT, top + 8, series.title, css="title")]
    for value in (0, most / 2, most):
        parts.append(line("grid", LEFT, y(value), WIDTH - RIGHT, y(value)))
        parts.append(text(LEFT - 8, y(value) + 4, f"{value:,.10g}", anchor="end"))
    parts += [line("mark", x(at), bottom - tall, x(at), bottom) for at in series.marks if first <= at <= last]
    path = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in series.points)
    parts.append(f'<polyline class="line" points="{path}"/>')
    step = round_up((last - first) / 8)
    for number in range(math.ceil(first / step), int(last // step) + 1):
        parts.append(text(x(number * step), bottom + 17, f"{number * step:g}", anchor="middle"))
    parts.append(text(LEFT - 8, bottom + 17, along, anchor="end"))
    return "\n".join(parts)


def line(css: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{css}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", css: str = "") -> str:
    return f'<text class="{css}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def round_up(value: float) -> float:
    """To 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(value, 1e-9)))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= value * 0.999999)
