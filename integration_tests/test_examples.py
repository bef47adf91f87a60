"""The examples do what they say, on a real broker, with a SIGKILL in the middle.

All scripts run in one driver process at once, since JVMs start slowly. Each has a workload here, which sends rows and
works out, in plain Python and from what it sent, what must be in the table.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from kafka import KafkaAdminClient

from integration_tests.conftest import Broker, MakeTopic
from integration_tests.crash_site import end
from lockstep.testing.temporary import environment_with_temporary

pytestmark = pytest.mark.timeout(600)  # for the first test, which waits for the drivers of all
ROOT = Path(__file__).resolve().parents[1]
Sent = dict[str, Any]
OPENING = 1000
GAP, LATENESS = timedelta(seconds=15), timedelta(seconds=60)


class Workload(ABC):
    """What one example is fed with, and what must come of it."""

    name: str  # the script's
    own_options: tuple[str, ...] = ()
    ends_by_itself = True  # in its second run, with --available-now

    def __init__(self, site: Site, topic: str) -> None:
        self.site = site
        self.topic = topic
        self.sent: list[Sent] = []
        self.random = random.Random(f"workload of {self.name}")

    @abstractmethod
    def next_row(self, number: int) -> tuple[str, Sent]:
        """The next record: Kafka's key, and the row."""

    @abstractmethod
    def check(self, rows: list[Sent]) -> None:
        """Every row that must be in the table is there, once, and no other."""

    def send(self, rows: int) -> None:
        for _ in range(rows):
            key, row = self.next_row(len(self.sent))
            self.sent.append(row)
            self.site.produce(self.topic, key, row)
        self.site.flush()

    @property
    def table(self) -> str:
        return str(self.site.root / self.name / "table")

    @property
    def checkpoint(self) -> str:
        return str(self.site.root / self.name / "checkpoint")

    def command(self, *more: str) -> list[str]:
        common = {"bootstrap-servers": self.site.servers, "topic": self.topic, "table": self.table}
        given = {**common, "checkpoint": self.checkpoint, "group": self.group}
        return [*(part for name, value in given.items() for part in (f"--{name}", value)), *self.own_options, *more]

    @property
    def group(self) -> str:
        return f"{self.name}-{self.topic}"

    def decided(self) -> int:
        """How many epochs Spark has decided."""
        return len(list(Path(self.checkpoint, "commits").glob("[0-9]*")))

    def consumed(self) -> int:
        return self.site.consumed(self.group, self.topic)

    def rows(self) -> list[Sent]:
        try:
            return list(DeltaTable(self.table).to_pyarrow_table().to_pylist())
        except TableNotFoundError:
            return []


class Orders(Workload):
    name = "running_totals"

    def next_row(self, number: int) -> tuple[str, Sent]:
        account = f"account-{self.random.randrange(10)}"
        return account, {"id": number, "account": account, "amount": self.random.randrange(1, 1000)}

    def check(self, rows: list[Sent]) -> None:
        totals: Counter[str] = Counter()
        counts: Counter[str] = Counter()
        expected = []
        for order in self.sent:  # an account's orders are in one partition, so they are taken in this order
            account = order["account"]
            counts[account] += 1
            totals[account] += order["amount"]
            expected.append((account, order["id"], counts[account], totals[account]))
        assert_same(rows, expected)


