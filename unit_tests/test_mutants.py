"""The list of mutants follows the code and the docs; `make mutants` runs them."""

from __future__ import annotations

from unit_tests.mutants import MUTANTS, ROOT, misplaced


def test_every_mutant_finds_its_text_in_the_protocol() -> None:
    assert [mutant.name for mutant in misplaced()] == []
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


def test_every_mutant_is_named_once_and_in_the_docs() -> None:
    docs = (ROOT / "docs/reliability.md").read_text()
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) > 20
    assert [mutant.name for mutant in MUTANTS if f"| {mutant.name} | {mutant.breaks} |" not in docs] == []
