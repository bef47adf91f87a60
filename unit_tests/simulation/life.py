"""One driver's life under simulation: it starts, recovers, runs the stream to its end, and stops."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields

from lockstep.config import CheckpointConfig, CheckpointMode
from lockstep.errors import (
    CorruptRecordError,
    LockstepError,
    MissingRecordError,
    OrphanedSinkError,
)
from lockstep.protocol import failpoint
from unit_tests.simulation.invariants import BrokenError
from unit_tests.simulation.steps import Actor, News, SteppedSink, SteppedStorage
from unit_tests.simulation.world import Driver, World

_NEVER = (MissingRecordError, CorruptRecordError, OrphanedSinkError)  # no schedule may lead here
_PATIENCE = 20  # how often a stopping driver tries to commit the rest


@dataclass(frozen=True)
class Setting:
    """The stream, and how its drivers are set up."""

    last: int = 1  # epochs 0 to last
    sinks: tuple[str, ...] = ("a",)
    config: CheckpointConfig = field(default_factory=CheckpointConfig)
    in_one_transaction: bool = False
    names_attempts: bool = True
    schema_changes: bool = False  # of every table, after every decision

    def world(self) -> World:
        return World(*self.sinks)

    def __str__(self) -> str:
        plain = CheckpointConfig()
        differs = [
            f"{one.name}={getattr(self.config, one.name)}"
            for one in fields(CheckpointConfig)
            if getattr(self.config, one.name) != getattr(plain, one.name)
        ]
        ways = [
            "commits together" if self.in_one_transaction else "",
            "" if self.names_attempts else "attempts unnamed",
        ]
        ways.append("schemas change" if self.schema_changes else "")
        about = [f"epochs 0 to {self.last}", f"sinks {', '.join(self.sinks)}", *filter(None, ways), *differs]
        return "; ".join(about)


class Life:
    """Plays one driver. Its committer runs when it is notified: between epochs, or in the middle of one."""

    def __init__(self, setting: Setting, world: World, actor: Actor) -> None:
        self._setting, self._world, self._actor = setting, world, actor
        self._lock = _CountingLock()
        self._advancing = False
        self._preparing = False
        self._silent = False
        self._driver: Driver | None = None
        self._failure: Exception | None = None  # of the other thread: the query stops
        self.stopped = False  # cleanly: everything was committed

    def play(self) -> str | None:
        """From the start to a clean stop; why it ended before, if it did. Raises :class:`Crash` where it dies."""
        try:
            self._play()
        except _NEVER:
            raise
        except (LockstepError, OSError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def _play(self) -> None:
        options = {
            "looks": self._setting.config.mode is CheckpointMode.EXACTLY_ONCE,
            "in_one_transaction": self._setting.in_one_transaction,
            "names_attempts": self._setting.names_attempts,
        }
        driver = Driver(
            self._world,
            self._setting.config,
            storage=SteppedStorage(self._world, self._actor),
            sinks={uid: SteppedSink(table, uid, self._actor, **options) for uid, table in self._world.tables.items()},
            act=self._offsets,
        )
        driver.committer._lock = self._lock  # type: ignore[assignment]
        driver.on_wait = lambda: self.notify(force=True)
        driver.recover()
        driver.launch()
        self._driver = driver
        try:
            while driver.next <= self._setting.last:
                self._epoch(driver)
        except (LockstepError, OSError, RuntimeError):
            self.notify(force=True)  # the query has failed; what is decided is committed all the same, if that can be
            raise
        if not self._silent:
            self._stop(driver)

    def _offsets(self, verb: str, about: str, effect: Callable[[], None]) -> None:
        self._actor.commits_again()
        self._actor.act(verb, about, effect)

    def _epoch(self, driver: Driver) -> None:
        self._preparing = True
        self._prepare(driver)
        self._preparing = False
        driver.decide()
        self._world.clock.advance(1)
        if self._setting.schema_changes:
            for table in self._world.tables.values():
                table.schema += 1
        if self._silent:
            return
        news = self._actor.news(driver.next - 1)
        if news is News.NEVER:
            self._silent = True
        elif news is News.MID_EPOCH:
            next(iter(driver.sinks.values())).on("write", self.notify)
        for _ in range({News.ON_TIME: 1, News.TWICE: 2}.get(news, 0)):
            self.notify()
        if self._failure is not None:
            raise self._failure

    def _prepare(self, driver: Driver) -> None:
        decided = self._world.decided()
        epoch = driver.prepare()
        if epoch <= decided:
            raise BrokenError(f"driver {self._actor.number} has run epoch {epoch}, which was decided")
        if self._actor.newest > driver.token.value:
            raise BrokenError(
                f"driver {self._actor.number} stored the record of epoch {epoch} unseen, and lets it be decided"
            )

    def notify(self, force: bool = False) -> None:
        """Let the committer's thread run, unless it is running or waits for the lock. Faults are met as it meets them."""
        if self._driver is None or self._advancing or self._lock.held or self._failure is not None:
            return
        self._advancing = True
        try:
            self._driver.committer.advance(force)
        except _NEVER:
            raise
        except LockstepError as error:
            self._failure = error
        except (OSError, RuntimeError):
            pass  # tried again at the next notification
        finally:
            self._advancing = False

    def run_ahead(self) -> None:
        """While the committer is at work, let the query's thread run one epoch up to Spark's decision."""
        driver = self._driver
        if (
            driver is None
            or not self._advancing
            or self._preparing
            or self._lock.held
            or driver.next > self._setting.last
        ):
            return
        self._preparing = True
        try:
            self._prepare(driver)
            driver.decide()
        except _NEVER:
            raise
        except (LockstepError, OSError, RuntimeError) as error:
            self._failure = error
        finally:
            self._preparing = False

    def _stop(self, driver: Driver) -> None:
        self._advancing = True  # by the committer's one thread: nobody notifies it any more
        for _ in range(_PATIENCE):
            driver.coordinator.suspend()
            try:
                self.stopped = driver.committer.advance(force=True)
                if self.stopped:
                    break
            except OSError:
                pass
            self._world.clock.advance(1)
        driver.coordinator.shutdown()


class _CountingLock:
    """Stands for the committer's lock: a driver's two threads are played by one here, and take turns where it is free."""

    def __init__(self) -> None:
        self._depth = 0

    @property
    def held(self) -> bool:
        return self._depth > 0

    def __enter__(self) -> _CountingLock:
        self._depth += 1
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._depth -= 1


@contextmanager
def quiet() -> Iterator[None]:
    """Without the protocol's log lines about faults that were meant; failpoints are off afterwards."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        failpoint.install(None)
        logging.disable(before)
