"""How a schedule is told: one numbered line for every step, in words."""

from __future__ import annotations

import re
from typing import NamedTuple

_THINGS = [
    (r"lockstep/prepared/0*(\d+)\.(\S+)", "the prepare record of epoch {0} ({1})"),
    (r"lockstep/checkpoints/chk-(\d+)/_metadata", "the metadata of checkpoint {0}"),
    (r"lockstep/checkpoints/chk-(\d+)", "checkpoint {0}"),
    (r"lockstep/tokens/(\d+)", "fencing token {0}"),
    (r"lockstep/lineage", "the lineage"),
    (r"lockstep/(\w+)", "the list of {0}"),
    (r"offsets/(\d+)", "Spark's plan of epoch {0}"),
    (r"commits/(\d+)", "Spark's decision on epoch {0}"),
    (r"(offsets|commits)", "Spark's log {0}"),
]


class Line(NamedTuple):
    """A step, or something that happens to a driver or to the world."""

    driver: int  # 0 for the world around
    verb: str
    about: str = ""

    def __str__(self) -> str:
        text = f"{self.verb} {thing(self.about)}".rstrip()
        return f"driver {self.driver} {text}" if self.driver else text


def thing(path: str) -> str:
    """What a file of the checkpoint directory is, in words; anything else as it is."""
    for pattern, words in _THINGS:
        found = re.fullmatch(pattern, path)
        if found:
            return words.format(*(int(part) if part.isdigit() else part for part in found.groups()))
    return path


def tell(lines: list[Line], end: str = "") -> str:
    """The whole story, for a person."""
    width = len(str(len(lines)))
    told = [f"{number:>{width}}. {line}" for number, line in enumerate(lines, 1)]
    return "\n".join([*told, *([f"{' ' * width}  BROKEN: {end}"] if end else [])])
