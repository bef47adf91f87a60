"""The ``lockstep`` command: what it teaches, what it refuses, and what it reads from a checkpoint directory."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from lockstep.cli import demo
from lockstep.cli.broker import Topic, parse_topic
from lockstep.cli.demo_check import compare, offsets_match
from lockstep.cli.demo_orders import Order, make_orders
from lockstep.cli.demo_plan import DemoPlan, KillSchedule
from lockstep.cli.demo_report import DemoReport
from lockstep.cli.main import main
from lockstep.engine.local_storage import LocalStorage
from lockstep.protocol.barrier import Barrier
from lockstep.protocol.checkpoint import CompletedCheckpoint
from lockstep.protocol.completed_store import CompletedCheckpointStore
from lockstep.protocol.lineage import Lineage, continue_or_begin
from lockstep.protocol.prepare_record import PrepareRecord
from lockstep.sinks.two_phase import Attempt

Capture = pytest.CaptureFixture[str]

BEGIN_MS = 1_750_000_000_000
LINEAGE = "6f1b1f0e-0000-4000-8000-000000000001"


def barrier(epoch: int) -> Barrier:
    position = json.dumps({"orders": {"0": 100 * (epoch + 1), "1": 50 * (epoch + 1)}})
    return Barrier(epoch, BEGIN_MS + epoch * 1000, 0, (position,))


def completed(epoch: int, *, committed: bool = True) -> CompletedCheckpoint:
    checkpoint = CompletedCheckpoint(
        barrier=barrier(epoch),
        lineage=LINEAGE,
        attempts={epoch: f"{epoch}-1-abc"},
        triggered_ms=BEGIN_MS + epoch * 1000,
        completed_ms=BEGIN_MS + epoch * 1000 + 750,
        reports={"lake": {"rows": 150, "bytes": 2048, "write_ms": 700}, "source-0": {"position": "…"}},
    )
    if not committed:
        return checkpoint
    details = {"version": epoch + 1, "rows": 150}
    return replace(checkpoint, committed_ms=BEGIN_MS + epoch * 1000 + 900, commits={"lake": details})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Epochs 0 and 1 committed, 2 decided and prepared, 3 prepared and not decided."""
    path = tmp_path / "checkpoint"
    storage = LocalStorage(path)
    continue_or_begin(
        storage,
        Lineage(LINEAGE, BEGIN_MS, {"lake": "Delta table /lake/orders"}, ("Kafka topics orders at broker:9092",)),
    )
    store = CompletedCheckpointStore(storage, 10)
    for checkpoint in (completed(0), completed(1), completed(2, committed=False)):
        store.add(checkpoint)
    for epoch in (2, 3):
        attempt = Attempt(epoch, f"{epoch}-1-abc", LINEAGE, 1)
        record = PrepareRecord(attempt, barrier(epoch), BEGIN_MS + epoch * 1000 + 500, {"lake": {"metrics": {}}})
        storage.write(record.path, record.encode())
    for epoch in range(4):
        storage.write(f"offsets/{epoch}", b"v1\n{}\n{}\n")
    for epoch in range(3):
        storage.write(f"commits/{epoch}", b"v1\n{}\n")
    return path


def refused(capsys: Capture, *arguments: str) -> str:
    """The one line that a wrong input gets."""
    assert main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lockstep: error: ")
    assert "Traceback" not in said.err
    return said.err


