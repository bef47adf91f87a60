"""Finds the operator's own words in what Spark makes of a worker's error."""

from __future__ import annotations

import re

from lockstep.errors import CorruptRecordError, LockstepError, NewerFormatError, OperatorError, StateMigrationError

_KINDS = {kind.__name__: kind for kind in (OperatorError, StateMigrationError, CorruptRecordError, NewerFormatError)}
_WORDS = re.compile(
    rf"^lockstep\.errors\.({'|'.join(_KINDS)}): (.+?)(?=\n\s*\n|\n\s+at |\n\S*Error: |\Z)", re.MULTILINE | re.DOTALL
)


def operator_failure(error: Exception) -> LockstepError | None:
    """The error that an operator raised in a worker, when that is what went wrong."""
    found = _WORDS.findall(str(error))
    return _KINDS[found[-1][0]](found[-1][1].strip()) if found else None
