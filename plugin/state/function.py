"""The user's function: Flink's KeyedProcessFunction, one hook per occasion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from lockstep.errors import ConfigurationError
from lockstep.state.context import Context, OpenContext
from lockstep.state.ddl import parse_value
from lockstep.state.declarations import State, declared_states
from lockstep.state.operator_state import OperatorListState
from lockstep.state.row import Row

Rows = Iterable[Any] | None
"""What a hook hands on: nothing, or an iterable of rows. A row is a tuple, a dict, or a Row; one row is ``[row]``."""

LIST_CHECKPOINTED = "list_checkpointed"  # the name under which ListCheckpointed keeps its list


class KeyedProcessFunction:
    """Processes the elements of a keyed stream, with state and timers per key.

    Declare state as attributes (``total = ValueState("bigint", default=0)``) and override the hooks you need, at least
    ``process_element`` or ``process_batch``. All hooks run in Spark's Python workers, on executors, never on the driver.

    In one epoch, for each key group that has something to do, a **fresh shallow copy** of the function runs these, in this
    order, in one thread:

    1. the stored state of the group is loaded,
    2. ``initialize_state``, once,
    3. ``process_broadcast_element``, for each broadcast row,
    4. ``on_timer``, for each due timer: of event time, then of processing time,
    5. ``process_element`` for each element, or ``process_batch`` once if it is overridden and there are elements,
    6. ``on_timer`` again, for timers that steps 3 to 5 registered and that are due already,
    7. ``prepare_snapshot``, then ``snapshot_state``, once,
    8. the state is stored, if it has changed.

    Fields that a hook sets on ``self`` are gone when the epoch of the group ends, and other groups never see them: what is
    to last belongs into state. The copy is shallow: a list or dict made in ``__init__`` or ``open`` is shared by all groups
    of the process, so don't change it in place; make a new one in ``initialize_state``.

    An epoch may run more than once: a failed task is repeated, and so is an epoch that was not decided. Each run starts
    from the same state, elements and times, so the same function gives the same rows and state. Effects outside of state
    and rows (a call to another system) may happen more than once.

    A hook returns ``None``, or an iterable of rows; it may be a generator. A row is a tuple, dict or :class:`Row` that fits
    the operator's output.
    """

    def open(self, ctx: OpenContext) -> None:
        """Called once per task of an epoch, in its worker, before everything else.

        For what a task needs and can't be sent to it. Keep what is dear (a model, a connection) in a variable of the
        module, which lasts as long as the worker.
        """

    def close(self) -> None:
        """Called when the worker is done with the task. **Not** called when the process is killed."""

    def initialize_state(self, ctx: Context) -> None:
        """Called once per key group and epoch, after its state was loaded. ``ctx.is_restored``: there was some."""

    def process_element(self, row: Row, ctx: Context) -> Rows:
        """Called for each element, in the order of its stream, with ``ctx.key`` set."""
        raise NotImplementedError

    def process_batch(self, batch: Any, ctx: Context) -> Rows:
        """If overridden, called instead of ``process_element``, with all elements of the group and epoch at once.

        ``batch`` is a pandas DataFrame. There is no current key: use ``state.get_many(keys)`` and
        ``state.update_many(keys, values)``, or ``with ctx.keyed(key):``. Besides rows, it may yield pandas DataFrames and
        pyarrow Tables or RecordBatches.
        """
        raise NotImplementedError

    def process_broadcast_element(self, row: Row, ctx: Context) -> Rows:
        """Called for each row of the broadcast stream, in every key group; the only hook that may write broadcast state.

        There is no current key. It must do the same in every group, or the groups' broadcast state drifts apart.
        """
        raise NotImplementedError("there are broadcast rows, but the function has no process_broadcast_element")

    def on_timer(self, timestamp: int, ctx: Context) -> Rows:
        """Called for each due timer, in order of time, with ``ctx.key`` set. ``timestamp``: what was registered, in ms."""
        raise NotImplementedError("a stored timer is due, but the function has no on_timer any more")

    def prepare_snapshot(self, ctx: Context) -> Rows:
        """Called once per key group and epoch before its snapshot: the last chance to emit rows of this epoch.

        Flink's ``prepareSnapshotPreBarrier``: flush here what was gathered during the epoch.
        """

    def snapshot_state(self, ctx: Context) -> Any:
        """Called once per key group and epoch, right before its state is stored: write here what is kept in fields."""


class ListCheckpointed:
    """The short form of operator state, to mix in: hand over a list at each snapshot, get it back at each start.

    ``class Counting(ListCheckpointed, KeyedProcessFunction)``: instead of ``snapshot_state(ctx)``, the function has the
    two hooks below. They are called where ``initialize_state`` and ``snapshot_state`` would be; ``initialize_state`` is
    called too, before ``restore_state``.
    """

    checkpointed_type: ClassVar[str]
    """The DDL type of the list's elements."""

    def snapshot_state(self) -> list[Any]:
        """What is to be stored: called once per key group and epoch."""
        raise NotImplementedError

    def restore_state(self, state: list[Any]) -> None:
        """Called once per key group and epoch with what the last snapshot of the group gave, if there was one."""
        raise NotImplementedError


