"""A small file system of its own for the checkpoint directory, so that it can be made read-only, or full."""

from __future__ import annotations

import errno
import os
import subprocess
import time
from pathlib import Path

MEGABYTE = 1 << 20


class Volume:
    """A tmpfs where this user may mount one; else a plain directory, without these two faults."""

    def __init__(self, path: Path, megabytes: int = 400) -> None:
        self.path = path
        path.mkdir(parents=True)
        mounted = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=700", "lockstep-chaos", str(path)]
        self.is_own = os.geteuid() == 0 and subprocess.run(mounted, capture_output=True, check=False).returncode == 0

    def make_read_only(self) -> None:
        """While somebody has a file open for writing the kernel refuses: then a moment later."""
        for _ in range(2000):
            if self._remount("ro"):
                return
            time.sleep(0.005)
        raise TimeoutError(f"{self.path} could not be made read-only: it is always in use")

    def make_writable(self) -> None:
        self._remount("rw")

    def fill(self) -> None:
        """Leaves not a byte."""
        with self._ballast.open("wb", buffering=0) as ballast:
            size = MEGABYTE
            while size:
                try:
                    ballast.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    size //= 2

    def empty(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def release(self) -> None:
        if self.is_own:
            subprocess.run(["umount", "--lazy", str(self.path)], check=False, capture_output=True)

    @property
    def _ballast(self) -> Path:
        return self.path / "ballast"

    def _remount(self, mode: str) -> bool:
        command = ["mount", "-o", f"remount,{mode}", str(self.path)]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
