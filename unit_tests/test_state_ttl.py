"""Time to live: what is written down, and what expires when."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

from lockstep.errors import ConfigurationError
from lockstep.state import (
    KeyedProcessFunction,
    ListState,
    MapState,
    RawKeyedState,
    ReducingState,
    Ttl,
    TtlUpdate,
    ValueState,
)
from lockstep.testing import KeyedHarness


def harness(function: KeyedProcessFunction) -> KeyedHarness:
    return KeyedHarness(function, key="k", input="k string, v bigint", output="k string, v bigint")


class Last(KeyedProcessFunction):
    """A negative value reads; others are written."""

    def __init__(self, ttl: Ttl | None) -> None:
        self.last = ValueState("bigint", ttl=ttl)

    def process_element(self, row: Any, ctx: Any) -> Any:
        if row.v < 0:
            return [(ctx.key, self.last.value())]
        self.last.update(row.v)
        return None


def test_duration_is_a_timedelta_or_text() -> None:
    assert Ttl("1 h") == Ttl(timedelta(hours=1))
    assert Ttl("1 h").millis == 3_600_000
    assert Ttl("1 h", "on_read_and_write") == Ttl("1 h", TtlUpdate.ON_READ_AND_WRITE) != Ttl("1 h")
    assert len({Ttl("1 h"), Ttl("60 min")}) == 1


@pytest.mark.parametrize("wrong", ["soon", "0 s", timedelta(0), timedelta(-1), timedelta(microseconds=9), 5, None])
def test_duration_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigurationError, match="Ttl"):
        Ttl(wrong)


def test_unknown_update_is_refused_with_what_is_known() -> None:
    with pytest.raises(ConfigurationError, match="on_write, on_read_and_write"):
        Ttl("1 h", "never")


def test_ttl_travels_to_the_workers() -> None:
    assert pickle.loads(pickle.dumps(Ttl("1 h", TtlUpdate.ON_READ_AND_WRITE))) == Ttl("1 h", "on_read_and_write")


def test_something_else_than_a_ttl_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r'ttl=Ttl\("1 h"\)'):
        ValueState("bigint", ttl="1 h")  # type: ignore[arg-type]


def test_expired_value_is_never_returned() -> None:
    h = harness(Last(Ttl("10 ms")))
    h.push(("a", 1))
    h.advance_processing_time(9)
    h.push(("a", -1))
    h.advance_processing_time(1)
    h.push(("a", -1))
    assert h.take_output() == [("a", 1), ("a", None)]


def test_reading_keeps_a_value_only_if_asked_to() -> None:
    seen = {}
    for update in TtlUpdate:
        h = harness(Last(Ttl("10 ms", update)))
        h.push(("a", 1))
        for _ in range(3):
            h.advance_processing_time(6)
            h.push(("a", -1))
        seen[update] = [row.v for row in h.take_output()]
    assert seen == {TtlUpdate.ON_WRITE: [1, None, None], TtlUpdate.ON_READ_AND_WRITE: [1, 1, 1]}


def test_expired_entries_of_other_keys_are_dropped_when_the_group_is_touched() -> None:
    h = harness(Last(Ttl("10 ms")))
    h.push(*((f"k{i}", 1) for i in range(500)))
    full = len(h.blob or b"")
    h.advance_processing_time(10)
    h.push(("a", 1))
    assert h.keys() == ["a"]
    assert len(h.blob or b"") < full / 5


def test_reading_alone_drops_what_is_expired() -> None:
    h = harness(Last(Ttl("10 ms")))
    h.push(("a", 1))
    h.advance_processing_time(10)
    h.push(("b", -1))
    assert h.blob is None


def test_value_stored_before_there_was_a_ttl_lives_from_the_first_epoch_with_one() -> None:
    old = harness(Last(None))
    old.push(("a", 1))
    old.advance_processing_time(1_000)
    new = old.restored(Last(Ttl("10 ms")))
    new.push(("b", -1))  # from here on
    new.advance_processing_time(9)
    new.push(("a", -1))
    new.advance_processing_time(1)
    new.push(("a", -1))
    assert new.take_output() == [("b", None), ("a", 1), ("a", None)]


def test_value_lives_for_ever_once_the_ttl_is_gone() -> None:
    old = harness(Last(Ttl("10 ms")))
    old.push(("a", 1))
    new = old.restored(Last(None))
    new.push(("b", 2))
    new.advance_processing_time("9 h")
    assert (new.state("last", "a"), new.state("last", "b")) == (1, 2)


def test_longer_ttl_counts_from_the_last_write() -> None:
    old = harness(Last(Ttl("10 ms")))
    old.push(("a", 1))
    old.advance_processing_time(9)
    new = old.restored(Last(Ttl("20 ms")))
    new.advance_processing_time(10)
    assert new.state("last", "a") == 1
    new.advance_processing_time(1)
    assert new.state("last", "a") is None


class Collections(KeyedProcessFunction):
    items = ListState("bigint", ttl=Ttl("10 ms"))
    entries = MapState("bigint", "bigint", ttl=Ttl("10 ms"))

    def process_element(self, row: Any, ctx: Any) -> None:
        self.items.add(row.v)
        self.entries.put(row.v, row.v)


def test_each_element_and_each_entry_expires_on_its_own() -> None:
    h = harness(Collections())
    h.push(("a", 1))
    h.advance_processing_time(6)
    h.push(("a", 2))
    h.advance_processing_time(4)
    assert (h.state("items", "a"), h.state("entries", "a")) == ([2], {2: 2})
    h.advance_processing_time(6)
    assert (h.state("items", "a"), h.state("entries", "a"), h.keys()) == ([], {}, [])


@pytest.mark.parametrize("update", list(TtlUpdate))
@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.items.get() == [0],
        lambda s: s.entries.get(0) == 0,
        lambda s: 0 in s.entries,
        lambda s: s.entries.keys() == [0],
        lambda s: s.entries.values() == [0],
        lambda s: s.entries.items() == [(0, 0)],
        lambda s: s.total.get() == 0,
        lambda s: s.raw.value() == b"0",
    ],
)
def test_every_way_to_read_keeps_what_was_read_if_asked_to(read: Any, update: TtlUpdate) -> None:
    ttl = Ttl("10 ms", update)

    class Reading(KeyedProcessFunction):
        items = ListState("bigint", ttl=ttl)
        entries = MapState("bigint", "bigint", ttl=ttl)
        total = ReducingState("bigint", max, ttl=ttl)
        raw = RawKeyedState(ttl=ttl)

        def process_element(self, row: Any, ctx: Any) -> Any:
            if ctx.epoch == 0:
                self.items.add(0)
                self.entries.put(0, 0)
                self.total.add(0)
                self.raw.update(b"0")
                return None
            return [(ctx.key, int(read(self)))]

    h = harness(Reading())
    for _ in range(4):
        h.push(("a", 0))
        h.advance_processing_time(6)
    assert [row.v for row in h.take_output()] == ([1, 1, 1] if update is TtlUpdate.ON_READ_AND_WRITE else [1, 0, 0])


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.entries.put(0, 0),
        lambda s: s.entries.put_all({0: 0}),
        lambda s: s.items.update([0]),
        lambda s: s.last.update(0),
        lambda s: s.total.add(0),
    ],
)
def test_writing_again_makes_an_entry_young(write: Any) -> None:
    ttl = Ttl("10 ms")

    class Writing(KeyedProcessFunction):
        items = ListState("bigint", ttl=ttl)
        entries = MapState("bigint", "bigint", ttl=ttl)
        last = ValueState("bigint", ttl=ttl)
        total = ReducingState("bigint", max, ttl=ttl)

        def process_element(self, row: Any, ctx: Any) -> None:
            write(self)

    h = harness(Writing())
    for _ in range(3):
        h.push(("a", 0))
        h.advance_processing_time(6)
    h.advance_processing_time(3)
    assert h.keys() == ["a"]
    h.advance_processing_time(1)
    assert h.keys() == []


def test_asking_whether_a_map_is_empty_reads_nothing() -> None:
    class Asking(KeyedProcessFunction):
        entries = MapState("bigint", "bigint", ttl=Ttl("10 ms", TtlUpdate.ON_READ_AND_WRITE))

        def process_element(self, row: Any, ctx: Any) -> Any:
            if ctx.epoch == 0:
                self.entries.put(0, 0)
            return [(ctx.key, int(self.entries.is_empty()))]

    h = harness(Asking())
    for _ in range(3):
        h.push(("a", 0))
        h.advance_processing_time(6)
    assert [row.v for row in h.take_output()] == [0, 0, 1]


def test_a_clock_that_goes_back_expires_nothing() -> None:
    h = harness(Last(Ttl("10 ms")))
    h.processing_time = 1_000
    h.push(("a", 1))
    h.processing_time = 0
    h.push(("a", -1))
    assert h.take_output() == [("a", 1)]
