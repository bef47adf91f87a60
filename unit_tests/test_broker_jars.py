"""The cache of jars, with a ``java`` script in place of Ivy: it makes jars, or fails, and counts its calls."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.broker import jars
from lockstep.errors import ConfigurationError, EnvironmentProblemError

COORDINATES = ["org.example:thing:1.0"]

FAKE_JAVA = """#!/bin/sh
if [ "$1" = -version ]; then echo 'openjdk version "17.0.1"' >&2; exit 0; fi
echo call >>"{calls}"
while [ $# -gt 1 ]; do
    case $1 in
        -retrieve) out=${{2%/*}} ;;
        -ivy) cp "$2" "{seen}/ivy.xml" ;;
        -settings) cp "$2" "{seen}/settings.xml" ;;
    esac
    shift
done
touch "$out/one.jar"
{then}
touch "$out/two.jar"
"""


class FakeIvy:
    """Stands where Java stands and remembers what it was asked."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "bin").mkdir(parents=True)

    def then(self, script: str = "") -> None:
        java = self._directory / "bin" / "java"
        java.write_text(FAKE_JAVA.format(calls=self._directory / "calls", seen=self._directory, then=script))
        java.chmod(0o755)

    @property
    def calls(self) -> int:
        calls = self._directory / "calls"
        return len(calls.read_text().splitlines()) if calls.exists() else 0

    def seen(self, name: str) -> ElementTree.Element:
        return ElementTree.parse(self._directory / name).getroot()


@pytest.fixture
def ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeIvy:
    fake = FakeIvy(tmp_path / "java")
    fake.then()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(jars.REPOSITORY_VARIABLE, raising=False)
    return fake


def test_second_fetch_needs_no_network(ivy: FakeIvy, tmp_path: Path) -> None:
    first, second = jars.fetch(COORDINATES, "thing-1.0"), jars.fetch(COORDINATES, "thing-1.0")
    assert first == second == tmp_path / "cache" / "lockstep" / "thing-1.0"
    assert sorted(jar.name for jar in first.iterdir()) == ["one.jar", "two.jar"]
    assert ivy.calls == 1


def test_failed_fetch_leaves_nothing_and_the_next_one_succeeds(ivy: FakeIvy, tmp_path: Path) -> None:
    ivy.then("echo 'Host example.org not found. url=x'; exit 1")
    with pytest.raises(EnvironmentProblemError) as error:
        jars.fetch(COORDINATES, "thing-1.0")
    message = str(error.value)
    assert "\n" not in message
    assert "org.example:thing:1.0 could not be fetched" in message
    assert "LOCKSTEP_MAVEN_REPOSITORY" in message
    assert "Host example.org not found" in message
    assert [entry.name for entry in (tmp_path / "cache" / "lockstep").iterdir()] == [".lock"]
    ivy.then()
    assert len(list(jars.fetch(COORDINATES, "thing-1.0").iterdir())) == 2


def test_concurrent_callers_share_one_fetch(ivy: FakeIvy) -> None:
    ivy.then("sleep 0.3")
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: len(list(jars.fetch(COORDINATES, "thing-1.0").iterdir())), range(4)))
    assert found == [2, 2, 2, 2]
    assert ivy.calls == 1


def test_ivy_reads_one_repository_and_our_cache_only(ivy: FakeIvy, tmp_path: Path) -> None:
    jars.fetch([*COORDINATES, "org.example:other:2.0"], "things")
    dependencies = [dict(found.attrib) for found in ivy.seen("ivy.xml").iter("dependency")]
    assert [(d["org"], d["name"], d["rev"]) for d in dependencies] == [
        ("org.example", "thing", "1.0"),
        ("org.example", "other", "2.0"),
    ]
    settings = ivy.seen("settings.xml")
    caches, resolvers = settings.find("caches"), settings.find("resolvers")
    assert caches is not None
    assert caches.attrib["defaultCacheDir"] == str(tmp_path / "cache" / "lockstep" / "ivy")
    assert resolvers is not None
    assert [resolver.tag for resolver in resolvers] == ["ibiblio"]
    assert "root" not in resolvers[0].attrib


def test_mirror_takes_the_place_of_maven_central(ivy: FakeIvy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(jars.REPOSITORY_VARIABLE, "https://maven.example.org/all")
    jars.fetch(COORDINATES, "thing-1.0")
    resolver = next(ivy.seen("settings.xml").iter("ibiblio"))
    assert resolver.attrib["root"] == "https://maven.example.org/all/"


@pytest.mark.parametrize("coordinate", ["org.example:thing", "org.example:thing:1.0:jar", "::"])
def test_wrong_coordinates_are_refused_before_anything_runs(ivy: FakeIvy, coordinate: str) -> None:
    with pytest.raises(ConfigurationError, match="group:artifact:version"):
        jars.fetch([coordinate], "thing")
    assert ivy.calls == 0


@pytest.mark.parametrize("configured", ["", "relative/path"])
def test_cache_is_in_the_home_directory_without_a_usable_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, configured: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", configured)
    assert jars.cache_directory() == tmp_path / ".cache" / "lockstep"
