"""Reads an enum's member from what people write in arguments and options."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from lockstep.errors import ConfigurationError

E = TypeVar("E", bound=Enum)


def choose(kind: type[E], value: E | str, argument: str) -> E:
    """The member that ``value`` is or names, in any case, with ``-`` or ``_``. ``argument`` is for the message."""
    if isinstance(value, kind):
        return value
    if isinstance(value, str):
        wanted = value.strip().lower().replace("-", "_")
        for member in kind:
            if wanted in (member.name.lower(), member.value):
                return member
    valid = ", ".join(str(member.value) for member in kind)
    raise ConfigurationError(f"{argument}={value!r} is not known. Use one of: {valid}.")
