"""Runs a command that must not outlive the process that asked for it, not even when that one is killed with SIGKILL.

It is run as a script of its own, with nothing but the standard library, between the process that asks (the *owner*) and
the command::

    python guard.py '{"owner": 4711, "commands": [["java", ...]], "log": "broker.log", "remove": "/tmp/x", "grace": 5}'

1. The commands run one after the other, their output in ``log``. One that fails is the last.
2. Standard output tells the owner what happens: ``running PID`` for each command, ``ended STATUS`` when none is left.
3. Standard input is how the owner holds on. When it is closed, or the owner is gone, the command that still runs is
   ended: by SIGTERM and, ``grace`` seconds later, by SIGKILL.
4. Then the directory ``remove`` is deleted, unless the owner wrote ``keep`` before.

On Linux the kernel also kills the command when the guard itself is killed; ``remove`` is then left where it is. Elsewhere
a killed guard leaves its command running.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from typing import IO, Any

_POLL_SECONDS = 0.1
_PR_SET_PDEATHSIG = 1


class Owner:
    """The process that holds the other end of our standard input."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.keeps = False
        self.gone = False

    def tell(self, line: str) -> None:
        try:
            os.write(1, f"{line}\n".encode())
        except OSError:
            self.gone = True

    def listen(self) -> None:
        """Wait a moment for a word from the owner, or for its end.

        The pipe alone is not enough: a child that the owner forked may hold its other end open after the owner's death.
        """
        readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
        if readable:
            word = os.read(0, 64)
            self.keeps = self.keeps or word.startswith(b"keep")
            self.gone = self.gone or not word
        self.gone = self.gone or os.getppid() != self._pid


def main(job: dict[str, Any]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    owner = Owner(job["owner"])
    try:
        with open(job["log"], "ab") as log:
            # 1. and 2.
            owner.tell(f"ended {run(job['commands'], log, owner, job['grace'])}")
        while not owner.gone:
            owner.listen()
    finally:
        # 4.
        if job["remove"] and not owner.keeps:
            shutil.rmtree(job["remove"], ignore_errors=True)


def run(commands: list[list[str]], log: IO[bytes], owner: Owner, grace: float) -> int:
    status = 0
    die_with_guard = kernel_fence()
    for command in commands:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_guard
        )
        try:
            owner.tell(f"running {child.pid}")
            while child.poll() is None and not owner.gone:
                owner.listen()
        finally:
            # 3.
            status = end(child, grace)
        if status != 0 or owner.gone:
            break
    return status


def end(child: subprocess.Popen[bytes], grace: float) -> int:
    if child.poll() is None and grace > 0:
        child.terminate()
        try:
            return child.wait(grace)
        except subprocess.TimeoutExpired:
            pass
    if child.poll() is None:
        child.kill()
    return child.wait()


def kernel_fence() -> Any:
    """What the child does before it becomes the command: it asks to be killed when its parent, the guard, ends."""
    if not sys.platform.startswith("linux"):
        return None
    libc, guard = ctypes.CDLL(None), os.getpid()

    def fence() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(137)

    return fence


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