class Clicks(Workload):
    name = "sessions"
    own_options = ("--gap", str(GAP.total_seconds()), "--lateness", str(LATENESS.total_seconds()))
    ends_by_itself = False
    clock = datetime(2025, 1, 1, tzinfo=timezone.utc)

    def next_row(self, number: int) -> tuple[str, Sent]:
        self.clock += timedelta(milliseconds=self.random.randrange(2000))
        late = timedelta(milliseconds=self.random.randrange(5000))
        user = f"user-{self.random.randrange(15)}"
        return user, {"id": number, "user": user, "time": (self.clock - late).isoformat()}

    def push_the_watermark(self) -> None:
        """A click of somebody else, long after: its own session stays open."""
        time = self.clock + timedelta(days=1)
        self.site.produce(self.topic, "nobody", {"id": -1, "user": "nobody", "time": time.isoformat()})
        self.site.flush()

    def expected(self) -> list[tuple[Any, ...]]:
        times = defaultdict(list)
        for click in self.sent:
            times[click["user"]].append(datetime.fromisoformat(click["time"]))
        sessions = []
        for user, clicks in times.items():
            clicks.sort()
            starts = [i for i, time in enumerate(clicks) if i == 0 or time - clicks[i - 1] >= GAP]
            for first, after in zip(starts, [*starts[1:], len(clicks)], strict=True):
                sessions.append((user, clicks[first], clicks[after - 1], after - first))
        return sessions

    def check(self, rows: list[Sent]) -> None:
        assert_same(rows, self.expected())


class Events(Workload):
    name = "deduplicate"

    def next_row(self, number: int) -> tuple[str, Sent]:
        again = self.random.random() < 0.4 and bool(self.sent)
        name = self.random.choice(self.sent)["id"] if again else f"event-{number}"
        return name, {"id": name, "payload": f"sent as number {number}"}

    def check(self, rows: list[Sent]) -> None:
        first: dict[str, str] = {}
        for event in self.sent:
            first.setdefault(event["id"], event["payload"])
        assert len(first) < 0.8 * len(self.sent), "there must be something to drop"
        assert_same([{"id": row["id"], "payload": row["payload"]} for row in rows], list(first.items()))


class Transfers(Workload):
    name = "bank"
    own_options = ("--opening", str(OPENING))

    def next_row(self, number: int) -> tuple[str, Sent]:
        source, target = self.random.sample(range(12), 2)
        amount = self.random.randrange(1, 100)
        return f"{number}", {"id": number, "source": f"a{source}", "target": f"a{target}", "amount": amount}

    def check(self, rows: list[Sent]) -> None:
        debits = [(sent["source"], sent["id"], -sent["amount"]) for sent in self.sent]
        credits = [(sent["target"], sent["id"], sent["amount"]) for sent in self.sent]
        assert_same([{name: row[name] for name in ("account", "id", "change")} for row in rows], debits + credits)
        for (account, epoch), balance in balances(rows).items():
            shown = [row["balance"] for row in rows if (row["account"], row["epoch"]) == (account, epoch)]
            assert balance in shown, f"{account} has {balance} after epoch {epoch}; its rows say {shown}"


class Transactions(Workload):
    """Rules change when all that was sent before is through: only then it is certain what they apply to."""

    name = "broadcast_rules"
    ends_by_itself = False
    FIRST = ({"name": "big", "amount": 500, "times": 2}, {"name": "huge", "amount": 900, "times": 1})
    DOOMED = ({"name": "any", "amount": 0, "times": 7},)
    CHANGED = ({"name": "big", "amount": 300, "times": 3}, {"name": "any"}, {"name": "odd", "amount": 700, "times": 1})

    def __init__(self, site: Site, topic: str, rules: str) -> None:
        super().__init__(site, topic)
        self.rules = rules
        self.own_options = ("--rules", rules)
        self.changed_at = -1
        self.send_rules(*self.FIRST, *self.DOOMED)

    def send_rules(self, *rules: Sent) -> None:
        for rule in rules:
            self.site.produce(self.rules, None, rule)
        self.site.flush()

    def change_rules(self) -> None:
        self.changed_at = len(self.sent)
        self.send_rules(*self.CHANGED)

    def rules_consumed(self) -> int:
        return self.site.consumed(self.group, self.rules)

    def next_row(self, number: int) -> tuple[str, Sent]:
        account = f"account-{self.random.randrange(8)}"
        return account, {"id": number, "account": account, "amount": self.random.randrange(1000)}

    def check(self, rows: list[Sent]) -> None:
        before = {"big": (500, 2), "huge": (900, 1), "any": (0, 7)}
        after = {"big": (300, 3), "huge": (900, 1), "odd": (700, 1)}
        streaks: Counter[tuple[str, str]] = Counter()
        expected = []
        for transaction in self.sent:
            account, number = transaction["account"], transaction["id"]
            for rule, (amount, times) in (before if number < self.changed_at else after).items():
                streaks[account, rule] = streaks[account, rule] + 1 if transaction["amount"] >= amount else 0
                if streaks[account, rule] >= times:
                    expected.append((account, rule, number, streaks.pop((account, rule))))
        assert {rule for _, rule, *_ in expected} == {"big", "huge", "any", "odd"}
        assert_same(rows, expected)


