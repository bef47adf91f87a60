"""The sink of docs/write-your-own-sink.md works in a query and passes the contract, as its reader would try it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import lockstep
from integration_tests.sessions import drop_file, file_stream

DOCUMENT = Path(__file__).parent.parent / "docs" / "write-your-own-sink.md"
SINK, USE, CONTRACT = (part.split("```")[0] for part in DOCUMENT.read_text().split("```python\n")[1:])


def test_sink_of_the_documentation_works(spark: SparkSession, tmp_path: Path) -> None:
    assert len(SINK.splitlines()) <= 40
    names: dict[str, Any] = {}
    exec(compile(SINK, DOCUMENT.name, "exec"), names)
    stream = file_stream(spark, tmp_path / "in")
    drop_file(tmp_path / "in", 0, ['{"id": 1}', '{"id": 2}'])
    target = tmp_path / "files"
    exec(
        compile(
            f"query = {USE.strip().replace('/data/orders', str(target))}"
            f".option('checkpointLocation', {str(tmp_path / 'cp')!r}).trigger(availableNow=True).start()",
            DOCUMENT.name,
            "exec",
        ),
        {**names, "lockstep": lockstep, "orders": stream},
        started := {},
    )
    started["query"].awaitTermination()
    (epoch,) = target.iterdir()
    assert epoch.name.endswith("-files-epoch-0")
    assert spark.read.json(str(epoch)).count() == 2


@pytest.mark.timeout(400)
def test_sink_of_the_documentation_passes_the_contract(tmp_path: Path) -> None:
    test = tmp_path / "test_directory_sink.py"
    test.write_text(SINK + CONTRACT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:]
    assert "17 passed, 1 skipped" in done.stdout