def usage_error(capsys: Capture, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


# --- help -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["demo", "broker", "checkpoints", "packages"])
def test_help_of_every_command_explains_and_shows_examples(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"lockstep {command}" in text.partition("examples:")[2]
    assert max(map(len, text.splitlines())) <= 80


def test_help_names_every_command_and_where_to_start(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for command in ("demo", "broker", "checkpoints", "packages", "start here"):
        assert command in text


def test_version_is_that_of_the_distribution(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("spark-lockstep ")


# --- wrong input ------------------------------------------------------------------------------------------------------


def test_no_command_and_an_unknown_command_are_usage_errors(capsys: Capture) -> None:
    assert "COMMAND" in usage_error(capsys)
    assert "invalid choice" in usage_error(capsys, "dmeo")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--rows", "many"], "'many' is not a whole number"),
        (["demo", "--rows", "0"], "at least 1"),
        (["demo", "--kills", "-1"], "at least 0"),
        (["broker", "--port", "70000"], "not a port"),
        (["broker", "--heap", "lots"], "512m"),
        (["broker", "--topic", "orders:none"], "orders:3"),
        (["broker", "--topic", "a b"], "letters"),
        (["checkpoints", "dir", "newest"], "not a whole number"),
    ],
)
def test_a_wrong_argument_is_named_with_what_would_be_right(arguments: list[str], said: str, capsys: Capture) -> None:
    assert said in usage_error(capsys, *arguments)


def test_a_topic_is_a_name_with_or_without_partitions() -> None:
    assert parse_topic("orders:3") == Topic("orders", 3)
    assert parse_topic("orders") == Topic("orders", None)
    with pytest.raises(argparse.ArgumentTypeError):
        parse_topic("orders:")


def test_demo_refuses_fewer_rows_than_its_kills_need(capsys: Capture, tmp_path: Path) -> None:
    out = str(tmp_path / "demo.json")
    assert "at least 300" in refused(capsys, "demo", "--rows", "50", "--kills", "2", "--out", out)


def test_demo_refuses_a_directory_that_is_in_use(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    out = str(tmp_path / "demo.json")
    assert "not empty" in refused(capsys, "demo", "--keep", str(tmp_path), "--out", out)
    assert (tmp_path / "mine").read_text() == "precious"


def test_demo_finds_out_first_that_its_report_cannot_be_written(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--out" in refused(capsys, "demo", "--out", str(tmp_path / "file" / "demo.json"))


def test_demo_without_its_extra_says_what_to_install(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_EXTRA", {"no_such_module": "confluent-kafka"})
    said = refused(capsys, "demo")
    assert "confluent-kafka" in said
    assert "pip install 'spark-lockstep[demo]'" in said


@pytest.mark.parametrize("command", ["demo", "broker"])
def test_without_java_the_remedy_is_said(
    command: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main([command]) == 2
    assert "install Java 17" in capsys.readouterr().err


# --- packages ---------------------------------------------------------------------------------------------------------


def test_packages_are_one_word_for_the_shell(capsys: Capture) -> None:
    assert main(["packages"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert " " not in line
    assert "io.delta:delta-spark" in line
    assert "org.apache.spark:spark-sql-kafka" in line


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_listed_with_what_is_committed_and_what_is_pending(directory: Path, capsys: Capture) -> None:
    assert main(["checkpoints", str(directory)]) == 0
    text = capsys.readouterr().out
    assert LINEAGE in text
    assert "Kafka topics orders at broker:9092" in text
    assert "lake: Delta table /lake/orders" in text
    assert "decided up to 2, 3 begun" in text
    listed = [line.split()[:2] for line in text.splitlines() if "checkpoint  " in line]
    assert listed == [["0", "committed"], ["1", "committed"], ["2", "completed"]]
    assert "lake: version 2, 150 rows" in text
    assert "750 ms" in text
    (second,) = [line for line in text.splitlines() if "2-1-abc" in line]
    (third,) = [line for line in text.splitlines() if "3-1-abc" in line]
    assert "to be committed" in second
    assert "run again" in third


def test_one_checkpoint_is_shown_with_its_positions_and_reports(directory: Path, capsys: Capture) -> None:
    assert main(["checkpoints", str(directory), "1"]) == 0
    text = capsys.readouterr().out
    for shown in ("orders-0", "200", "orders-1", "100", "2.0 kB", "write_ms 700", "version 2", "1-1-abc", "900 ms"):
        assert shown in text


def test_json_tells_all_of_it(directory: Path, capsys: Capture) -> None:
    assert main(["checkpoints", str(directory), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["lineage"]["id"] == LINEAGE
    assert (told["planned_epoch"], told["decided_epoch"]) == (3, 2)
    assert [one["id"] for one in told["checkpoints"]] == [0, 1, 2]
    assert [(one["epoch"], one["token"], one["decided"]) for one in told["pending"]] == [(2, 1, True), (3, 1, False)]


def test_json_of_one_checkpoint_is_what_is_stored(directory: Path, capsys: Capture) -> None:
    assert main(["checkpoints", str(directory), "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(completed(1).to_json()))


def test_reading_changes_nothing(directory: Path, capsys: Capture) -> None:
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    main(["checkpoints", str(directory)])
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_a_new_directory_without_checkpoints_is_shown_too(tmp_path: Path, capsys: Capture) -> None:
    continue_or_begin(LocalStorage(tmp_path), Lineage(LINEAGE, BEGIN_MS))
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "No checkpoint has completed yet" in capsys.readouterr().out


def test_an_unknown_checkpoint_gets_the_list_of_those_there_are(directory: Path, capsys: Capture) -> None:
    assert "There are: 0, 1, 2." in refused(capsys, "checkpoints", str(directory), "7")


def test_what_is_no_checkpoint_directory_is_told_apart(directory: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "spark" / "offsets").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    for name, said in {
        "nowhere": "there is no directory",
        "file": "is a file",
        "empty": "not a checkpoint directory of Lockstep",
        "table": "is a Delta table",
        "spark": "not started by Lockstep",
        ".": f"Did you mean {directory}?",
    }.items():
        assert said in refused(capsys, "checkpoints", str(tmp_path / name)), name


@pytest.mark.parametrize("url", ["s3a://bucket/checkpoints", "hdfs://namenode/checkpoints", "abfss://c@a/checkpoints"])
def test_a_remote_directory_is_refused_with_the_reason(url: str, capsys: Capture) -> None:
    assert "only local directories can be read without Spark" in refused(capsys, "checkpoints", url)


def test_a_file_url_is_a_local_path(directory: Path, capsys: Capture) -> None:
    assert main(["checkpoints", directory.as_uri()]) == 0


@pytest.mark.parametrize(
    "damaged", ["lockstep/lineage", "lockstep/checkpoints/chk-1/_metadata", "lockstep/prepared/000000000002.1.*"]
)
def test_a_damaged_file_is_named_and_nothing_is_guessed(damaged: str, directory: Path, capsys: Capture) -> None:
    (path,) = directory.glob(damaged)
    path.write_bytes(path.read_bytes()[:-20])
    said = refused(capsys, "checkpoints", str(directory))
    assert str(path) in said
    assert "Restore it from a backup" in said


def test_debug_shows_where_an_error_came_from(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="not a checkpoint directory"):
        main(["checkpoints", str(tmp_path), "--debug"])


# --- the demo's decisions ---------------------------------------------------------------------------------------------

PLAN = DemoPlan(rows=600, kills=2, partitions=3, rate=100, seed=7)


NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)  # two calls may fall into different seconds


def report_on(rows: list[Order], *, offsets: bool = True) -> DemoReport:
    orders = make_orders(PLAN, NOON)
    found = compare(orders, rows)
    return DemoReport(len(orders), found, offsets, kills=2, restarts=2, epochs=9, seconds=1.0, seed=7)


def test_the_demo_is_content_only_with_every_order_exactly_once() -> None:
    rows = make_orders(PLAN, NOON)
    report = report_on(list(reversed(rows)))
    assert report.exactly_once
    assert report.to_json()["missing"] == report.to_json()["duplicated"] == 0


def test_the_demo_sees_missing_and_duplicated_rows_that_cancel_out() -> None:
    rows = make_orders(PLAN, NOON)
    report = report_on([*rows[:-2], rows[5], rows[5]])
    assert report.comparison.rows_out == len(rows)
    assert (report.comparison.missing, report.comparison.duplicated) == (2, 2)
    assert not report.exactly_once
    assert "duplicated: 5" in report.comparison.examples


def test_the_demo_sees_rows_that_were_never_sent_or_were_altered() -> None:
    rows = make_orders(PLAN, NOON)
    found = report_on([*rows[1:], rows[0]._replace(amount=0.0), rows[0]._replace(order_id=-1)])
    assert (found.comparison.unexpected, found.comparison.altered) == (1, 1)
    assert not found.exactly_once


def test_the_demo_sees_a_consumer_group_that_is_not_at_the_end() -> None:
    assert offsets_match({0: 10, 1: 5}, {0: 10, 1: 5, 2: 0})
    assert not offsets_match({0: 10, 1: 4}, {0: 10, 1: 5})
    assert not offsets_match({}, {0: 1})
    assert not report_on(make_orders(PLAN, NOON), offsets=False).exactly_once


def test_a_seed_gives_the_same_orders_and_kills_again() -> None:
    assert [order[:3] for order in make_orders(PLAN)] == [order[:3] for order in make_orders(PLAN)]
    assert kills_of(PLAN) == kills_of(PLAN)
    assert kills_of(PLAN) != kills_of(replace(PLAN, seed=8))


def test_every_kill_comes_after_decided_epochs_and_before_the_orders_run_out() -> None:
    for seed in range(50):
        moments = kills_of(replace(PLAN, seed=seed))
        assert len(moments) == PLAN.kills
        for epochs, _ in moments:
            assert 1 <= epochs < PLAN.rows_until(0) // PLAN.rows_per_epoch


def kills_of(plan: DemoPlan) -> list[tuple[int, int]]:
    """Epochs decided and milliseconds gone, in each life, at the moment of its kill; an epoch takes half a second."""
    schedule = KillSchedule(plan)
    kills, decided = [], -1
    while not schedule.done:
        schedule.life_begins(decided)
        before, millis = decided, 0
        while not schedule.due(decided, millis / 1000):
            millis += 10
            decided += millis % 500 == 0
        kills.append((decided - before, millis))
    return kills


def test_without_kills_nothing_is_killed() -> None:
    schedule = KillSchedule(replace(PLAN, kills=0))
    schedule.life_begins(-1)
    assert schedule.done
    assert not schedule.due(1000, 1000.0)


def test_orders_are_kept_for_the_lives_to_come() -> None:
    assert [PLAN.rows_until(life) for life in range(PLAN.lives)] == [200, 400, 600]
