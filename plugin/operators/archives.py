"""Keeps Spark's Python workers from reading their archives again for every task.

Before each task a worker calls ``importlib.invalidate_caches()``, and Python then reads the directory of every zip file on
its path again: with Spark's own (pyspark.zip, and a jar with thousands of entries) that takes about 0.4 s of CPU, more
than the task itself. Most of the time of a small epoch with Python in it goes there.
"""

from __future__ import annotations

import os
import zipimport
from typing import Any

_seen: dict[str, tuple[int, int] | None] = {}


def read_archives_only_when_changed() -> None:
    """From now on, in this process, an archive is read again only when its file has changed."""
    importer: Any = zipimport.zipimporter
    if getattr(importer.invalidate_caches, "only_when_changed", False):
        return
    read_again = importer.invalidate_caches

    def invalidate_caches(self: Any) -> None:
        now = _stamp(self.archive)
        if now is None or _seen.get(self.archive) != now:
            read_again(self)
            _seen[self.archive] = now

    invalidate_caches.only_when_changed = True  # type: ignore[attr-defined]
    importer.invalidate_caches = invalidate_caches


def _stamp(archive: str) -> tuple[int, int] | None:
    try:
        status = os.stat(archive)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
