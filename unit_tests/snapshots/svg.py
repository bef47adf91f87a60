"""A diagram as SVG that reads in light and dark, with a title and a description for those who don't see it."""

from __future__ import annotations

from html import escape

from unit_tests.snapshots.diagram import LEFT, Arrow, Diagram, Dot, Point

WIDTH, MARGIN, RADIUS, HALF = 900, 24, 13, 9  # of a row's dot and of a record's square
LETTER = 6.6  # width of an average one, in text of 14 px

STYLE = """
svg { --back: #ffffff; --ink: #1f2328; --line: #8c959f; --row: #0969da; --kept: #9a6700; --twice: #cf222e;
  --barrier: #8250df; --cut: #1a7f37; --hold: #dfe4ea; --faint: 0.28 }
@media (prefers-color-scheme: dark) {
  svg { --back: #0d1117; --ink: #e6edf3; --line: #7d8590; --row: #58a6ff; --kept: #e3b341; --twice: #ff7b72;
    --barrier: #bc8cff; --cut: #3fb950; --hold: #30363d; --faint: 0.45 }
}
text { font: 14px "Helvetica Neue", Helvetica, Arial, "Liberation Sans", sans-serif; fill: var(--ink) }
.title { font-size: 19px; font-weight: 600 }
.name { font-weight: 600 }
.label { font-size: 13px; font-weight: 600; text-anchor: middle; fill: var(--back) }
.label.after { fill: var(--row) }
.back { fill: var(--back) }
.line { stroke: var(--line); stroke-width: 1.5 }
.hold { fill: var(--hold) }
.before, .after { --colour: var(--row) }
.kept { --colour: var(--kept) }
.twice { --colour: var(--twice) }
.barrier { --colour: var(--barrier) }
.arrow { stroke: var(--colour); stroke-width: 1.75 }
.arrow.kept, .arrow.twice { stroke-width: 3 }
.arrow.barrier { stroke-dasharray: 7 4 }
.head, .dot { fill: var(--colour); stroke: var(--colour); stroke-width: 2 }
.head { stroke: none }
.dot.after { fill: var(--back) }
.cut { fill: none; stroke: var(--cut); stroke-width: 12; stroke-linejoin: round; stroke-linecap: round;
  opacity: var(--faint) }
.side { fill: var(--cut); font-weight: 600 }
.left { text-anchor: end }
.record { fill: var(--back); stroke: var(--cut); stroke-width: 3 }
"""

MEANINGS = {
    "before": "row before the barrier",
    "after": "row after the barrier",
    "barrier": "barrier, or marker",
    "record": "state recorded, on the cut",
    "hold": "held back until the cut",
    "kept": "sent before the cut, received after it: recorded with the channel",
    "twice": "sent after the cut, received before it: counted again after a recovery",
}


def draw(diagram: Diagram, title: str, description: str, sides: tuple[str, str]) -> str:
    notes = [diagram.snapshot_in_words(), diagram.recovery_in_words()]
    parts = [text(Point(MARGIN, 40), title, "title")]
    for process in diagram.processes:
        y = diagram.point(process, 0).y
        parts += [text(Point(MARGIN, y + 5), process, "name")]
        parts += [line("line", Point(LEFT + 12, y), Point(WIDTH - MARGIN, y))]
    parts += [hold(first, last) for first, last in diagram.holds]
    parts += draw_cut(diagram, sides)
    parts += [part for arrow in diagram.arrows for part in draw_arrow(arrow)]
    parts += [*(square(at) for at in diagram.records), *(diamond(at) for at in diagram.waiting)]
    parts += [part for dot in diagram.dots.values() for part in draw_dot(dot)]
    legend, y = draw_legend(diagram, diagram.bottom + 66)
    parts += legend
    for note in notes:
        y += 26
        parts.append(text(Point(MARGIN, y), note))
    height = f"{y + MARGIN:g}"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
            'role="img" aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(" ".join([description, *notes]))}</desc>',
            f"<style>{STYLE}</style>",
            f'<rect class="back" width="{WIDTH}" height="{height}" rx="8"/>',
            *parts,
            "</svg>\n",
        ]
    )


