"""Fencing: of two drivers on one checkpoint directory, only the newer may commit.

A driver takes the next token when it starts, by mutually exclusive creation of ``lockstep/tokens/N``, and looks before
each commit whether a higher one exists. The look and the commit are two steps, so a driver paused between them is
stopped by the sinks' own fences (Delta's application transaction, Kafka's transactional id): this is the first line,
not the only one.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from lockstep.errors import FencedError
from lockstep.protocol.envelope import seal
from lockstep.protocol.fields import number_in_name
from lockstep.protocol.prepare_record import DIRECTORY, record_name
from lockstep.protocol.storage import Storage

_DIRECTORY = "lockstep/tokens"


def _tokens(storage: Storage) -> list[int]:
    numbers = [number_in_name(name) for name in storage.list(_DIRECTORY)]
    return sorted(number for number in numbers if number is not None)


def _recorded_tokens(storage: Storage) -> list[int]:
    """Of the drivers that left prepare records: should their token be lost, it must not be given out again."""
    return [named[1] for name in storage.list(DIRECTORY) if (named := record_name(name)) is not None]


@dataclass(frozen=True)
class FencingToken:
    """This driver's place in the order of drivers of the directory."""

    storage: Storage
    value: int

    @classmethod
    def take(cls, storage: Storage, owner: str) -> FencingToken:
        """Take the next token; from now on every earlier driver is fenced."""
        taken = _tokens(storage)
        value = max([0, *taken, *_recorded_tokens(storage)]) + 1
        while not storage.create(f"{_DIRECTORY}/{value}", seal("fencing token", {"token": value, "owner": owner})):
            value += 1
        for old in taken[:-1]:  # the highest must stay: the next taker counts from it
            with contextlib.suppress(Exception):
                storage.delete(f"{_DIRECTORY}/{old}")
        return cls(storage, value)

    def check(self) -> None:
        """Raise :class:`FencedError` when a newer driver has taken over."""
        newest = _tokens(self.storage)[-1:]
        if not newest:
            raise FencedError(
                f"{self.storage.describe()}/{_DIRECTORY} is empty: the checkpoint directory was moved or removed while "
                f"driver {self.value} was running. Start again on the directory where it is now."
            )
        if newest[0] > self.value:
            raise FencedError(
                f"driver {self.value} of {self.storage.describe()} was overtaken by driver {newest[0]}: it must not commit "
                "any more. Only one query may run on a checkpoint directory; the newer one goes on, stop this one."
            )
