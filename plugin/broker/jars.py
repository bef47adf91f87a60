"""Fetches jars from Maven Central with the Ivy that pyspark ships: no Maven, no Docker.

Directories of jars are kept per user, under ``$XDG_CACHE_HOME/lockstep`` or ``~/.cache/lockstep``. Ivy's own cache is
kept there too, and no other repository on the machine is read, so a half-filled ``~/.m2`` cannot spoil the result.
"""

from __future__ import annotations

import fcntl
import importlib.util
import logging
import os
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import quoteattr

from lockstep.broker.java import require_java
from lockstep.errors import ConfigurationError, EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

logger = logging.getLogger(__name__)

KAFKA_VERSION = "4.3.1"
LOG_BINDING = "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4"  # a broker without it writes no log at all
REPOSITORY_VARIABLE = "LOCKSTEP_MAVEN_REPOSITORY"

_FETCH_SECONDS = 900
_RETRIEVE = "[organisation]_[artifact]-[revision](-[classifier]).[ext]"


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The directory with the jars of a Kafka broker, fetched when it is not there yet."""
    return fetch([f"org.apache.kafka:kafka_2.13:{version}", LOG_BINDING], f"kafka-{version}")


def cache_directory() -> Path:
    """Where Lockstep keeps what it fetched, per user."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "lockstep"


def fetch(coordinates: Sequence[str], name: str) -> Path:
    """Fetch Maven ``coordinates`` (``group:artifact:version``) with all they depend on, and return a directory of jars.

    The directory is ``name`` in the cache; a name stands for one set of coordinates for ever, so put the version in it.
    It appears complete or not at all, and is never changed again. Concurrent callers, in one process or several, wait
    for the first and get the same directory. Only the first call uses the network.
    """
    target = cache_directory() / name
    if target.is_dir():
        return target
    ivy_file = _ivy_file(coordinates, name)
    java, ivy = require_java(), _ivy_jar()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.parent / ".lock"):
        if target.is_dir():
            return target
        logger.info("fetching %s", ", ".join(coordinates))
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
            retrieved = _retrieve(java, ivy, ivy_file, Path(work), target.parent / "ivy", coordinates)
            retrieved.rename(target)
    return target


def _retrieve(java: Path, ivy: Path, ivy_file: str, work: Path, cache: Path, coordinates: Sequence[str]) -> Path:
    jars = work / "jars"
    jars.mkdir()
    (work / "ivy.xml").write_text(ivy_file)
    (work / "settings.xml").write_text(_settings_file(cache))
    log = work / "log"
    command = [
        *(str(java), f"-Divy.default.ivy.user.dir={cache}", "-jar", str(ivy)),
        *("-settings", f"{work}/settings.xml", "-ivy", f"{work}/ivy.xml", "-confs", "default"),
        *("-types", "jar", "bundle", "-retrieve", f"{jars}/{_RETRIEVE}"),
    ]
    try:
        with log.open("w") as output:
            subprocess.run(
                command,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=_FETCH_SECONDS,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise EnvironmentProblemError(_failure(coordinates, log)) from error
    if not any(jars.iterdir()):
        raise EnvironmentProblemError(_failure(coordinates, log))
    return jars


def _failure(coordinates: Sequence[str], log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    reasons = [line.strip() for line in lines if "not found" in line or "Exception" in line or "refused" in line]
    return (
        f"{', '.join(coordinates)} could not be fetched from the Maven repository: check that it can be reached "
        f"from here, or set {REPOSITORY_VARIABLE} to the URL of a mirror. {'; '.join(dict.fromkeys(reasons[:3]))}"
    ).rstrip()


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    jars = Path(spec.origin).parent.joinpath("jars").glob("ivy-*.jar") if spec and spec.origin else iter(())
    found = next(jars, None)
    if found is None:
        raise EnvironmentProblemError("pyspark has no Ivy jar here: install the full 'pyspark' package with pip.")
    return found


def _ivy_file(coordinates: Sequence[str], name: str) -> str:
    dependencies = []
    for coordinate in coordinates:
        parts = coordinate.split(":")
        if len(parts) != 3 or not all(parts):
            raise ConfigurationError(f"'{coordinate}' is not of the form group:artifact:version.")
        org, artifact, revision = map(quoteattr, parts)
        dependencies.append(f'<dependency org={org} name={artifact} rev={revision} conf="default->default"/>')
    return (
        '<ivy-module version="2.0">'
        f'<info organisation="lockstep" module={quoteattr(name)}/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(dependencies)}</dependencies>"
        "</ivy-module>"
    )


def _settings_file(cache: Path) -> str:
    mirror = os.environ.get(REPOSITORY_VARIABLE)
    root = f" root={quoteattr(mirror.rstrip('/') + '/')}" if mirror else ""
    return (
        "<ivysettings>"
        '<settings defaultResolver="central"/>'
        '<timeout-constraints><timeout-constraint name="bounded" connectionTimeout="20000" readTimeout="120000"/>'
        "</timeout-constraints>"
        f"<caches defaultCacheDir={quoteattr(str(cache))}/>"
        f'<resolvers><ibiblio name="central" m2compatible="true" timeoutConstraint="bounded"{root}/></resolvers>'
        "</ivysettings>"
    )


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock. The kernel lets it go when the process ends, however it ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
