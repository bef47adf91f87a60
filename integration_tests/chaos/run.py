"""Rounds: a fault, recovery, checks; and what came of them."""

from __future__ import annotations

import random
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from integration_tests.chaos.audit import audit
from integration_tests.chaos.cluster import Cluster
from integration_tests.chaos.nemeses import NEMESES, Nemesis, Strike
from integration_tests.chaos.site import Setup, Site, wait_until
from integration_tests.chaos.watchers import Violation, Watchers

START_SECONDS = 240
RECOVERY_SECONDS = 300
KINDS = ("lost", "duplicated", "torn", "undecided", "ahead", "state", "orphan")


@dataclass(frozen=True)
class Round:
    """One fault and what followed."""

    number: int
    segment: int
    nemesis: str
    what: str
    at: float  # seconds since the run began
    fault_seconds: float
    recovery_seconds: float  # from the end of the fault until all that came in before is visible everywhere
    restarts: int


@dataclass
class Tally:
    """What the run has seen so far."""

    seed: int
    brokers: int
    began: float = field(default_factory=time.monotonic)
    rounds: list[Round] = field(default_factory=list)
    segments: list[dict[str, Any]] = field(default_factory=list)
    samples: list[tuple[float, int, int]] = field(default_factory=list)  # time, rows produced, rows visible everywhere
    violations: list[Violation] = field(default_factory=list)
    rows: int = 0
    epochs: int = 0
    looks: Counter[str] = field(default_factory=Counter)

    def now(self) -> float:
        return time.monotonic() - self.began

    def count(self, kind: str) -> int:
        return sum(max(1, one.rows) for one in self.violations if one.kind == kind)

    def as_json(self) -> dict[str, Any]:
        recoveries = defaultdict(list)
        for one in self.rounds:
            recoveries[one.nemesis].append(one.recovery_seconds)
        return {
            "seed": self.seed,
            "brokers": self.brokers,
            "rounds": len(self.rounds),
            **{kind: self.count(kind) for kind in KINDS},
            "seconds": round(self.now(), 1),
            "rows": self.rows,
            "epochs": self.epochs,
            "looks": dict(self.looks),
            "faults": dict(Counter(one.nemesis for one in self.rounds)),
            "recovery": {name: _spread(times) for name, times in sorted(recoveries.items())},
            "violations": [asdict(one) for one in self.violations],
            "segments": self.segments,
            "history": [asdict(one) for one in self.rounds],
            "samples": [[round(at, 1), produced, visible] for at, produced, visible in self.samples],
        }


def _spread(times: Sequence[float]) -> dict[str, float]:
    return {
        "rounds": len(times),
        "median": round(statistics.median(times), 1),
        "longest": round(max(times), 1),
    }


class Bag:
    """Draws every nemesis once, in a random order, before any comes again; one that is not possible now waits."""

    def __init__(self, nemeses: Sequence[Nemesis], rng: random.Random) -> None:
        self._all, self._rng = list(nemeses), rng
        self._left: list[Nemesis] = []

    def draw(self, site: Site) -> Nemesis:
        for _ in range(2):
            for nemesis in self._left:
                if nemesis.possible(site):
                    self._left.remove(nemesis)
                    return nemesis
            again = self._all.copy()
            self._rng.shuffle(again)
            self._left += again
        names = ", ".join(one.name for one in self._all)
        raise SystemExit(f"None of {names} is possible here: executors need a local cluster, mounts need root.")


