"""Removes a savepoint. Needs no Spark."""

from __future__ import annotations

from lockstep.protocol.savepoint import METADATA, SOURCES, STATE
from lockstep.protocol.storage import Storage


def dispose(storage: Storage) -> None:
    """The file that makes it a savepoint goes first: what an interruption leaves is none any more."""
    for name in (METADATA, STATE, SOURCES):
        storage.delete(name)
    if not storage.list(""):
        storage.delete("")
