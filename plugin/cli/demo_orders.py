"""The orders of a demo, and the thread that sends them to Kafka while the pipeline lives and dies."""

from __future__ import annotations

import json
import random
import threading
import time
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from lockstep.cli.demo_plan import DemoPlan
from lockstep.errors import EnvironmentProblemError

TOPIC = "orders"
_ACCOUNTS = 200
_TICK_SECONDS = 0.05
_FLUSH_SECONDS = 30.0


class Order(NamedTuple):
    """One record of the topic, and one row of the table."""

    order_id: int
    account: str
    amount: float
    ts: datetime

    def encode(self) -> bytes:
        return json.dumps({**self._asdict(), "ts": self.ts.isoformat()}).encode()


def make_orders(plan: DemoPlan, begin: datetime | None = None) -> list[Order]:
    """The same orders for the same seed, but for their times."""
    numbers = random.Random(plan.seed)
    begin = (begin or datetime.now(timezone.utc)).replace(microsecond=0)
    return [
        Order(
            order_id=number,
            account=f"account-{numbers.randrange(_ACCOUNTS):03d}",
            amount=numbers.randrange(100, 100_000) / 100,
            ts=begin + timedelta(milliseconds=number * 1000 // plan.rate),
        )
        for number in range(plan.rows)
    ]


class OrderStream(threading.Thread):
    """Sends orders at the plan's rate, each once; as many as :meth:`allow` has allowed.

    An idempotent producer: a resend after a broken connection must not count against the pipeline.
    """

    def __init__(self, bootstrap_servers: str, plan: DemoPlan, orders: list[Order]) -> None:
        super().__init__(name="lockstep-demo-orders", daemon=True)
        from confluent_kafka import Producer

        self._producer: Any = Producer(
            {"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 20, "log_level": 2}
        )
        self._rate = plan.rate
        self._orders = orders
        self._allowed = 0
        self._closed = threading.Event()
        self._failure: str | None = None
        self.acknowledged = 0

    def allow(self, count: int) -> None:
        """Send up to ``count`` orders in all."""
        self._allowed = count

    def check(self) -> None:
        """Raise when an order could not be sent."""
        if self._failure is not None:
            raise EnvironmentProblemError(f"an order could not be sent to Kafka: {self._failure}")

    @property
    def done(self) -> bool:
        return self.acknowledged == len(self._orders)

    def close(self) -> None:
        """Stop sending. What is sent has been acknowledged, or is given up."""
        self._closed.set()
        if self.ident is not None:
            self.join()

    def run(self) -> None:
        try:
            self._send()
            self._producer.flush(0 if self._closed.is_set() else _FLUSH_SECONDS)
        except Exception as error:  # told to the main thread by check()
            self._failure = str(error)
        finally:
            del self._producer  # closes its connections, which would complain about the broker's end

    def _send(self) -> None:
        sent, due, before = 0, 0.0, time.monotonic()
        while sent < len(self._orders) and not self._closed.is_set():
            now = time.monotonic()
            due, before = min(due + self._rate * (now - before), float(self._allowed)), now
            for order in self._orders[sent : int(due)]:
                self._produce(order)
            sent = max(sent, int(due))
            self._producer.poll(0)
            self._closed.wait(_TICK_SECONDS)

    def _produce(self, order: Order) -> None:
        while True:
            try:
                self._producer.produce(TOPIC, order.encode(), key=order.account, on_delivery=self._delivered)
                return
            except BufferError:  # the local queue is full: let deliveries in
                self._producer.poll(0.1)

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failure = str(error)
        else:
            self.acknowledged += 1
