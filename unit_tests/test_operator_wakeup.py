"""When the driver wakes key groups: what tasks report, in whatever order, never loses a due timer."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.serializers import CloudPickleSerializer

from lockstep.errors import StateMigrationError
from lockstep.operators.control_source import ControlReader, ControlSource
from lockstep.operators.control_stream import Mailbox
from lockstep.operators.failure import operator_failure
from lockstep.operators.operator import _wake_at
from lockstep.operators.reports import EpochReport, GroupTimers, Reports, _Sum
from lockstep.operators.task import _in_order
from lockstep.operators.union import parts_for, payload_of
from lockstep.state.blob import pack, unpack


def report(epoch: int, rows: int = 0, watermark: int | None = None, **groups: tuple[int | None, int | None]) -> Reports:
    timers = {int(name[1:]): GroupTimers(*times) for name, times in groups.items()}
    return {"q": EpochReport(epoch, rows_in=rows, watermark=watermark, groups=timers)}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_tasks_of_an_epoch_may_report_in_any_order_and_an_empty_one_changes_nothing(order: tuple[int, ...]) -> None:
    tasks: list[Reports] = [report(4, 1, 5_000, g1=(None, 15_000)), report(4, 0, 5_000, g2=(None, None)), {}]
    seen: list[Reports] = []
    total: Reports = {}
    sums = _Sum(seen.append)
    for number in order:
        total = sums.addInPlace(total, tasks[number])
    assert len(seen) == 2, "the empty one is not told"
    assert seen[-1]["q"].rows_in == 1
    assert set(seen[-1]["q"].groups) == {1, 2}
    assert _wake_at(seen[-1]["q"], seen[-1]["q"].groups) is not None


def test_new_epoch_starts_from_zero() -> None:
    total = _Sum().addInPlace(report(4, 1), report(5, 2))
    assert total["q"].rows_in == 2


def test_first_processing_time_timer_of_all_groups_is_the_next_tick() -> None:
    groups = {1: GroupTimers(700, None), 2: GroupTimers(300, None), 3: GroupTimers(None, None)}
    assert _wake_at(EpochReport(1), groups) == 300
    assert _wake_at(EpochReport(1), {3: groups[3]}) is None


def test_event_time_timer_ticks_at_once_when_the_watermark_has_passed_it_and_soon_when_rows_may_have_moved_it() -> None:
    groups = {1: GroupTimers(None, 1_000)}
    now = _wake_at(EpochReport(1, watermark=1_000), groups)
    soon = _wake_at(EpochReport(1, rows_in=1, watermark=999), groups)
    assert now is not None
    assert soon is not None
    assert 500 < soon - now < 2_000
    assert _wake_at(EpochReport(1, watermark=999), groups) is None, "an idle query stays idle"


def test_control_stream_ticks_at_its_start_and_when_the_mailbox_says_so() -> None:
    mailbox = Mailbox()
    reader = ControlReader(mailbox.path)
    first = reader.latestOffset()
    assert first["logOffset"] > reader.initialOffset()["logOffset"]
    assert reader.latestOffset() == first
    mailbox.wake_at(first["logOffset"] + 3_600_000)
    assert reader.latestOffset() == first
    mailbox.wake_at(1)
    second = reader.latestOffset()
    assert second["logOffset"] > first["logOffset"]
    mailbox.wake_at(None)
    assert reader.latestOffset() == second
    assert len(reader.partitions(first, second)) == 1
    assert reader.partitions(second, second) == []


def test_payload_comes_with_the_first_tick_alone() -> None:
    mailbox = Mailbox()
    mailbox.payload(b"lists")
    reader = ControlReader(mailbox.path)
    first = reader.latestOffset()
    (tick,) = reader.partitions({"logOffset": 0}, first)
    assert list(reader.read(tick)) == [(b"lists",)]
    mailbox.wake_at(1)
    (tick,) = reader.partitions(first, reader.latestOffset())
    assert list(reader.read(tick)) == [(None,)]


def test_processes_of_spark_get_the_control_source_without_importing_lockstep() -> None:
    program = """
import sys
from pyspark.serializers import CloudPickleSerializer
pickler = CloudPickleSerializer()
source = pickler.loads(sys.stdin.buffer.read())({"mailbox": sys.argv[1]})
reader = pickler.loads(pickler.dumps(source)).streamReader(None)
(tick,) = reader.partitions(reader.initialOffset(), reader.latestOffset())
assert list(reader.read(pickler.loads(pickler.dumps(tick)))) == [(b"lists",)]
assert not [name for name in sys.modules if name.startswith("lockstep")]
"""
    mailbox = Mailbox()
    mailbox.payload(b"lists")
    pickled = CloudPickleSerializer().dumps(ControlSource)
    subprocess.run([sys.executable, "-c", program, mailbox.path], input=pickled, check=True)


def test_mailbox_leaves_nothing_behind() -> None:
    mailbox = Mailbox()
    mailbox.wake_at(1)
    directory = Path(mailbox.path).parent
    assert directory.exists()
    del mailbox
    assert not directory.exists()


def test_every_group_gets_the_union_lists_of_all_others_and_only_those() -> None:
    table = pa.array([{"value": 1}], pa.struct([pa.field("value", pa.int64())]))
    blob = pack({}, {"union_list:seen": table, "value:total": table})
    payload = payload_of("op", [(3, blob), (1, b""), (4, blob)])
    assert payload is not None
    assert len(parts_for(7, payload)) == 2
    (part,) = parts_for(3, payload)
    assert list(unpack(part, "test")[1]) == ["union_list:seen"]
    assert payload_of("op", [(1, b"")]) is None, "a first start restores nothing"


def test_union_lists_that_do_not_fit_into_an_offset_are_left_with_their_groups(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table = pa.array([{"value": b"x" * 5_000_000}], pa.struct([pa.field("value", pa.binary())]))
    assert payload_of("op", [(3, pack({}, {"union_list:seen": table}))]) is None
    assert "operator 'op': its union list state has grown" in caplog.text


def test_operators_own_words_are_found_in_sparks_error() -> None:
    spark = (
        "An exception was thrown from the Python worker.\nTraceback (most recent call last):\n"
        "  File \"group.py\", line 1, in run\nlockstep.errors.OperatorError: Operator 'totals' failed in epoch 3: "
        "ValueError: two\nlines. Mend this.\n\n\tat org.apache.spark.Some.method(Some.scala:1)\n"
    )
    found = operator_failure(RuntimeError(spark))
    assert str(found) == "Operator 'totals' failed in epoch 3: ValueError: two\nlines. Mend this."
    other = operator_failure(RuntimeError("...\nlockstep.errors.StateMigrationError: put them back.\n"))
    assert isinstance(other, StateMigrationError)
    assert operator_failure(RuntimeError("disk full")) is None


def test_rows_are_put_into_the_order_of_topic_partition_and_offset() -> None:
    frame = pd.DataFrame(
        {"topic": ["b", "a", "a", "a"], "partition": [0, 1, 0, 0], "offset": np.array([1, 2, 9, 10]), "id": range(4)}
    )
    assert _in_order(frame, ["topic", "partition", "offset"])["id"].tolist() == [2, 3, 1, 0]
    assert _in_order(frame, ["topic"])["id"].tolist() == [1, 2, 3, 0], "equal ones stay as they came"
    one = frame[frame["topic"] == "a"].iloc[1:]
    assert _in_order(one, ["topic", "partition", "offset"]) is one, "nothing to do"
