"""The owner's side of :mod:`lockstep.broker.guard`: start guarded commands, watch them, kill them, let them go."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from lockstep.broker import guard
from lockstep.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_POLL_SECONDS = 0.05


class GuardedProcess:
    """Commands that run one after the other and end, at the latest, with this process, however it ends.

    ``remove`` is a directory that goes with them. ``grace`` is how long a command may take to end by itself.
    """

    def __init__(
        self, commands: Sequence[Sequence[str]], *, log: Path, remove: Path | None = None, grace: float = 0.0
    ) -> None:
        job = {
            "owner": os.getpid(),
            "commands": commands,
            "log": str(log),
            "remove": str(remove) if remove else None,
            "grace": grace,
        }
        # By path and isolated, so that the guard starts at once and whatever the package imports stays out of it. A session
        # of its own keeps Ctrl-C away from the command: its owner decides when it ends.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", guard.__file__, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._grace = grace
        self._heard = b""
        os.set_blocking(self._output, False)

    @property
    def pid(self) -> int | None:
        """The process id of the command that runs now, if one does."""
        event = self._last_event()
        return int(event[1]) if event[0] == "running" else None

    @property
    def ended(self) -> bool:
        """Whether no command runs any more."""
        return self._last_event()[0] == "ended" or self._guard.poll() is not None

    def kill(self, timeout: float = 10.0) -> None:
        """Kill the command that runs with SIGKILL, and return when it is gone. ``remove`` stays until the release."""
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + timeout
        while not self.ended:
            if time.monotonic() > deadline:
                raise EnvironmentProblemError(f"process {pid} is still there {timeout:g} s after SIGKILL.")
            time.sleep(_POLL_SECONDS)

    def release(self, *, keep: bool = False) -> None:
        """End the command if it still runs, remove ``remove`` unless ``keep``, and return when that is done."""
        assert self._guard.stdin is not None  # noqa: S101
        assert self._guard.stdout is not None  # noqa: S101
        try:
            if keep:
                self._guard.stdin.write(b"keep")
            self._guard.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self._guard.wait(self._grace + 30)
        except subprocess.TimeoutExpired:
            self._guard.terminate()
            self._guard.wait()
        self._guard.stdout.close()

    @property
    def _output(self) -> int:
        assert self._guard.stdout is not None  # noqa: S101
        return self._guard.stdout.fileno()

    def _last_event(self) -> tuple[str, str]:
        try:
            while chunk := os.read(self._output, 4096):
                self._heard += chunk
        except BlockingIOError:
            pass
        lines = self._heard.decode().split("\n")[:-1]
        name, _, value = lines[-1].partition(" ") if lines else ("starting", "", "")
        return name, value
