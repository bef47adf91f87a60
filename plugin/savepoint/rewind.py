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

from lockstep.engine.spark_log import SparkLog
from lockstep.engine.state_backend import settings
from lockstep.engine.state_stores import wait_for_end
from lockstep.engine.storage import open_storage, qualified
from lockstep.errors import CheckpointDirectoryError, ConfigurationError, LockstepError
from lockstep.protocol.envelope import seal, unseal_fields
from lockstep.protocol.failpoint import reach
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import Lineage, read_lineage
from lockstep.protocol.storage import Storage
from lockstep.savepoint.create import Epoch, save_epoch
from lockstep.savepoint.delta_rewind import TablePlan, is_begun, plan_table, take_back
from lockstep.savepoint.origin import SavepointOrigin
from lockstep.savepoint.restore import NewQuery, RestoreRequest, empty, install
from lockstep.savepoint.source_positions import is_control, is_kafka, unchanged
from lockstep.savepoint.spark_directory import WORKSHOP
from lockstep.savepoint.unfinished import REWIND, REWIND_PLAN
from lockstep.sources.data_loss import losses

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.protocol.barrier import Barrier

_log = logging.getLogger(__name__)
_KIND = "rewind"
_SAVEPOINT = f"{REWIND}/savepoint"
_DELTA = "Delta table "
_LAST_WORDS = 6.0  # seconds in which a fenced driver finds out


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
    if unfinished_rewind(spark, directory) is not None:
        raise CheckpointDirectoryError(
            f"{storage.describe()}: a rewind was interrupted. Finish it first: lockstep.unfinished_rewind has its plan, "
            f"and 'lockstep rewind {storage.describe()}' goes on with it."
        )
    newest = Epoch.find(storage, None)
    found = Epoch.find(storage, epoch)
    if found.number == newest.number:
        raise ConfigurationError(f"{storage.describe()} is at epoch {epoch}: there is nothing to take back.")
    lineage = found.lineage
    _refuse_lost_records(spark, lineage, found.barrier, kafka_settings or {})
    beyond = [
        f"sink {uid!r} ({description}): rows of epochs {epoch + 1} to {newest.number} stay, and come again"
        for uid, description in lineage.sinks.items()
        if not description.startswith(_DELTA)
    ]
    return RewindPlan(
        id=str(uuid.uuid4()),
        directory=qualified(spark, directory),
        lineage=lineage.id,
        epoch=epoch,
        newest=newest.number,
        positions=tuple(_words(lineage, found.barrier)),
        groups=_groups(lineage, found.barrier, kafka_settings or {}),
        tables=_plan_tables(spark, newest, epoch),
        beyond_reach=tuple(beyond),
    )


def _plan_tables(spark: SparkSession, newest: Epoch, epoch: int) -> tuple[TablePlan, ...]:
    plans = []
    for uid, description in newest.lineage.sinks.items():
        if description.startswith(_DELTA):
            details = {} if newest.checkpoint is None else newest.checkpoint.commits.get(uid, {})
            path = _table_path(spark, details, description)
            plans.append(plan_table(spark, uid, path, newest.lineage, epoch, "version" in details))
    return tuple(plans)


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
    stored = unfinished_rewind(spark, plan.directory)
    if stored is not None and stored.id != plan.id:
        raise ConfigurationError(
            f"{storage.describe()}: another rewind, to epoch {stored.epoch}, was interrupted. Finish that one first."
        )
    token = FencingToken.take(storage, f"rewind {socket.gethostname()}:{os.getpid()}")  # 2.
    savepoint = f"{plan.directory}/{_SAVEPOINT}"
    if stored is None:
        _refuse_changes(spark, storage, plan)
        storage.delete(REWIND)
        save_epoch(spark, plan.directory, savepoint, plan.epoch)  # 3.
        token.check()
        storage.write(REWIND_PLAN, plan.encode())
    reach("rewind.planned")
    _take_tables_back(spark, storage, token, plan, undo_others)  # 4.
    token.check()
    _replace_directory(spark, storage, plan, savepoint)  # 5.
    reach("rewind.restored")
    _take_groups_back(spark, plan, kafka_settings or {})  # 6.
    storage.delete(REWIND_PLAN)  # 7.
    storage.delete(REWIND)
    _log.info("%s was taken back to epoch %d", plan.directory, plan.epoch)


