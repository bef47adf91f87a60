"""A running total per account: the smallest keyed state.

Orders come as JSON, ``{"id": 1, "account": "a", "amount": 250}``. For each of them a row goes to the table with the
account's total so far. The total is kept in state: one number per account, stored with every epoch.

    lockstep broker --port 9092 --topic orders:3        # in another terminal, if you have no Kafka
    python examples/running_totals.py --topic orders --table /tmp/lake/totals --checkpoint /tmp/checkpoints/totals

Kill it whenever you like and start it again: every order is counted once, in the state and in the table.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import job

import lockstep
from lockstep import KeyedProcessFunction, ValueState

INPUT = "id bigint, account string, amount bigint"
OUTPUT = "account string, id bigint, orders bigint, total bigint"


class RunningTotal(KeyedProcessFunction):
    """Counts and adds up. ``self.orders`` and ``self.total`` are always those of the row's account."""

    orders = ValueState("bigint", default=0)
    total = ValueState("bigint", default=0)

    def process_element(self, order: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.orders.update(self.orders.value() + 1)
        self.total.update(self.total.value() + order.amount)
        yield ctx.key, order.id, self.orders.value(), self.total.value()


def main(arguments: Sequence[str] | None = None) -> None:
    options = job.parser(__doc__, group="running-totals").parse_args(arguments)
    spark = job.session("running-totals")
    orders = job.read_json(spark, options, options.topic, INPUT)
    # The uid ties the stored state to this operator: never change it.
    totals = lockstep.key_by(orders, "account").process(RunningTotal(), uid="totals", output=OUTPUT)
    job.run(totals, options)


if __name__ == "__main__":
    main()