def list_checkpointed(function: object) -> ListCheckpointed | None:
    """The function as a ListCheckpointed, if it is one."""
    return function if isinstance(function, ListCheckpointed) else None


def overrides(function: object, hook: str) -> bool:
    """Whether the user's function has this hook."""
    own = getattr(type(function), hook, None)
    return own is not getattr(KeyedProcessFunction, hook) or hook in getattr(function, "__dict__", {})


def states_of(function: KeyedProcessFunction) -> dict[str, tuple[str, State]]:
    """What a function declares: for each name, the attribute and the state."""
    found = {state.name or attribute: (attribute, state) for attribute, state in declared_states(function).items()}
    mixed_in = list_checkpointed(function)
    if mixed_in is not None:
        if LIST_CHECKPOINTED in found:
            raise ConfigurationError(f"The name {LIST_CHECKPOINTED!r} is taken by ListCheckpointed: rename the state.")
        found[LIST_CHECKPOINTED] = (LIST_CHECKPOINTED, OperatorListState(mixed_in.checkpointed_type))
    return found


def require_function(function: object, uid: str, broadcast: bool) -> None:
    """Refuses what can't be run, before anything runs."""
    name = type(function).__name__
    if not isinstance(function, KeyedProcessFunction):
        hint = " Give an instance: put () behind it." if isinstance(function, type) else ""
        raise ConfigurationError(f"Operator {uid!r}: {function!r} is no KeyedProcessFunction.{hint}")
    if not overrides(function, "process_element") and not overrides(function, "process_batch"):
        raise ConfigurationError(
            f"Operator {uid!r}: {name} overrides neither process_element nor process_batch, so it would drop every "
            "element. Override one of them."
        )
    if broadcast and not overrides(function, "process_broadcast_element"):
        raise ConfigurationError(
            f"Operator {uid!r} has a broadcast stream, but {name} does not override process_broadcast_element."
        )
    mixed_in = list_checkpointed(function)
    if mixed_in is not None:
        if not isinstance(getattr(function, "checkpointed_type", None), str):
            raise ConfigurationError(
                f"Operator {uid!r}: {name} is ListCheckpointed and must say of what: checkpointed_type = '<DDL type>'."
            )
        parse_value(mixed_in.checkpointed_type)
        for hook in ("snapshot_state", "restore_state"):
            if getattr(type(function), hook) in (
                getattr(ListCheckpointed, hook),
                getattr(KeyedProcessFunction, hook, None),
            ):
                raise ConfigurationError(f"Operator {uid!r}: {name} is ListCheckpointed and must override {hook}.")
