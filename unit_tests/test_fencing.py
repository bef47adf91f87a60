"""Of two drivers on one directory only the newer may commit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lockstep.errors import FencedError
from lockstep.protocol.fencing import FencingToken
from lockstep.testing import MemoryStorage


def test_tokens_rise_with_every_start() -> None:
    storage = MemoryStorage()
    assert [FencingToken.take(storage, "me").value for _ in range(4)] == [1, 2, 3, 4]


def test_newer_driver_fences_all_earlier_ones() -> None:
    storage = MemoryStorage()
    first, second, third = (FencingToken.take(storage, "me") for _ in range(3))
    third.check()
    for old in (first, second):
        with pytest.raises(FencedError, match=r"overtaken by driver 3.*stop this one"):
            old.check()


def test_drivers_that_start_at_once_get_different_tokens() -> None:
    storage = MemoryStorage()
    with ThreadPoolExecutor(8) as pool:
        values = list(pool.map(lambda _: FencingToken.take(storage, "me").value, range(40)))
    assert sorted(values) == list(range(1, 41))


def test_old_tokens_are_dropped_but_never_the_highest() -> None:
    storage = MemoryStorage()
    for _ in range(20):
        FencingToken.take(storage, "me")
    assert sorted(map(int, storage.list("lockstep/tokens"))) == [19, 20]


def test_start_is_not_kept_from_starting_by_an_old_token_that_stays() -> None:
    storage = MemoryStorage()
    for _ in range(2):
        FencingToken.take(storage, "me")
    storage.fail("delete", error=RuntimeError("some Java error, not an OSError"))
    assert FencingToken.take(storage, "me").value == 3


def test_driver_that_was_paused_while_it_took_its_token_is_fenced_by_those_who_took_theirs_meanwhile() -> None:
    storage = MemoryStorage()
    FencingToken.take(storage, "me")
    paused = storage.another()
    listed = paused.list

    def list_and_pause(path: str) -> list[str]:
        names = listed(path)
        for _ in range(4):  # the name that the paused driver is about to take is used, and dropped again
            FencingToken.take(storage, "other")
        paused.list = listed  # type: ignore[method-assign]
        return names

    paused.list = list_and_pause  # type: ignore[method-assign]
    with pytest.raises(FencedError):
        FencingToken.take(paused, "me").check()


def test_temporary_files_are_no_tokens() -> None:
    storage = MemoryStorage()
    storage.write("lockstep/tokens/.7.abc.tmp", b"")
    token = FencingToken.take(storage, "me")
    assert token.value == 1
    token.check()
