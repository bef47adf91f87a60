"""``lockstep.checkpointed(df)``: reads like ``df.writeStream``."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.config import PREFIX, CheckpointConfig
from lockstep.engine.pipeline import Pipeline
from lockstep.engine.query import CheckpointedQuery
from lockstep.engine.session import require_classic
from lockstep.engine.state_backend import settings_at_start
from lockstep.engine.storage import open_storage
from lockstep.errors import ConfigurationError
from lockstep.protocol.coordinator import CheckpointListener
from lockstep.protocol.epoch import BoundSink
from lockstep.savepoint.restore import OPTIONS as RESTORE_OPTIONS
from lockstep.savepoint.restore import RestoreRequest
from lockstep.sinks.two_phase import TwoPhaseCommitSink
from lockstep.uid import check_uid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

_LOCATION = "checkpointLocation"
_OPTIONS = (_LOCATION, *RESTORE_OPTIONS)
_MODES = ("append", "complete", "update")


def checkpointed(df: DataFrame, config: CheckpointConfig | None = None) -> CheckpointedWriter:
    """Write a streaming DataFrame with Flink's checkpointing: every sink exactly once.

    ``config`` wins over ``spark.lockstep.*`` settings of the session.

    Examples
    --------
    >>> query = (  # doctest: +SKIP
    ...     lockstep.checkpointed(orders)
    ...     .sink(DeltaSink("/lake/orders"), uid="lake")
    ...     .option("checkpointLocation", "/checkpoints/orders")
    ...     .trigger(processingTime="1 second")
    ...     .start()
    ... )
    """
    return CheckpointedWriter(df, config)


class CheckpointedWriter:
    """Mirrors pyspark's ``DataStreamWriter``; nothing happens before :meth:`start`."""

    def __init__(self, df: DataFrame, config: CheckpointConfig | None) -> None:
        require_classic(df.sparkSession)
        if not df.isStreaming:
            raise ConfigurationError(
                "lockstep.checkpointed takes a streaming DataFrame; this one is a batch. Use readStream."
            )
        self._df = df
        self._config = config
        self._sinks: list[BoundSink] = []
        self._options: dict[str, str] = {}
        self._listeners: tuple[CheckpointListener, ...] = ()
        self._trigger: dict[str, Any] = {}
        self._output_mode = "append"
        self._name: str | None = None

    def sink(
        self,
        sink: TwoPhaseCommitSink,
        uid: str,
        transform: Callable[[DataFrame], DataFrame] | None = None,
    ) -> CheckpointedWriter:
        """Add a sink. ``uid`` names it for ever: it ties prepared epochs to the sink across restarts and code changes.

        ``transform`` is applied to each batch for this sink alone.
        """
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigurationError(f"sink {uid!r} is a {type(sink).__name__}, not a TwoPhaseCommitSink.")
        check_uid(uid)
        if any(bound.uid == uid for bound in self._sinks):
            raise ConfigurationError(
                f"two sinks have the uid {uid!r}. Give each its own: it names the sink across restarts."
            )
        if any(bound.sink is sink for bound in self._sinks):
            raise ConfigurationError(
                f"sink {uid!r}: this object has another uid already. Make a sink object for each uid."
            )
        self._sinks.append(BoundSink(uid, sink, transform))
        return self

    def option(self, key: str, value: Any) -> CheckpointedWriter:
        """``checkpointLocation``, or any ``spark.lockstep.*`` setting for this query alone.

        ``restoreFrom`` begins a new directory from a savepoint, or from a checkpoint that another directory retains
        (``<directory>/lockstep/checkpoints/chk-N``); ``restoreMode`` (``no_claim``, or ``claim``: the savepoint is removed
        once the first checkpoint is committed) and ``allowNonRestoredState`` are Flink's. A directory that has a
        checkpoint of its own continues with that.
        """
        if key.lower().startswith("asyncprogresstracking"):
            raise ConfigurationError(
                f"option {key}={value!r}: asynchronous progress tracking lets Spark go on before an epoch is decided, which "
                "exactly-once can't have. Leave it out; commits are off the critical path already."
            )
        if key not in _OPTIONS and not key.startswith(PREFIX):
            close = difflib.get_close_matches(key, _OPTIONS, n=1, cutoff=0.5)
            hint = f"Did you mean {close[0]}?" if close else f"Valid: {', '.join(_OPTIONS)} and {PREFIX}* settings."
            raise ConfigurationError(f"unknown option {key}. {hint}")
        self._options[key] = str(value)
        return self

    def options(self, **options: Any) -> CheckpointedWriter:
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> CheckpointedWriter:
        self._name = queryName
        return self

    def outputMode(self, outputMode: str) -> CheckpointedWriter:
        if outputMode.lower() not in _MODES:
            raise ConfigurationError(f"outputMode {outputMode!r} is unknown: use one of {', '.join(_MODES)}.")
        self._output_mode = outputMode.lower()
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
    ) -> CheckpointedWriter:
        """As in Spark. Continuous processing has no epochs that a sink could commit, and is refused."""
        if continuous is not None:
            raise ConfigurationError(
                f"trigger(continuous={continuous!r}): continuous processing is not supported, it has no micro-batches to "
                "commit. Use trigger(processingTime=...)."
            )
        given = {"processingTime": processingTime, "once": once, "availableNow": availableNow}
        self._trigger = {key: value for key, value in given.items() if value is not None}
        if len(self._trigger) != 1:
            raise ConfigurationError("trigger takes exactly one of processingTime, once and availableNow.")
        return self

    def listener(self, listener: CheckpointListener) -> CheckpointedWriter:
        """Tell ``listener`` about this query's checkpoints."""
        self._listeners = (*self._listeners, listener)
        return self

    def start(self) -> CheckpointedQuery:
        """Check everything, commit what an earlier run left prepared, and start.

        Raises a :class:`~lockstep.errors.LockstepError` that names the remedy before any data moves.
        """
        if not self._sinks:
            raise ConfigurationError("no sink: add one with .sink(DeltaSink(...), uid='...').")
        if self._name and any(query.name == self._name for query in self._df.sparkSession.streams.active):
            raise ConfigurationError(
                f"queryName({self._name!r}): a query of this name is running. Stop it, or use another."
            )
        location = self._location()
        storage = open_storage(self._df.sparkSession, location)
        pipeline = Pipeline(
            self._df,
            self._sinks,
            storage,
            self._effective_config(),
            self._output_mode,
            self._name,
            self._listeners,
            RestoreRequest.from_options(self._options),
        )
        try:
            pipeline.recover()
            query = self._start_spark(pipeline, location)
        except BaseException:
            pipeline.close()
            raise
        return CheckpointedQuery(query, pipeline)

    def _start_spark(self, pipeline: Pipeline, location: str) -> StreamingQuery:
        writer = self._df.writeStream.foreachBatch(pipeline.run_epoch).outputMode(self._output_mode)
        writer = writer.option(_LOCATION, location)
        if self._name:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        with settings_at_start(self._df.sparkSession, pipeline.config.state_backend, len(pipeline.operators)):
            return writer.start()

    def _location(self) -> str:
        if _LOCATION in self._options:
            return self._options[_LOCATION]
        root = self._df.sparkSession.conf.get("spark.sql.streaming.checkpointLocation", None)
        if root and self._name:
            return f"{root.rstrip('/')}/{self._name}"  # Spark's own rule
        raise ConfigurationError(
            "no checkpoint directory: set .option('checkpointLocation', ...). It holds what is needed to continue after a "
            "crash, so it must be the same at every start."
        )

    def _effective_config(self) -> CheckpointConfig:
        session = {key: value for key, value in self._df.sparkSession.conf.getAll.items() if key.startswith(PREFIX)}
        own = {key: value for key, value in self._options.items() if key.startswith(PREFIX)}
        if self._config is not None:
            if own:
                raise ConfigurationError(
                    f"give either a CheckpointConfig or options, not both: {', '.join(sorted(own))}."
                )
            return self._config
        return CheckpointConfig.from_settings({**session, **own})
