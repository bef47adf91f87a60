"""Alerts by rules that change while the query runs: broadcast state.

Transactions come as JSON, ``{"id": 1, "account": "a", "amount": 250}``; rules come on a topic of their own,
``{"name": "big", "amount": 1000, "times": 3}``: an alert when an account makes so many transactions of at least that
amount in a row. The same name again changes the rule, and a rule without ``times`` is removed.

    lockstep broker --port 9092 --topic transactions:3 --topic rules:1   # in another terminal, if you have no Kafka
    python examples/broadcast_rules.py --topic transactions --rules rules \\
        --table /tmp/lake/alerts --checkpoint /tmp/checkpoints/alerts

Each rule reaches every account, those not yet seen too, before the transactions of the epoch that it arrives in, and
applies to all that follow. Give the rules' topic one partition: then they arrive in the order in which they were sent.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import job

import lockstep
from lockstep import BroadcastState, KeyedProcessFunction, MapState

INPUT = "id bigint, account string, amount bigint"
RULES = "name string, amount bigint, times int"
OUTPUT = "account string, rule string, id bigint, streak int"


class Alerts(KeyedProcessFunction):
    """Matches every transaction with every rule."""

    rules = BroadcastState("string", "amount bigint, times int")  # the same for all accounts
    streaks = MapState("string", "int")  # per account: by rule, how many in a row

    def process_broadcast_element(self, rule: Any, ctx: Any) -> None:
        if rule.times is None:
            self.rules.remove(rule.name)
        else:
            self.rules.put(rule.name, (rule.amount, rule.times))

    def process_element(self, transaction: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        for name, rule in self.rules.items():
            if transaction.amount < rule.amount:
                self.streaks.remove(name)
                continue
            streak = self.streaks.get(name, 0) + 1
            if streak < rule.times:
                self.streaks.put(name, streak)
            else:
                self.streaks.remove(name)
                yield ctx.key, name, transaction.id, streak


def main(arguments: Sequence[str] | None = None) -> None:
    parser = job.parser(__doc__, group="broadcast-rules")
    parser.add_argument("--rules", required=True, help="topic of the rules")
    options = parser.parse_args(arguments)
    spark = job.session("broadcast-rules")
    transactions = job.read_json(spark, options, options.topic, INPUT)
    rules = job.read_json(spark, options, options.rules, RULES)
    alerts = lockstep.key_by(transactions, "account").process(Alerts(), uid="alerts", output=OUTPUT, broadcast=rules)
    job.run(alerts, options)


if __name__ == "__main__":
    main()
