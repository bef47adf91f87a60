"""A state machine per order, with a deadline: processing-time timers.

Events come as JSON, ``{"id": 1, "order": "o1", "status": "created"}``. An order is created, paid, shipped and delivered,
in this sequence. Every event goes to the table with the status before it, and with ``legal`` false if the order could
not take that step. An order that is not paid within ``--pay-within`` seconds expires: a timer does that, once, also when
no event ever comes again, and also when the query was down at the deadline.

    lockstep broker --port 9092 --topic order-events:3      # in another terminal, if you have no Kafka
    python examples/order_states.py --topic order-events --table /tmp/lake/orders --checkpoint /tmp/checkpoints/orders

Send an order's events with its id as Kafka's key: they are in one partition then, and keep their sequence.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import job

import lockstep
from lockstep import KeyedProcessFunction, Ttl, ValueState

INPUT = "id bigint, order string, status string"
OUTPUT = "order string, id bigint, before string, status string, legal boolean"
LEGAL = {(None, "created"), ("created", "paid"), ("paid", "shipped"), ("shipped", "delivered")}


class OrderStates(KeyedProcessFunction):
    """Follows each order. A row without ``id`` comes from the timer."""

    status = ValueState("string", ttl=Ttl(timedelta(days=30)))  # an order that has not moved for so long is forgotten
    pay_until = ValueState("bigint", ttl=Ttl(timedelta(days=30)))

    def __init__(self, pay_within: float) -> None:
        self.pay_within_ms = int(pay_within * 1000)

    def process_element(self, event: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.status.value()
        legal = (before, event.status) in LEGAL
        if legal:
            self.status.update(event.status)
        if legal and event.status == "created":
            self.pay_until.update(ctx.processing_time + self.pay_within_ms)
            ctx.register_processing_time_timer(self.pay_until.value())
        if legal and event.status == "paid":
            ctx.delete_processing_time_timer(self.pay_until.value())
            self.pay_until.clear()
        yield ctx.key, event.id, before, event.status, legal

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        before = self.status.value()
        self.status.update("expired")
        self.pay_until.clear()
        yield ctx.key, None, before, "expired", True


def main(arguments: Sequence[str] | None = None) -> None:
    parser = job.parser(__doc__, group="order-states")
    parser.add_argument("--pay-within", type=float, default=900, help="seconds until an order expires; %(default)s")
    options = parser.parse_args(arguments)
    spark = job.session("order-states")
    events = job.read_json(spark, options, options.topic, INPUT)
    states = lockstep.key_by(events, "order").process(
        OrderStates(options.pay_within), uid="order-states", output=OUTPUT
    )
    job.run(states, options)


if __name__ == "__main__":
    main()
