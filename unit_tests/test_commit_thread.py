"""The committer's thread: it ends the query when it can't go on."""

from __future__ import annotations

import threading
from typing import Any

from lockstep.engine.commit_thread import CommitThread
from lockstep.errors import FencedError
from lockstep.protocol.fencing import FencingToken
from lockstep.testing import MemoryStorage


class IdleCommitter:
    """Has nothing to commit; its epoch never comes to a decision."""

    def __init__(self, token: FencingToken) -> None:
        self._token = token

    def refuse_if_overtaken(self) -> None:
        self._token.check()

    def awaits_decision(self) -> int | None:
        return None

    def pending_epochs(self) -> list[int]:
        return []

    def advance(self, force: bool = False) -> bool:
        return True


class NoLog:
    def is_decided(self, epoch: int) -> bool:
        return False


def thread_of(token: FencingToken, ended: Any) -> CommitThread:
    committer: Any = IdleCommitter(token)
    log: Any = NoLog()
    return CommitThread(committer, log, ended)


def test_overtaken_driver_ends_though_it_has_nothing_to_commit() -> None:
    storage = MemoryStorage()
    token = FencingToken.take(storage, "old")
    FencingToken.take(storage, "new")
    ended = threading.Event()
    thread = thread_of(token, lambda error: ended.set())
    thread.start()
    assert ended.wait(10)
    assert isinstance(thread.failure, FencedError)


def test_newest_driver_goes_on() -> None:
    token = FencingToken.take(MemoryStorage(), "only")
    thread = thread_of(token, lambda error: None)
    assert thread._step() > 0
    assert thread.failure is None
