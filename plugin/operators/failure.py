"""Finds the operator's own words in what Spark makes of a worker's error."""

from __future__ import annotations

import re

from lockstep.errors import LockstepError, OperatorError

_WORDS = re.compile(
    r"^lockstep\.errors\.OperatorError: (.+?)(?=\n\s*\n|\n\s+at |\n\S*Error: |\Z)", re.MULTILINE | re.DOTALL
)


def operator_failure(error: Exception) -> LockstepError | None:
    """The :class:`OperatorError` that a worker raised, when that is what went wrong."""
    found = _WORDS.findall(str(error))
    return OperatorError(found[-1].strip()) if found else None
