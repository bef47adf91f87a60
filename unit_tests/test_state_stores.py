"""How long a rewind waits for the state stores of a query that has ended."""

from __future__ import annotations

import pytest

from lockstep.engine.state_stores import seconds_left


@pytest.mark.parametrize(
    ("stored", "seconds"),
    [
        (b"101500", 1.5),
        (b"99000", 0),
        (None, 0),
        (b"", 0),
        (b"soon", 0),
        (b"\xff\xfe", 0),
        (b"9" * 40, 600),
    ],
)
def test_wait_is_bounded_whatever_is_stored(stored: bytes | None, seconds: float) -> None:
    assert seconds_left(stored, now=100_000) == seconds
