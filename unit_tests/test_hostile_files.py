"""Every stored file, damaged in every way: it is read as it was written, or refused by name and with the remedy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from lockstep.engine.spark_log import SparkLog
from lockstep.errors import CheckpointDirectoryError, CorruptRecordError, NewerFormatError
from lockstep.protocol import envelope
from lockstep.protocol.barrier import Barrier, CheckpointKind
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.envelope import seal
from lockstep.protocol.fencing import FencingToken
from lockstep.protocol.lineage import Lineage, continue_or_begin
from lockstep.protocol.prepare_record import PrepareRecord, read_records
from lockstep.protocol.savepoint import Contents, SavedOperator, SavedSink, Savepoint
from lockstep.savepoint.delta_rewind import TablePlan
from lockstep.savepoint.rewind import RewindPlan
from lockstep.sinks.kafka_markers import Marker, decode
from lockstep.sinks.two_phase import Attempt
from lockstep.testing import MemoryStorage, SimulatedSparkLog
from unit_tests.damage import flipped, odd_contents, replaced, truncated

REFUSED = (CorruptRecordError, NewerFormatError)
BARRIER = Barrier(4, 1_700_000_000_000, -3, ('{"orders":{"0":5,"1":7}}', None), CheckpointKind.FORCED)
OPERATOR = {
    "uid": "totals",
    "key": [{"name": "account", "type": "string"}],
    "max_parallelism": 128,
    "timers": True,
    "states": {"total": {"kind": "value", "types": {"value": "bigint"}, "ttl": {"millis": 5, "update": "on_write"}}},
    "ticks": True,
    "position": 0,
    "backend": "hdfs",
    "placed": True,
}


@dataclass(frozen=True)
class Kind:
    """A kind of stored file: a whole one, how it is read, and the fields that are free-form."""

    whole: Any
    decode: Callable[[bytes, str], Any]
    free: frozenset[str] = frozenset()

    @property
    def data(self) -> bytes:
        return bytes(self.whole.encode())

    @property
    def name(self) -> str:
        return str(json.loads(self.data.split(b"\n")[0])["lockstep"])

    @property
    def body(self) -> dict[str, Any]:
        return dict(json.loads(self.data.split(b"\n")[1]))


RECORD = PrepareRecord(
    attempt=Attempt(4, "4-1-x", "life", 1),
    barrier=BARRIER,
    prepared_at_ms=99,
    handles={"lake": {"files": ["ä", "b"]}, "feed": {}},
    committed_early=True,
    reports={"lake": {"rows": 3}},
).with_handle("lake", {"files": ["c"]}, "4-2-y", 2)
CHECKPOINT = CompletedCheckpoint(
    barrier=BARRIER,
    lineage="life",
    attempts={3: "3-1-x", 4: "4-1-x"},
    triggered_ms=5,
    completed_ms=6,
    reports={"lake": {"rows": 3}},
    committed_ms=7,
    commits={"lake": {"version": 1}},
    doubtful=(3,),
)
LINEAGE = Lineage("life", 17, {"lake": "Delta"}, ("Kafka",), {"retained": 3}, "orders", {"totals": OPERATOR})
RESTORED = {"savepoint": "s-1", "path": "/savepoints/1", "epoch": 4, "lineage": "before", "claim": True}
SAVEPOINT = Savepoint(
    id="s-1",
    lineage="life",
    barrier=BARRIER,
    watermark_ms=5,
    created_ms=6,
    sources=("Kafka topics orders at broker:9092", "control"),
    sinks={"lake": SavedSink("Delta table /lake", {"version": 3})},
    operators={"totals": SavedOperator(OPERATOR, Contents(3, 4, 5))},
    query_name="orders",
)
REWIND = RewindPlan(
    id="r-1",
    directory="/checkpoints/orders",
    lineage="life",
    epoch=4,
    newest=9,
    positions=("orders: back to 5",),
    groups={"etl": {"servers": "broker:9092", "offsets": {"orders": {"0": 5}}}},
    tables=(TablePlan("lake", "/lake", "lockstep-life-lake", 4, 17, 12, True, ("version 15 (WRITE)",)),),
    beyond_reach=("sink 'feed'",),
)
KINDS = {
    "prepare record": Kind(RECORD, PrepareRecord.decode, frozenset({"handles", "reports", "replaced"})),
    "checkpoint": Kind(CHECKPOINT, CompletedCheckpoint.decode, frozenset({"reports", "commits"})),
    "lineage": Kind(LINEAGE, Lineage.decode, frozenset({"config"})),
    "restored lineage": Kind(replace(LINEAGE, restored=RESTORED), Lineage.decode, frozenset({"config"})),
    "savepoint": Kind(SAVEPOINT, Savepoint.decode, frozenset({"sinks"})),
    "rewind": Kind(REWIND, RewindPlan.decode, frozenset({"groups"})),
}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def read_or_refused(kind: Kind, data: bytes) -> Any:
    """What is read, or ``None`` when it is refused as it should be."""
    try:
        return kind.decode(data, "there/7")
    except REFUSED as error:
        said = str(error)
    assert "there/7" in said
    assert "Restore" in said or "Upgrade" in said
    return None


def sealed_text(kind: Kind, text: str) -> bytes:
    """Any text in a file whose checksum is right."""
    head = {"lockstep": kind.name, "format": 1, "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return f"{json.dumps(head)}\n{text}\n".encode()


# --- accidents --------------------------------------------------------------------------------------------------------


@every_kind
def test_file_cut_short_anywhere_is_refused(kind: Kind) -> None:
    for data in truncated(kind.data):
        assert read_or_refused(kind, data) in (None, kind.whole)
        assert len(data) == len(kind.data) - 1 or read_or_refused(kind, data) is None


@every_kind
def test_any_flipped_bit_is_refused_or_changes_nothing(kind: Kind) -> None:
    for data in flipped(kind.data):
        assert read_or_refused(kind, data) in (None, kind.whole)


@every_kind
def test_something_else_in_its_place_is_refused(kind: Kind) -> None:
    for name, data in replaced(kind.data).items():
        assert read_or_refused(kind, data) is None, name


@every_kind
def test_file_larger_than_any_can_be_is_refused_unread(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    data = kind.data
    monkeypatch.setattr(envelope, "LARGEST_FILE", len(data) - 1)
    with pytest.raises(CorruptRecordError, match=r"there has \d+ bytes, more than any"):
        kind.decode(data, "there")
    with pytest.raises(ValueError, match=r"can't be stored: it has \d+ bytes"):
        kind.whole.encode()


# --- contents that somebody has sealed anew ---------------------------------------------------------------------------


@every_kind
def test_field_of_another_type_is_refused_or_read_as_exactly_what_it_is(kind: Kind) -> None:
    """Nothing is converted on the way: what is read is what would be written."""
    refused = 0
    for name, body in odd_contents(kind.body, kind.free):
        data = seal(kind.name, body)
        found = read_or_refused(kind, data)
        refused += found is None
        optional = name in ("without operators", "without phases")  # older files have none
        assert found is None or found.encode() == data or optional, name
    assert refused > 100


@every_kind
def test_field_that_a_later_version_may_add_is_passed_over(kind: Kind) -> None:
    assert kind.decode(seal(kind.name, {**kind.body, "more": [1]}), "there") == kind.whole


@every_kind
@pytest.mark.parametrize("format_", [0, -1, True, 1.0, "1", None, [1], 10**30])
def test_format_that_is_no_number_is_damage_and_a_high_one_is_newer(kind: Kind, format_: Any) -> None:
    head, rest = kind.data.split(b"\n", 1)
    data = json.dumps({**json.loads(head), "format": format_}).encode() + b"\n" + rest
    with pytest.raises(NewerFormatError if format_ == 10**30 else CorruptRecordError, match="there"):
        kind.decode(data, "there")


@every_kind
@pytest.mark.parametrize(
    "nested", [lambda n: "[" * n + "]" * n, lambda n: '{"a":' * n + "1" + "}" * n], ids=["lists", "objects"]
)
@pytest.mark.parametrize("depth", [150, 900, 100_000])
def test_deep_nesting_is_refused_wherever_it_stands(kind: Kind, nested: Callable[[int], str], depth: int) -> None:
    for field in kind.body:
        others = {name: value for name, value in kind.body.items() if name != field}
        text = f'{{"{field}":{nested(depth)},{json.dumps(others)[1:]}'
        assert read_or_refused(kind, sealed_text(kind, text)) is None


@every_kind
def test_key_that_is_there_twice_is_refused(kind: Kind) -> None:
    """Two readers could take different ones."""
    for field, value in kind.body.items():
        text = f'{{"{field}":{json.dumps(value)},{json.dumps(kind.body)[1:]}'
        with pytest.raises(CorruptRecordError, match=f"'{field}' is there twice"):
            kind.decode(sealed_text(kind, text), "there")


def test_what_could_not_be_read_back_is_refused_before_the_epoch_is_decided() -> None:
    handle: dict[str, Any] = {}
    for _ in range(150):
        handle = {"in": handle}
    with pytest.raises(ValueError, match="this prepare record can't be stored: it is nested too deeply"):
        replace(RECORD, handles={"mine": handle}).encode()


def test_record_whose_barrier_is_of_another_epoch_is_refused() -> None:
    other = replace(RECORD, barrier=replace(BARRIER, epoch=5))
    with pytest.raises(CorruptRecordError, match="it is of epoch 4, and its barrier of epoch 5"):
        PrepareRecord.decode(other.encode(), "there")


# --- files in the wrong place -----------------------------------------------------------------------------------------


def test_checkpoint_of_another_directory_is_refused_before_its_epochs_pass_for_committed() -> None:
    storage = MemoryStorage()
    storage.write("lockstep/checkpoints/chk-4/_metadata", CHECKPOINT.encode())
    with pytest.raises(CorruptRecordError, match=r"chk-4/_metadata belongs to lineage life, the directory to mine"):
        CompletedCheckpointStore(storage, 3).load("mine")


def test_checkpoint_under_another_number_is_refused() -> None:
    storage = MemoryStorage()
    storage.write("lockstep/checkpoints/chk-9/_metadata", CHECKPOINT.encode())
    with pytest.raises(CorruptRecordError, match=r"chk-9/_metadata holds checkpoint 4\."):
        CompletedCheckpointStore(storage, 3).load("life")


@pytest.mark.parametrize("left", ["lockstep/tokens/1", "lockstep/prepared/000000000004.1"])
def test_directory_that_lost_its_lineage_gets_no_new_one(left: str) -> None:
    storage = MemoryStorage({left: b"x"})
    with pytest.raises(CheckpointDirectoryError, match=r"lockstep/lineage is gone.*Restore it from a backup"):
        continue_or_begin(storage, LINEAGE)
    assert list(storage.files) == [left]


def test_token_that_was_lost_is_not_given_out_again_while_its_driver_has_records() -> None:
    """Else the attempt of an older driver would be taken for the newest, and chosen."""
    storage = MemoryStorage({RECORD.path: RECORD.encode()})
    assert FencingToken.take(storage, "me").value == RECORD.attempt.token + 1


@pytest.mark.parametrize("name", ["²", "٣", "1_0", "+1", " 1", "-1", "0x1", "9" * 5_000])
def test_names_that_only_look_like_numbers_are_other_files(name: str) -> None:
    storage = MemoryStorage()
    SimulatedSparkLog(storage).decide(0)
    for place in ("commits", "offsets", "lockstep/tokens", "lockstep/prepared", "lockstep/checkpoints"):
        for file in (name, f"{name}.1", f"1.{name}", f"chk-{name}/_metadata"):
            storage.write(f"{place}/{file}", b"x")
    assert (SparkLog(storage).decided(), SparkLog(storage).planned()) == (0, -1)
    assert FencingToken.take(storage, "me").value == 1
    assert read_records(storage, "life") == []
    CompletedCheckpointStore(storage, 3).load("life")


# --- Spark's own log --------------------------------------------------------------------------------------------------

OFFSETS = (
    b'v1\n{"batchWatermarkMs":1000,"batchTimestampMs":1731650000000,"conf":{"a":"2"}}\n'
    b'{"orders":{"1":7,"0":42}}\n-\n{"logOffset":3}'
)


def barrier_or_refused(data: bytes) -> Barrier | None:
    storage = MemoryStorage({"offsets/7": data})
    try:
        barrier = SparkLog(storage).barrier(7)
        barrier.kafka_offsets(0)
        return barrier
    except REFUSED as error:
        said = str(error)
    assert "epoch 7" in said
    assert "offsets/7" in said or "Upgrade" in said
    return None


def test_damaged_offset_log_is_a_barrier_or_an_error_that_names_it() -> None:
    """It has no checksum of ours (Spark keeps one beside it): what can be read as a position is one."""
    whole = barrier_or_refused(OFFSETS)
    assert whole is not None
    outcomes = [barrier_or_refused(data) for data in (*truncated(OFFSETS), *flipped(OFFSETS))]
    assert sum(outcome is None for outcome in outcomes) > len(outcomes) // 2
    for name, data in replaced(OFFSETS).items():
        assert name in ("with bytes appended", "twice", "flipped") or barrier_or_refused(data) is None, name
    for line in (b"[" * 100_000, b"9" * 100_000, b'{"batchTimestampMs":1e999}', b"\xff"):
        assert barrier_or_refused(b"v1\n" + line) is None
        assert barrier_or_refused(b"v1\n{}\n" + line) is None


@pytest.mark.parametrize("value", ["1e999", "NaN", "-1", "true", '"7"', "7.5", "null", "[]", "9" * 30, "9" * 9_000])
def test_offset_that_is_no_offset_is_refused(value: str) -> None:
    assert barrier_or_refused(b'v1\n{}\n{"orders":{"0":%s}}' % value.encode()) is None


# --- markers of the Kafka sink ----------------------------------------------------------------------------------------


def test_marker_is_read_as_it_was_written_or_refused() -> None:
    marker = Marker(7, "7-1-a", 3)
    text = json.dumps({"epoch": 7, "attempt": "7-1-a", "token": 3})
    assert decode(text, "here") == marker
    odd = [json.dumps(body) for _, body in odd_contents(json.loads(text))]
    for damaged in (*odd, *(data.decode(errors="replace") for data in replaced(text.encode()).values())):
        try:
            found = decode(damaged, "here")
        except CorruptRecordError as error:
            assert "here holds something that is no marker" in str(error)  # noqa: PT017 - one of two outcomes
            assert "again" in str(error)  # noqa: PT017
        else:
            assert json.loads(damaged) == {"epoch": found.epoch, "attempt": found.attempt, "token": found.token}
