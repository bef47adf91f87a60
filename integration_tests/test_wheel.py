"""The built wheel works in an empty virtualenv outside the repository."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in subprocess.check_output(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, text=True).split(
        "\n"
    ):
        if name and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes((ROOT / name).read_bytes())
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(target), str(source)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    (path,) = target.glob("*.whl")
    return path


def test_wheel_holds_every_module_once_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    modules = {name for name in names if name.endswith(".py")}
    expected = set()
    for folder, package in (("plugin", "lockstep"), ("sinks", "lockstep/sinks"), ("sources", "lockstep/sources")):
        for path in (ROOT / folder).rglob("*.py"):
            expected.add(f"{package}/{path.relative_to(ROOT / folder)}")
    assert modules == expected
    assert {"lockstep/py.typed", "lockstep/sinks/EpochPublisher.java"} <= set(names)


@pytest.mark.timeout(300)
def test_wheel_imports_and_its_command_runs_in_an_empty_virtualenv(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    pins = [line.split(" ")[0] for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("\n".join(pins))
    install = [str(python), "-m", "pip", "install", "--quiet", "-c", str(constraints), str(wheel)]
    installed = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    code = "import lockstep, lockstep.sinks, lockstep.sources, lockstep.testing; print(lockstep.__file__)"
    imported = subprocess.run([str(python), "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert imported.returncode == 0, imported.stderr
    assert str(tmp_path) in imported.stdout
    for arguments, word in ((["--help"], "checkpoints"), (["--version"], "0.1.0"), (["packages"], "delta-spark")):
        ran = subprocess.run(
            [str(tmp_path / "venv/bin/lockstep"), *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert ran.returncode == 0, ran.stderr
        assert word in ran.stdout