def text(at: Point, words: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text{chosen} x="{at.x:g}" y="{at.y:g}">{escape(words)}</text>'


def line(kind: str, start: Point, end: Point) -> str:
    return f'<line class="{kind}" x1="{start.x:.1f}" y1="{start.y:.1f}" x2="{end.x:.1f}" y2="{end.y:.1f}"/>'


def polygon(kind: str, *points: Point) -> str:
    return f'<polygon class="{kind}" points="{coordinates(points)}"/>'


def coordinates(points: tuple[Point, ...]) -> str:
    return " ".join(f"{point.x:.1f},{point.y:.1f}" for point in points)


def draw_arrow(arrow: Arrow) -> list[str]:
    """The line ends in its head, and the head at the edge of what it points to."""
    tip = arrow.end.towards(arrow.start, RADIUS + 2)
    neck = arrow.end.towards(arrow.start, RADIUS + 12)
    across = Point(-(tip.y - neck.y) * 0.45, (tip.x - neck.x) * 0.45)
    wings = (Point(neck.x + across.x, neck.y + across.y), Point(neck.x - across.x, neck.y - across.y))
    start = arrow.start.towards(arrow.end, RADIUS + 1)
    return [line(f"arrow {arrow.kind}", start, neck), polygon(f"head {arrow.kind}", tip, *wings)]


def draw_dot(dot: Dot) -> list[str]:
    circle = f'<circle class="dot {dot.kind}" cx="{dot.at.x:g}" cy="{dot.at.y:g}" r="{RADIUS - 1}"/>'
    return [circle, text(Point(dot.at.x, dot.at.y + 4.5), dot.name, f"label {dot.kind}")]


def square(at: Point) -> str:
    return (
        f'<rect class="record" x="{at.x - HALF:g}" y="{at.y - HALF:g}" width="{2 * HALF}" height="{2 * HALF}" rx="3"/>'
    )


def diamond(at: Point) -> str:
    ends = ((0, -HALF), (HALF, 0), (0, HALF), (-HALF, 0))
    return polygon("head barrier", *(Point(at.x + x, at.y + y) for x, y in ends))


def hold(first: Point, last: Point, half: int = RADIUS + 6) -> str:
    width, height = last.x - first.x, 2 * half
    return f'<rect class="hold" x="{first.x:g}" y="{first.y - half:g}" width="{width:g}" height="{height}" rx="6"/>'


def draw_cut(diagram: Diagram, sides: tuple[str, str]) -> list[str]:
    """Through every record, and beyond the first and the last line; a barrier that travels along it stays visible."""
    first, last = diagram.records[0], diagram.records[-1]
    points = (Point(first.x, first.y - 50), *diagram.records, Point(last.x, last.y + 34))
    left, right = sides
    return [
        f'<polyline class="cut" points="{coordinates(points)}"/>',
        text(Point(first.x - 14, first.y - 38), left, "left side"),
        text(Point(first.x + 14, first.y - 38), right, "side"),
        text(Point(WIDTH - MARGIN, first.y - 38), "time →", "left"),
    ]


def draw_legend(diagram: Diagram, y: float) -> tuple[list[str], float]:
    """What the picture uses and its meaning, in as many lines as that takes; and the y of the last."""
    kinds = {dot.kind for dot in diagram.dots.values()} | {arrow.kind for arrow in diagram.arrows} | {"record"}
    kinds |= {"hold"} if diagram.holds else set()
    x, parts = float(MARGIN), []
    for kind, meaning in MEANINGS.items():
        if kind not in kinds:
            continue
        width = 38 + LETTER * len(meaning) + 22
        if x + width > WIDTH and x > MARGIN:
            x, y = MARGIN, y + 30
        parts += [*symbol(kind, Point(x + 14, y - 5)), text(Point(x + 38, y), meaning)]
        x += width
    return parts, y + 8


def symbol(kind: str, at: Point) -> list[str]:
    if kind == "record":
        return [square(at)]
    if kind == "hold":
        return [hold(Point(at.x - 14, at.y), Point(at.x + 14, at.y), HALF)]
    if kind == "barrier":
        return draw_arrow(Arrow(kind, Point(at.x - 30, at.y), Point(at.x + 30, at.y)))
    return [f'<circle class="dot {kind}" cx="{at.x:g}" cy="{at.y:g}" r="{RADIUS - 4}"/>']
