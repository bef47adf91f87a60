"""The process that runs a demo's pipeline: started, killed with everything in it, and at last asked to end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from lockstep.cli.demo_pipeline import PipelineJob
from lockstep.errors import EnvironmentProblemError

_GONE_SECONDS = 5.0
_STOP_SECONDS = 120.0
_TAIL_LINES = 25
_POLL_SECONDS = 0.02


class PipelineDriver:
    """Runs one pipeline process at a time, in a session of its own, so that one signal reaches Python and its JVM alike."""

    def __init__(self, job: PipelineJob) -> None:
        self._job = job
        self._log = Path(job.directory, "pipeline.log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """Start the process, and return its id."""
        self._job.temporary.mkdir(exist_ok=True)
        temporary = str(self._job.temporary)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "lockstep.cli.demo_pipeline", self._job.encode()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=self._job.directory,
                env={**os.environ, "TMPDIR": temporary, "SPARK_LOCAL_DIRS": temporary},
            )
        return self._process.pid

    def check(self) -> None:
        """Raise when the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise self._failure(f"The pipeline ended by itself, with exit code {self._process.returncode}.")

    def kill(self) -> None:
        """SIGKILL to Python and its JVM at once: nothing in them gets a chance to clean up."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        _await_end(process.pid)

    def stop(self) -> None:
        """Ask the process to end, which it does once everything decided is committed."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure(f"The pipeline did not stop within {_STOP_SECONDS:g} s.") from None
        if process.returncode != 0:
            raise self._failure(f"The pipeline stopped with exit code {process.returncode}.")

    def stalled(self, seconds: float) -> EnvironmentProblemError:
        return self._failure(f"The pipeline has made no progress for {seconds:g} s.")

    def _failure(self, what: str) -> EnvironmentProblemError:
        lines = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return EnvironmentProblemError("\n".join([f"{what} The end of its log may say why:", *lines[-_TAIL_LINES:]]))


def _await_end(group: int) -> None:
    """The JVM is not our child, so it can't be waited for: look until its group is empty."""
    deadline = time.monotonic() + _GONE_SECONDS
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(_POLL_SECONDS)
