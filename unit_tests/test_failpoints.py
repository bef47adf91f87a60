"""Failpoints: every name that the code reaches is known to tests, and the other way round."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.protocol import failpoint
from lockstep.testing import failpoints

ROOT = Path(__file__).parents[1]


def reached_in_code() -> set[str]:
    files = [file for package in ("plugin", "sources", "sinks") for file in (ROOT / package).rglob("*.py")]
    return {name for file in files for name in re.findall(r'\breach\("([a-z_.]+)"\)', file.read_text())}


def test_points_are_those_that_the_code_reaches() -> None:
    assert reached_in_code() == {*failpoints.DRIVER_POINTS, *failpoints.WORKER_POINTS}


def test_only_the_testing_package_installs_hooks() -> None:
    others = [file for package in ("plugin", "sources", "sinks") for file in (ROOT / package).rglob("*.py")]
    installing = {f.relative_to(ROOT).as_posix() for f in others if re.search(r"failpoint\.install", f.read_text())}
    assert installing == {"plugin/testing/failpoints.py", "plugin/operators/task.py"}  # the latter: what it was given


@pytest.mark.parametrize("point", ["epoch.begin", "operator.state.before"])
def test_unknown_point_is_refused_with_a_list_of_the_known(point: str) -> None:
    with pytest.raises(ValueError, match=r"unknown failpoint .* use one of epoch\.start, "):
        failpoints.at(point, lambda: None)


def test_action_runs_at_the_chosen_hit_and_not_after_clear() -> None:
    seen: list[int] = []
    failpoints.at("epoch.start", lambda: seen.append(1), hit=2)
    try:
        for point in ("epoch.start", "epoch.end", "epoch.start", "epoch.start"):
            failpoint.reach(point)
    finally:
        failpoints.clear()
    failpoint.reach("epoch.start")
    assert seen == [1]


def test_one_worker_dies_once_where_it_was_asked_to(tmp_path: Path) -> None:
    failpoints.kill_workers_through(tmp_path)
    hook = failpoint.hook_of_workers()
    failpoints.clear()
    assert hook is not None
    assert failpoint.hook_of_workers() is None
    failpoints.kill_worker(tmp_path, "operator.state.after")
    worker = (
        "import pickle, sys; from lockstep.protocol import failpoint;"
        "failpoint.install(pickle.loads(bytes.fromhex(sys.argv[1])));"
        "failpoint.reach('operator.state.before'); print('half way', flush=True); failpoint.reach('operator.state.after')"
    )

    command = [sys.executable, "-c", worker, pickle.dumps(hook).hex()]
    first = subprocess.run(command, capture_output=True, check=False)
    assert (first.returncode, first.stdout) == (-signal.SIGKILL, b"half way\n")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert os.listdir(tmp_path) == []
