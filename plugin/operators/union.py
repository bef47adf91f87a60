"""Union list state: after a start, every key group gets the lists of all of them, once, through the control stream."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterable

from lockstep.state.blob import readable
from lockstep.state.snapshot import union_part

_log = logging.getLogger(__name__)
LARGEST = 256 * 1024
"""The lists travel in an offset of Spark's log. As in Flink, union state is for small things."""


def payload_of(uid: str, blobs: Iterable[tuple[int, bytes]]) -> bytes | None:
    """What a start hands to every key group: the union lists as they were at the end of the last decided epoch."""
    parts = {group: base64.b64encode(part).decode() for group, blob in sorted(blobs) if (part := union_part(blob))}
    payload = json.dumps(parts).encode()
    if len(payload) > LARGEST:
        _log.warning(
            "operator %r: its union list state has grown to %d bytes, and %d can be handed to all key groups: at this start "
            "every group has its own list alone. Keep less in it, or use OperatorListState.",
            uid,
            len(payload),
            LARGEST,
        )
        return None
    return payload if parts else None


def parts_for(group: int, payload: bytes) -> list[bytes]:
    """The lists of all other groups. A group's own may be newer than the payload: an epoch may have been run again since."""
    with readable("the union lists in Spark's offset log"):
        parts = json.loads(payload)
        return [base64.b64decode(part, validate=True) for other, part in parts.items() if int(other) != group]
