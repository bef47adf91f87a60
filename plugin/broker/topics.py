"""Creates and widens topics, and returns only when every partition can be written to."""

from __future__ import annotations

import importlib
import time
from typing import TYPE_CHECKING, Any

from lockstep.errors import ConfigurationError, EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

_POLL_SECONDS = 0.05


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, config: Mapping[str, str] | None = None, timeout: float = 30.0
) -> None:
    """Create topic ``name``. A topic that is there already is an error."""
    library = _library()
    admin = library.AdminClient({"bootstrap.servers": bootstrap_servers})
    topic = library.NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(config or {}))
    _finish(admin.create_topics([topic], operation_timeout=timeout)[name], f"topic '{name}' could not be created")
    _await_leaders(admin, name, partitions, timeout)


def ensure_topic(bootstrap_servers: str, name: str, partitions: int, timeout: float = 30.0) -> None:
    """Create topic ``name`` unless it is there. One that is there is left as it is, however many partitions it has."""
    admin = _library().AdminClient({"bootstrap.servers": bootstrap_servers})
    if name not in admin.list_topics(timeout=timeout).topics:
        create_topic(bootstrap_servers, name, partitions, timeout=timeout)


def add_partitions(bootstrap_servers: str, name: str, total: int, timeout: float = 30.0) -> None:
    """Widen topic ``name`` to ``total`` partitions. Kafka cannot make a topic narrower."""
    library = _library()
    admin = library.AdminClient({"bootstrap.servers": bootstrap_servers})
    widened = admin.create_partitions([library.NewPartitions(name, total)], operation_timeout=timeout)
    _finish(widened[name], f"topic '{name}' could not be widened to {total} partitions")
    _await_leaders(admin, name, total, timeout)


def _library() -> Any:
    try:
        return importlib.import_module("confluent_kafka.admin")
    except ImportError as error:
        raise EnvironmentProblemError(
            "Topics are created with confluent-kafka, which is not installed: pip install 'spark-lockstep[demo]'."
        ) from error


def _finish(future: Any, failure: str) -> None:
    from confluent_kafka import KafkaException

    try:
        future.result()
    except KafkaException as error:
        raise ConfigurationError(f"{failure}: {error.args[0].str()}") from error


def _await_leaders(admin: Any, name: str, partitions: int, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        found = admin.list_topics(name, timeout=timeout).topics[name].partitions.values()
        if len(found) >= partitions and all(partition.leader >= 0 for partition in found):
            return
        time.sleep(_POLL_SECONDS)
    raise EnvironmentProblemError(f"topic '{name}' has no leaders for its {partitions} partitions after {timeout:g} s.")
