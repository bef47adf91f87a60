"""Makes a savepoint of an epoch: of a query that runs, or from the checkpoint directory of one that has ended."""

from __future__ import annotations

import logging
import time
import uuid
from typing import TYPE_CHECKING

from lockstep.engine.spark_log import SparkLog
from lockstep.engine.storage import open_storage, qualified
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.operators.state_reader import find_groups
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fields import number_in_name, parse_json
from lockstep.protocol.lineage import Lineage, read_lineage
from lockstep.protocol.savepoint import METADATA, SOURCES, STATE, Contents, SavedOperator, SavedSink, Savepoint
from lockstep.protocol.storage import Storage
from lockstep.savepoint.groups import write_groups
from lockstep.savepoint.source_positions import is_control, is_kafka
from lockstep.savepoint.unfinished import refuse_unfinished_rewind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_KEEP_ALL = 1_000_000  # the store is only read here


def create_savepoint(spark: SparkSession, directory: str, path: str, epoch: int | None = None) -> Savepoint:
    """Make a savepoint of the query with checkpoint directory ``directory``, which may be running, at ``path``.

    Parameters
    ----------
    path
        A directory that does not exist yet, or is empty, on any file system that Spark can reach.
    epoch
        By default the last one whose rows are visible in every sink. Any other that is committed will do as long as
        Spark keeps its state (``spark.sql.streaming.minBatchesToRetain``, 100 epochs).

    The savepoint appears all at once, when its last file is written. It does not depend on the checkpoint directory.
    """
    storage = open_storage(spark, directory)
    inside = qualified(spark, directory).rstrip("/") + "/"
    if f"{qualified(spark, path)}/".startswith(inside):
        raise ConfigurationError(f"{path} lies in the checkpoint directory. Give the savepoint a place of its own.")
    refuse_unfinished_rewind(storage)
    return save_epoch(spark, directory, path, epoch)


def save_epoch(spark: SparkSession, directory: str, path: str, epoch: int | None) -> Savepoint:
    """The same without looking where."""
    storage, target = open_storage(spark, directory), open_storage(spark, path)
    refuse_used(target)
    source = Epoch.find(storage, epoch)
    operators = {
        uid: SavedOperator(description, save_groups(spark, directory, path, uid, source.number))
        for uid, description in source.lineage.operators.items()
    }
    _copy_source_logs(storage, target, source)
    reach("savepoint.before")
    record = source.savepoint(operators)
    if not target.create(METADATA, record.encode()):
        raise CheckpointDirectoryError(f"{target.describe()} was made a savepoint by somebody else meanwhile.")
    _log.info("savepoint of epoch %d: %s", record.epoch, target.describe())
    return record


def save_groups(spark: SparkSession, directory: str, path: str, uid: str, epoch: int) -> Contents:
    frame = find_groups(spark, directory, uid, epoch).frame
    return write_groups(frame, f"{path.rstrip('/')}/{STATE}/{uid}")


class Epoch:
    """One epoch of a checkpoint directory, with all that is known of it."""

    def __init__(self, storage: Storage, lineage: Lineage, number: int, checkpoint: CompletedCheckpoint | None) -> None:
        self.lineage = lineage
        self.number = number
        self.checkpoint = checkpoint
        log = SparkLog(storage)
        self.barrier = log.barrier(number)
        self.watermark_ms = max(self.barrier.watermark_ms, log.next_watermark_ms(number))

    @classmethod
    def find(cls, storage: Storage, wanted: int | None) -> Epoch:
        """The epoch ``wanted``, or the last that is committed everywhere."""
        lineage = read_lineage(storage)
        if lineage is None:
            raise CheckpointDirectoryError(
                f"{storage.describe()} is not a checkpoint directory of Lockstep. Give the query's checkpointLocation."
            )
        store = CompletedCheckpointStore(storage, _KEEP_ALL)
        store.load(lineage.id)
        committed = store.committed_epoch()
        if committed < 0:
            raise CheckpointDirectoryError(
                f"{storage.describe()} has no committed checkpoint yet, so there is nothing to save. Let the query run."
            )
        number = committed if wanted is None else wanted
        if number > committed:
            raise ConfigurationError(
                f"epoch {number} of {storage.describe()} is not committed in every sink; the last one that is is "
                f"{committed}. Its pending rows would be missing: start the query, or save an earlier epoch."
            )
        if not storage.exists(f"offsets/{number}"):
            raise ConfigurationError(
                f"Spark does not keep epoch {number} of {storage.describe()} any more, only the last "
                "spark.sql.streaming.minBatchesToRetain. Retained checkpoints: "
                f"{', '.join(str(one.id) for one in store.all())}."
            )
        _refuse_foreign_state(storage, lineage)
        return cls(storage, lineage, number, store.get(number))

    def savepoint(self, operators: dict[str, SavedOperator]) -> Savepoint:
        commits = {} if self.checkpoint is None else self.checkpoint.commits
        return Savepoint(
            id=str(uuid.uuid4()),
            lineage=self.lineage.id,
            barrier=self.barrier,
            watermark_ms=self.watermark_ms,
            created_ms=time.time_ns() // 1_000_000,
            sources=self.lineage.sources,
            sinks={uid: SavedSink(text, commits.get(uid, {})) for uid, text in self.lineage.sinks.items()},
            operators=operators,
            query_name=self.lineage.query_name,
        )


def refuse_used(target: Storage) -> None:
    """A savepoint is made where nothing is."""
    there = [name for name in target.list("") if not name.startswith(".")]
    if there:
        what = "a savepoint" if METADATA in there else f"not empty ({', '.join(sorted(there)[:5])})"
        raise ConfigurationError(f"{target.describe()} is {what}. Give the savepoint a directory of its own.")


def _refuse_foreign_state(storage: Storage, lineage: Lineage) -> None:
    stores = [name for name in storage.list("state") if number_in_name(name) is not None]
    if len(stores) > len(lineage.operators):
        raise ConfigurationError(
            f"{storage.describe()}: the query has operators of Spark's own that keep state (aggregations, joins, "
            "deduplication). They have no uid, and Spark offers no way to move their state: a savepoint would lose it. Do "
            "their work in a keyed operator (lockstep.key_by), or let the query stay in its directory."
        )


def _copy_source_logs(storage: Storage, target: Storage, epoch: Epoch) -> None:
    """Spark's file source numbers the files that it has seen in a log of its own; others keep nothing there."""
    for index, description in enumerate(epoch.lineage.sources):
        if is_kafka(description) or is_control(description):
            continue
        position = epoch.barrier.positions[index] if index < len(epoch.barrier.positions) else None
        last = log_offset(position)
        if last is None:
            continue
        for name in storage.list(f"{SOURCES}/{index}"):
            number = number_in_name(name.removesuffix(".compact"))
            if number is not None and number <= last:
                data = storage.read(f"{SOURCES}/{index}/{name}")
                if data is not None:
                    target.write(f"{SOURCES}/{index}/{name}", data)


def log_offset(position: str | None) -> int | None:
    """The entry of its log at which a file source stands, if it is one."""
    try:
        parsed = parse_json(position or "")
    except ValueError:
        return None
    found = parsed.get("logOffset") if isinstance(parsed, dict) else None
    return found if type(found) is int else None
