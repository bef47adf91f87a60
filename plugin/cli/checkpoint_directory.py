"""Reads a checkpoint directory on this machine as it is stored: no JVM, no Spark session, nothing written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.engine.local_storage import LocalStorage
from lockstep.engine.spark_log import SparkLog
from lockstep.engine.storage import local_path
from lockstep.errors import CheckpointDirectoryError
from lockstep.protocol import lineage as lineages
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.lineage import Lineage, read_lineage
from lockstep.protocol.prepare_record import PrepareRecord, read_records

_KEEP_ALL = 1_000_000  # the store is only read here; it drops nothing
_NEAR = 2  # how many levels below the given directory a checkpoint directory is looked for


@dataclass(frozen=True)
class CheckpointDirectory:
    """What a checkpoint directory says about its query. A running query may change it at any time."""

    location: str
    lineage: Lineage
    planned: int  # highest epoch that Spark has planned, and
    decided: int  # decided; -1 for none
    checkpoints: tuple[CompletedCheckpoint, ...]  # oldest first
    records: tuple[PrepareRecord, ...]  # prepared and not yet retired

    def checkpoint(self, checkpoint_id: int) -> CompletedCheckpoint:
        for checkpoint in self.checkpoints:
            if checkpoint.id == checkpoint_id:
                return checkpoint
        there = ", ".join(str(checkpoint.id) for checkpoint in self.checkpoints) or "none"
        raise CheckpointDirectoryError(
            f"{self.location} has no checkpoint {checkpoint_id}. There are: {there}. "
            "Older ones are dropped (CheckpointConfig.retained)."
        )

    def is_decided(self, record: PrepareRecord) -> bool:
        return record.epoch <= self.decided

    def to_json(self) -> dict[str, Any]:
        lineage = self.lineage
        return {
            "directory": self.location,
            "lineage": {
                "id": lineage.id,
                "created_ms": lineage.created_ms,
                "query_name": lineage.query_name,
                "sources": list(lineage.sources),
                "sinks": dict(lineage.sinks),
                "operators": {uid: dict(description) for uid, description in lineage.operators.items()},
                "config": dict(lineage.config),
            },
            "planned_epoch": self.planned,
            "decided_epoch": self.decided,
            "checkpoints": [checkpoint.to_json() for checkpoint in self.checkpoints],
            "pending": [
                {
                    "epoch": record.epoch,
                    "attempt": record.attempt.id,
                    "token": record.attempt.token,
                    "prepared_ms": record.prepared_at_ms,
                    "decided": self.is_decided(record),
                    "sinks": sorted(record.handles),
                }
                for record in self.records
            ],
        }


def read_directory(location: str) -> CheckpointDirectory:
    """Read ``location``; an error says what is there instead of a checkpoint directory, or which file is damaged."""
    path = _local(location)
    storage = LocalStorage(path)
    try:
        lineage = read_lineage(storage)
        if lineage is None:
            raise CheckpointDirectoryError(_what_is_there_instead(path))
        log = SparkLog(storage)
        store = CompletedCheckpointStore(storage, _KEEP_ALL)
        records = read_records(storage, lineage.id)  # before the rest: what is retired meanwhile is then in the store
        decided, planned = log.decided(), log.planned()
        store.load(lineage.id)
    except OSError as error:
        raise CheckpointDirectoryError(f"{path} can't be read: {error}") from error
    return CheckpointDirectory(str(path), lineage, planned, decided, tuple(store.all()), tuple(records))


def _local(location: str) -> Path:
    local = local_path(location)
    if local is None:
        raise CheckpointDirectoryError(
            f"{location} is on a remote file system, and only local directories can be read without Spark. "
            "Copy its folder 'lockstep' here with 'offsets' and 'commits' beside it, or ask the running query: "
            "query.completed_checkpoints."
        )
    path = Path(local).absolute()
    if not path.exists():
        raise CheckpointDirectoryError(f"there is no directory {path}. Give the query's checkpointLocation.")
    if not path.is_dir():
        raise CheckpointDirectoryError(f"{path} is a file. Give the query's checkpointLocation, a directory.")
    return path


def _what_is_there_instead(path: Path) -> str:
    if (path / "_delta_log").is_dir():
        return f"{path} is a Delta table. Give the checkpointLocation of the query that writes it."
    if (path / "offsets").is_dir():
        return f"{path} is the checkpoint directory of a Spark query that was not started by Lockstep."
    near = [found for depth in range(1, _NEAR + 1) for found in path.glob("*/" * depth + lineages.PATH)]
    if near:
        names = ", ".join(sorted(str(found.parents[1]) for found in near)[:5])
        return f"{path} is not a checkpoint directory. Did you mean {names}?"
    return f"{path} is not a checkpoint directory of Lockstep: it has no {lineages.PATH}. Give the checkpointLocation."
