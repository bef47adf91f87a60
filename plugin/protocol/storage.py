"""What the protocol asks of the file system that holds a checkpoint directory.

Paths are relative to the checkpoint directory and use ``/``. Adapters: :mod:`lockstep.engine.local_storage` for the
driver's own disk, :mod:`lockstep.engine.hadoop_storage` for every Hadoop file system,
:class:`lockstep.testing.MemoryStorage` for tests.
"""

from __future__ import annotations

from typing import Protocol

from lockstep.errors import CorruptRecordError

LARGEST_FILE = 256 * 1024 * 1024
"""More than any file that is read whole can have. What has more is no such file, and is not read into memory."""


def no_such_file(where: str, size: int | None) -> CorruptRecordError:
    """The error for what stands in a file's place: something of ``size`` bytes, or no file at all."""
    what = (
        "is a directory or a device" if size is None else f"has {size:,} bytes, more than any file of a query can have"
    )
    return CorruptRecordError(
        f"{where} {what}. It was left as it is. Restore it from a backup of the checkpoint directory."
    )


class Storage(Protocol):
    """A directory with atomic writes.

    ``write`` and ``create`` are atomic and durable when they return: a reader, also after a crash, sees the whole new
    content or what was there before, never a part. ``create`` is mutually exclusive: of any number of callers, in any
    number of processes, exactly one gets ``True``.
    """

    def describe(self) -> str:
        """The directory's address, for messages."""

    def read(self, path: str) -> bytes | None:
        """The whole content, or ``None`` when there is no such file.

        Something else in the file's place (a directory, more than ``LARGEST_FILE`` bytes) is a ``CorruptRecordError``.
        """

    def write(self, path: str, data: bytes) -> None:
        """Create or replace the file. Missing parent directories are created."""

    def create(self, path: str, data: bytes) -> bool:
        """Create the file and return ``True``, or return ``False`` and change nothing when it exists."""

    def exists(self, path: str) -> bool:
        """Whether the file or directory is there."""

    def list(self, path: str) -> list[str]:
        """Names (not paths) directly in the directory, in no order; empty when there is no such directory."""

    def delete(self, path: str) -> None:
        """Delete the file, or the directory with all it holds. Nothing happens when it is not there."""
