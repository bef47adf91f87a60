"""A checkpoint directory on the driver's own disk (or a POSIX file system mounted there)."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from pathlib import Path

from lockstep.protocol.storage import LARGEST_FILE, no_such_file


class LocalStorage:
    """Atomic writes by rename, mutual exclusion by hard link; both are synced to disk before they return."""

    def __init__(self, root: str | Path) -> None:
        self._root = Path(root).absolute()

    def describe(self) -> str:
        return str(self._root)

    def read(self, path: str) -> bytes | None:
        target = self._at(path)
        try:
            found = target.stat()
            if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_FILE:
                raise no_such_file(str(target), found.st_size if stat.S_ISREG(found.st_mode) else None)
            return target.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, path: str, data: bytes) -> None:
        target = self._at(path)
        temporary = self._temporary(target, data)
        os.replace(temporary, target)
        _sync_directory(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        target = self._at(path)
        temporary = self._temporary(target, data)
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync_directory(target.parent)
        return True

    def exists(self, path: str) -> bool:
        return self._at(path).exists()

    def list(self, path: str) -> list[str]:
        try:
            return os.listdir(self._at(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def delete(self, path: str) -> None:
        target = self._at(path)
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target, ignore_errors=False)
        else:
            with contextlib.suppress(FileNotFoundError):
                target.unlink()

    def _at(self, path: str) -> Path:
        return self._root / path

    def _temporary(self, target: Path, data: bytes) -> Path:
        _make_directory(target.parent)
        temporary = target.parent / f".{target.name}.{uuid.uuid4().hex}.tmp"
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        return temporary


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents so that they survive a loss of power."""
    missing = [directory, *directory.parents]
    missing = missing[: next(i for i, parent in enumerate(missing) if parent.is_dir())]
    directory.mkdir(parents=True, exist_ok=True)
    for created in missing:
        _sync_directory(created.parent)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
