"""The query handle's own decisions, with a Spark query and a pipeline that only play their parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.config import CheckpointConfig, RetentionPolicy
from lockstep.engine.query import CheckpointedQuery
from lockstep.errors import CommitStalledError


class SparkQuery:
    """A query that has ended, well or not."""

    isActive = False  # noqa: N815

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure

    def stop(self) -> None: ...

    def exception(self) -> Exception | None:
        return self.failure


class Pipeline:
    def __init__(self, drain_failure: Exception | None = None) -> None:
        self.config = CheckpointConfig(on_cancellation=RetentionPolicy.DELETE_ON_CANCELLATION)
        self.thread = SimpleNamespace(stopping=False)
        self.failure: BaseException | None = None
        self.calls: list[str] = []
        self.drain_failure = drain_failure

    def start(self, stop_query: Any) -> None: ...

    def refuse_own_threads(self, call: str) -> None: ...

    def finish(self, seconds: float) -> None:
        self.calls.append("finish")
        if self.drain_failure:
            raise self.drain_failure

    def delete_directory(self) -> None:
        self.calls.append("delete")


def handle(query: SparkQuery, pipeline: Pipeline) -> CheckpointedQuery:
    return CheckpointedQuery(query, pipeline)  # type: ignore[arg-type]


def test_directory_is_deleted_on_cancellation_after_the_drain_and_once() -> None:
    pipeline = Pipeline()
    handle(SparkQuery(), pipeline).stop()
    assert pipeline.calls == ["finish", "delete"]


@pytest.mark.parametrize("whose", ["spark", "lockstep"])
def test_directory_of_a_query_that_failed_is_never_deleted(whose: str) -> None:
    """Also when the failure was Spark's own, in planning or in its logs: the next start needs the directory."""
    pipeline = Pipeline()
    query = SparkQuery(RuntimeError("offsets are out of range") if whose == "spark" else None)
    if whose == "lockstep":
        pipeline.failure = RuntimeError("sink on fire")
    handle(query, pipeline).stop()
    assert pipeline.calls == ["finish"]


def test_directory_with_uncommitted_epochs_is_never_deleted_and_stop_says_so() -> None:
    pipeline = Pipeline(CommitStalledError("2 epochs could not be committed"))
    query = handle(SparkQuery(), pipeline)
    with pytest.raises(CommitStalledError):
        query.stop()
    assert pipeline.calls == ["finish"]
    assert isinstance(query.exception(), CommitStalledError)
