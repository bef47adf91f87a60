"""Every test that ``docs/flink.md`` names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "flink.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`((?:unit|integration)_tests/\w+\.py)::(\w+)`", TEXT)))


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
