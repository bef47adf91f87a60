"""Clients that tests open and need until their end."""

from __future__ import annotations

import os
import sys
from typing import Protocol, TypeVar

MOST_OPEN_FILES = 800  # pyspark's driver can't hear its tasks any more once a thousand are open: it uses select()


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
_open: list[Closable] = []


def until_the_end(client: C) -> C:
    """The client, which is closed when the test is over."""
    _open.append(client)
    return client


def close_all() -> None:
    while _open:
        _open.pop().close()


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform.startswith("linux") else 0