class Chaos:
    """A whole run."""

    def __init__(
        self,
        *,
        seed: int,
        rounds: int,
        minutes: float | None,
        nemeses: Sequence[str],
        brokers: int,
        segment: int,
        rows_per_second: int,
        masters: Sequence[str],
        told: Callable[[Tally, str], None],
    ) -> None:
        self._rounds = rounds
        self._minutes = minutes
        self._ends: float | None = None  # counted from the moment when the first pipeline is up
        self._segment = segment
        self._rows_per_second = rows_per_second
        self._masters = masters
        self._told = told
        self._rng = random.Random(seed)
        self._bag = Bag([one for one in NEMESES if not nemeses or one.name in nemeses], self._rng)
        self.tally = Tally(seed, brokers)

    def run(self) -> Tally:
        root = Path(tempfile.mkdtemp(prefix="lockstep-chaos-"))
        with Cluster(self.tally.brokers, root) as cluster:
            while self._goes_on():
                self._run_segment(root, cluster)
        if self.tally.violations:
            self._told(self.tally, f"what was there is kept in {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
        return self.tally

    def _goes_on(self) -> bool:
        in_time = self._ends is None or time.monotonic() < self._ends
        return in_time and len(self.tally.rounds) < self._rounds and not self.tally.violations

    def _run_segment(self, root: Path, cluster: Cluster) -> None:
        number = len(self.tally.segments)
        setup = Setup(
            master=self._masters[number % len(self._masters)],
            state_backend=self._rng.choice(("hdfs", "rocksdb")),
            checkpoint_interval=self._rng.choice((None, None, "1 s")),
            rows_per_second=self._rows_per_second,
        )
        directory = root / f"segment-{number}"
        directory.mkdir()
        self._told(self.tally, f"segment {number}: {setup.master}, {setup.state_backend} state")
        site = Site(directory, cluster, setup, f"{self.tally.seed}-{number}")
        with site.ended():
            watchers = Watchers(site)
            sampler = _Sampler(self.tally, site, watchers)
            try:
                first = self._recover(site, watchers, START_SECONDS)
                self.tally.segments.append({**asdict(setup), "first_rows_seconds": round(first, 1)})
                if self._ends is None and self._minutes is not None:
                    self._ends = time.monotonic() + self._minutes * 60
                done = 0
                while done < self._segment and self._goes_on():
                    self._round(site, watchers)
                    done += 1
                self._finish(site, watchers)
            except TimeoutError as error:
                watchers.seen.broken("lost", 0, f"{error}\n{site.driver.tail()}")
            finally:
                sampler.stop()
                watchers.stop()
                self.tally.violations += watchers.seen.violations
                self.tally.looks += watchers.seen.looks
        if not self.tally.violations:
            shutil.rmtree(directory, ignore_errors=True)

    def _round(self, site: Site, watchers: Watchers) -> None:
        nemesis = self._bag.draw(site)
        number = len(self.tally.rounds)
        at, began, starts = self.tally.now(), time.monotonic(), site.starts
        driver = site.driver
        strike = Strike(site, watchers.seen, random.Random(f"{self.tally.seed}-{number}"))
        what = nemesis.strike(strike)
        fault = time.monotonic() - began
        recovery = self._recover(site, watchers, RECOVERY_SECONDS)
        if nemesis.gentle and site.driver is not driver:
            watchers.seen.broken("lost", 0, f"{nemesis.name} ended the driver: {driver.tail()}")
        self.tally.violations += watchers.seen.violations
        watchers.seen.violations.clear()
        self.tally.rounds.append(
            Round(number, len(self.tally.segments) - 1, nemesis.name, what, at, fault, recovery, site.starts - starts)
        )
        self._told(self.tally, f"{number + 1:4d}  {recovery:5.1f} s  {what}")

    def _recover(self, site: Site, watchers: Watchers, seconds: float) -> float:
        """Until everything that came in so far is visible everywhere; a driver that has ended is started again."""
        goal = {partition: max(1, end) for partition, end in site.load.acknowledged.items()}

        def recovered() -> bool:
            if site.load.problems:
                raise TimeoutError(site.load.problems[0])
            site.revive()
            return watchers.seen.reaches(goal)

        return wait_until(recovered, seconds, f"rows up to {goal} are visible; {site.driver.log}")

    def _finish(self, site: Site, watchers: Watchers) -> None:
        """The load ends, everything drains, the driver stops; one more start tidies up."""
        produced = site.load.stop()
        self._recover(site, watchers, RECOVERY_SECONDS)
        site.driver.tell(stop=True)
        if (code := site.driver.wait(120)) != 0:
            raise TimeoutError(f"the driver did not stop cleanly ({code}): {site.driver.log}")
        site.driver.end()
        site.start(available_now=True)
        if (code := site.driver.wait(180)) != 0:
            raise TimeoutError(f"the last driver did not end cleanly ({code}): {site.driver.log}")
        watchers.stop()
        watchers.topic.check_torn()
        self.tally.segments[-1].update(audit(site, watchers.seen, produced), starts=site.starts, rows=produced)
        self.tally.rows += produced
        self.tally.epochs += max(watchers.barriers.ends, default=-1) + 1


class _Sampler:
    """Once a second: how much came in, how much is visible."""

    def __init__(self, tally: Tally, site: Site, watchers: Watchers) -> None:
        self._tally, self._site, self._watchers = tally, site, watchers
        self._before = tally.samples[-1][1:] if tally.samples else (0, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(1.0):
            seen = self._watchers.seen
            visible = min(sum(seen.table.values()), sum(seen.topic.values()))
            produced = sum(self._site.load.acknowledged.values())
            self._tally.samples.append((self._tally.now(), self._before[0] + produced, self._before[1] + visible))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
