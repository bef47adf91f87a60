"""What several sinks refuse when they are opened, in the same words."""

from __future__ import annotations

from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.sinks.two_phase import SinkContext, TwoPhaseCommitSink


def refuse_all_but_append(context: SinkContext, sink: TwoPhaseCommitSink) -> None:
    if context.output_mode != "append":
        raise ConfigurationError(
            f"{sink.describe()}: output mode {context.output_mode!r} is not supported; {type(sink).__name__} appends. "
            "Use outputMode('append')."
        )


def refuse_old_copy(context: SinkContext, sink: TwoPhaseCommitSink, committed: int) -> None:
    """``committed`` is the highest epoch of this lineage in the target, as it was read just before this call."""
    highest = context.highest_epoch()  # after the target was looked at: another driver may be at work
    if committed > highest:
        raise CheckpointDirectoryError(
            f"{sink.describe()} has epoch {committed} of this lineage, but the checkpoint directory ends at epoch "
            f"{highest}: the directory is an old copy. Continue with the current directory, or start a new one."
        )
