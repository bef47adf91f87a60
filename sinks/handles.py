"""Handles come back from disk: each field is looked at before a sink does anything on its account.

Whatever a prepare record says, a sink touches nothing but what it has staged itself, for that very epoch.
"""

from __future__ import annotations

import re

from lockstep.protocol.fields import Fields
from lockstep.sinks.two_phase import Handle

ATTEMPT = re.compile(r"([0-9]+)-[0-9]+-[0-9A-Za-z]+")
NEVER_IN_PATHS = re.compile(r"[\x00-\x1f\x7f:]")  # Spark escapes them in partition values; a colon may end a scheme
_REMEDY = (
    "Nothing was touched. The prepare record was edited, or belongs to another query: restore lockstep/prepared in the "
    "checkpoint directory from a backup."
)


def handle_fields(handle: Handle, target: str, epoch: int) -> Fields:
    """The handle of an epoch; ``target`` is how the sink describes itself."""
    return Fields(handle, f"{target}: epoch {epoch}", "handle", _REMEDY)


def staged_by(fields: Fields, epoch: int) -> str:
    """The attempt that has staged the rows. It need not be the record's: another sink may have staged again since."""
    attempt_id = fields.text("attempt")
    match = ATTEMPT.fullmatch(attempt_id)
    if match is None or match[1] != str(epoch):
        raise fields.wrong("attempt", attempt_id, f"the id of an attempt of epoch {epoch}")
    return attempt_id


def metrics_of(fields: Fields, files: int) -> dict[str, int]:
    """What the handle says of its rows, bytes and files. It names ``files`` files, and must say so: none may be left out."""
    metrics = fields.fields("metrics")
    found = {name: metrics.count(name) for name in ("rows", "bytes", "files")}
    if found["files"] != files:
        raise fields.refusal(f"it names {files} files, and speaks of {found['files']}.")
    return found