class OrderEvents(Workload):
    name = "order_states"
    own_options = ("--pay-within", "15")
    ends_by_itself = False
    PATHS = (
        ("created", "paid", "shipped", "delivered"),
        ("created", "paid", "delivered", "shipped"),
        ("paid", "created"),
        ("created",),
        ("created", "created", "shipped"),
    )

    def __init__(self, site: Site, topic: str) -> None:
        super().__init__(site, topic)
        self._ahead: list[tuple[str, str]] = []

    def next_row(self, number: int) -> tuple[str, Sent]:
        if not self._ahead:
            order = f"order-{number}"
            self._ahead = [(order, status) for status in self.random.choice(self.PATHS)]
        order, status = self._ahead.pop(0)
        return order, {"id": number, "order": order, "status": status}

    def send(self, rows: int) -> None:
        super().send(rows)
        while self._ahead:  # whole orders only
            super().send(1)

    def events(self) -> dict[str, list[Sent]]:
        orders = defaultdict(list)
        for event in self.sent:
            orders[event["order"]].append(event)
        return orders

    def unpaid(self) -> set[str]:
        """Orders that must expire, as no payment ever follows their creation."""
        statuses = {order: [event["status"] for event in events] for order, events in self.events().items()}
        return {order for order, seen in statuses.items() if "paid" not in seen[seen.index("created") :]}

    def expired(self) -> list[str]:
        return [row["order"] for row in self.rows() if row["status"] == "expired"]

    def check(self, rows: list[Sent]) -> None:
        found: dict[str, Counter[tuple[Any, ...]]] = defaultdict(Counter)
        for row in rows:
            found[row["order"]][tuple(row.values())] += 1
        orders = self.events()
        assert found.keys() == orders.keys()
        for order, events in orders.items():
            # The clock decides when an order expires: with the driver down, a payment in Kafka may come too late.
            possible = [self._outcome(order, events, moment) for moment in range(len(events) + 1)]
            assert found[order] in [Counter(outcome) for outcome in possible], f"{order}: {found[order]}"
        expired = {row["order"] for row in rows if row["status"] == "expired"}
        assert expired >= self.unpaid()
        assert orders.keys() - expired, "some are paid in time"

    @staticmethod
    def _outcome(order: str, events: list[Sent], expiry: int) -> list[tuple[Any, ...]]:
        """The rows of an order that expires, if it is unpaid then, before its event number ``expiry`` or after the last."""
        steps = {None: "created", "created": "paid", "paid": "shipped", "shipped": "delivered"}
        status: str | None = None
        outcome: list[tuple[Any, ...]] = []
        for number, event in enumerate([*events, None]):
            if number == expiry and status == "created":
                outcome.append((order, None, status, "expired", True))
                status = "expired"
            if event is not None:
                legal = steps.get(status) == event["status"]
                outcome.append((order, event["id"], status, event["status"], legal))
                status = event["status"] if legal else status
        return outcome


