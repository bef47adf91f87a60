"""Sources of checkpointed queries. Importing this package starts no JVM."""

from lockstep.sources.kafka import KafkaSource
from lockstep.sources.listener import OffsetCommitListener
from lockstep.sources.offset_commit import OffsetCommitMode
from lockstep.sources.startup import OffsetReset, StartupMode

__all__ = ["KafkaSource", "OffsetCommitListener", "OffsetCommitMode", "OffsetReset", "StartupMode"]
