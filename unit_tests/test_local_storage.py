"""Storage on the driver's disk, and in memory: both keep the contract; the disk's also between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.engine.local_storage import LocalStorage
from lockstep.errors import CorruptRecordError
from lockstep.testing import MemoryStorage
from unit_tests.storage_contract import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture
    def storage(self, tmp_path: Path) -> LocalStorage:
        return LocalStorage(tmp_path / "checkpoint")


def test_reads_regular_files_of_bounded_size_and_nothing_else(tmp_path: Path) -> None:
    """A device never ends, a pipe waits for ever, and a sparse file may be larger than memory."""
    storage = LocalStorage(tmp_path)
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(2**40)
    for name in ("directory", "pipe", "device", "sparse"):
        with pytest.raises(CorruptRecordError, match=rf"{name} .*Restore it from a backup"):
            storage.read(name)
    (tmp_path / "real").write_bytes(b"content")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert (storage.read("link"), storage.read("dangling")) == (b"content", None)


class TestMemoryStorage(StorageContract):
    @pytest.fixture
    def storage(self) -> MemoryStorage:
        return MemoryStorage()


TAKE = """
import sys, types
lockstep = sys.modules["lockstep"] = types.ModuleType("lockstep")  # without all that its __init__ imports
lockstep.__path__ = [sys.argv[3]]
from lockstep.engine.local_storage import LocalStorage
storage = LocalStorage(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(*[n for n in range(50) if storage.create(f"tokens/{n}", sys.argv[2].encode())])
"""


def test_of_many_processes_that_create_a_file_one_wins(tmp_path: Path) -> None:
    where = str(Path(lockstep.__file__).parent)
    processes = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", TAKE, str(tmp_path), str(number), where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    won: list[str] = []
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for number, process in enumerate(processes):
        taken = process.communicate()[0].split()
        assert all((tmp_path / "tokens" / name).read_text() == str(number) for name in taken)
        won += taken
    assert sorted(won, key=int) == [str(n) for n in range(50)]


def test_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(tmp_path)
    storage.write("file", b"before")

    def fail(*_: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        storage.write("file", b"after")
    assert storage.read("file") == b"before"


def test_content_and_name_are_on_disk_before_a_write_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    for name in ("fsync", "replace", "link"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, name=name, real=real: (steps.append(name), real(*a))[1])
    LocalStorage(tmp_path).write("file", b"x")
    assert steps == ["fsync", "replace", "fsync"]
    steps.clear()
    LocalStorage(tmp_path).create("other", b"x")
    assert steps == ["fsync", "link", "fsync"]


@pytest.mark.parametrize("after", [False, True])
def test_injected_failures_hit_the_nth_change_before_or_after_its_effect(after: bool) -> None:
    storage = MemoryStorage()
    storage.fail("write", 2, after=after, path="d/")
    storage.write("d/one", b"1")
    storage.write("elsewhere", b"")
    with pytest.raises(OSError, match="injected"):
        storage.write("d/two", b"2")
    assert storage.exists("d/two") is after
    storage.write("d/two", b"2")
    storage.fail("create", after=after)
    with pytest.raises(OSError, match="injected"):
        storage.create("new", b"")
    assert storage.exists("new") is after
    storage.fail("delete", after=after)
    with pytest.raises(OSError, match="injected"):
        storage.delete("d")
    assert storage.exists("d/one") is not after
