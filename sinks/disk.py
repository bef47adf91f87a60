"""Makes what Spark has written to the driver's own disk survive a loss of power: Spark itself does not."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def sync_tree(root: Path, path: str) -> None:
    """Sync a directory below ``root`` with all it holds, and its entry in the directories above it."""
    for directory, _, names in os.walk(root / path):
        for name in names:
            _sync(Path(directory, name))
        _sync(Path(directory))
    sync_directories(root, [path])


def sync_directories(root: Path, paths: Iterable[str]) -> None:
    """Sync the entries of ``paths`` in the directories above them, up to ``root``."""
    for directory in {root / parent for path in paths for parent in Path(path).parents}:
        _sync(directory)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
