"""Every test that the docs name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "flink.md").read_text(encoding="utf-8")
MISTAKES = (ROOT / "docs" / "mistakes.md").read_text(encoding="utf-8")
OTHERS = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("snapshots.md", "savepoints.md")]
NAME = re.compile(r"`((?:unit_tests|integration_tests|plugin/testing)/\w+\.py)::(\w+)`")
NAMED = sorted(set(NAME.findall("".join([TEXT, MISTAKES, *OTHERS]))))


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_named_tests_exist(file: str) -> None:
    defined = set(re.findall(r"^ *def (test_\w+)\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE))
    assert {test for named, test in NAMED if named == file} <= defined


def test_every_rule_names_its_test_or_says_why_it_is_moot() -> None:
    rules = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| Flink |")]
    assert len(rules) > 60
    for rule in rules:
        _, _flink, lockstep, kept, _ = rule.split("|")
        assert "_tests/" in kept or "Moot" in lockstep, rule


def test_every_mistake_names_its_test() -> None:
    lines = [line for line in MISTAKES.splitlines() if line.startswith("| ") and not line.startswith("| mistake |")]
    assert len(lines) >= 19
    for line in lines:
        assert ".py::test_" in line.split("|")[3], line
