"""Takes a stopped pipeline back to an epoch: positions, state, the Delta tables and the consumer groups, together.

1. Find out what there is to do, and what can't be done. Nothing is changed.
2. Take a fencing token: a driver that is still at work is refused at its next commit.
3. Make a savepoint of the epoch inside of the directory, and store the plan. From here on a query can't start there,
   and a rewind that was interrupted goes on from here.
4. Take each Delta table back.
5. Empty the directory, and restore the savepoint into it, under a new lineage.
6. Take the consumer groups back.
7. Remove plan and savepoint.

Every step may be repeated: the next call finishes what an interrupted one has begun.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lockstep.engine.state_backend import settings
from lockstep.engine.storage import open_storage
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, LockstepError
from lockstep.protocol.envelope import seal, unseal_fields
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import Lineage, read_lineage
from lockstep.protocol.storage import Storage
from lockstep.savepoint.create import Epoch, create_savepoint
from lockstep.savepoint.delta_rewind import TablePlan, plan_table, take_back
from lockstep.savepoint.origin import SavepointOrigin
from lockstep.savepoint.restore import REWIND, REWIND_PLAN, NewQuery, RestoreRequest, install
from lockstep.savepoint.source_positions import is_control, is_kafka, unchanged
from lockstep.savepoint.spark_directory import WORKSHOP
from lockstep.sources.data_loss import losses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.protocol.barrier import Barrier

_log = logging.getLogger(__name__)
_KIND = "rewind"
_SAVEPOINT = f"{REWIND}/savepoint"
_DELTA = "Delta table "


@dataclass(frozen=True)
class RewindPlan:
    """What a rewind will do. ``beyond_reach``: what nobody can take back; ``id`` marks its commits in the tables."""

    id: str
    directory: str
    lineage: str
    epoch: int
    newest: int  # epoch that is committed now
    positions: tuple[str, ...]  # in words, one for each source
    groups: Mapping[str, Mapping[str, Any]]  # consumer group → servers and offsets
    tables: tuple[TablePlan, ...]
    beyond_reach: tuple[str, ...]

    @property
    def undone_for_others(self) -> list[str]:
        return [f"{table.path}: {who}" for table in self.tables for who in table.foreign]

    def encode(self) -> bytes:
        body = {
            **{name: getattr(self, name) for name in ("id", "directory", "lineage", "epoch", "newest")},
            "positions": list(self.positions),
            "groups": {name: dict(group) for name, group in self.groups.items()},
            "tables": [table.to_json() for table in self.tables],
            "beyond_reach": list(self.beyond_reach),
        }
        return seal(_KIND, body)

    @classmethod
    def decode(cls, data: bytes, where: str) -> RewindPlan:
        fields = unseal_fields(_KIND, data, where)
        tables = []
        for table in fields.list_of_fields("tables"):
            tables.append(
                TablePlan(
                    uid=table.name("uid"),
                    path=table.text("path"),
                    app_id=table.name("app_id"),
                    epoch=table.count("epoch"),
                    newest=table.count("newest"),
                    version=None if table.is_null("version") else table.count("version"),
                    partial=table.flag("partial"),
                    foreign=tuple(table.texts("foreign")),
                )
            )
        return cls(
            id=fields.name("id"),
            directory=fields.text("directory"),
            lineage=fields.name("lineage"),
            epoch=fields.count("epoch"),
            newest=fields.count("newest"),
            positions=tuple(fields.texts("positions")),
            groups=fields.objects("groups"),
            tables=tuple(tables),
            beyond_reach=tuple(fields.texts("beyond_reach")),
        )


def plan_rewind(
    spark: SparkSession, directory: str, epoch: int, kafka_settings: Mapping[str, str] | None = None
) -> RewindPlan:
    """Step 1. Raises when the epoch, a table or Kafka's records are gone.

    ``kafka_settings`` are client settings (``security.protocol``, …) for brokers that ask for them.
    """
    storage = open_storage(spark, directory)
    newest = Epoch.find(storage, None)
    found = Epoch.find(storage, epoch)
    if found.number == newest.number:
        raise ConfigurationError(f"{storage.describe()} is at epoch {epoch}: there is nothing to take back.")
    lineage = found.lineage
    _refuse_lost_records(spark, lineage, found.barrier, kafka_settings or {})
    tables, beyond = [], []
    for uid, description in lineage.sinks.items():
        if description.startswith(_DELTA):
            path = _table_path(spark, newest, uid, description)
            tables.append(plan_table(spark, uid, path, lineage.id, epoch))
        else:
            beyond.append(
                f"sink {uid!r} ({description}): rows of epochs {epoch + 1} to {newest.number} stay, and come again"
            )
    return RewindPlan(
        id=str(uuid.uuid4()),
        directory=storage.describe(),
        lineage=lineage.id,
        epoch=epoch,
        newest=newest.number,
        positions=tuple(_words(lineage, found.barrier)),
        groups=_groups(lineage, found.barrier, kafka_settings or {}),
        tables=tuple(tables),
        beyond_reach=tuple(beyond),
    )


def unfinished_rewind(spark: SparkSession, directory: str) -> RewindPlan | None:
    """The plan of a rewind that was interrupted."""
    storage = open_storage(spark, directory)
    data = storage.read(REWIND_PLAN)
    return None if data is None else RewindPlan.decode(data, f"{storage.describe()}/{REWIND_PLAN}")


def rewind(
    spark: SparkSession,
    plan: RewindPlan,
    *,
    undo_others: bool = False,
    kafka_settings: Mapping[str, str] | None = None,
) -> None:
    """Steps 2 to 7. ``undo_others`` allows to undo commits that other programs have made to the tables since."""
    if plan.undone_for_others and not undo_others:
        raise ConfigurationError(
            f"others have changed the tables since epoch {plan.epoch}, and that would be undone: "
            f"{'; '.join(plan.undone_for_others[:5])}. Say undo_others=True (--undo-others) if that is right."
        )
    storage = open_storage(spark, plan.directory)
    FencingToken.take(storage, f"rewind {socket.gethostname()}:{os.getpid()}")  # 2.
    savepoint = f"{plan.directory}/{_SAVEPOINT}"
    if unfinished_rewind(spark, plan.directory) is None:
        storage.delete(REWIND)
        create_savepoint(spark, plan.directory, savepoint, plan.epoch)  # 3.
        storage.write(REWIND_PLAN, plan.encode())
    reach("rewind.planned")
    for table in plan.tables:  # 4.
        take_back(spark, table, plan.id, undo_others)
        reach("rewind.table.after")
    _replace_directory(spark, storage, plan, savepoint)  # 5.
    reach("rewind.restored")
    _take_groups_back(spark, plan, kafka_settings or {})  # 6.
    storage.delete(REWIND_PLAN)  # 7.
    storage.delete(REWIND)
    _log.info("%s was taken back to epoch %d", plan.directory, plan.epoch)


def _replace_directory(spark: SparkSession, storage: Storage, plan: RewindPlan, savepoint: str) -> None:
    origin = SavepointOrigin(spark, savepoint)
    now = read_lineage(storage)
    if now is not None and now.restored is not None and now.restored["savepoint"] == origin.record.id:
        storage.delete(WORKSHOP)
        return  # done before
    before = _lineage_before(storage, now)
    conf = _settings_of(storage, plan, before)
    for name in storage.list(""):
        if name != "lockstep":
            storage.delete(name)
    for name in storage.list("lockstep"):
        if name not in ("rewind", "restoring", "tokens"):
            storage.delete(f"lockstep/{name}")
    new = replace(before, id=str(uuid.uuid4()), created_ms=time.time_ns() // 1_000_000)
    with settings(spark, conf):
        query = NewQuery(spark, storage, plan.directory, new, (), None)
        install(query, origin, unchanged(origin.record), RestoreRequest(savepoint))


def _lineage_before(storage: Storage, now: Lineage | None) -> Lineage:
    """How the query looked; kept beside the plan, since the directory is about to be emptied."""
    kept = f"{REWIND}/lineage"
    data = storage.read(kept)
    if data is not None:
        return Lineage.decode(data, f"{storage.describe()}/{kept}")
    if now is None:
        raise CheckpointDirectoryError(f"{storage.describe()} has lost its lineage in the middle of a rewind.")
    storage.write(kept, now.encode())
    return now


def _settings_of(storage: Storage, plan: RewindPlan, before: Lineage) -> dict[str, str]:
    """Under which settings the query keeps its state: partitions and provider are not this session's business."""
    kept = f"{REWIND}/settings"
    data = storage.read(kept)
    if data is None:
        entry = (storage.read(f"offsets/{plan.epoch}") or b"").decode().splitlines()
        data = json.dumps(json.loads(entry[1]).get("conf", {}) if len(entry) > 1 else {}).encode()
        storage.write(kept, data)
    return {str(key): str(value) for key, value in json.loads(data).items()}


