"""Finding Java, with scripts that only tell a version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lockstep.broker.java import java_version, require_java
from lockstep.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from pathlib import Path

OPENJDK_17 = 'openjdk version "17.0.15" 2025-04-15'


def make_java(directory: Path, answer: str, status: int = 0) -> Path:
    """A ``java`` that writes ``answer`` where the real one does, to standard error."""
    directory.mkdir(parents=True, exist_ok=True)
    java = directory / "java"
    java.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{answer}\nEND\nexit {status}\n")
    java.chmod(0o755)
    return java


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # The scripts need sh and cat; nothing called java may be found beside them.
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "cat").symlink_to("/bin/cat")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))


def on_path(monkeypatch: pytest.MonkeyPatch, directory: Path, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", f"{directory}:{tmp_path / 'tools'}")


@pytest.mark.parametrize(
    "answer, version",
    [
        (OPENJDK_17, 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "11.0.2" 2019-01-15', 11),
    ],
)
def test_version_is_read_from_every_form_java_has_used(tmp_path: Path, answer: str, version: int) -> None:
    assert java_version(make_java(tmp_path / "bin", answer)) == version


def test_java_home_wins_over_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java(tmp_path / "home" / "bin", OPENJDK_17)
    on_path(monkeypatch, make_java(tmp_path / "other", 'openjdk version "21"').parent, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert require_java() == home


@pytest.mark.parametrize("home", [None, ""])
def test_path_is_used_without_java_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: str | None) -> None:
    java = make_java(tmp_path / "other", OPENJDK_17)
    on_path(monkeypatch, java.parent, tmp_path)
    if home is not None:
        monkeypatch.setenv("JAVA_HOME", home)
    assert require_java() == java


def one_line(error: pytest.ExceptionInfo[EnvironmentProblemError]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def test_missing_java_is_one_line_with_its_remedy() -> None:
    with pytest.raises(EnvironmentProblemError) as error:
        require_java()
    message = one_line(error)
    assert "openjdk-17-jre-headless" in message
    assert "JAVA_HOME" in message


def test_old_java_is_one_line_with_its_version_and_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = make_java(tmp_path / "other", 'openjdk version "11.0.2" 2019-01-15')
    on_path(monkeypatch, java.parent, tmp_path)
    with pytest.raises(EnvironmentProblemError) as error:
        require_java()
    message = one_line(error)
    assert message.startswith(f"Java 11 at {java} is too old, 17 is needed")


def test_java_home_without_java_is_not_hidden_by_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_path(monkeypatch, make_java(tmp_path / "other", OPENJDK_17).parent, tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    with pytest.raises(EnvironmentProblemError, match="has no bin/java"):
        require_java()


def test_java_that_only_complains_is_not_java(tmp_path: Path) -> None:
    stub = make_java(tmp_path / "bin", "Unable to locate a Java Runtime.", status=1)
    with pytest.raises(EnvironmentProblemError, match="did not tell its version"):
        java_version(stub)
