"""Sources of checkpointed queries. Importing this package starts no JVM, and pyspark only where it is used."""

from typing import TYPE_CHECKING, Any

from lockstep.sources.kafka import KafkaSource
from lockstep.sources.offset_commit import OffsetCommitMode
from lockstep.sources.startup import OffsetReset, StartupMode

if TYPE_CHECKING:
    from lockstep.sources.listener import OffsetCommitListener

__all__ = ["KafkaSource", "OffsetCommitListener", "OffsetCommitMode", "OffsetReset", "StartupMode"]


def __getattr__(name: str) -> Any:
    """The listener is a pyspark class; importing it at once would make ``import lockstep`` twice as slow."""
    if name == "OffsetCommitListener":
        from lockstep.sources.listener import OffsetCommitListener

        return OffsetCommitListener
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
