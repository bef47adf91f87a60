"""One file of a checkpoint directory is damaged: the next start refuses, or every row arrives exactly once all the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import main
from lockstep.errors import LockstepError
from lockstep.protocol.envelope import seal
from unit_tests.damage import odd_contents, replaced
from unit_tests.simulation import Driver, World
from unit_tests.test_hostile_files import OPERATOR

LAST = 6
SEALED = b'{"lockstep":'
FREE = frozenset({"handles", "reports", "replaced", "config", "commits"})


def left_behind() -> World:
    """Epochs 0 to 2 committed, 3 decided and prepared, 4 prepared and undecided; two drivers were here."""
    world = World("a", "b")
    Driver(world).start().run_to(1)
    driver = Driver(world).start().run_to(2)
    driver.epoch(advance=False)
    driver.prepare()
    return world


SCENE = left_behind()
FILES = sorted(SCENE.storage.files)


def damages(path: str) -> Iterator[tuple[str, dict[str, bytes]]]:
    """By name: what the directory holds instead of the file."""
    data = SCENE.storage.files[path]
    yield "gone", {}
    yield "a directory", {f"{path}/inside": b"x"}
    for name, other in replaced(data).items():
        yield name, {path: other}
    for name, other in SCENE.storage.files.items():
        if name != path and name.split("/")[:2] == path.split("/")[:2]:
            yield f"a copy of {name}", {path: other}
    if (
        data.startswith(SEALED) and "chk-0" not in path and "chk-1" not in path
    ):  # chk-2 stands for all that are committed
        head, body = (json.loads(line) for line in data.splitlines())
        for name, odd in odd_contents(body, FREE):
            yield name, {path: seal(head["lockstep"], odd)}


def damaged(path: str, instead: dict[str, bytes]) -> World:
    world = SCENE.copy()
    del world.storage.files[path]
    world.storage.files.update(instead)
    return world


def go_on(world: World) -> LockstepError | None:
    """The next start, and all that follows, up to a clean stop; or why it was refused."""
    try:
        assert Driver(world).start().run_to(LAST).stop()
    except LockstepError as error:
        return error
    return None


def believed(path: str, name: str, instead: dict[str, bytes]) -> bool:
    """Whether the damage is a lie that nobody can see through.

    Spark's log has no checksum of ours: of the epoch that is run again, other offsets that look right are its offsets. A
    checkpoint that says, well sealed, that it is committed, is; and the consumer group gets what a record says, well sealed.
    """
    looks_right = any(data.startswith(b"v1\n") and len(data) > 100 for data in instead.values())
    says_committed = "chk-3" in path and name in ("committed_ms = -1", "committed_ms = 0")
    return (path == "offsets/4" and looks_right) or says_committed or "barrier.positions" in name


@pytest.mark.parametrize("path", FILES)
def test_damaged_file_is_refused_with_nothing_wrongly_committed_or_does_no_harm(path: str) -> None:
    outcomes = {}
    for number, (name, instead) in enumerate(damages(path)):
        if believed(path, name, instead):
            continue
        world = damaged(path, instead)
        refusal = go_on(world)
        if refusal is None:
            world.check_exactly_once(LAST)
        else:
            assert "memory:/checkpoint" in str(refusal), name
            world.check_nothing_wrong()
        outcomes[name] = refusal
        if refusal is not None and number % 8 < 4:
            for left in [file for file in world.storage.files if file == path or file.startswith(f"{path}/")]:
                del world.storage.files[left]
            world.storage.files[path] = SCENE.storage.files[path]  # the remedy: from a backup
            assert go_on(world) is None, name
            world.check_exactly_once(LAST)
    assert outcomes["empty"] is not None or path.startswith(("commits/", "offsets/", "lockstep/tokens/"))


def test_every_file_that_decides_something_was_damaged() -> None:
    """The scene must hold one of each kind, in each state."""
    kinds = {path.removeprefix("lockstep/").split("/")[0] for path in FILES}
    assert kinds == {"offsets", "commits", "lineage", "tokens", "prepared", "checkpoints"}
    assert [path.rpartition("/")[2] for path in FILES if "/prepared/" in path] == [
        "000000000003.2.3-2-w1",
        "000000000004.2.4-2-w2",
    ]
    assert go_on(SCENE.copy()) is None


# --- the command line -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs ``lockstep`` on a directory in which one file is damaged."""
    root = tmp_path_factory.mktemp("directory")

    for name, data in SCENE.storage.files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)

    def tell(instead: dict[str, bytes], *arguments: str) -> int:
        for name, data in instead.items():
            (root / name).write_bytes(data)
        try:
            return main([arguments[0], str(root), *arguments[1:]])
        finally:
            for name in instead:
                (root / name).write_bytes(SCENE.storage.files[name])

    return tell


