"""How every file of ours is stored: JSON with a format version and a checksum, so that damage is seen, never guessed at."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.protocol.fields import Fields, parse_json
from lockstep.protocol.storage import LARGEST_FILE

FORMAT = 1


def seal(kind: str, body: dict[str, Any]) -> bytes:
    """Encode ``body`` with its kind, format version and checksum. What could not be read back is a ``ValueError`` here."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"))
    try:
        parse_json(text)
    except ValueError as error:
        raise ValueError(f"this {kind} can't be stored: {error}") from error
    if len(text) > LARGEST_FILE - 1024:
        raise ValueError(
            f"this {kind} can't be stored: it has {len(text):,} bytes. Stage rows, and name them in the handle."
        )
    digest = hashlib.sha256(text.encode()).hexdigest()
    head = json.dumps({"lockstep": kind, "format": FORMAT, "sha256": digest}, separators=(",", ":"))
    return f"{head}\n{text}\n".encode()


def unseal(kind: str, data: bytes, where: str) -> dict[str, Any]:
    """Decode what :func:`seal` made, or raise an error that names the file ``where`` and the remedy."""
    remedy = remedy_of(where)
    if len(data) > LARGEST_FILE:
        raise CorruptRecordError(f"{where} has {len(data)} bytes, more than any {kind} can have. {remedy}")
    try:
        head_line, _, rest = data.decode().partition("\n")
        head = parse_json(head_line)
        stored_kind, stored_format, digest = head["lockstep"], head["format"], head["sha256"]
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecordError(f"{where} is not a readable {kind}: truncated or damaged. {remedy}") from error
    if stored_kind != kind:
        raise CorruptRecordError(f"{where} holds a {str(stored_kind)[:80]!r}, expected a {kind!r}. {remedy}")
    if type(stored_format) is not int or stored_format < 1:
        raise CorruptRecordError(f"{where} does not name its format: truncated or damaged. {remedy}")
    if stored_format > FORMAT:
        raise NewerFormatError(
            f"{where} has format {str(stored_format)[:20]}; this version reads up to {FORMAT}. "
            "Upgrade spark-lockstep to the version that wrote it, or newer."
        )
    text = rest[:-1] if rest.endswith("\n") else rest
    if hashlib.sha256(text.encode()).hexdigest() != digest:
        raise CorruptRecordError(f"{where} fails its checksum: truncated or damaged. {remedy}")
    try:
        body = parse_json(text)
    except ValueError as error:
        raise CorruptRecordError(f"{where} is not valid JSON: {error}. {remedy}") from error
    if not isinstance(body, dict):
        raise CorruptRecordError(f"{where} does not hold an object. {remedy}")
    return body


def unseal_fields(kind: str, data: bytes, where: str) -> Fields:
    """The same, for readers who look at every field's type."""
    return Fields(unseal(kind, data, where), where, kind, remedy_of(where))


def remedy_of(where: str) -> str:
    """What to do about a file that can't be used."""
    return (
        f"{where} was left as it is. Restore it from a backup of the checkpoint directory; deleting it can lose rows."
    )


def of_another(where: str, theirs: str, ours: str) -> CorruptRecordError:
    """For a file of another directory's lineage."""
    return CorruptRecordError(
        f"{where} belongs to lineage {theirs}, the directory to {ours}: it was copied here from another checkpoint "
        "directory. Move it back to where it came from."
    )
