"""What an operator is, what it stores, and whether what is stored can be continued with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lockstep.errors import ConfigurationError, StateMigrationError
from lockstep.state.ddl import parse_type, to_ddl
from lockstep.state.evolution import reconcile
from lockstep.state.function import KeyedProcessFunction, overrides, states_of
from lockstep.state.key_identity import KeyType


@dataclass(frozen=True)
class OperatorSpec:
    """One keyed operator of a query.

    ``key``: the key columns, by which the stream is grouped. ``input``: all columns of an element, the key's among them.
    ``max_parallelism``: the number of key groups; it can't change while there is state.
    """

    uid: str
    key: pa.Schema
    input: pa.Schema
    output: pa.Schema
    broadcast: pa.Schema | None = None
    max_parallelism: int = 32

    def __post_init__(self) -> None:
        if not self.uid:
            raise ConfigurationError("An operator needs a uid: its state is stored and found under it.")
        if not len(self.key):
            raise ConfigurationError(f"Operator {self.uid!r} has no key columns: name at least one.")
        for field in self.key:
            if pa.types.is_nested(field.type):
                raise ConfigurationError(
                    f"The key column {field.name} of operator {self.uid!r} can't be {to_ddl(field.type)}: select the fields "
                    "that identify a row as columns of their own, and key by them."
                )
            if field.name not in self.input.names:
                raise ConfigurationError(
                    f"The key column {field.name} of operator {self.uid!r} is not in its input: "
                    f"{', '.join(self.input.names)}."
                )
        if not len(self.output):
            raise ConfigurationError(f"Operator {self.uid!r} has no output columns: name at least one.")
        if not 1 <= self.max_parallelism <= 2**15:
            raise ConfigurationError(
                f"max_parallelism={self.max_parallelism} of operator {self.uid!r} is not between 1 and {2**15}."
            )

    def key_type(self) -> KeyType:
        """How keys are stored: a scalar for one key column, a row for several. Any may be null, whatever the schema says."""
        what = f"The key of operator {self.uid!r}"
        if len(self.key) == 1:
            return KeyType(self.key.field(0).type, what)
        return KeyType(pa.struct([field.with_nullable(True).remove_metadata() for field in self.key]), what)


def describe(function: KeyedProcessFunction, spec: OperatorSpec) -> dict[str, Any]:
    """What the operator stores, as plain JSON for the checkpoint directory."""
    states: dict[str, Any] = {}
    for name, (_, state) in sorted(states_of(function).items()):
        states[name] = {"kind": state.kind, "types": {role: to_ddl(arrow) for role, arrow in state.types.items()}}
        ttl = getattr(state, "ttl", None)
        if ttl is not None:
            states[name]["ttl"] = {"millis": ttl.millis, "update": ttl.update.value}
    return {
        "uid": spec.uid,
        "max_parallelism": spec.max_parallelism,
        "key": [{"name": field.name, "type": to_ddl(field.type)} for field in spec.key],
        "timers": overrides(function, "on_timer"),
        "states": states,
    }


def refuse_incompatible(stored: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raises :class:`StateMigrationError` unless what ``stored`` describes can be read by what ``new`` describes.

    States may be added and removed. The types of a state may only change as :func:`reconcile` allows; its kind, the
    operator's key and the number of key groups may not change at all.
    """
    operator = f"operator {new['uid']!r}"
    if stored["max_parallelism"] != new["max_parallelism"]:
        raise StateMigrationError(
            f"The state of {operator} is stored in {stored['max_parallelism']} key groups, but max_parallelism is now "
            f"{new['max_parallelism']}: its keys would be looked for in other groups. Set max_parallelism="
            f"{stored['max_parallelism']}, or give the operator another uid to start without state."
        )
    if _key_identity(stored) != _key_identity(new):
        raise StateMigrationError(
            f"The state of {operator} is stored by key ({_key_ddl(stored)}), but the key is now ({_key_ddl(new)}). Key the "
            "stream as before, or give the operator another uid to start without state."
        )
    for name, was in stored["states"].items():
        now = new["states"].get(name)
        if now is None:
            continue  # its tables are carried along
        if was["kind"] != now["kind"]:
            raise StateMigrationError(kind_changed(name, operator, was["kind"], now["kind"]))
        if was["types"].keys() != now["types"].keys():
            raise StateMigrationError(
                f"State {name!r} of {operator} is stored with the types of {', '.join(was['types']) or 'nothing'}, but has "
                f"{', '.join(now['types'])}: the checkpoint directory was edited, or is damaged. Restore it from a backup."
            )
        for role, ddl in was["types"].items():
            reconcile(parse_type(ddl), parse_type(now["types"][role]), f"{role} of state {name!r} of {operator}")


def merged(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The description to store from now on: the new one, with the states that are no longer declared but still kept."""
    return {**new, "states": {**stored["states"], **new["states"]}}


def kind_changed(name: str, operator: str, was: str, now: str) -> str:
    """The message when a state is declared as another kind than it is stored."""
    return (
        f"State {name!r} of {operator} is stored as {was} state, but declared as {now} state. Keep the old declaration and "
        "declare the new state under another name."
    )


def _key_identity(description: Mapping[str, Any]) -> list[Any]:
    """One key column may be renamed. Of several, the names tell which is which."""
    key = description["key"]
    return [part["type"] for part in key] if len(key) == 1 else [(part["name"], part["type"]) for part in key]


def _key_ddl(description: Mapping[str, Any]) -> str:
    return ", ".join(f"{part['name']} {part['type']}" for part in description["key"])
