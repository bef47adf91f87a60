"""Finds the Java that Spark and the embedded broker run on, and says what to do when it is not there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from lockstep.errors import EnvironmentProblemError

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?')
_ANSWER_SECONDS = 30
_MINIMUM = 17


def find_java() -> Path:
    """The ``java`` that Spark's own launcher would take: ``JAVA_HOME`` if it is set, ``PATH`` otherwise.

    A ``JAVA_HOME`` without Java in it is an error, not a reason to look at ``PATH``: Spark would not look there either.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        if not os.access(java, os.X_OK):
            raise EnvironmentProblemError(
                f"JAVA_HOME is {home}, which has no bin/java: point JAVA_HOME at a Java installation, or unset it."
            )
        return java
    found = shutil.which("java")
    if found is None:
        raise EnvironmentProblemError(f"Java was not found: {_remedy(_MINIMUM)}")
    return Path(found)


def java_version(java: Path) -> int:
    """The feature version of this ``java``: 8 for ``1.8.0_402``, 17 for ``17.0.15``."""
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_ANSWER_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentProblemError(f"{java} could not be run ({error}): {_remedy(_MINIMUM)}") from error
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise EnvironmentProblemError(f"{java} did not tell its version: {_remedy(_MINIMUM)}")
    major, minor = int(match[1]), int(match[2] or 0)
    return minor if major == 1 else major


def require_java(minimum: int = _MINIMUM) -> Path:
    """The ``java`` to run, at least of version ``minimum``. Raises one line with its remedy if there is none."""
    java = find_java()
    version = java_version(java)
    if version < minimum:
        raise EnvironmentProblemError(f"Java {version} at {java} is too old, {minimum} is needed: {_remedy(minimum)}")
    return java


def _remedy(minimum: int) -> str:
    return (
        f"install Java {minimum} or newer (for example 'apt-get install openjdk-{minimum}-jre-headless'), "
        f"or set JAVA_HOME to one."
    )
