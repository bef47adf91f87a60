"""Union list state: after a start, every key group gets the lists of all of them, once, through the control stream."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable

from lockstep.errors import LockstepError
from lockstep.state.snapshot import union_part

LARGEST = 4 * 1024 * 1024
"""The lists travel in an offset of Spark's log. As in Flink, union state is for small things."""


def payload_of(uid: str, decided: int, blobs: Iterable[tuple[int, bytes]]) -> bytes:
    """What a start hands to every key group: the union lists as they were at the end of epoch ``decided``."""
    parts = [part for _, blob in sorted(blobs) if (part := union_part(blob))]
    payload = json.dumps({"after": decided, "parts": [base64.b64encode(part).decode() for part in parts]}).encode()
    if len(payload) > LARGEST:
        raise LockstepError(
            f"operator {uid!r}: its union list state has grown to {len(payload):,} bytes; every key group gets all of it "
            f"at a start; {LARGEST:,} are allowed. Keep less in it, or use OperatorListState, which stays where it is."
        )
    return payload


def parts_for(epoch: int, payload: bytes) -> list[bytes] | None:
    """The parts, or ``None`` when they are out of date.

    A start may find an epoch planned and not decided: it is run again with the offsets, and so the payload, that it
    had, and the new start's own payload comes with the epoch after. That one must not undo what happened since.
    """
    content = json.loads(payload)
    if content["after"] != epoch - 1:
        return None
    return [base64.b64decode(part) for part in content["parts"]]
