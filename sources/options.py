"""Options of a Kafka stream: Spark's own, the client's (``kafka.*``) and Lockstep's (``lockstep.*``).

They are kept in the DataFrame's plan, so everything that later needs them (the writer, the listener) finds them there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from lockstep.errors import ConfigurationError

GROUP_ID = "lockstep.group.id"
COMMIT_MODE = "lockstep.offset.commit.mode"
COMMIT_INTERVAL = "lockstep.offset.commit.interval"
STARTUP_PROBLEM = "lockstep.startup.problem"

CLIENT_PREFIX = "kafka."
SPARK_GROUP_ID = "kafka.group.id"

PASSED_THROUGH = (
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "kafkaConsumer.pollTimeoutMs",
    "maxOffsetsPerTrigger",
    "maxRecordsPerPartition",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
)
"""Spark's options that a user may set. Spark itself would ignore an unknown one without a word."""

OWNED = {
    "assign": "partitions",
    "subscribe": "topics",
    "subscribepattern": "topic_pattern",
    "startingoffsets": "startup_mode",
    "startingtimestamp": "timestamp",
    "startingoffsetsbytimestamp": "timestamp",
    "startingoffsetsbytimestampstrategy": "timestamp",
    "endingoffsets": None,
    "endingtimestamp": None,
    "endingoffsetsbytimestamp": None,
    "kafka.bootstrap.servers": "bootstrap_servers",
    "kafka.group.id": "group_id",
    "kafka.auto.offset.reset": "offset_reset",
    "kafka.enable.auto.commit": "commit_mode",
    "kafka.auto.commit.interval.ms": "commit_interval",
    GROUP_ID: "group_id",
    COMMIT_MODE: "commit_mode",
    COMMIT_INTERVAL: "commit_interval",
    STARTUP_PROBLEM: None,
}
"""Options that Lockstep sets, and the argument of ``KafkaSource`` to use instead."""

_NOT_SUPPORTED = {
    "kafka.key.deserializer": "keys are read as bytes; use DataFrame functions to decode them",
    "kafka.value.deserializer": "values are read as bytes; use DataFrame functions such as from_json to decode them",
    "kafka.interceptor.classes": "Spark doesn't allow interceptors, which may change records",
}


def check_options(options: Mapping[str, str]) -> dict[str, str]:
    """Options as Spark takes them. Refuses those that are owned by Lockstep, unknown, or set twice."""
    checked: dict[str, str] = {}
    spelling = {name.lower(): name for name in PASSED_THROUGH}
    for key, value in options.items():
        name = key.lower()
        if name in OWNED:
            argument = OWNED[name]
            remedy = f"Use the argument {argument} of KafkaSource." if argument else "It has no place in a stream."
            raise ConfigurationError(f"option {key} is set by Lockstep. {remedy}")
        if name in _NOT_SUPPORTED:
            raise ConfigurationError(f"option {key} is not supported: {_NOT_SUPPORTED[name]}.")
        if not name.startswith(CLIENT_PREFIX) and name not in spelling:
            raise ConfigurationError(f"unknown option {key}. {_closest(key, spelling)}")
        if name in checked:
            raise ConfigurationError(f"option {key} is given twice, in different case.")
        checked[name] = _text(value)
    return {spelling.get(name, name): value for name, value in checked.items()}


def client_settings(options: Mapping[str, str]) -> dict[str, str]:
    """The client's settings among ``options`` (lower-case keys), without their prefix."""
    return {key[len(CLIENT_PREFIX) :]: value for key, value in options.items() if key.startswith(CLIENT_PREFIX)}


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _closest(key: str, spelling: Mapping[str, str]) -> str:
    close = difflib.get_close_matches(key.lower(), [*spelling, *OWNED], n=3)
    if close:
        return f"Did you mean {' or '.join(spelling.get(name, name) for name in close)}?"
    return f"Client settings start with 'kafka.'; Spark's options are: {', '.join(PASSED_THROUGH)}."
