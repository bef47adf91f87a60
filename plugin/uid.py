"""Names that tie stored things to the sinks and operators that they belong to."""

from __future__ import annotations

import re

from lockstep.errors import ConfigurationError

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def check_uid(uid: object) -> str:
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise ConfigurationError(f"uid={uid!r}: use letters, digits, '.', '_' and '-', at most 100 of them.")
    return uid
