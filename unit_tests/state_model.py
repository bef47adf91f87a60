"""Every state type and both kinds of timers, once as a function of Lockstep and once as plain Python.

An element carries an operation as text; the function does it on its state and emits what it returned. The model does the
same with lists and dicts, keeps a time stamp with every entry and looks at it at every access, and never stores anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from lockstep.state import (
    AggregateFunction,
    AggregatingState,
    BroadcastState,
    Context,
    KeyedProcessFunction,
    ListState,
    MapState,
    OperatorListState,
    RawKeyedState,
    RawOperatorState,
    ReducingState,
    Row,
    TimeDomain,
    Ttl,
    TtlUpdate,
    UnionListState,
    ValueState,
)

TTL = 20
WRITE = Ttl(f"{TTL} ms")
READ = Ttl(f"{TTL} ms", TtlUpdate.ON_READ_AND_WRITE)
TTLS = {"": None, "_w": WRITE, "_r": READ}

INPUT = "k string, op string"
OUTPUT = "k string, text string"
BROADCAST = "op string"


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]


class Everything(KeyedProcessFunction):
    """Each keyed state three times: without ttl, with one on write, with one on read and write."""

    operators = OperatorListState("bigint")
    union = UnionListState("array<string>")
    raw_operator = RawOperatorState()
    rules = BroadcastState("string", "bigint")

    def __init__(self) -> None:
        for suffix, ttl in TTLS.items():
            setattr(self, f"value{suffix}", ValueState("bigint", default=7, ttl=ttl))
            setattr(self, f"nested{suffix}", ValueState("a bigint, b array<string>", ttl=ttl))
            setattr(self, f"list{suffix}", ListState("double", ttl=ttl))
            setattr(self, f"map{suffix}", MapState("bigint", "string", ttl=ttl))
            setattr(self, f"lists{suffix}", MapState("string", "array<bigint>", ttl=ttl))
            setattr(self, f"sum{suffix}", ReducingState("bigint", lambda a, b: a + b, ttl=ttl))
            setattr(self, f"mean{suffix}", AggregatingState("total bigint, n bigint", Mean(), ttl=ttl))
            setattr(self, f"raw{suffix}", RawKeyedState(ttl=ttl))

    def process_element(self, row: Row, ctx: Context) -> Iterator[Any]:
        target, method, *arguments = ast.literal_eval(row.op)
        if target == "timers":
            getattr(ctx, method)(*arguments)
            return
        yield ctx.key, repr(getattr(getattr(self, target), method)(*arguments))

    def process_broadcast_element(self, row: Row, ctx: Context) -> None:
        method, *arguments = ast.literal_eval(row.op)
        getattr(self.rules, method)(*arguments)

    def on_timer(self, timestamp: int, ctx: Context) -> Iterator[Any]:
        yield ctx.key, f"{ctx.time_domain.name} {timestamp} {self.value_w.value()}"  # type: ignore[attr-defined]
        domain = ctx.time_domain.name.lower()
        if timestamp % 5 == 0:
            getattr(ctx, f"register_{domain}_timer")(timestamp + 7)
        if timestamp % 7 == 0:
            getattr(ctx, f"delete_{domain}_timer")(timestamp + 1)
        self.value_w.update(timestamp)  # type: ignore[attr-defined]


class Model:
    """What :class:`Everything` must do."""

    def __init__(self) -> None:
        self.now = 0
        self.watermark: int | None = None
        self.single: dict[tuple[str, Any], list[Any]] = {}  # (state, key) -> [value, stamp]
        self.lists: dict[tuple[str, Any], list[list[Any]]] = {}  # (state, key) -> [[value, stamp], ...]
        self.maps: dict[tuple[str, Any], dict[Any, list[Any]]] = {}
        self.operators: list[Any] = []
        self.union: list[Any] = []
        self.raw_operator: bytes | None = None
        self.rules: dict[Any, Any] = {}
        self.timers: dict[TimeDomain, set[tuple[int, Any]]] = {domain: set() for domain in TimeDomain}

    def epoch(self, broadcast: list[Any], elements: list[tuple[Any, Any]]) -> list[tuple[Any, str]]:
        """The rows of an epoch."""
        for method, *arguments in broadcast:
            self._rule(method, *arguments)
        rows = self._fire()
        for key, (target, method, *arguments) in elements:
            if target == "timers":
                self._timer(key, method, *arguments)
            else:
                rows.append((key, repr(self.do(key, target, method, *arguments))))
        return rows + self._fire()

    def do(self, key: Any, target: str, method: str, *arguments: Any) -> Any:
        kind = target.removesuffix("_w").removesuffix("_r")
        if kind in ("operators", "union"):
            return self._plain_list(getattr(self, target), method, *arguments)
        if kind == "raw_operator":
            if method == "value":
                return self.raw_operator
            self.raw_operator = arguments[0] if method == "update" else None
            return None
        if kind == "rules":
            return self._rule(method, *arguments)
        return getattr(self, f"_{kind}")((target, key), target.endswith("_r"), method, *arguments)

    def keys(self) -> set[Any]:
        """Those with something alive, or a timer."""
        self._purge()
        entries = {key for _, key in [*self.single, *self.lists, *self.maps]}
        return entries.union(*({key for _, key in timers} for timers in self.timers.values()))

    def is_empty(self) -> bool:
        return not (self.keys() or self.operators or self.union or self.raw_operator is not None or self.rules)

    def next(self, domain: TimeDomain) -> int | None:
        return min((time for time, _ in self.timers[domain]), default=None)

    def contents(self, target: str, key: Any) -> Any:
        """What a keyed state holds, without touching it."""
        self._purge()
        kind = target.removesuffix("_w").removesuffix("_r")
        if kind == "list":
            return [value for value, _ in self.lists.get((target, key), [])]
        if kind in ("map", "lists"):
            return {k: value for k, (value, _) in self.maps.get((target, key), {}).items()}
        value = self.single.get((target, key), [7 if kind == "value" else None])[0]
        return value[0] / value[1] if kind == "mean" and value is not None else value

    # -- each kind of state ------------------------------------------------------------------------------------------

    def _value(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any, default: Any = 7) -> Any:
        self._purge()
        if method == "value":
            return self._touched(place, reads, default)
        if method == "clear" or arguments[0] is None:
            self.single.pop(place, None)
        else:
            self.single[place] = [arguments[0], self.now]
        return None

    def _nested(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        if arguments and arguments[0] is not None:
            a, b = arguments[0]
            arguments = (Row(a=a, b=b),)
        return self._value(place, reads, method, *arguments, default=None)

    def _raw(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        return self._value(place, reads, method, *arguments, default=None)

    def _sum(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        self._purge()
        if method == "add":
            self.single[place] = [self.single.get(place, [0])[0] + arguments[0], self.now]
            return None
        return self._value(place, reads, "value" if method == "get" else method, default=None)

    def _mean(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        self._purge()
        if method == "add":
            total, n = self.single.get(place, [(0, 0)])[0]
            self.single[place] = [(total + arguments[0], n + 1), self.now]
            return None
        if method == "clear":
            return self._value(place, reads, "clear")
        found = self._touched(place, reads, None)
        return None if found is None else found[0] / found[1]

    def _list(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        self._purge()
        elements = self.lists.setdefault(place, [])
        if method == "get":
            for element in elements if reads else []:
                element[1] = self.now
            return [value for value, _ in elements]
        if method in ("update", "clear"):
            elements.clear()
        added = [] if method == "clear" else [arguments[0]] if method == "add" else arguments[0]
        elements += [[value, self.now] for value in added]
        return None

    def _map(self, place: tuple[str, Any], reads: bool, method: str, *arguments: Any) -> Any:
        self._purge()
        entries = self.maps.setdefault(place, {})
        if method in ("put", "put_all"):
            new = {arguments[0]: arguments[1]} if method == "put" else arguments[0]
            for k, v in new.items():
                entries[k] = [v, self.now]
            return None
        if method == "remove":
            entries.pop(arguments[0], None)
            return None
        if method == "clear":
            entries.clear()
            return None
        if method == "is_empty":
            return not entries
        read = [arguments[0]] if method in ("get", "contains") else list(entries)
        for k in read if reads else []:
            if k in entries:
                entries[k][1] = self.now
        if method == "get":
            return entries.get(arguments[0], [arguments[1] if len(arguments) > 1 else None])[0]
        if method == "contains":
            return arguments[0] in entries
        plain = {k: value for k, (value, _) in entries.items()}
        return list(getattr(plain, method)())

    _lists = _map

    def _touched(self, place: tuple[str, Any], reads: bool, default: Any) -> Any:
        found = self.single.get(place)
        if found is None:
            return default
        if reads:
            found[1] = self.now
        return found[0]

    def _purge(self) -> None:
        def alive(target: str, stamp: int) -> bool:
            return not target.endswith(("_w", "_r")) or self.now < stamp + TTL

        self.single = {place: entry for place, entry in self.single.items() if alive(place[0], entry[1])}
        for place, elements in list(self.lists.items()):
            elements[:] = [element for element in elements if alive(place[0], element[1])]
            if not elements:
                del self.lists[place]
        for place, entries in list(self.maps.items()):
            for k in [k for k, entry in entries.items() if not alive(place[0], entry[1])]:
                del entries[k]
            if not entries:
                del self.maps[place]

    @staticmethod
    def _plain_list(values: list[Any], method: str, *arguments: Any) -> Any:
        if method == "get":
            return list(values)
        if method in ("update", "clear"):
            values.clear()
        if method == "add":
            values.append(arguments[0])
        elif method != "clear":
            values.extend(arguments[0])
        return None

    def _rule(self, method: str, *arguments: Any) -> Any:
        if method == "put":
            self.rules[arguments[0]] = arguments[1]
        elif method == "remove":
            self.rules.pop(arguments[0], None)
        elif method == "clear":
            self.rules.clear()
        elif method == "contains":
            return arguments[0] in self.rules
        elif method == "get":
            return self.rules.get(*arguments)
        else:
            return list(getattr(self.rules, method)())
        return None

    # -- timers ------------------------------------------------------------------------------------------------------

    def _timer(self, key: Any, method: str, time: int) -> None:
        action, _, domain = method.removesuffix("_timer").partition("_")
        timers = self.timers[TimeDomain(domain)]
        timers.add((time, key)) if action == "register" else timers.discard((time, key))

    def _fire(self) -> list[tuple[Any, str]]:
        rows = []
        limits = {TimeDomain.EVENT_TIME: self.watermark, TimeDomain.PROCESSING_TIME: self.now}
        while True:
            for domain, limit in limits.items():
                due = [timer for timer in self.timers[domain] if limit is not None and timer[0] <= limit]
                if due:
                    break
            else:
                return rows
            time, key = timer = min(due, key=lambda each: (each[0], each[1] is not None, each[1] or ""))
            self.timers[domain].remove(timer)
            rows.append((key, f"{domain.name} {time} {self.do(key, 'value_w', 'value')}"))
            if time % 5 == 0:
                self.timers[domain].add((time + 7, key))
            if time % 7 == 0:
                self.timers[domain].discard((time + 1, key))
            self.do(key, "value_w", "update", time)
