"""The pictures of ``docs/snapshots.md`` are what the model draws, show what the text says, and can be read."""

from __future__ import annotations

import re
from itertools import product
from math import dist
from pathlib import Path
from xml.etree import ElementTree

import pytest

from unit_tests.snapshots.diagram import Arrow, Diagram, Point
from unit_tests.snapshots.runs import pictures, shown
from unit_tests.snapshots.svg import MARGIN, RADIUS, STYLE, WIDTH

DOCS = Path(__file__).parent.parent / "docs"
NAMES = sorted(shown())


def test_committed_pictures_are_what_the_model_draws_now() -> None:
    drawn = pictures()
    committed = {name: (DOCS / "pictures" / name).read_text(encoding="utf-8") for name in drawn}
    assert committed == drawn, "run `make pictures`"


def test_docs_show_every_picture_with_a_text_for_those_who_do_not_see_it() -> None:
    shown_in_docs = re.findall(r"!\[.{40,}\]\(pictures/([\w-]+)\.svg\)", (DOCS / "snapshots.md").read_text("utf-8"))
    assert sorted(shown_in_docs) == NAMES


@pytest.mark.parametrize(
    "name, kept, twice, barriers, held",
    [
        ("chandy-lamport", {"b2", "b3"}, set(), 2, 0),
        ("aligned", set(), set(), 2, 1),
        ("tracking", set(), {"a3"}, 2, 0),
        ("epoch", set(), set(), 0, 2),
    ],
)
def test_picture_shows_what_the_text_says(name: str, kept: set[str], twice: set[str], barriers: int, held: int) -> None:
    diagram = Diagram(shown()[name].run)
    assert {dot.name for dot in diagram.dots.values() if dot.kind == "kept"} == kept
    assert {dot.name for dot in diagram.dots.values() if dot.kind == "twice"} == twice
    assert sum(arrow.kind == "barrier" for arrow in diagram.arrows) == barriers
    assert len(diagram.holds) == held


@pytest.mark.parametrize("name", NAMES)
def test_no_arrow_runs_through_a_row_or_a_record_of_another(name: str) -> None:
    diagram = Diagram(shown()[name].run)
    for arrow, at in product(diagram.arrows, [*diagram.dots, *diagram.records, *diagram.waiting]):
        assert at in (arrow.start, arrow.end) or distance(arrow, at) > RADIUS, (arrow, at)


def distance(arrow: Arrow, at: Point) -> float:
    """From the nearest of many points of the arrow."""
    length = dist((arrow.start.x, arrow.start.y), (arrow.end.x, arrow.end.y))
    points = (arrow.start.towards(arrow.end, length * share / 200) for share in range(201))
    return min(dist((point.x, point.y), (at.x, at.y)) for point in points)


@pytest.mark.parametrize("name", NAMES)
def test_picture_is_xml_with_a_title_and_a_description_and_nothing_beyond_its_edges(name: str) -> None:
    root = ElementTree.fromstring(pictures()[f"{name}.svg"])
    space = {"svg": "http://www.w3.org/2000/svg"}
    assert root.findtext("svg:title", namespaces=space) == shown()[name].title
    assert shown()[name].description in root.findtext("svg:desc", namespaces=space, default="")
    for text in root.iterfind("svg:text", space):
        if "class" not in text.attrib:
            assert float(text.attrib["x"]) + 7.2 * len(text.text or "") < WIDTH - MARGIN, text.text


def test_no_text_is_smaller_than_12_pixels() -> None:
    sizes = [int(size) for size in re.findall(r"(?:font: |font-size: )(\d+)px", STYLE)]
    assert sizes
    assert min(sizes) >= 12
