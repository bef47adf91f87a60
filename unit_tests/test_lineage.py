"""One life of a checkpoint directory has one id, and belongs to one query."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.errors import CheckpointDirectoryError, CorruptRecordError
from lockstep.protocol.envelope import seal
from lockstep.protocol.lineage import PATH, Lineage, continue_or_begin, read_lineage, remember
from lockstep.testing import MemoryStorage

NOW = Lineage(
    "life-1", 17, {"lake": "Delta table /lake", "feed": "topic feed"}, ("Kafka orders",), {"retained": 3}, "q"
)


def test_first_start_begins_a_lineage_that_survives_being_stored() -> None:
    storage = MemoryStorage()
    assert read_lineage(storage) is None
    assert continue_or_begin(storage, NOW) == NOW
    assert read_lineage(storage) == NOW


def test_restart_keeps_the_id_and_notes_how_the_query_looks_now() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, NOW)
    again = replace(NOW, id="life-2", created_ms=99, query_name="renamed", sinks={"lake": "Delta table /lake"})
    continued = continue_or_begin(storage, again)
    assert (continued.id, continued.created_ms) == ("life-1", 17)
    assert (continued.query_name, set(continued.sinks)) == ("renamed", {"lake"})
    assert read_lineage(storage) == NOW, "a start that is refused later must leave no trace"
    remember(storage, continued)
    assert read_lineage(storage) == continued


def test_two_first_starts_at_once_agree_on_one_lineage() -> None:
    storage, rival = MemoryStorage(), replace(NOW, id="life-2")
    late = storage.another()
    late.read = lambda path, read=late.read: (  # type: ignore[method-assign,misc]
        read(path) if storage.create(PATH, rival.encode()) is False else None
    )
    assert continue_or_begin(late, NOW).id == "life-2"


def test_first_start_that_another_overtakes_is_not_told_that_the_directory_is_foreign() -> None:
    storage = MemoryStorage()
    late = storage.another()
    read = late.read

    def read_and_pause(path: str) -> bytes | None:
        late.read = read  # type: ignore[method-assign]
        nothing = read(path)
        continue_or_begin(storage, replace(NOW, id="life-2"))
        storage.write("offsets/0", b"v1")  # and its first epoch is planned
        return nothing

    late.read = read_and_pause  # type: ignore[method-assign]
    assert continue_or_begin(late, NOW).id == "life-2"


def test_directory_of_a_query_that_lockstep_did_not_start_is_refused() -> None:
    storage = MemoryStorage()
    storage.write("offsets/0", b"v1")
    with pytest.raises(CheckpointDirectoryError, match=r"not started by Lockstep.*SPECIFIC_OFFSETS"):
        continue_or_begin(storage, NOW)
    assert read_lineage(storage) is None


@pytest.mark.parametrize(
    "other, message",
    [
        (replace(NOW, sources=("Kafka orders", "rate")), "with 1 sources.*this one has 2"),
        (replace(NOW, sinks={"lake": "Delta table /elsewhere"}), "sink 'lake' is Delta table /lake; now it is"),
        (replace(NOW, sinks={"other": "x"}), "it has the sinks feed, lake, this one other"),
    ],
)
def test_directory_of_another_query_is_refused(other: Lineage, message: str) -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, NOW)
    with pytest.raises(CheckpointDirectoryError, match=message):
        continue_or_begin(storage, other)
    assert read_lineage(storage) == NOW


def test_sinks_may_be_added_and_removed() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, NOW)
    changed = replace(NOW, sinks={"feed": "topic feed", "third": "z"})
    assert continue_or_begin(storage, changed).sinks == changed.sinks


def test_damaged_lineage_is_an_error_and_no_new_life() -> None:
    storage = MemoryStorage()
    continue_or_begin(storage, NOW)
    storage.files[PATH] = storage.files[PATH][:30]
    with pytest.raises(CorruptRecordError, match="lockstep/lineage"):
        continue_or_begin(storage, NOW)
    storage.files[PATH] = seal("lineage", {"id": "x"})
    with pytest.raises(CorruptRecordError, match="lacks or garbles"):
        read_lineage(storage)