@dataclass
class Site:
    """Topics, tables and checkpoint directories that outlive their drivers."""

    root: Path
    servers: str
    make_topic: MakeTopic
    runs: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._producer = Producer({"bootstrap.servers": self.servers, "linger.ms": 5})
        self._admin = KafkaAdminClient(bootstrap_servers=self.servers)
        self.clicks = Clicks(self, self.make_topic())
        self.transactions = Transactions(self, self.make_topic(), self.make_topic(partitions=1))
        self.order_events = OrderEvents(self, self.make_topic())
        self.transfers = Transfers(self, self.make_topic())
        others = Orders(self, self.make_topic()), Events(self, self.make_topic())
        self.workloads = (*others, self.transfers, self.clicks, self.transactions, self.order_events)

    def produce(self, topic: str, key: str | None, row: Sent) -> None:
        self._producer.produce(topic, value=json.dumps(row).encode(), key=key and key.encode())

    def flush(self) -> None:
        assert self._producer.flush(30) == 0

    def consumed(self, group: str, topic: str) -> int:
        offsets = self._admin.list_group_offsets(group)[group]
        return sum(o.offset for tp, o in offsets.items() if tp.topic == topic and o.offset >= 0)

    @contextlib.contextmanager
    def producing(self, rows: int, seconds: float) -> Iterator[None]:
        """Rows keep coming meanwhile, to every topic."""
        stop = threading.Event()

        def keep_going() -> None:
            while not stop.wait(seconds):
                for workload in self.workloads:
                    workload.send(rows)

        thread = threading.Thread(target=keep_going, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    @contextlib.contextmanager
    def driver(self, commands: dict[str, list[str]], **settings: Any) -> Iterator[Driver]:
        self.runs += 1
        settings = {"commands": commands, "stop": str(self.root / "stop"), **settings}
        log = self.root / f"driver-{self.runs}.log"
        temporary = self.root / f"temporary-{self.runs}"
        paths = [str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "integration_tests.example_driver", json.dumps(settings)],
                cwd=ROOT,
                env={**environment_with_temporary(temporary), "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Driver(process, log)
        finally:
            end(process)
            shutil.rmtree(temporary, ignore_errors=True)


@dataclass
class Driver:
    process: subprocess.Popen[bytes]
    log: Path

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = 200) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the driver ended, waiting for {what}: {self.tail()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {what}. {self.tail()}"
            time.sleep(0.5)  # a look costs CPU, and there are few cores

    def tail(self) -> str:
        return f"{self.log.name}:\n" + self.log.read_text(errors="replace")[-6000:]


@dataclass
class Aftermath:
    """What is there when all is over."""

    site: Site
    consumed_at_the_kill: dict[str, tuple[int, int]]  # by script: how many rows, of how many sent
    audit: dict[int, dict[str, int]]  # by epoch: balances in the bank's state

    def workload(self, name: str) -> Workload:
        return next(workload for workload in self.site.workloads if workload.name == name)

    @cached_property
    def bank(self) -> list[Sent]:
        return self.site.transfers.rows()


@pytest.fixture(scope="module")
def aftermath(kafka: Broker, make_topic: MakeTopic, tmp_path_factory: pytest.TempPathFactory) -> Aftermath:
    """All examples, killed in the middle and started again, until everything sent is through."""
    site = Site(tmp_path_factory.mktemp("examples"), kafka.bootstrap_servers, make_topic)
    for workload in site.workloads:
        workload.send(150)

    small = ("--rows-per-epoch", "40")
    with (
        site.producing(rows=3, seconds=0.5),
        site.driver({w.name: w.command(*small) for w in site.workloads}) as driver,
    ):
        driver.wait_until(lambda: all(workload.decided() >= 3 for workload in site.workloads), "3 epochs of each")
        os.killpg(driver.process.pid, signal.SIGKILL)
        driver.process.wait()
    at_the_kill = {workload.name: (workload.consumed(), len(workload.sent)) for workload in site.workloads}

    for workload in site.workloads:
        workload.send(100)
    larger = ("--rows-per-epoch", "1000")
    commands = {w.name: w.command(*larger, *["--available-now"] * w.ends_by_itself) for w in site.workloads}
    audit = site.root / "audit.json"
    with site.driver(commands, audit=str(audit)) as driver:
        staying = [workload for workload in site.workloads if not workload.ends_by_itself]
        driver.wait_until(lambda: all(w.consumed() == len(w.sent) for w in staying), "all rows consumed")
        site.clicks.push_the_watermark()
        site.transactions.change_rules()
        driver.wait_until(lambda: site.transactions.rules_consumed() == 6, "the changed rules consumed")
        site.transactions.send(150)
        expected = len(site.clicks.expected())
        driver.wait_until(lambda: len(site.clicks.rows()) >= expected, "the last sessions closed by the watermark")
        driver.wait_until(
            lambda: site.order_events.unpaid() <= set(site.order_events.expired()), "expiry, without any further row"
        )
        driver.wait_until(lambda: site.transactions.consumed() == len(site.transactions.sent), "the last transactions")
        Path(site.root, "stop").touch()
        assert driver.process.wait(120) == 0, driver.tail()
    found = json.loads(audit.read_text())
    return Aftermath(site, at_the_kill, {int(epoch): balances for epoch, balances in found.items()})


@pytest.mark.parametrize("script", [c.name for c in (Orders, Clicks, Events, Transfers, Transactions, OrderEvents)])
def test_example_loses_and_repeats_nothing_when_its_driver_is_killed(aftermath: Aftermath, script: str) -> None:
    consumed, sent = aftermath.consumed_at_the_kill[script]
    assert 0 < consumed < sent, "the kill must come in the middle"
    workload = aftermath.workload(script)
    workload.check(workload.rows())


def test_bank_has_the_same_money_in_state_and_table_at_every_retained_epoch(aftermath: Aftermath) -> None:
    assert len(aftermath.audit) >= 4
    assert {min(aftermath.audit), max(aftermath.audit)} == {0, max(row["epoch"] for row in aftermath.bank)}
    for epoch, state in aftermath.audit.items():
        table = dict.fromkeys(state, OPENING)
        for row in aftermath.bank:
            if row["epoch"] <= epoch:
                table[row["account"]] += row["change"]
        assert state == table, f"epoch {epoch}"
        assert sum(state.values()) == OPENING * len(state), f"epoch {epoch}"


def test_bank_has_the_same_money_in_every_version_of_its_table_as_in_its_state(aftermath: Aftermath) -> None:
    table = DeltaTable(aftermath.site.transfers.table)
    seen = 0
    for version in range(table.version() + 1):
        table.load_as_version(version)
        rows = table.to_pyarrow_table().to_pylist()
        if rows:
            seen += 1
            last = max(row["epoch"] for row in rows)
            found = dict.fromkeys({row["account"] for row in rows}, OPENING)
            for row in rows:
                found[row["account"]] += row["change"]
            assert found == aftermath.audit[last], f"version {version}, up to epoch {last}"
            assert sum(found.values()) == OPENING * len(found), f"version {version}, up to epoch {last}"
    assert seen >= 2


def balances(rows: list[Sent]) -> dict[tuple[str, int], int]:
    """By account and epoch: what the account has at the epoch's end, for each epoch that has moved it."""
    after: dict[tuple[str, int], int] = {}
    current: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["epoch"]):
        account = row["account"]
        current[account] = after[account, row["epoch"]] = current.get(account, OPENING) + row["change"]
    return after


def assert_same(rows: list[Sent], expected: list[tuple[Any, ...]]) -> None:
    """The same rows, each as often, in any order."""
    found = Counter(tuple(row.values()) for row in rows)
    wanted = Counter(expected)
    assert not wanted - found, f"missing: {list((wanted - found).items())[:5]}"
    assert not found - wanted, f"unexpected, or there too often: {list((found - wanted).items())[:5]}"
