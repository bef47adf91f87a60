"""Settings: Flink's names, defaults and limits; what is wrong is refused before anything starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from lockstep.config import CheckpointConfig, CheckpointMode, RetentionPolicy, parse_duration
from lockstep.errors import ConfigurationError


def test_defaults_are_flinks_where_they_make_sense() -> None:
    config = CheckpointConfig()
    assert config.interval is None  # every epoch
    assert config.timeout == timedelta(minutes=10)
    assert config.min_pause == timedelta(0)
    assert config.max_concurrent == 1
    assert config.tolerable_failures == 0
    assert config.mode is CheckpointMode.EXACTLY_ONCE
    assert config.on_cancellation is RetentionPolicy.RETAIN_ON_CANCELLATION


@pytest.mark.parametrize(
    "name, value",
    [
        ("interval", timedelta(milliseconds=9)),
        ("timeout", timedelta(milliseconds=9)),
        ("min_pause", timedelta(milliseconds=-1)),
        ("max_concurrent", 0),
        ("tolerable_failures", -1),
        ("retained", 0),
        ("max_pending_epochs", 0),
        ("max_pending_epochs", 51),
    ],
)
def test_settings_beyond_their_limits_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        CheckpointConfig(**{name: value})


@pytest.mark.parametrize(
    "name, value",
    [
        ("interval", timedelta(milliseconds=10)),
        ("timeout", timedelta(milliseconds=10)),
        ("min_pause", timedelta(0)),
        ("max_concurrent", 1),
        ("tolerable_failures", 0),
        ("retained", 1),
        ("max_pending_epochs", 50),
    ],
)
def test_settings_at_their_limits_are_allowed(name: str, value: Any) -> None:
    assert getattr(CheckpointConfig(**{name: value}), name) == value


@pytest.mark.parametrize(
    "name, value",
    [
        ("interval", 5),
        ("timeout", "10 s"),
        ("max_concurrent", 1.5),
        ("retained", None),
        ("mode", "at_least_once"),  # a string would silently mean EXACTLY_ONCE
        ("on_cancellation", "delete"),
    ],
)
def test_values_of_the_wrong_type_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        CheckpointConfig(**{name: value})


def test_settings_come_from_spark_lockstep_keys() -> None:
    config = CheckpointConfig.from_settings(
        {
            "spark.lockstep.interval": "10 s",
            "spark.lockstep.minPause": "250",
            "spark.lockstep.timeout": "5 min",
            "spark.lockstep.maxConcurrent": "2",
            "spark.lockstep.tolerableFailures": "3",
            "spark.lockstep.mode": "AT_LEAST_ONCE",
            "spark.lockstep.onCancellation": "delete",
            "spark.lockstep.maxPendingEpochs": "7",
            "spark.lockstep.retained": "1",
        }
    )
    assert config == CheckpointConfig(
        interval=timedelta(seconds=10),
        min_pause=timedelta(milliseconds=250),
        timeout=timedelta(minutes=5),
        max_concurrent=2,
        tolerable_failures=3,
        mode=CheckpointMode.AT_LEAST_ONCE,
        on_cancellation=RetentionPolicy.DELETE_ON_CANCELLATION,
        max_pending_epochs=7,
        retained=1,
    )


def test_unknown_setting_is_refused_with_the_closest_name() -> None:
    with pytest.raises(ConfigurationError, match=r"Did you mean spark\.lockstep\.minPause\?"):
        CheckpointConfig.from_settings({"spark.lockstep.minPaus": "1 s"})
    with pytest.raises(ConfigurationError, match=r"Valid settings: .*spark\.lockstep\.interval"):
        CheckpointConfig.from_settings({"something.else": "1"})


@pytest.mark.parametrize(
    "key, text",
    [("interval", "soon"), ("timeout", "99999999999999999 h"), ("maxConcurrent", "two"), ("mode", "exactly twice")],
)
def test_setting_that_cannot_be_read_is_refused_by_name(key: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=f"spark.lockstep.{key}='{text}'"):
        CheckpointConfig.from_settings({f"spark.lockstep.{key}": text})


@pytest.mark.parametrize(
    "text, milliseconds",
    [("250", 250), ("250ms", 250), (" 1.5 S ", 1500), ("2 minutes", 120_000), ("1h", 3_600_000), ("10 sec", 10_000)],
)
def test_durations_are_written_as_in_spark(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize("text", ["", "s", "-1 s", "1 week", "1 s 2", "1e3", "٣ s x"])
def test_other_texts_are_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


def test_settings_are_shown_in_plain_values() -> None:
    shown = CheckpointConfig(interval=timedelta(seconds=2)).to_json()
    assert shown["interval"] == 2000
    assert shown["mode"] == "exactly_once"
    assert shown["max_concurrent"] == 1