@pytest.mark.parametrize("path", [path for path in FILES if path.startswith("lockstep")])
def test_command_line_says_which_file_is_damaged_or_shows_what_there_is(
    path: str, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = (("checkpoints",), ("checkpoints", "2"), ("checkpoints", "--json"), ("state",))
    for number, (name, instead) in enumerate(damages(path)):
        if path in instead and (number < 20 or number % 8 == 0):
            command = commands[number % 4 if number < 20 else number // 8 % 4]
            code = told(instead, *command)
            said = capsys.readouterr()
            assert "Traceback" not in said.err, name
            assert (code, bool(said.out), said.err.startswith("lockstep: error: ")) in (
                (0, True, False),
                (2, False, True),
            ), (name, code, said)
            if code:
                assert path in said.err or "has no checkpoint" in said.err, (name, said.err)


HOSTILE_TEXTS = ["[/]", "[bold", "\x1b[2J\x1b]0;owned\x07", "a\nb", "\u202eevil", "[link=file:///etc/passwd]x[/link]"]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_command_line_shows_any_text_as_text(text: str, told: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Markup that is not closed must not end the command, and a terminal must not obey a file."""
    path = "lockstep/lineage"
    body = json.loads(SCENE.storage.files[path].splitlines()[1])
    state = {**OPERATOR["states"], text: OPERATOR["states"]["total"]}  # type: ignore[dict-item]
    body |= {
        "query_name": text,
        "sources": [text],
        "sinks": {text: text},
        "operators": {text: {**OPERATOR, "states": state}},
    }
    chk = "lockstep/checkpoints/chk-2/_metadata"
    checkpoint = json.loads(SCENE.storage.files[chk].splitlines()[1])
    checkpoint |= {"reports": {text: {"rows": text, text: [text]}}, "commits": {text: {text: text, "bytes": None}}}
    files = {path: seal("lineage", body), chk: seal("checkpoint", checkpoint)}
    for command in (("checkpoints",), ("checkpoints", "2"), ("state",)):
        assert told(files, *command) == 0
        said = capsys.readouterr().out
        assert "\x1b" not in said
        assert "\u202e" not in said


@pytest.mark.parametrize("millis", [2**63 - 1, -(2**62), 10**15])
def test_times_beyond_every_calendar_are_shown_as_numbers(
    millis: int, told: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    chk = "lockstep/checkpoints/chk-2/_metadata"
    body = json.loads(SCENE.storage.files[chk].splitlines()[1])
    body |= {"triggered_ms": millis, "completed_ms": millis, "committed_ms": millis}
    body["barrier"] |= {"watermark_ms": millis}
    for command in (("checkpoints",), ("checkpoints", "2")):
        assert told({chk: seal("checkpoint", body)}, *command) == 0
        assert f"{millis} ms" in capsys.readouterr().out


def test_damage_to_a_directory_on_disk_is_told_with_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A directory, a pipe or a loop of links where a file should be."""
    lineage = tmp_path / "lockstep" / "lineage"
    lineage.mkdir(parents=True)
    assert main(["checkpoints", str(tmp_path)]) == 2
    assert f"{lineage} is a directory" in capsys.readouterr().err
    lineage.rmdir()
    lineage.symlink_to(lineage)
    assert main(["checkpoints", str(tmp_path)]) == 2
    assert str(lineage) in capsys.readouterr().err
