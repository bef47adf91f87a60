"""Transfers between accounts: at every epoch, the money in the state and in the table is the same.

Transfers come as JSON, ``{"id": 1, "source": "a", "target": "b", "amount": 250}``. Each becomes two legs, a debit and a
credit, which go to different accounts and, as a rule, to different workers. Every account's balance is kept in state,
and each leg goes to the table with the balance after it and its epoch.

    lockstep broker --port 9092 --topic transfers:3         # in another terminal, if you have no Kafka
    python examples/bank.py --topic transfers --table /tmp/lake/bank --checkpoint /tmp/checkpoints/bank
    python examples/bank.py --topic transfers --table /tmp/lake/bank --checkpoint /tmp/checkpoints/bank --audit

Money is a good witness: it must neither appear nor vanish. A snapshot that had a debit and not yet its credit would show
less of it than there is. An epoch is a *consistent cut*, as Chandy and Lamport define it (1985): a transfer is before the
cut with both legs, or after it with both. ``--audit`` looks at every epoch that is still stored, and adds up. Stop the
query before: an epoch that it has just decided may still be on its way into the table.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import job
import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import lockstep
from lockstep import KeyedProcessFunction, ValueState

INPUT = "id bigint, source string, target string, amount bigint"
LEGS = "id bigint, account string, change bigint"
OUTPUT = "account string, id bigint, change bigint, balance bigint, epoch bigint"
UID = "balances"


class Balances(KeyedProcessFunction):
    """Books the legs of its accounts. An account opens with money, and has state from its first leg on."""

    def __init__(self, opening: int) -> None:
        self.balance = ValueState("bigint", default=opening)

    def process_element(self, leg: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        balance = self.balance.value() + leg.change
        self.balance.update(balance)
        yield ctx.key, leg.id, leg.change, balance, ctx.epoch


def legs(transfers: DataFrame) -> DataFrame:
    """Both legs of every transfer: one row in, two out, in the same epoch."""
    debit = F.struct(F.col("source").alias("account"), (-F.col("amount")).alias("change"))
    credit = F.struct(F.col("target").alias("account"), F.col("amount").alias("change"))
    both = F.explode(F.array(debit, credit)).alias("leg")
    return transfers.select("id", both, "topic", "partition", "offset").select(
        "id", "leg.*", "topic", "partition", "offset"
    )


@dataclass(frozen=True)
class Cut:
    """All balances at the end of one epoch, by account: from the state, and from the table."""

    epoch: int
    state: dict[str, int]
    table: dict[str, int]
    versions: dict[int, dict[str, int]]  # what readers of the table saw, where this epoch was the last in it

    def balances(self, opening: int) -> bool:
        """Whether every account has the same in all of them, and all accounts together what they opened with."""
        same = all(seen == self.state for seen in (self.table, *self.versions.values()))
        return same and sum(self.state.values()) == opening * len(self.state)


def audit(spark: SparkSession, options: argparse.Namespace) -> list[Cut]:
    """Every epoch whose state is still stored, the oldest first."""

    def changes(**version: int) -> pd.DataFrame:
        rows = spark.read.format("delta").options(**version).load(options.table)
        return rows.groupBy("epoch", "account").agg(F.sum("change").alias("change")).toPandas()

    def balances(changes: pd.DataFrame) -> dict[str, int]:
        return (options.opening + changes.groupby("account")["change"].sum()).to_dict()

    history = spark.sql(f"DESCRIBE HISTORY delta.`{options.table}`").collect()
    versions = {row.version: changes(versionAsOf=row.version) for row in sorted(history)}
    table = changes()
    retained = spark.read.format("binaryFile").load(f"{options.checkpoint}/commits").select("path").collect()
    cuts = []
    for epoch in sorted(int(row.path.rpartition("/")[2]) for row in retained):  # Spark keeps a file for each
        state = lockstep.read_state(spark, options.checkpoint, UID, state="balance", epoch=epoch)
        cuts.append(
            Cut(
                epoch,
                state={row.account: row.value for row in state.collect()},
                table=balances(table[table.epoch <= epoch]),
                versions={version: balances(seen) for version, seen in versions.items() if seen.epoch.max() == epoch},
            )
        )
    return cuts


def show(cuts: Sequence[Cut], opening: int) -> bool:
    """Print all cuts; true if not a cent is missing in any of them."""
    table = Table("epoch", "accounts", "opened with", "in the state", "in the table", "by version", "", title="Audit")
    for cut in cuts:
        money = opening * len(cut.state), sum(cut.state.values()), sum(cut.table.values())
        versions = ", ".join(f"{version}: {sum(seen.values()):,}" for version, seen in cut.versions.items())
        verdict = "[green]equal[/]" if cut.balances(opening) else "[red]NOT EQUAL[/]"
        table.add_row(str(cut.epoch), str(len(cut.state)), *(f"{total:,}" for total in money), versions, verdict)
    Console().print(table)
    return all(cut.balances(opening) for cut in cuts)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = job.parser(__doc__, group="bank")
    parser.add_argument("--opening", type=int, default=1000, help="what each account opens with; default: %(default)s")
    parser.add_argument("--audit", action="store_true", help="compare state and table at every stored epoch, and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    spark = job.session("bank")
    if options.audit:
        if not show(audit(spark, options), options.opening):
            raise SystemExit("The books do not balance.")
        return
    transfers = job.read_json(spark, options, options.topic, INPUT)
    balances = lockstep.key_by(legs(transfers), "account").process(Balances(options.opening), uid=UID, output=OUTPUT)
    job.run(balances, options)


if __name__ == "__main__":
    main()
