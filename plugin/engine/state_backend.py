"""Where Spark keeps the state of a query's operators: one setting of ours for several of Spark's."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from lockstep.config import StateBackend

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_CHECK = "spark.sql.streaming.unsupportedOperationCheck"
_SETTINGS: Mapping[StateBackend, Mapping[str, str]] = {
    StateBackend.HDFS: {_PROVIDER: f"{_PACKAGE}.HDFSBackedStateStoreProvider"},
    StateBackend.ROCKSDB: {
        _PROVIDER: f"{_PACKAGE}.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
}
_starting = threading.Lock()


def effective_backend(spark: SparkSession, chosen: StateBackend | None) -> str:
    """The backend of a first start: ours, or what the session says."""
    if chosen is not None:
        return chosen.value
    provider = str(spark.conf.get(_PROVIDER))
    return next((ours.value for ours, settings in _SETTINGS.items() if settings[_PROVIDER] == provider), provider)


@contextlib.contextmanager
def settings_at_start(spark: SparkSession, backend: StateBackend | None, operators: int) -> Iterator[None]:
    """Spark copies the session's settings into a query while it starts; before and after, the session is the user's.

    Spark refuses a second ``applyInPandasWithState`` in a query, by a check that can only be turned off whole. Two work:
    each keeps its own state, and a projection stands between them.
    """
    wanted = dict(_SETTINGS[backend]) if backend is not None else {}
    if operators > 1:
        wanted[_CHECK] = "false"
    with _starting, settings(spark, wanted):
        yield


@contextlib.contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of the session for a while."""
    before = {key: spark.conf.get(key, None) for key in wanted}
    try:
        for key, value in wanted.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, old in before.items():
            if old is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, old)
