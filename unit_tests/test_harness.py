"""The harness for functions: what it shows is what an operator would do, restarts and failures included."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.errors import ConfigurationError, OperatorError, StateMigrationError
from lockstep.state import BroadcastState, KeyedProcessFunction, ListState, MapState, Row, TimeDomain, ValueState
from lockstep.testing import KeyedHarness


class Session(KeyedProcessFunction):
    """Counts the clicks of a user until there was none for ten milliseconds."""

    clicks = ValueState("bigint", default=0)
    pages = ListState("string")
    visits = MapState("string", "bigint")
    limits = BroadcastState("string", "bigint")

    def process_element(self, row: Any, ctx: Any) -> Any:
        if row.page == "/boom":
            raise ValueError("boom")
        self.clicks.update(self.clicks.value() + 1)
        self.pages.add(row.page)
        self.visits.put(row.page, (self.visits.get(row.page) or 0) + 1)
        ctx.register_processing_time_timer(ctx.processing_time + 10)

    def process_broadcast_element(self, row: Any, ctx: Any) -> None:
        self.limits.put(row.page, row.most)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.key, self.clicks.value()
        self.clicks.clear()
        self.pages.clear()
        self.visits.clear()


def session(function: KeyedProcessFunction | None = None, **options: Any) -> KeyedHarness:
    return KeyedHarness(
        function or Session(),
        key="user",
        input="user string, page string",
        output="user string, clicks bigint",
        broadcast="page string, most bigint",
        **options,
    )


def test_a_session_from_first_click_to_last_timer() -> None:
    h = session(processing_time=1_000)
    h.push(("ann", "/"), {"user": "bob", "page": "/"}, Row(user="ann", page="/buy"))
    assert h.state("clicks", "ann") == 2
    assert h.state("pages", "ann") == ["/", "/buy"]
    assert h.state("visits", "ann") == {"/": 1, "/buy": 1}
    assert h.state("clicks", "nobody") == 0
    assert h.keys() == ["ann", "bob"]
    assert h.timers("ann") == [(TimeDomain.PROCESSING_TIME, 1_010)]
    h.advance_processing_time(timedelta(milliseconds=10))
    assert h.output == [Row(user="ann", clicks=2), Row(user="bob", clicks=1)]
    assert h.take_output() == [("ann", 2), ("bob", 1)]
    assert (h.output, h.keys(), h.blob) == ([], [], None)


def test_clock_takes_text_too() -> None:
    h = session()
    h.advance_processing_time("1 min")
    h.advance_processing_time(5)
    assert h.processing_time == 60_005


def test_an_epoch_gathers_what_is_pushed() -> None:
    h = session()
    with h.epoch():
        h.push(("ann", "/"))
        h.push(("ann", "/"))
        h.push_broadcast(("/", 9))
        assert h.keys() == []  # nothing has run yet
    assert (h.next_epoch, h.state("clicks", "ann"), h.state("limits")) == (1, 2, {"/": 9})


def test_epochs_do_not_nest_and_an_error_in_one_pushes_nothing() -> None:
    h = session()

    def nested() -> None:
        with h.epoch():
            h.push(("ann", "/"))
            with h.epoch():
                pass

    with pytest.raises(ConfigurationError, match="open already"):
        nested()
    h.push(("bob", "/"))
    assert h.keys() == ["bob"]


def test_failed_epoch_leaves_the_state_as_it_was() -> None:
    h = session()
    h.push(("ann", "/"))
    with pytest.raises(OperatorError, match=r"Operator 'test' failed in epoch 1.*for key 'bob'.*ValueError: boom"):
        h.push(("ann", "/"), ("bob", "/boom"))
    h.push(("ann", "/"))
    assert (h.state("clicks", "ann"), h.next_epoch) == (2, 2)


def test_state_clocks_and_timers_survive_a_restart() -> None:
    h = session(processing_time=7, watermark=3)
    h.push(("ann", "/"))
    saved = h.snapshot()
    h.push(("ann", "/"))
    for restored, clicks in ((h.restored(Session(), saved), 1), (h.restored(Session()), 2)):
        assert (restored.processing_time, restored.watermark) == (7, 3)
        assert restored.state("clicks", "ann") == clicks
        restored.advance_processing_time(10)
        assert restored.take_output() == [("ann", clicks)]
    assert h.state("clicks", "ann") == 2  # the first one goes on by itself


def test_restart_with_state_that_does_not_fit_is_refused() -> None:
    class Other(Session):
        clicks = ValueState("string")

    with pytest.raises(StateMigrationError, match="'clicks' of operator 'test'"):
        session().restored(Other())


def test_function_is_opened_and_closed() -> None:
    calls = []

    class Noting(Session):
        def open(self, ctx: Any) -> None:
            calls.append(f"open {ctx.uid}")

        def close(self) -> None:
            calls.append("close")

    h = session(Noting(), uid="mine")
    h.close()
    assert calls == ["open mine", "close"]


def test_wrong_row_is_refused_where_it_is_pushed() -> None:
    h = session()
    with pytest.raises((TypeError, ValueError), match="page"):
        h.push(("ann", 7))
    assert h.next_epoch == 0


def test_what_the_harness_does_not_have_is_told() -> None:
    with pytest.raises(ConfigurationError, match="key='x' is no column of the input: user, page"):
        KeyedHarness(Session(), key="x", input="user string, page string", output="n bigint")
    with pytest.raises(ConfigurationError, match="no state 'x'; there are clicks, pages"):
        session().state("x", "ann")

    class Plain(KeyedProcessFunction):
        def process_element(self, row: Any, ctx: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="no broadcast stream"):
        KeyedHarness(Plain(), key="k", input="k string", output="k string").push_broadcast((1,))
