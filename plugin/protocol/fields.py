"""Reads the fields of a stored JSON object, each as the type that it must have, or says which one is wrong.

Python's own conversions are too kind for what comes from a disk: ``int("7")``, ``int(7.9)``, ``bool("false")`` and
``dict([])`` all give something, and something would be committed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from lockstep.errors import CorruptRecordError

_LARGEST = 2**63 - 1  # as in Spark's and the targets' longs
_DEEPEST = 100
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a fraction",
}


def number_in_name(name: str) -> int | None:
    """The number that a file's name is, or ``None``. Only plain digits: ``int`` would take ``٣`` and ``1_0`` as well."""
    return int(name) if name.isascii() and name.isdigit() and len(name) <= 100 else None


def parse_json(text: str | bytes) -> Any:
    """``json.loads`` for texts that others have written. Anything wrong with one is a ``ValueError``.

    Refuses what the standard parser lets through or stumbles over: a key twice in one object, and nesting without end.
    """
    try:
        parsed = json.loads(text, object_pairs_hook=_without_repeated_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _refuse_deep(parsed)
    return parsed


class Fields:
    """One object of a stored file. ``place`` says where, ``what`` what it should be, ``remedy`` what to do if it is not."""

    def __init__(self, data: object, place: str, what: str, remedy: str, inside: str = "") -> None:
        self._place = place
        self._what = what
        self._remedy = remedy
        self._inside = inside
        if not isinstance(data, dict):
            raise self.wrong(inside.rstrip(".") or "its content", data, "an object")
        self._data: Mapping[str, Any] = data

    def __contains__(self, name: str) -> bool:
        return name in self._data

    def __iter__(self) -> Iterator[str]:
        return iter(self._data)

    def text(self, name: str) -> str:
        """Text that every encoding can take: a lone half of a surrogate pair is damage."""
        value: str = self._of(name, str)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.wrong(name, value, "text") from None
        return value

    def name(self, name: str) -> str:
        """An id, which becomes part of paths and keys: letters, digits, dots, dashes and underscores."""
        value = self.text(name)
        if not _NAME.fullmatch(value):
            raise self.wrong(name, value, "an id of letters, digits, '.', '_' and '-'")
        return value

    def integer(self, name: str) -> int:
        value = self._of(name, int)
        if not -_LARGEST <= value <= _LARGEST:
            raise self.wrong(name, value, "a whole number of 64 bits")
        return int(value)

    def count(self, name: str) -> int:
        """A whole number that is not negative."""
        value = self.integer(name)
        if value < 0:
            raise self.wrong(name, value, "a number from 0 on")
        return value

    def flag(self, name: str) -> bool:
        return bool(self._of(name, bool))

    def is_null(self, name: str) -> bool:
        return self._get(name) is None

    def json_object(self, name: str) -> dict[str, Any]:
        """An object whose fields are its owner's business."""
        return dict(self._of(name, dict))

    def json_list(self, name: str) -> list[Any]:
        return list(self._of(name, list))

    def fields(self, name: str) -> Fields:
        return Fields(self._get(name), *self._about(name))

    def list_of_fields(self, name: str) -> list[Fields]:
        values = Fields(dict(_numbered(self.json_list(name))), *self._about(name))
        return [values.fields(index) for index in values]

    def list_of_lists(self, name: str) -> list[list[Fields]]:
        """Lists of objects."""
        lists = Fields(dict(_numbered(self.json_list(name))), *self._about(name))
        return [lists.list_of_fields(index) for index in lists]

    def texts(self, name: str) -> list[str]:
        values = Fields(dict(_numbered(self.json_list(name))), *self._about(name))
        return [values.text(index) for index in values]

    def objects(self, name: str) -> dict[str, dict[str, Any]]:
        """Objects by name."""
        inner = self.fields(name)
        return {key: inner.json_object(key) for key in inner}

    def text_values(self, name: str) -> dict[str, str]:
        """Texts by name."""
        inner = self.fields(name)
        return {key: inner.text(key) for key in inner}

    def counts(self, name: str) -> dict[str, int]:
        """Whole numbers by name, none of them negative."""
        inner = self.fields(name)
        return {key: inner.count(key) for key in inner}

    def wrong(self, name: str, value: object, expected: str) -> CorruptRecordError:
        return self.refusal(f"{self._inside}{name} is {_shown(value)}, where {expected} should be.")

    def refusal(self, why: str) -> CorruptRecordError:
        """The error for a file that is whole, and makes no sense."""
        return CorruptRecordError(f"{self._place} lacks or garbles a field of a {self._what}: {why} {self._remedy}")

    def _about(self, name: str) -> tuple[str, str, str, str]:
        return self._place, self._what, self._remedy, f"{self._inside}{name}."

    def _get(self, name: str) -> Any:
        if name not in self._data:
            raise self.refusal(f"{self._inside}{name} is missing.")
        return self._data[name]

    def _of(self, name: str, kind: type) -> Any:
        value = self._get(name)
        if type(value) is not kind:  # True is an int too, for isinstance
            raise self.wrong(name, value, _KINDS[kind])
        return value


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in seen if seen.count(key) > 1)[:100]!r} is there twice")
    return found


def _refuse_deep(parsed: Any) -> None:
    """What is nested deeper than any file of ours could be read, and then neither compared, shown nor written again."""
    level = [parsed]
    for _ in range(_DEEPEST):
        parts = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [part for group in parts for part in group if isinstance(part, (dict, list))]
        if not level:
            return
    raise ValueError("it is nested too deeply")


def _numbered(values: list[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(index), value) for index, value in enumerate(values))


def _shown(value: object) -> str:
    if isinstance(value, (dict, list)):
        return _KINDS[type(value)]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST:
        return "a huge number"  # which Python may refuse to print
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
