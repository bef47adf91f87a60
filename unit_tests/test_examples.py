"""The functions of the examples, each by itself: no Spark, no Kafka."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from lockstep.testing import KeyedHarness

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))  # as Python does for a script

import bank
import broadcast_rules
import deduplicate
import order_states
import running_totals
import sessions

NOON = datetime(2025, 1, 1, 12, tzinfo=timezone.utc)
SCRIPTS = (bank, broadcast_rules, deduplicate, order_states, running_totals, sessions)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def millis(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)


def plain(rows: Any) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in rows]


# --- running_totals -----------------------------------------------------------------------------------------------------


def test_running_total_is_kept_for_each_account_across_epochs() -> None:
    harness = KeyedHarness(
        running_totals.RunningTotal(), key="account", input=running_totals.INPUT, output=running_totals.OUTPUT
    )
    harness.push((1, "a", 10), (2, "b", 5))
    harness.push((3, "a", 7))
    assert plain(harness.take_output()) == [("a", 1, 1, 10), ("b", 2, 1, 5), ("a", 3, 2, 17)]


# --- sessions -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def clicks() -> KeyedHarness:
    return KeyedHarness(
        sessions.Sessions(timedelta(seconds=30)),
        key="user",
        input=sessions.INPUT,
        output=sessions.OUTPUT,
        watermark=millis(at(-60)),
    )


def test_session_is_emitted_when_its_gap_has_passed_though_the_user_never_comes_back(clicks: KeyedHarness) -> None:
    clicks.push((1, "u", at(0)), (2, "u", at(29)))
    clicks.advance_watermark(millis(at(58.999)))
    assert not clicks.take_output()
    clicks.advance_watermark(millis(at(59)))
    assert plain(clicks.take_output()) == [("u", at(0), at(29), 2)]
    assert not list(clicks.keys()), "nothing is left behind"


def test_clicks_a_gap_apart_are_two_sessions(clicks: KeyedHarness) -> None:
    clicks.push((1, "u", at(0)), (2, "u", at(30)), (3, "v", at(10)))
    clicks.advance_watermark(millis(at(100)))
    assert sorted(plain(clicks.take_output())) == [
        ("u", at(0), at(0), 1),
        ("u", at(30), at(30), 1),
        ("v", at(10), at(10), 1),
    ]


def test_late_click_joins_two_open_sessions(clicks: KeyedHarness) -> None:
    clicks.push((1, "u", at(40)), (2, "u", at(0)))
    clicks.push((3, "u", at(20)))
    assert len(clicks.timers("u")) == 1
    clicks.advance_watermark(millis(at(100)))
    assert plain(clicks.take_output()) == [("u", at(0), at(40), 3)]


def test_click_behind_the_watermark_is_a_session_of_its_own(clicks: KeyedHarness) -> None:
    clicks.advance_watermark(millis(at(1000)))
    clicks.push((1, "u", at(0)))
    assert plain(clicks.take_output()) == [("u", at(0), at(0), 1)]


def test_times_with_microseconds_close_their_session(clicks: KeyedHarness) -> None:
    odd = at(0) + timedelta(microseconds=1)
    clicks.push((1, "u", odd))
    clicks.advance_watermark(millis(at(31)))
    assert plain(clicks.take_output()) == [("u", odd, odd, 1)]


# --- deduplicate --------------------------------------------------------------------------------------------------------


def test_repeated_event_is_dropped_until_its_id_is_forgotten() -> None:
    kafka = ", topic string, partition int, offset bigint"
    harness = KeyedHarness(
        deduplicate.FirstOnly("1 h"), key="id", input=deduplicate.INPUT + kafka, output=deduplicate.OUTPUT
    )
    harness.push(("e1", "first", "t", 0, 0), ("e1", "again", "t", 0, 1), ("e2", "other", "t", 0, 2))
    harness.advance_processing_time(timedelta(minutes=59))
    harness.push(("e1", "again, and does not prolong", "t", 0, 3))
    assert plain(harness.take_output()) == [("e1", "first", 0, 0), ("e2", "other", 0, 2)]
    harness.advance_processing_time(timedelta(minutes=1))
    harness.push(("e1", "after an hour", "t", 0, 4))
    assert plain(harness.take_output()) == [("e1", "after an hour", 0, 4)]


# --- bank ---------------------------------------------------------------------------------------------------------------


def test_balance_starts_at_the_opening_and_follows_each_leg() -> None:
    harness = KeyedHarness(bank.Balances(1000), key="account", input=bank.LEGS, output=bank.OUTPUT)
    harness.push((1, "a", -100), (1, "b", 100))
    harness.push((2, "a", -100))
    rows = harness.take_output()
    assert [(row.account, row.id, row.change, row.balance) for row in rows] == [
        ("a", 1, -100, 900),
        ("b", 1, 100, 1100),
        ("a", 2, -100, 800),
    ]
    assert rows[0].epoch == rows[1].epoch < rows[2].epoch


def test_books_balance_only_if_state_and_table_agree_to_the_cent() -> None:
    right = {"a": 900, "b": 1100}
    assert bank.Cut(1, right, right, {7: right}).balances(1000)
    assert not bank.Cut(1, right, {"a": 1100, "b": 900}, {}).balances(1000), "the same total, on other accounts"
    assert not bank.Cut(1, right, right, {7: {"a": 900}}).balances(1000), "a version with half of a transfer"
    assert not bank.Cut(1, {"a": 900}, {"a": 900}, {}).balances(1000), "money has vanished"


# --- broadcast_rules ----------------------------------------------------------------------------------------------------


@pytest.fixture
def alerts() -> KeyedHarness:
    return KeyedHarness(
        broadcast_rules.Alerts(),
        key="account",
        input=broadcast_rules.INPUT,
        output=broadcast_rules.OUTPUT,
        broadcast=broadcast_rules.RULES,
    )


def test_rule_counts_each_account_by_itself(alerts: KeyedHarness) -> None:
    alerts.push_broadcast(("big", 500, 2))
    alerts.push((1, "a", 600), (2, "b", 600), (3, "a", 100), (4, "a", 600), (5, "a", 500), (6, "a", 600))
    assert plain(alerts.take_output()) == [("a", "big", 5, 2)]


def test_changed_rule_applies_to_later_rows_and_a_removed_one_to_none(alerts: KeyedHarness) -> None:
    alerts.push_broadcast(("big", 500, 1))
    alerts.push((1, "a", 400), (2, "a", 600))
    alerts.push_broadcast(("big", 300, 1))
    alerts.push((3, "a", 400))
    alerts.push_broadcast(("big", None, None))
    alerts.push((4, "a", 10_000))
    assert plain(alerts.take_output()) == [("a", "big", 2, 1), ("a", "big", 3, 1)]


def test_streak_goes_on_under_a_rule_that_asks_for_less(alerts: KeyedHarness) -> None:
    alerts.push_broadcast(("big", 500, 3))
    alerts.push((1, "a", 600), (2, "a", 600))
    alerts.push_broadcast(("big", 500, 2))
    alerts.push((3, "a", 600))
    assert plain(alerts.take_output()) == [("a", "big", 3, 3)]


# --- order_states -------------------------------------------------------------------------------------------------------


@pytest.fixture
def orders() -> KeyedHarness:
    return KeyedHarness(
        order_states.OrderStates(pay_within=60), key="order", input=order_states.INPUT, output=order_states.OUTPUT
    )


def test_order_goes_its_way_and_what_is_illegal_is_reported(orders: KeyedHarness) -> None:
    steps = ("paid", "created", "created", "paid", "delivered", "shipped", "delivered", "paid")
    for number, status in enumerate(steps):
        orders.push((number, "o", status))
    orders.advance_processing_time(timedelta(hours=1))
    assert plain(orders.take_output()) == [
        ("o", 0, None, "paid", False),
        ("o", 1, None, "created", True),
        ("o", 2, "created", "created", False),
        ("o", 3, "created", "paid", True),
        ("o", 4, "paid", "delivered", False),
        ("o", 5, "paid", "shipped", True),
        ("o", 6, "shipped", "delivered", True),
        ("o", 7, "delivered", "paid", False),
    ]


def test_unpaid_order_expires_once_and_takes_no_payment_after(orders: KeyedHarness) -> None:
    orders.push((1, "o", "created"), (2, "other", "created"), (3, "other", "paid"))
    orders.take_output()
    orders.advance_processing_time(timedelta(seconds=59))
    assert not orders.take_output()
    orders.advance_processing_time(timedelta(seconds=1))
    assert plain(orders.take_output()) == [("o", None, "created", "expired", True)]
    orders.advance_processing_time(timedelta(hours=1))
    orders.push((4, "o", "paid"))
    assert plain(orders.take_output()) == [("o", 4, "expired", "paid", False)]


# --- all ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_script_explains_itself(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        script.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"python examples/{script.__name__}.py" in shown
    assert "lockstep broker" in shown
