"""Runs the committer beside the query, so that phase 2 costs the next epoch nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from lockstep.errors import CheckpointError, CommitStalledError, LockstepError
from lockstep.protocol.committer import Committer, DecisionLog

_log = logging.getLogger(__name__)
_POLL = 0.01  # while an epoch waits for its decision: one look at a file
_SLOW_POLL = 0.2  # when it has waited for long, or a timer or backoff is running
_IDLE = 1.0
_LOOK_AT_TOKENS = 5.0  # an overtaken driver ends, even if it has nothing to commit or its epoch is stuck
_PATIENCE = 5.0
_STORAGE_PATIENCE = 60.0  # how long the checkpoint directory may be out of reach


class CommitThread:
    """Watches Spark's commit log and lets the committer advance.

    Spark's progress events would do as hints, but they reach Python some tenths of a second after the commit log entry;
    looking at one file is faster, and needs no listener.
    """

    def __init__(self, committer: Committer, log: DecisionLog, on_failure: Callable[[BaseException], None]) -> None:
        self._committer = committer
        self._log = log
        self._on_failure = on_failure
        self._wake = threading.Event()
        self._stop = False
        self._force = False
        self._progress = threading.Condition()
        self.failure: BaseException | None = None
        self.stopping = False  # a held-back epoch must not hold back stop()
        self._watched: int | None = None
        self._watched_since = 0.0
        self._next_tick = 0.0
        self._next_look = 0.0
        self._thread = threading.Thread(target=self._run, name="lockstep-committer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """Something may have changed: look at once."""
        self._wake.set()

    def request_checkpoint(self) -> None:
        """Take a checkpoint of everything decided, without waiting for the interval."""
        self._force = True
        self._wake.set()

    def wait_for_progress(self, seconds: float) -> None:
        """Ask for a checkpoint, and wait until something was committed, at most so long."""
        if self.failure is not None:
            raise self.failure
        if self.stopping:
            raise CheckpointError("the query is stopping; the epoch is run again at the next start.")
        self.request_checkpoint()
        with self._progress:
            self._progress.wait(seconds)

    def drain(self, seconds: float) -> None:
        """Stop the thread and commit everything that is decided. Raises when that can't be done in time."""
        self._stop = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        if self._thread.is_alive():
            raise CommitStalledError(
                f"a sink's commit is still under way after {seconds:g} s. Its epochs stay prepared; unless it ends by "
                "itself, they are committed at the next start."
            )
        if self.failure is not None:
            raise self.failure
        deadline = time.monotonic() + seconds
        while not self._committer.advance(force=True):
            if time.monotonic() > deadline:
                raise CommitStalledError(
                    f"{len(self._committer.pending_epochs())} epochs could not be committed within {seconds:g} s: "
                    f"{self._committer.last_problem}. They stay prepared and are committed at the next start."
                )
            time.sleep(_SLOW_POLL)

    def _run(self) -> None:
        failing_since: float | None = None
        while not self._stop:
            try:
                pause = self._step()
                failing_since = None
            except Exception as error:
                failing_since = failing_since or time.monotonic()
                if not isinstance(error, LockstepError) and time.monotonic() - failing_since < _STORAGE_PATIENCE:
                    _log.warning("the committer is held up and tries again: %s", error)
                    self._wake.wait(_IDLE)
                    self._wake.clear()
                    continue
                self.failure = error
                _log.exception("phase 2 stopped: %s", error)
                with self._progress:
                    self._progress.notify_all()
                self._on_failure(error)
                return
            self._wake.wait(pause)
            self._wake.clear()

    def _step(self) -> float:
        """Look, advance if there is something to do, and say how long to wait."""
        epoch = self._committer.awaits_decision()
        now = time.monotonic()
        if now >= self._next_look:
            self._committer.refuse_if_overtaken()
            self._next_look = now + _LOOK_AT_TOKENS
        if epoch != self._watched:
            self._watched, self._watched_since = epoch, now
        if self._force or now >= self._next_tick or (epoch is not None and self._log.is_decided(epoch)):
            force, self._force = self._force, False
            before = len(self._committer.pending_epochs())
            self._committer.advance(force)
            after = len(self._committer.pending_epochs())
            if after < before:
                with self._progress:
                    self._progress.notify_all()
            self._next_tick = time.monotonic() + (_SLOW_POLL if after else _IDLE)
            epoch = self._committer.awaits_decision()
        if epoch is None:
            return max(0.0, self._next_tick - time.monotonic())
        return _POLL if now - self._watched_since < _PATIENCE else _SLOW_POLL
