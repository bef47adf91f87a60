"""The checkers of ``make chaos`` notice what they are there to notice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from integration_tests.chaos.audit import unreferenced
from integration_tests.chaos.nemeses import NEMESES, Nemesis
from integration_tests.chaos.run import Bag
from integration_tests.chaos.watchers import FOREIGN, Barriers, Seen, TableWatcher, TopicWatcher

Row = tuple[int, int, str, int]  # partition, offset, account, count
FIRST: list[Row] = [(0, 0, "a", 1), (0, 1, "b", 1), (1, 0, "a", 2)]
SECOND: list[Row] = [(0, 2, "b", 2), (1, 1, "a", 3)]


def at(path: Path) -> Any:
    """A site with two epochs planned, the first decided: partition 0 up to 2 and 3, partition 1 up to 1 and 2."""
    checkpoint = path / "checkpoint"
    for epoch, ends in enumerate(({"0": 2, "1": 1}, {"0": 3, "1": 2})):
        file = checkpoint / "offsets" / str(epoch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(["v1", "{}", json.dumps({"in": ends})]))
    decide(checkpoint, 0)
    return SimpleNamespace(checkpoint=checkpoint, topic="in", out="out", table=path / "table", foreign=[])


def decide(checkpoint: Path, epoch: int) -> None:
    (checkpoint / "commits").mkdir(exist_ok=True)
    (checkpoint / "commits" / str(epoch)).touch()


def append(site: Any, rows: list[Row]) -> None:
    partition, offset, account, count = zip(*rows, strict=True)
    columns = {"partition": pa.array(partition, pa.int32()), "offset": offset, "id": offset, "account": account}
    write_deltalake(str(site.table), pa.table({**columns, "count": count}), mode="append")


def look(site: Any, **seen_before: Any) -> Seen:
    seen = Seen(**seen_before)
    TableWatcher(site, seen, Barriers(site)).look()
    return seen


def kinds(seen: Seen) -> set[str]:
    return {violation.kind for violation in seen.violations}


def test_table_that_shows_a_decided_epoch_is_right(tmp_path: Path) -> None:
    site = at(tmp_path)
    assert look(site).violations == []  # no table yet
    append(site, FIRST)
    seen = look(site, offsets={0: 2, 1: 1})
    assert seen.violations == []
    assert seen.table == {0: 2, 1: 1}
    decide(site.checkpoint, 1)
    append(site, SECOND)
    assert look(site).violations == []


@pytest.mark.parametrize(
    "rows, expected",
    [
        (FIRST[:2], {"torn"}),
        (FIRST[1:], {"torn", "state"}),
        ([*FIRST, FIRST[0]], {"duplicated", "state"}),
        (FIRST + SECOND, {"undecided"}),
        (FIRST + SECOND[:1], {"torn"}),
        ([FIRST[0], FIRST[1], (1, 0, "a", 3)], {"state"}),
        ([*FIRST, (FOREIGN, 0, "other", 0), (FOREIGN, 0, "other", 0)], {"duplicated"}),
    ],
    ids=["half", "hole", "twice", "too early", "half of the second", "miscounted", "other writer's row twice"],
)
def test_table_that_shows_anything_else_is_noticed(tmp_path: Path, rows: list[Row], expected: set[str]) -> None:
    site = at(tmp_path)
    append(site, rows)
    assert kinds(look(site)) == expected


def test_group_that_is_ahead_of_the_table_is_noticed(tmp_path: Path) -> None:
    site = at(tmp_path)
    append(site, FIRST)
    assert kinds(look(site, offsets={0: 3, 1: 1})) == {"ahead"}


def test_lost_row_of_the_other_writer_is_noticed(tmp_path: Path) -> None:
    site = at(tmp_path)
    append(site, FIRST)
    site.foreign.append(0)
    assert kinds(look(site)) == {"lost"}


def test_topic_with_a_row_twice_or_an_epoch_in_parts_is_noticed(tmp_path: Path) -> None:
    site = at(tmp_path)
    seen = Seen()
    barriers = Barriers(site)
    barriers.look()
    watcher = TopicWatcher(site, seen, barriers)

    def note(row: Row, partition: int, when: int) -> None:
        value = json.dumps({"partition": row[0], "offset": row[1]})
        watcher._note(SimpleNamespace(value=value, partition=partition, offset=0), when)

    note(FIRST[0], 0, 1)
    note(FIRST[1], 1, 2)  # the other partition of the topic may come later
    note(FIRST[2], 0, 1)
    note(SECOND[0], 0, 2)
    watcher.check_torn()
    assert seen.violations == []
    note(SECOND[1], 0, 3)
    watcher.check_torn()
    assert kinds(seen) == {"torn"}
    note(FIRST[0], 0, 4)
    assert kinds(seen) == {"torn", "duplicated"}


def test_data_file_that_no_version_names_is_found(tmp_path: Path) -> None:
    site = at(tmp_path)
    append(site, FIRST)
    assert unreferenced(site.table) == set()
    (site.table / "part-left-behind.parquet").touch()
    assert unreferenced(site.table) == {"part-left-behind.parquet"}


def test_bag_draws_every_nemesis_before_any_comes_again() -> None:
    site: Any = SimpleNamespace(setup=SimpleNamespace(has_executors=True), volume=SimpleNamespace(is_own=True))
    bag = Bag(NEMESES, random.Random(7))
    for _ in range(3):
        assert sorted(bag.draw(site).name for _ in NEMESES) == sorted(one.name for one in NEMESES)


def test_bag_keeps_what_is_not_possible_now_for_later_and_says_so_when_nothing_is() -> None:
    never = Nemesis("never", lambda strike: "", possible=lambda site: False)
    site: Any = SimpleNamespace(late=False)
    late = Nemesis("late", lambda strike: "", possible=lambda site: site.late)
    always = Nemesis("always", lambda strike: "")
    bag = Bag((always, late), random.Random(7))
    assert [bag.draw(site).name for _ in range(3)] == ["always"] * 3
    site.late = True
    assert "late" in {bag.draw(site).name for _ in range(2)}
    with pytest.raises(SystemExit, match=r"never"):
        Bag((never,), random.Random(7)).draw(site)
