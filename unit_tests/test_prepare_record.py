"""The prepare record holds all that a later process needs, and no driver can take another's for its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.errors import CorruptRecordError, NewerFormatError
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.prepare_record import PrepareRecord, choose, read_records
from lockstep.sinks.two_phase import Attempt
from lockstep.testing import MemoryStorage


def record(epoch: int = 4, token: int = 1, attempt: str | None = None, lineage: str = "life") -> PrepareRecord:
    return PrepareRecord(
        attempt=Attempt(epoch, attempt or f"{epoch}-{token}-x", lineage, token),
        barrier=Barrier(epoch, 17, 3, ('{"orders":{"0":5}}',)),
        prepared_at_ms=99,
        handles={"lake": {"files": ["ä", "b"]}, "feed": {}},
        reports={"lake": {"rows": 3}},
    )


def stored(*records: PrepareRecord) -> MemoryStorage:
    storage = MemoryStorage()
    for one in records:
        storage.write(one.path, one.encode())
    return storage


def test_record_survives_being_stored() -> None:
    whole = replace(record(), committed_early=True).with_handle("lake", {"files": ["c"]}, "4-2-y", 2)
    assert PrepareRecord.decode(whole.encode(), "there") == whole


def test_record_is_read_back_from_the_directory_alone() -> None:
    assert read_records(stored(record()), "life") == [record()]


def test_sink_that_was_not_in_the_query_then_has_no_part() -> None:
    assert record().prepared("new") is None
    prepared = record().prepared("lake")
    assert prepared is not None
    assert (prepared.epoch, prepared.handle, prepared.prepared_at_ms) == (4, {"files": ["ä", "b"]}, 99)


def test_every_attempt_has_a_file_of_its_own() -> None:
    assert len({one.path for one in (record(token=1), record(token=2), record(epoch=5), record(attempt="other"))}) == 4


def test_records_come_in_the_order_of_epochs_and_tokens() -> None:
    records = [record(10, 1), record(9, 11), record(9, 2), record(100, 1)]
    assert [(r.epoch, r.attempt.token) for r in read_records(stored(*records), "life")] == [
        (9, 2),
        (9, 11),
        (10, 1),
        (100, 1),
    ]


def test_temporary_files_of_a_crashed_writer_are_ignored() -> None:
    storage = stored(record())
    storage.write("lockstep/prepared/.000000000004.1.abc.tmp", b"half")
    assert read_records(storage, "life") == [record()]


def test_record_that_is_retired_while_it_is_read_is_no_error() -> None:
    storage = stored(record())
    storage.read = lambda path: None  # type: ignore[method-assign]
    assert read_records(storage, "life") == []


@pytest.mark.parametrize("length", [0, 1, 40, 200])
def test_truncated_record_is_an_error_and_stays(length: int) -> None:
    storage = stored(record())
    storage.files[record().path] = record().encode()[:length]
    with pytest.raises(CorruptRecordError, match=r"prepared/000000000004\.1.*Restore it from a backup"):
        read_records(storage, "life")
    assert record().path in storage.files


def test_record_of_a_newer_version_is_an_error() -> None:
    storage = stored(record())
    storage.files[record().path] = record().encode().replace(b'"format":1', b'"format":2', 1)
    with pytest.raises(NewerFormatError):
        read_records(storage, "life")


def test_record_under_the_wrong_name_is_an_error() -> None:
    storage = MemoryStorage()
    storage.write("lockstep/prepared/000000000005.1.4-1-x", record(4).encode())
    with pytest.raises(CorruptRecordError, match="holds the record of epoch 4"):
        read_records(storage, "life")


def test_record_of_another_lineage_is_an_error() -> None:
    with pytest.raises(CorruptRecordError, match="copied here from another checkpoint directory"):
        read_records(stored(record(lineage="other")), "life")


def test_record_that_lacks_a_field_is_an_error() -> None:
    from lockstep.protocol.envelope import seal

    with pytest.raises(CorruptRecordError, match="lacks or garbles"):
        PrepareRecord.decode(seal("prepare record", {"epoch": 4}), "there")


def test_newest_driver_is_chosen_while_nothing_was() -> None:
    assert choose([record(token=2), record(token=11), record(token=3)]) == record(token=11)


def test_what_was_chosen_stays_chosen() -> None:
    records = [record(token=1, attempt="first"), record(token=2, attempt="second")]
    assert choose(records, "first") == records[0]


def test_nothing_takes_the_place_of_a_chosen_attempt_that_is_not_there() -> None:
    assert choose([record(token=2)], "another") is None
    assert choose([]) is None


def test_what_was_staged_again_stands_for_what_it_replaced() -> None:
    first = record(token=1, attempt="first")
    again = first.with_handle("lake", {"files": ["c"]}, "again", 3)
    once_more = again.with_handle("lake", {"files": ["d"]}, "once more", 3)
    assert choose([first, record(token=2), again], "first") == again
    assert once_more.attempt_ids == {"first", "again", "once more"}
    assert once_more.origin == again.origin == first.origin == "first"
    assert once_more.handles["feed"] == first.handles["feed"]
    assert [old.handle for old in once_more.replaced] == [{"files": ["ä", "b"]}, {"files": ["c"]}]


def test_what_was_staged_again_last_is_taken_and_stands_in_a_file_of_its_own() -> None:
    first = record(token=1)
    again = first.with_handle("lake", {}, "again", 1)
    once_more = again.with_handle("lake", {}, "once more", 1)
    assert len({first.path, again.path, once_more.path}) == 3
    assert choose([once_more, first, again], first.attempt.id) == once_more
