"""How a failure inside an operator is told: where, for which key, what went wrong, in which line of the user's code."""

from __future__ import annotations

import sysconfig
import traceback
from typing import Any

from lockstep.errors import LockstepError, OperatorError

_LONGEST_KEY = 200
_NOT_THE_USERS = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_NOT_ROWS = "A hook returns None or an iterable of rows: yield each row, or return [row]."
_AGAIN = "The epoch is not decided: mend this and start the query again, it continues with this epoch."


def operator_error(uid: str, where: str, error: Exception) -> OperatorError:
    """``where``: the epoch, key group, hook and key. Raise it ``from error``."""
    problem = str(error) if isinstance(error, LockstepError) else f"{type(error).__name__}: {error}"
    line = users_line(error)
    returned_no_rows = line is None and isinstance(error, TypeError)  # it failed where the runtime takes the rows
    return OperatorError(
        f"Operator {uid!r} failed in {where}{f', at {line}' if line else ''}: "
        f"{problem.rstrip('.')}. {_NOT_ROWS + ' ' if returned_no_rows else ''}{_AGAIN}"
    )


def shown(value: Any) -> str:
    """Its repr, cut where it gets long."""
    try:
        text = repr(value)
    except Exception:  # a user's own __repr__ must not hide the real failure
        text = f"a {type(value).__name__} that has no repr"
    return text if len(text) <= _LONGEST_KEY else text[: _LONGEST_KEY - 3] + "..."


def users_line(error: Exception) -> str | None:
    """``file:line`` of the innermost frame that is the user's own code, if there is one."""
    found = None
    for frame, line in traceback.walk_tb(error.__traceback__):
        module = str(frame.f_globals.get("__name__", ""))
        path = frame.f_code.co_filename
        if not module.startswith("lockstep.") and not path.startswith(_NOT_THE_USERS):
            found = f"{path}:{line}"
    return found
