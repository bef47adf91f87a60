"""Savepoints without Spark: where sources go on, what may be restored where, what the command line shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep.engine.local_storage import LocalStorage
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.savepoint import METADATA, Contents, SavedOperator, SavedSink, Savepoint, read_savepoint
from lockstep.savepoint.disposal import dispose
from lockstep.savepoint.restore import MARK, RestoreRequest, refuse_interrupted
from lockstep.savepoint.source_positions import carry_over, is_control
from lockstep.sources.plan import KafkaStream, StreamSource
from lockstep.testing import MemoryStorage
from unit_tests.test_hostile_files import OPERATOR

ORDERS, CLICKS = '{"orders":{"0":5,"1":7}}', '{"clicks":{"0":3}}'
CONTROL = "StreamingRelation DataSource(text,file:/tmp/lockstep-control-x/empty)"


def saved(*positions: tuple[str, str | None]) -> Savepoint:
    """Sources as (description, position)."""
    barrier = Barrier(4, 100, 50, tuple(position for _, position in positions))
    return Savepoint(
        id="s-1",
        lineage="life",
        barrier=barrier,
        watermark_ms=60,
        created_ms=1_750_000_000_000,
        sources=tuple(description for description, _ in positions),
        sinks={"lake": SavedSink("Delta table /lake/orders", {"version": 3})},
        operators={"totals": SavedOperator(OPERATOR, Contents(3, 2_000_000, 5))},
        query_name="orders",
    )


def kafka(index: int, topics: str) -> KafkaStream:
    return KafkaStream(index, f"Kafka {topics} at broker:9092", "broker:9092", topics)


def test_each_source_goes_on_where_it_was() -> None:
    old = saved(("Kafka topics orders at a:1", ORDERS), (CONTROL, None), ("Kafka topics clicks at a:1", CLICKS))
    new = [kafka(0, "topics clicks"), kafka(1, "topics orders"), StreamSource(2, CONTROL)]
    carried = carry_over(old, new, allow_missing=False)
    assert [json.loads(position) if position else None for position in carried.positions] == [
        json.loads(CLICKS),
        json.loads(ORDERS),
        None,
    ]
    assert carried.remarks == ()


def test_control_streams_begin_anew() -> None:
    ticking = "StreamingRelationV2 lockstep_control"
    assert is_control(CONTROL)
    assert is_control(ticking)
    old = saved(("Kafka topics orders at a:1", ORDERS), (ticking, '{"logOffset": 17}'))
    carried = carry_over(old, [kafka(0, "topics orders"), StreamSource(1, CONTROL)], allow_missing=False)
    assert carried.positions[1] is None
    assert carried.logs == {}


def test_topic_that_is_new_has_no_position_and_one_that_is_gone_is_told() -> None:
    both = json.dumps({"orders": {"0": 5}, "returns": {"0": 9}})
    carried = carry_over(saved(("Kafka topics orders, returns at a:1", both)), [kafka(0, "topics orders, new")], False)
    assert json.loads(carried.positions[0] or "") == {"orders": {"0": 5}}
    assert carried.remarks == ("Kafka topics orders, new at broker:9092 does not read topic 'returns' any more",)


def test_position_that_nobody_goes_on_from_is_refused_unless_allowed() -> None:
    old = saved(("Kafka topics orders at a:1", ORDERS))
    with pytest.raises(CheckpointDirectoryError, match=r"topics orders at a:1.*allowNonRestoredState=true"):
        carry_over(old, [kafka(0, "topics clicks")], allow_missing=False)
    carried = carry_over(old, [kafka(0, "topics clicks")], allow_missing=True)
    assert carried.positions == (None,)
    assert carried.remarks == ("the position of Kafka topics orders at a:1 is left behind",)


def test_source_that_had_read_nothing_is_no_loss() -> None:
    assert carry_over(saved(("Kafka topics orders at a:1", None)), [], allow_missing=False).positions == ()


def test_file_source_keeps_its_log() -> None:
    old = saved(("FileStreamSource[file:/in]", '{"logOffset":3}'))
    carried = carry_over(old, [kafka(0, "topics orders"), StreamSource(1, "FileStreamSource[file:/in]")], False)
    assert carried.positions == (None, '{"logOffset":3}')
    assert carried.logs == {1: 0}


def test_options_are_checked() -> None:
    assert RestoreRequest.from_options({}) is None
    given = {"restoreFrom": "/s", "restoreMode": "CLAIM", "allowNonRestoredState": "True"}
    assert RestoreRequest.from_options(given) == RestoreRequest("/s", claim=True, allow_missing=True)
    with pytest.raises(ConfigurationError, match="restoreMode needs the option restoreFrom"):
        RestoreRequest.from_options({"restoreMode": "claim"})
    with pytest.raises(ConfigurationError, match="use claim or no_claim"):
        RestoreRequest.from_options({"restoreFrom": "/s", "restoreMode": "legacy"})
    with pytest.raises(ConfigurationError, match="use true or false"):
        RestoreRequest.from_options({"restoreFrom": "/s", "allowNonRestoredState": "yes"})


def test_directory_that_is_half_restored_or_half_rewound_is_told() -> None:
    storage = MemoryStorage()
    refuse_interrupted(storage, restoring=False)
    storage.write(MARK, b"{}")
    refuse_interrupted(storage, restoring=True)
    with pytest.raises(CheckpointDirectoryError, match="a restore from a savepoint was interrupted"):
        refuse_interrupted(storage, restoring=False)
    storage.write("lockstep/rewind/plan", b"")
    with pytest.raises(CheckpointDirectoryError, match="a rewind was interrupted"):
        refuse_interrupted(storage, restoring=True)


def test_what_is_no_savepoint_is_told(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    with pytest.raises(CheckpointDirectoryError, match="nothing is there"):
        read_savepoint(storage)
    storage.write("state/totals/part-0", b"x")
    with pytest.raises(CheckpointDirectoryError, match=r"it has no _metadata\. If its making was interrupted"):
        read_savepoint(storage)
    storage.write("lockstep/lineage", b"x")
    with pytest.raises(CheckpointDirectoryError, match="is a checkpoint directory, not a savepoint"):
        read_savepoint(storage)


def test_disposal_removes_a_savepoint_and_nothing_beside_it(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path / "s")
    storage.write(METADATA, saved().encode())
    storage.write("state/totals/part-0", b"x")
    dispose(storage)
    assert not (tmp_path / "s").exists()
    storage.write(METADATA, saved().encode())
    storage.write("notes", b"mine")
    dispose(storage)
    assert [path.name for path in (tmp_path / "s").iterdir()] == ["notes"]


def test_command_line_shows_lists_and_disposes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, epoch in (("one", 4), ("two", 9)):
        record = saved(("Kafka topics orders at a:1", ORDERS))
        record = replace(record, barrier=replace(record.barrier, epoch=epoch))
        LocalStorage(tmp_path / name).write(METADATA, record.encode())
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / METADATA).write_text("{")
    assert main(["savepoint", "show", str(tmp_path / "one")]) == 0
    shown = capsys.readouterr().out
    for words in (
        "epoch 4 of orders",
        "topics orders",
        "account string",
        "total (value)",
        "3 of 128",
        "2.0 MB",
        "version 3",
    ):
        assert words in shown
    assert main(["savepoint", "show", "--json", str(tmp_path / "two")]) == 0
    assert json.loads(capsys.readouterr().out)["barrier"]["epoch"] == 9
    assert main(["savepoint", "list", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "one" in listed
    assert "two" in listed
    assert "broken" in listed
    assert main(["savepoint", "dispose", str(tmp_path / "one"), "--yes"]) == 0
    assert not (tmp_path / "one").exists()
    assert main(["savepoint", "dispose", str(tmp_path / "broken"), "--yes"]) == 2
    assert main(["savepoint", "show", str(tmp_path / "nowhere")]) == 2
    assert "there is no directory" in capsys.readouterr().err
