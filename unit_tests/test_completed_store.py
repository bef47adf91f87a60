"""Completed checkpoints: stored once, read back by anyone, dropped only when newer ones stand for them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lockstep.errors import CorruptRecordError
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.testing import MemoryStorage


def checkpoint(id: int, attempts: dict[int, str] | None = None, committed: bool = False) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        barrier=Barrier(id, 5, 0, ("x",)),
        lineage="life",
        attempts=attempts or {id: f"{id}-1-x"},
        triggered_ms=1,
        completed_ms=2,
        reports={"lake": {"rows": 3}},
        committed_ms=3 if committed else None,
        commits={"lake": {"version": 7}} if committed else {},
        doubtful=(id,) if committed else (),
    )


def loaded(storage: MemoryStorage, retained: int = 10) -> CompletedCheckpointStore:
    store = CompletedCheckpointStore(storage, retained)
    store.load("life")
    return store


def test_checkpoint_survives_being_stored() -> None:
    storage = MemoryStorage()
    store = loaded(storage)
    store.add(checkpoint(3))
    assert "lockstep/checkpoints/chk-3/_metadata" in storage.files
    assert loaded(storage).all() == [checkpoint(3)]
    store.replace(checkpoint(3, committed=True))
    assert loaded(storage).all() == [checkpoint(3, committed=True)]


def test_empty_store_has_nothing_committed() -> None:
    store = loaded(MemoryStorage())
    assert store.latest is None
    assert store.committed_epoch() == -1
    assert store.chosen_attempt(0) is None


def test_of_two_drivers_that_complete_a_checkpoint_the_first_counts_for_both() -> None:
    storage = MemoryStorage()
    one, other = loaded(storage), loaded(storage)
    assert one.add(checkpoint(3, {3: "one"})).attempts == {3: "one"}
    assert other.add(checkpoint(3, {3: "other"})).attempts == {3: "one"}
    assert other.chosen_attempt(3) == "one"


def test_oldest_committed_are_dropped_beyond_the_retained_and_uncommitted_never() -> None:
    storage = MemoryStorage()
    store = loaded(storage, retained=2)
    for id in range(6):
        store.add(checkpoint(id))
    for id in range(4):
        store.replace(checkpoint(id, committed=True))
    assert [c.id for c in loaded(storage).all()] == [2, 3, 4, 5]
    assert [c.id for c in store.all()] == [2, 3, 4, 5]
    assert store.committed_epoch() == 3


def test_what_is_stored_uncommitted_below_a_committed_checkpoint_is_not_believed_and_dropped() -> None:
    storage = MemoryStorage()
    for one in (checkpoint(0, {0: "lost"}), checkpoint(1, committed=True), checkpoint(2)):
        loaded(storage).add(one)
    store = loaded(storage)
    assert [c.id for c in store.all()] == [1, 2]
    assert store.chosen_attempt(0) is None
    store.drop_late()
    assert [c.id for c in store.stored()] == [1, 2]


@pytest.mark.parametrize("error", [OSError("disk"), RuntimeError("some Java error")])
def test_old_checkpoint_that_cannot_be_dropped_harms_nobody(error: Exception) -> None:
    storage = MemoryStorage()
    store = loaded(storage, retained=1)
    for id in range(2):
        store.add(checkpoint(id))
        storage.fail("delete", error=error)
        store.replace(checkpoint(id, committed=True))
    assert store.committed_epoch() == 1
    assert loaded(storage).committed_epoch() == 1


def test_newest_checkpoint_decides_which_attempt_is_chosen() -> None:
    """An older one that disagrees was stored late, by a fenced driver."""
    store = loaded(MemoryStorage())
    store.add(checkpoint(7, {5: "newer", 6: "b", 7: "c"}))
    store.add(checkpoint(5, {5: "late"}))
    assert store.chosen_attempt(5) == "newer"


def test_doubtful_epoch_has_a_chosen_attempt_but_no_certain_one() -> None:
    store = loaded(MemoryStorage())
    store.add(replace(checkpoint(2, {1: "a", 2: "b"}), doubtful=(1,)))
    assert (store.chosen_attempt(1), store.certain_attempt(1)) == ("a", None)
    assert (store.chosen_attempt(2), store.certain_attempt(2)) == ("b", "b")


def test_looking_at_what_is_stored_changes_nothing_that_is_known() -> None:
    storage = MemoryStorage()
    store = loaded(storage)
    loaded(storage).add(checkpoint(4))
    assert [c.id for c in store.stored()] == [4]
    assert store.latest is None


def test_directory_without_metadata_is_no_checkpoint() -> None:
    storage = MemoryStorage()
    storage.write("lockstep/checkpoints/chk-3/.tmp", b"")
    storage.write("lockstep/checkpoints/something", b"")
    assert loaded(storage).all() == []


def test_damaged_metadata_is_an_error() -> None:
    storage = MemoryStorage()
    loaded(storage).add(checkpoint(3))
    storage.files["lockstep/checkpoints/chk-3/_metadata"] = b"{"
    with pytest.raises(CorruptRecordError, match="chk-3/_metadata"):
        loaded(storage)


def test_store_that_fails_has_not_changed() -> None:
    storage = MemoryStorage()
    store = loaded(storage)
    storage.fail("create")
    with pytest.raises(OSError, match="injected"):
        store.add(checkpoint(3))
    assert store.latest is None
    assert store.add(checkpoint(3)).id == 3
