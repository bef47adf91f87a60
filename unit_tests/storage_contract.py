"""What every :class:`~lockstep.protocol.storage.Storage` promises. Inherit, and give a fixture ``storage``.

``HadoopStorage`` and your own adapters run it too: ``class TestMine(StorageContract)``.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from lockstep.protocol.storage import Storage


class StorageContract:
    """The tests; subclasses give the fixture ``storage``, an empty directory."""

    threads = 8

    def test_what_is_written_is_read(self, storage: Storage) -> None:
        for data in (b"", b"one", b"\x00\xff" * 100_000):
            storage.write("a/b/c", data)
            assert storage.read("a/b/c") == data

    def test_missing_file_reads_as_nothing(self, storage: Storage) -> None:
        storage.write("a/file", b"x")
        assert storage.read("a/other") is None
        assert storage.read("nowhere/at/all") is None

    def test_create_tells_whether_the_file_is_new_and_never_changes_one(self, storage: Storage) -> None:
        assert storage.create("a/b", b"first") is True
        assert storage.create("a/b", b"second") is False
        assert storage.read("a/b") == b"first"

    def test_of_many_creators_one_wins_and_its_content_is_there(self, storage: Storage) -> None:
        for number in range(5):
            together = threading.Barrier(self.threads)

            def create(
                creator: int, path: str = f"tokens/{number}", together: threading.Barrier = together
            ) -> tuple[bool, int]:
                together.wait()
                return storage.create(path, str(creator).encode()), creator

            with ThreadPoolExecutor(self.threads) as pool:
                winners = [creator for won, creator in pool.map(create, range(self.threads)) if won]
            assert len(winners) == 1
            assert storage.read(f"tokens/{number}") == str(winners[0]).encode()

    def test_reader_sees_the_old_or_the_new_content_and_never_a_part(self, storage: Storage) -> None:
        contents = [bytes([letter]) * 50_000 for letter in b"abc"]
        storage.write("file", contents[0])
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                for content in contents:
                    storage.write("file", content)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert all(storage.read("file") in contents for _ in range(50))
        finally:
            stop.set()
            writer.join()

    def test_list_gives_names_of_files_and_directories(self, storage: Storage) -> None:
        for path in ("top", "d/one", "d/two", "d/deep/three"):
            storage.write(path, b"")
        assert sorted(storage.list("d")) == ["deep", "one", "two"]
        assert sorted(storage.list("")) == ["d", "top"]
        assert storage.list("nowhere") == []

    def test_nothing_but_what_was_written_is_left_in_the_directory(self, storage: Storage) -> None:
        storage.write("d/one", b"x")
        storage.write("d/one", b"y")
        storage.create("d/two", b"x")
        storage.create("d/two", b"y")
        assert sorted(name for name in storage.list("d") if not name.endswith(".crc")) == ["one", "two"]

    def test_exists_knows_files_and_directories(self, storage: Storage) -> None:
        storage.write("d/one", b"")
        assert storage.exists("d/one")
        assert storage.exists("d")
        assert not storage.exists("d/two")

    def test_delete_takes_files_and_whole_directories_and_minds_nothing_missing(self, storage: Storage) -> None:
        for path in ("d/one", "d/two", "e/deep/three"):
            storage.write(path, b"")
        storage.delete("d/one")
        storage.delete("d/one")
        storage.delete("e")
        storage.delete("nowhere/at/all")
        assert sorted(storage.list("d")) == ["two"]
        assert not storage.exists("e")
        assert storage.create("e/deep/three", b"again") is True

    def test_directory_has_an_address_for_messages(self, storage: Storage) -> None:
        assert storage.describe()
