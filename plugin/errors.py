"""Every error that Lockstep raises on purpose.

Each says what happened, to which epoch, sink or option, and what to do next. ``except LockstepError`` catches them all.
"""

from __future__ import annotations


class LockstepError(Exception):
    """Root of all errors raised by Lockstep."""


class ConfigurationError(LockstepError):
    """An option, argument or setting is wrong. Nothing has been read or written yet."""


class EnvironmentProblemError(LockstepError):
    """The machine lacks something that Lockstep needs: Java, a jar, a running broker."""


class BrokerUnreachableError(EnvironmentProblemError):
    """No Kafka broker answered within the bounded time."""


class UnknownTopicError(ConfigurationError):
    """A topic or partition named by the source does not exist."""


class MissingGroupOffsetsError(ConfigurationError):
    """The source starts from group offsets, the group has none, and no reset strategy was given."""


class SchemaMismatchError(ConfigurationError):
    """The rows cannot be stored in the sink's table without losing something."""


class CheckpointDirectoryError(LockstepError):
    """The checkpoint directory is not one this query can continue from."""


class NewerFormatError(CheckpointDirectoryError):
    """A stored file was written by a newer version of Lockstep."""


class CorruptRecordError(CheckpointDirectoryError):
    """A stored file is truncated or damaged. It is left as it is; nothing is skipped."""


class MissingRecordError(CheckpointDirectoryError):
    """A decided epoch has no prepare record, so its rows cannot be committed."""


class OrphanedSinkError(CheckpointDirectoryError):
    """A sink was removed from the query while it still has prepared epochs to commit."""


class StateMigrationError(CheckpointDirectoryError):
    """Stored state can't be read as the types that are declared now without losing or inventing something."""


class DataLossError(LockstepError):
    """Kafka has removed records that the query has yet to read. Nothing of them, and nothing after them, is committed."""


class CheckpointError(LockstepError):
    """A checkpoint failed before the epoch was decided. The epoch will be run again."""


class CheckpointDeclinedError(CheckpointError):
    """A participant declined the checkpoint."""


class CheckpointExpiredError(CheckpointError):
    """The checkpoint was not prepared within ``CheckpointConfig.timeout``."""


class CommitFailedError(LockstepError):
    """A sink refused to commit a decided epoch for good. The epoch stays pending and is tried again at the next start."""


class CommitStalledError(LockstepError):
    """Commits keep failing and ``max_pending_epochs`` epochs are waiting. They stay pending; nothing is lost."""


class FencedError(LockstepError):
    """A newer driver took over this checkpoint directory; this one must not commit any more."""


class StateAccessError(LockstepError):
    """State was used where it can't be: unbound, without a current key, or read-only."""


class StateTypeError(LockstepError):
    """A value does not match the type that its state was declared with. Nothing has been changed."""


class OperatorError(CheckpointError):
    """A function of the user failed inside an operator. The epoch is not decided; it will be run again."""
