"""What may happen to a stored file: accidents to its bytes, and contents that somebody has sealed anew."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    -1,
    0,
    2**63,
    10**30,
    0.5,
    7.0,
    math.nan,
    math.inf,
    "",
    "7",
    "٣",
    "true",
    "../../etc/passwd",
    "a\x00b",
    "\ud800",
    [],
    [None],
    [7],
    {},
    {"a": 1},
)
"""One of every JSON type, and those that Python's conversions take for something else."""


def truncated(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def flipped(data: bytes, *, most: int = 4_000) -> Iterator[bytes]:
    """Every single bit the other way round; of large files, bits spread evenly."""
    bits = len(data) * 8
    for bit in range(0, bits, max(1, math.ceil(bits / most))):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << (bit % 8)
        yield bytes(damaged)


def replaced(data: bytes) -> dict[str, bytes]:
    """Other things in a file's place, by name."""
    middle = len(data) // 2
    return {
        "empty": b"",
        "cut": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :] if data else b"x",
        "zeros": b"\x00" * max(1, len(data)),
        "binary": b"\xff\xfe\x00\x80" * 20,
        "with a byte order mark": b"\xef\xbb\xbf" + data,
        "as UTF-16": data.decode(errors="replace").encode("utf-16"),
        "JSON of another kind": b'[{"epoch": 1}]\n',
        "deep": b"[" * 100_000,
        "a huge number": b"9" * 100_000,
        "with bytes appended": data + b"more",
        "twice": data + data,
        "of a newer format": data.replace(b'"format":1', b'"format":2', 1).replace(b"v1\n", b"v9\n", 1),
    }


def odd_contents(body: Any, free: frozenset[str] = frozenset()) -> Iterator[tuple[str, Any]]:
    """The content with each field, at any depth, left out or replaced by each odd value. ``free``: nobody's business."""
    for path in _paths(body, free):
        yield f"without {_named(path)}", _changed(body, path, _LEAVE_OUT)
        for value in ODD_VALUES:
            yield f"{_named(path)} = {value!r}"[:80], _changed(body, path, value)


_LEAVE_OUT = object()


def _paths(body: Any, free: frozenset[str], above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in body.items() if isinstance(body, dict) else enumerate(body):
        yield (*above, key)
        if isinstance(value, (dict, list)) and key not in free:
            yield from _paths(value, free, (*above, key))


def _changed(body: Any, path: tuple[Any, ...], value: Any) -> Any:
    copy = json.loads(json.dumps(body))
    place = copy
    for key in path[:-1]:
        place = place[key]
    if value is _LEAVE_OUT:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copy


def _named(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))