def _table_path(spark: SparkSession, newest: Epoch, uid: str, description: str) -> str:
    details = {} if newest.checkpoint is None else newest.checkpoint.commits.get(uid, {})
    if "path" in details:
        return str(details["path"])
    named = description.removeprefix(_DELTA)
    if "/" in named:
        return named
    from delta.tables import DeltaTable

    detail = DeltaTable.forName(spark, named).detail().first()
    if detail is None:
        raise ConfigurationError(f"{description}: there is no such table.")
    return str(detail["location"])


def _words(lineage: Lineage, barrier: Barrier) -> list[str]:
    told = []
    for index, description in enumerate(lineage.sources):
        if not is_control(description):
            position = barrier.positions[index] if index < len(barrier.positions) else None
            told.append(f"{description}: back to {position or 'its start'}")
    return told


def _groups(lineage: Lineage, barrier: Barrier, settings: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for index, group in lineage.groups.items():
        offsets = barrier.kafka_offsets(int(index))
        servers = settings.get("bootstrap.servers") or _servers(lineage.sources[int(index)])
        told = found.setdefault(group, {"servers": servers, "offsets": {}})
        for partition, offset in offsets.items():
            told["offsets"].setdefault(partition.topic, {})[str(partition.partition)] = offset
    return found


def _servers(description: str) -> str:
    return description.rpartition(" at ")[2]


def _refuse_lost_records(spark: SparkSession, lineage: Lineage, barrier: Barrier, settings: Mapping[str, str]) -> None:
    from lockstep.sources.kafka_admin import KafkaAdmin

    for index, description in enumerate(lineage.sources):
        if not is_kafka(description):
            continue
        needed = barrier.kafka_offsets(index)
        with KafkaAdmin(spark, {"bootstrap.servers": _servers(description), **settings}) as admin:
            topics = {partition.topic for partition in needed} & set(admin.topics())
            there = set(admin.partitions(topics)) & needed.keys() if topics else set()
            lost = losses(needed, admin.held_offsets(there) if there else {}) if there else [description]
        if lost:
            raise ConfigurationError(
                f"{description}: records after epoch {barrier.epoch} are gone, so they can't be read again: "
                f"{'; '.join(lost[:5])}. Choose a later epoch."
            )


def _take_groups_back(spark: SparkSession, plan: RewindPlan, settings: Mapping[str, str]) -> None:
    from lockstep.protocol.barrier import TopicPartition
    from lockstep.sources.kafka_admin import KafkaAdmin

    for group, told in plan.groups.items():
        offsets = {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in told["offsets"].items()
            for partition, offset in partitions.items()
        }
        try:
            with KafkaAdmin(spark, {"bootstrap.servers": str(told["servers"]), **settings}) as admin:
                admin.commit_group_offsets(group, offsets)
        except LockstepError as error:
            _log.warning("consumer group %r is taken back by the next start: %s", group, error)
