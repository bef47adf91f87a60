"""A running sum per account in PyFlink's DataStream API: what Lockstep's keyed operators are put beside.

PyFlink at its best: workers in processes of their own (the session sets that, loopback threads would share one
interpreter), a cache that holds the state of every key, and bundles that end with a checkpoint rather than by a count.
Flink's planner reads and casts the columns in Java, as Spark does; the key and the sum are Python's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pyflink.common import Row, Types
from pyflink.datastream import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.connectors.base import Sink
from pyflink.datastream.state import ValueStateDescriptor
from pyflink.java_gateway import get_gateway

from benchmarks.flink.order import Order

MARK_EVERY = 1000
_AT_ITS_BEST = {
    "python.execution-mode": "process",
    "python.state.cache-size": "20000",
    "python.fn-execution.bundle.size": "1000000",
    "python.fn-execution.bundle.time": "600000",
}
_RAW = {"key.format": "raw", "key.fields": "account", "value.format": "raw", "value.fields-include": "EXCEPT_KEY"}
_OUTPUT = Types.ROW_NAMED(["account", "total"], [Types.STRING(), Types.LONG()])


class RunningTotal(KeyedProcessFunction):
    """Element by element. Writes down, now and then, how many elements it has seen by what time.

    The one who measures reads the marks. They cost a look at the clock for each row, a thousandth of what PyFlink takes.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def open(self, runtime_context: RuntimeContext) -> None:
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self._marks = Path(self._directory, str(runtime_context.get_index_of_this_subtask()))
        self._seen, self._at = 0, time.time()

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        new = (self._total.value() or 0) + value[1]
        self._total.update(new)
        self._seen, self._at = self._seen + 1, time.time()
        if self._seen % MARK_EVERY == 0:
            self._mark()
        yield Row(value[0], new)

    def close(self) -> None:
        self._mark()

    def _mark(self) -> None:
        with self._marks.open("a") as file:
            file.write(f"{self._at} {self._seen}\n")


def run(order: Order) -> None:
    """Returns when every row has come out, with marks in the directory ``marks``, a file for each worker."""
    marks = Path(order.path("marks"))
    marks.mkdir()
    tables = order.environment(_AT_ITS_BEST)
    tables.execute_sql(order.topic_table("account STRING, amount STRING", _RAW))
    amounts = tables.to_data_stream(tables.sql_query("SELECT account, CAST(amount AS BIGINT) AS amount FROM `rows`"))
    totals = amounts.key_by(_account, key_type=Types.STRING()).process(RunningTotal(str(marks)), output_type=_OUTPUT)
    totals.sink_to(Sink(get_gateway().jvm.org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink()))
    totals.get_execution_environment().execute()


def _account(row: Row) -> str:
    return row[0]
