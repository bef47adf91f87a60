"""Timers: once per key and time, in order, and only when due."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import ConfigurationError, OperatorError, StateTypeError
from lockstep.state import KeyedProcessFunction, TimeDomain
from lockstep.state.timers import Timers, to_millis
from lockstep.testing import KeyedHarness


def identity(key: Any) -> Any:
    return key


def drain(timers: Timers, limit: int) -> list[tuple[int, Any]]:
    fired = []
    while (timer := timers.pop(limit)) is not None:
        fired.append(timer)
    return fired


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.sampled_from("abc"))),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"))),
    st.lists(st.integers(0, 6)),
)
def test_timers_are_a_sorted_set(
    actions: list[tuple[bool, int, str]], stored: list[tuple[int, str]], limits: list[int]
) -> None:
    timers, model = Timers(identity, stored), set(stored)
    for limit in [-1, *limits]:
        due = sorted(timer for timer in model if timer[0] <= limit)
        assert drain(timers, limit) == due
        model -= set(due)
        for registers, time, key in actions:
            (timers.register if registers else timers.delete)(key, time)
            (model.add if registers else model.discard)((time, key))
        assert timers.next() == min((time for time, _ in model), default=None)
        assert set(zip(*timers.entries(), strict=True)) == model
        assert len(timers) == len(model)
        assert timers.keys() == {key for _, key in model}


def test_what_is_registered_while_timers_fire_takes_its_place_in_the_order() -> None:
    timers = Timers(identity, [(1, "a"), (5, "a")])
    assert timers.pop(9) == (1, "a")
    timers.register("b", 3)
    timers.delete("a", 5)
    timers.register("a", 5)
    assert drain(timers, 9) == [(3, "b"), (5, "a")]


def test_only_a_real_change_counts_as_one() -> None:
    timers = Timers(identity, [(1, "a")])
    timers.register("a", 1)
    timers.delete("b", 1)
    assert timers.pop(0) is None
    assert not timers.changed
    timers.delete("a", 1)
    assert timers.changed


@pytest.mark.parametrize(
    "time, millis",
    [
        (17, 17),
        (-1, -1),
        (np.int64(17), 17),
        (datetime(1970, 1, 1, 0, 0, 1, 999, tzinfo=timezone.utc), 1_000),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=1))), 0),
        (datetime(1969, 12, 31, 23, 59, 59, 999_500, tzinfo=timezone.utc), -1),
    ],
)
def test_time_is_milliseconds_or_a_datetime(time: Any, millis: int) -> None:
    assert to_millis(time) == millis
    assert type(to_millis(time)) is int


@pytest.mark.parametrize("wrong", [1.5, True, None, "1 h", timedelta(1), datetime(2020, 1, 1), 2**63])
def test_what_is_no_point_in_time_is_refused(wrong: Any) -> None:
    with pytest.raises(StateTypeError, match="timer"):
        to_millis(wrong)


class Alarm(KeyedProcessFunction):
    """``at``: a timer of processing time; with ``event``, of event time; with ``delete``, it is deleted."""

    def process_element(self, row: Any, ctx: Any) -> None:
        domain = "event_time" if row.event else "processing_time"
        getattr(ctx, f"{'delete' if row.delete else 'register'}_{domain}_timer")(row.at)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.key, timestamp, ctx.time_domain.name


def alarm(function: KeyedProcessFunction | None = None, **options: Any) -> KeyedHarness:
    return KeyedHarness(
        function or Alarm(),
        key="k",
        input="k string, at bigint, event boolean, delete boolean",
        output="k string, at bigint, domain string",
        **options,
    )


def test_timer_fires_once_at_its_time_and_not_before() -> None:
    h = alarm()
    h.push(("a", 10, None, None), ("a", 10, None, None))
    h.advance_processing_time(9)
    assert h.take_output() == []
    assert h.timers("a") == [(TimeDomain.PROCESSING_TIME, 10)]
    h.advance_processing_time(1)
    h.advance_processing_time(1)
    assert h.take_output() == [("a", 10, "PROCESSING_TIME")]
    assert h.blob is None


def test_event_time_goes_before_processing_time_and_each_goes_in_order() -> None:
    h = alarm(watermark=0)
    h.push(("b", 5, True, None), ("a", 5, True, None), ("a", 3, None, None), ("c", 4, True, None), ("a", 7, True, None))
    with h.epoch():
        h.advance_processing_time(5)
        h.advance_watermark(6)
    assert [(row.k, row.at) for row in h.take_output()] == [("c", 4), ("a", 5), ("b", 5), ("a", 3)]


def test_deleted_timer_does_not_fire() -> None:
    h = alarm()
    h.push(("a", 10, None, None), ("b", 10, None, None))
    h.push(("a", 10, None, True))
    h.advance_processing_time(10)
    assert [row.k for row in h.take_output()] == ["b"]


def test_timer_in_the_past_fires_at_the_end_of_the_same_epoch() -> None:
    h = alarm(processing_time=100, watermark=50)
    h.push(("a", 7, None, None), ("a", 9, True, None))
    assert [row.domain for row in h.take_output()] == ["EVENT_TIME", "PROCESSING_TIME"]


def test_due_timers_fire_before_the_elements_of_their_epoch() -> None:
    class Order(Alarm):
        def process_element(self, row: Any, ctx: Any) -> Any:
            super().process_element(row, ctx)
            return [(ctx.key, 0, "element")]

    h = alarm(Order())
    h.push(("a", 5, None, None))
    h.take_output()
    with h.epoch():
        h.advance_processing_time(5)
        h.push(("a", 9, None, None))
    assert [row.domain for row in h.take_output()] == ["PROCESSING_TIME", "element"]


def test_timer_without_on_timer_is_refused_when_it_is_registered() -> None:
    class Deaf(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> None:
            ctx.register_processing_time_timer(1)

    with pytest.raises(OperatorError, match="no on_timer to take it"):
        alarm(Deaf()).push(("a", 1, None, None))


def test_event_time_timer_without_a_watermark_is_refused_with_the_remedy() -> None:
    with pytest.raises(OperatorError, match=r"withWatermark\("):
        alarm().push(("a", 1, True, None))


def test_time_domain_is_known_in_on_timer_only() -> None:
    class Curious(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> Any:
            return [(ctx.key, 0, ctx.time_domain.name)]

    with pytest.raises(OperatorError, match="known in on_timer only"):
        alarm(Curious()).push(("a", 1, None, None))


def test_timers_that_never_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(Alarm):
        def on_timer(self, timestamp: int, ctx: Any) -> None:
            ctx.register_processing_time_timer(timestamp)

    monkeypatch.setattr("lockstep.state.group.MOST_FIRINGS", 1_000)
    with pytest.raises(OperatorError, match="more than 1,001 timers fired in one epoch") as failure:
        alarm(Endless()).push(("a", 0, None, None))
    assert "in on_timer for key 'a'" in str(failure.value)


def test_watermark_never_goes_back() -> None:
    h = alarm(watermark=9)
    with pytest.raises(ConfigurationError, match="can't go back to 8"):
        h.advance_watermark(8)
