"""Takes a Delta table back to where it was when an epoch of a query was its newest. Asks the table's own log alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lockstep.errors import ConfigurationError
from lockstep.protocol.lineage import Lineage
from lockstep.sinks.delta import EPOCH_TAG
from lockstep.sinks.delta_log import DeltaTableLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAINTENANCE = ("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "ZORDER")  # change no row
_SLACK_MS = 3_600_000  # clocks differ


@dataclass(frozen=True)
class TablePlan:
    """What is to be done to one table.

    Restore ``version``, then remove the files of later epochs that were committed together with the wanted one.
    ``version`` is ``None`` when the table has nothing of later epochs.
    """

    uid: str
    path: str
    app_id: str
    epoch: int
    newest: int  # the table's version when the plan was made
    version: int | None
    partial: bool = False  # the version holds later epochs as well
    foreign: tuple[str, ...] = ()  # commits of others that would be undone

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "foreign": list(self.foreign)}

    @property
    def words(self) -> str:
        if self.version is None:
            return f"{self.path}: nothing to do, it has no rows of later epochs"
        later = ", without the later epochs that were committed with it" if self.partial else ""
        return f"{self.path}: from version {self.newest} back to version {self.version}{later}"


def plan_table(spark: SparkSession, uid: str, path: str, lineage: Lineage, epoch: int, committed: bool) -> TablePlan:
    """Find out, changing nothing, how to take the table back; an error says why that can't be.

    ``committed``: the directory says that the query has committed to the table.
    """
    table = DeltaTableLog(spark, path)
    newest = table.newest_version()
    if newest < 0:
        raise ConfigurationError(
            f"there is no Delta table at {path}, where sink {uid!r} wrote. If it was moved, move it back; if its path is "
            "relative, run this where the query runs."
        )
    app_id = f"lockstep-{lineage.id}-{uid}"
    first_later: int | None = None
    partial = ours = False
    foreign: list[str] = []
    for version in range(newest, -1, -1):
        actions = table.actions(version)
        if actions is None:
            raise ConfigurationError(
                f"{path}: entry {version} of the table's log is gone, and the commit of epoch {epoch} lies before it. "
                "Choose a later epoch."
            )
        epochs = _epochs(actions, app_id)
        if epochs is None:
            if _time(actions) < lineage.created_ms - _SLACK_MS:
                break  # the query was not there yet
            foreign += [_who(version, actions)] if _changes_rows(actions) else []
            continue
        ours = True
        if max(epochs) <= epoch:
            break
        first_later, partial = version, min(epochs) <= epoch
        if partial:
            break
    if committed and not ours:
        raise ConfigurationError(
            f"{path} knows nothing of sink {uid!r} of this query, though rows were committed: it is another table."
        )
    if first_later is None:
        return TablePlan(uid, path, app_id, epoch, newest, None)
    target = first_later if partial else first_later - 1
    undone = tuple(who for who in foreign if int(who.split()[1]) > target)
    plan = TablePlan(uid, path, app_id, epoch, newest, target, partial, undone)
    _refuse_missing_files(table, plan)
    if partial and not all(EPOCH_TAG in (add.get("tags") or {}) for add in _adds(table.actions(target) or [])):
        raise ConfigurationError(
            f"{path}: version {target} holds epoch {epoch} and later ones, and its files don't tell whose they are. "
            f"Choose epoch {max(_epochs(table.actions(target) or [], app_id) or [epoch])}."
        )
    return plan


def take_back(spark: SparkSession, plan: TablePlan, rewind_id: str, undo_others: bool) -> None:
    """Do it, as far as it is not done: the table's log tells.

    First the query's application transaction is set beyond all epochs: a driver that was paused in the middle of a commit,
    and wakes later, is refused by Delta.
    """
    table = DeltaTableLog(spark, plan.path)
    done = table.rewound(rewind_id, plan.newest)

    def words(step: str) -> str:
        return json.dumps({"lockstep": {"rewind": rewind_id, "step": step}})

    if "sealed" not in done:
        if table.newest_version() > plan.newest and not undo_others:
            raise ConfigurationError(
                f"{plan.path} was at version {plan.newest} when the rewind was planned, and somebody has committed since. "
                "Stop all writers and plan again; or say undo_others=True (--undo-others) if that may be undone."
            )
        table.seal(plan.app_id, words("sealed"))
    if plan.version is None:
        return
    restored = "restored" not in done
    if restored:
        table.restore(plan.version, words("restored"))
    if plan.partial and (restored or "trimmed" not in done):
        later = [
            json.dumps({"add": add})
            for add in _adds(table.actions(plan.version) or [])
            if int(add["tags"][EPOCH_TAG]) > plan.epoch
        ]
        table.remove(later, words("trimmed"))


def is_begun(spark: SparkSession, plan: TablePlan, rewind_id: str) -> bool:
    """Whether the table was changed on behalf of this rewind."""
    return bool(DeltaTableLog(spark, plan.path).rewound(rewind_id, plan.newest))


def _epochs(actions: list[dict[str, Any]], app_id: str) -> list[int] | None:
    """The epochs that an entry of the log commits for us; ``None`` for others' entries."""
    transactions = [action["txn"] for action in actions if (action.get("txn") or {}).get("appId") == app_id]
    if not transactions:
        return None
    tags = [(add.get("tags") or {}).get(EPOCH_TAG) for add in _adds(actions)]
    told_by_files = [int(tag) for tag in tags if tag is not None]
    if tags and len(told_by_files) == len(tags):
        return told_by_files
    try:
        told = json.loads(_info(actions).get("userMetadata") or "{}")
        return [int(epoch) for epoch in told["lockstep"]["epochs"]]
    except (ValueError, TypeError, KeyError):
        return [int(transactions[-1]["version"])]


def _info(actions: list[dict[str, Any]]) -> dict[str, Any]:
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def _time(actions: list[dict[str, Any]]) -> int:
    return int(_info(actions).get("timestamp", 2**62))


def _adds(actions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [action["add"] for action in actions if action.get("add")]


def _changes_rows(actions: list[dict[str, Any]]) -> bool:
    if str(_info(actions).get("operation", "")).upper() in _MAINTENANCE:
        return False
    changed = [action.get("add") or action.get("remove") or {"dataChange": False} for action in actions]
    return any(one.get("dataChange", True) for one in changed) or any("metaData" in action for action in actions)


def _who(version: int, actions: list[dict[str, Any]]) -> str:
    return f"version {version} ({_info(actions).get('operation', 'unknown')})"


def _refuse_missing_files(table: DeltaTableLog, plan: TablePlan) -> None:
    if plan.version is None:
        return
    missing = table.missing_at(plan.version)
    if missing:
        raise ConfigurationError(
            f"{plan.path}: {len(missing)} data files of version {plan.version} are gone (first: {missing[0]}), probably "
            "removed by VACUUM. The table can't be taken back there; choose a later epoch, or restore the files."
        )
