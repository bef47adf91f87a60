"""Settings of the checkpoint coordinator: Flink's names and limits, and what Spark adds."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Any

from lockstep.choices import choose
from lockstep.errors import ConfigurationError

PREFIX = "spark.lockstep."
_SMALLEST = timedelta(milliseconds=10)
_MILLIS = {
    **dict.fromkeys(["", "ms", "millisecond", "milliseconds"], 1),
    **dict.fromkeys(["s", "sec", "second", "seconds"], 1_000),
    **dict.fromkeys(["m", "min", "minute", "minutes"], 60_000),
    **dict.fromkeys(["h", "hour", "hours"], 3_600_000),
    **dict.fromkeys(["d", "day", "days"], 86_400_000),
}


class CheckpointMode(Enum):
    """When the rows of an epoch become visible."""

    EXACTLY_ONCE = "exactly_once"  # after Spark has decided the epoch
    AT_LEAST_ONCE = "at_least_once"  # as soon as the epoch is prepared; a crash in between may repeat it


class RetentionPolicy(Enum):
    """What ``stop()`` does with the checkpoint directory once everything decided is committed."""

    RETAIN_ON_CANCELLATION = "retain"
    DELETE_ON_CANCELLATION = "delete"  # the next start begins a new lineage, from the source's startup mode


class StateBackend(Enum):
    """Where Spark keeps the state of operators, between epochs."""

    HDFS = "hdfs"  # in the executors' memory, with a file for each epoch's changes: Spark's own default
    ROCKSDB = "rocksdb"  # on the executors' disks, larger than memory, with changelog checkpoints


@dataclass(frozen=True)
class CheckpointConfig:
    """How checkpoints are taken.

    Parameters
    ----------
    interval
        Least time between the triggers of two checkpoints, at least 10 ms. ``None``: every epoch is a checkpoint. With
        an interval, the epochs in between are prepared and decided, and become visible together at the next checkpoint.
    timeout
        A checkpoint that is not prepared within this time fails, and its epoch is run again. Once prepared, exceeding it
        is only counted: a decided epoch is never given up.
    min_pause
        Least time between the completion of a checkpoint and the trigger of the next.
    max_concurrent
        How many checkpoints may be triggered and not yet completed.
    tolerable_failures
        How many attempts in a row may fail before the query does. A failed attempt is aborted and its epoch is run again
        in place; nothing undecided is ever skipped.
    mode
        See :class:`CheckpointMode`.
    retained
        How many completed checkpoints to keep. Uncommitted ones are kept besides.
    on_cancellation
        See :class:`RetentionPolicy`.
    max_pending_epochs
        How many decided epochs may wait for their commit before the next epoch is held back. Spark forgets its logs
        after ``spark.sql.streaming.minBatchesToRetain`` batches (100), so this must stay well below.
    state_backend
        See :class:`StateBackend`. ``None``: what the session says. It is fixed by a checkpoint directory's first start.
    """

    interval: timedelta | None = None
    timeout: timedelta = timedelta(minutes=10)
    min_pause: timedelta = timedelta(0)
    max_concurrent: int = 1
    tolerable_failures: int = 0
    mode: CheckpointMode = CheckpointMode.EXACTLY_ONCE
    retained: int = 10
    on_cancellation: RetentionPolicy = RetentionPolicy.RETAIN_ON_CANCELLATION
    max_pending_epochs: int = 20
    state_backend: StateBackend | None = None

    def __post_init__(self) -> None:
        if self.interval is not None:
            _at_least("interval", self.interval, _SMALLEST)
        _one_of("mode", self.mode, CheckpointMode)
        _one_of("on_cancellation", self.on_cancellation, RetentionPolicy)
        if self.state_backend is not None:
            _one_of("state_backend", self.state_backend, StateBackend)
        _at_least("timeout", self.timeout, _SMALLEST)
        _at_least("min_pause", self.min_pause, timedelta(0))
        _at_least("max_concurrent", self.max_concurrent, 1)
        _at_least("tolerable_failures", self.tolerable_failures, 0)
        _at_least("retained", self.retained, 1)
        _at_least("max_pending_epochs", self.max_pending_epochs, 1)
        if self.max_pending_epochs > 50:
            raise ConfigurationError(
                f"max_pending_epochs={self.max_pending_epochs} is too high: Spark keeps 100 batches of its logs, and "
                "pending epochs must stay well below that. Use at most 50."
            )

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> CheckpointConfig:
        """Build from ``spark.lockstep.*`` settings, e.g. ``{"spark.lockstep.interval": "10 s"}``."""
        values: dict[str, Any] = {}
        for key, text in settings.items():
            name = _SETTINGS.get(key)
            if name is None:
                close = difflib.get_close_matches(key, _SETTINGS, n=1)
                hint = f"Did you mean {close[0]}?" if close else f"Valid settings: {', '.join(sorted(_SETTINGS))}."
                raise ConfigurationError(f"unknown setting {key}. {hint}")
            try:
                values[name] = _PARSERS[name](text)
            except ValueError as error:
                raise ConfigurationError(f"{key}={text!r}: {error}") from error
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        """As stored in the checkpoint directory and shown to people."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def parse_duration(text: str) -> timedelta:
    """``"250 ms"``, ``"10 s"``, ``"5 min"``, ``"1 h"``, ``"7 d"`` or a plain number of milliseconds."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    if not match or match[2] not in _MILLIS:
        raise ValueError("not a duration; write for example '250 ms', '10 s', '5 min', '1 h' or '7 d'")
    try:
        return timedelta(milliseconds=float(match[1]) * _MILLIS[match[2]])
    except OverflowError as error:
        raise ValueError("longer than any duration can be") from error


def _one_of(name: str, value: Any, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        raise ConfigurationError(f"{name}={value!r} is not a {kind.__name__}: use {', '.join(map(str, kind))}.")


def _at_least(name: str, value: Any, least: Any) -> None:
    if not isinstance(value, type(least)) or isinstance(value, bool):
        raise ConfigurationError(
            f"{name}={value!r} is not {'an' if type(least) is int else 'a'} {type(least).__name__}."
        )
    if value < least:
        raise ConfigurationError(f"{name}={value} is below the least allowed value, {least}.")


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return int(value.total_seconds() * 1000)
    return value.value if isinstance(value, Enum) else value


_PARSERS: dict[str, Callable[[str], Any]] = {
    "interval": parse_duration,
    "timeout": parse_duration,
    "min_pause": parse_duration,
    "max_concurrent": int,
    "tolerable_failures": int,
    "mode": lambda text: choose(CheckpointMode, text, f"{PREFIX}mode"),
    "retained": int,
    "on_cancellation": lambda text: choose(RetentionPolicy, text, f"{PREFIX}onCancellation"),
    "max_pending_epochs": int,
    "state_backend": lambda text: choose(StateBackend, text, f"{PREFIX}stateBackend"),
}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


_SETTINGS = {f"{PREFIX}{_camel(name)}": name for name in _PARSERS}