def _refuse_changes(spark: SparkSession, storage: Storage, plan: RewindPlan) -> None:
    """Earlier drivers are fenced now: whatever they have done since the plan was made, they have done."""
    log = SparkLog(storage)
    if log.planned() > (before := log.decided()):
        time.sleep(_LAST_WORDS)  # an epoch was under way: a driver that lives may still decide it
        if log.decided() != before:
            raise ConfigurationError(f"a query is running on {storage.describe()}. Stop it, and plan the rewind again.")
    newest = Epoch.find(storage, None)
    same = newest.lineage.id == plan.lineage and newest.number == plan.newest
    if not same or _plan_tables(spark, newest, plan.epoch) != plan.tables:
        raise ConfigurationError(
            f"{storage.describe()} or its tables have changed since the rewind was planned. Stop the query, plan it again."
        )


def _take_tables_back(
    spark: SparkSession, storage: Storage, token: FencingToken, plan: RewindPlan, undo_others: bool
) -> None:
    try:
        for table in plan.tables:
            token.check()
            take_back(spark, table, plan.id, undo_others)
            reach("rewind.table.after")
    except LockstepError:
        if not any(is_begun(spark, table, plan.id) for table in plan.tables):
            storage.delete(REWIND_PLAN)  # nothing was changed: the query may start again
            storage.delete(REWIND)
        raise


def _replace_directory(spark: SparkSession, storage: Storage, plan: RewindPlan, savepoint: str) -> None:
    origin = SavepointOrigin(spark, savepoint)
    now = read_lineage(storage)
    if now is not None and now.restored is not None and now.restored["savepoint"] == origin.record.id:
        storage.delete(WORKSHOP)
        return  # done before
    before = _lineage_before(storage, now)
    conf = _settings_of(storage, plan)
    wait_for_end(storage)
    empty(storage)
    new = replace(before, id=str(uuid.uuid4()), created_ms=time.time_ns() // 1_000_000, restored=None)
    with settings(spark, conf):
        query = NewQuery(spark, storage, plan.directory, new, (), None)
        install(query, origin, unchanged(origin.record), RestoreRequest(savepoint, rewound=True))
    if SparkLog(storage).planned() != 0 or SparkLog(storage).decided() != 0:
        raise CheckpointDirectoryError(
            f"a query was running on {storage.describe()} while it was taken back. Stop it, and run the rewind again."
        )


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


def _settings_of(storage: Storage, plan: RewindPlan) -> dict[str, str]:
    """Under which settings the query keeps its state: partitions and provider are not this session's business."""
    kept = f"{REWIND}/settings"
    data = storage.read(kept)
    if data is None:
        entry = (storage.read(f"offsets/{plan.epoch}") or b"").decode().splitlines()
        data = json.dumps(json.loads(entry[1]).get("conf", {}) if len(entry) > 1 else {}).encode()
        storage.write(kept, data)
    return {str(key): str(value) for key, value in json.loads(data).items()}


def _table_path(spark: SparkSession, details: Mapping[str, Any], description: str) -> str:
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
            known = told["offsets"].setdefault(partition.topic, {})
            known[str(partition.partition)] = min(offset, known.get(str(partition.partition), offset))
    return found


def _servers(description: str) -> str:
    return description.rpartition(" at ")[2]


def _refuse_lost_records(spark: SparkSession, lineage: Lineage, barrier: Barrier, settings: Mapping[str, str]) -> None:
    from lockstep.sources.kafka_admin import KafkaAdmin

    for index, description in enumerate(lineage.sources):
        if not is_kafka(description):
            continue
        needed = barrier.kafka_offsets(index)
        if not needed:
            continue
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
