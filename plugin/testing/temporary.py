"""Temporary files of processes that are going to be killed."""

from __future__ import annotations

import os
from pathlib import Path


def environment_with_temporary(directory: Path) -> dict[str, str]:
    """The environment for a process that may die by SIGKILL: what it and its JVMs call temporary goes into ``directory``.

    A JVM that is killed leaves behind its copies of Spark's jars and of native libraries: 100 MB and more. Remove the
    directory when the process has ended.
    """
    directory.mkdir(parents=True, exist_ok=True)
    options = f'{os.environ.get("JAVA_TOOL_OPTIONS", "")} "-Djava.io.tmpdir={directory}"'.strip()
    place = str(directory)
    return {**os.environ, "TMPDIR": place, "SPARK_LOCAL_DIRS": place, "JAVA_TOOL_OPTIONS": options}
