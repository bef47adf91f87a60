"""How checkpoints look on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from rich import box
from rich.filesize import decimal
from rich.table import Table

from lockstep.cli.terminal import plain
from lockstep.errors import CorruptRecordError
from lockstep.protocol.barrier import Barrier

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.cli.checkpoint_directory import CheckpointDirectory
    from lockstep.protocol.checkpoint import CompletedCheckpoint

_BYTES = "bytes"
_HIDDEN_IN_LISTS = (_BYTES, "files", "attempt")


def show_directory(screen: Console, directory: CheckpointDirectory) -> None:
    _show_lineage(screen, directory)
    _show_checkpoints(screen, directory)
    _show_records(screen, directory)


def show_checkpoint(screen: Console, directory: CheckpointDirectory, checkpoint: CompletedCheckpoint) -> None:
    facts = _facts()
    facts.add_row("checkpoint", f"[bold]{checkpoint.id}[/], {checkpoint.kind.value}, {_status(checkpoint)}")
    facts.add_row("lineage", plain(checkpoint.lineage))
    facts.add_row("triggered", _time(checkpoint.triggered_ms))
    facts.add_row("completed", _after(checkpoint.completed_ms, checkpoint.triggered_ms))
    committed = checkpoint.committed_ms
    facts.add_row("committed", "not yet" if committed is None else _after(committed, checkpoint.triggered_ms))
    facts.add_row("epochs", ", ".join(str(epoch) for epoch in sorted(checkpoint.attempts)))
    if checkpoint.phases:
        facts.add_row(
            "time",
            ", ".join(
                f"{plain(phase.replace('_', ' '))} {_seconds(spent)}" for phase, spent in checkpoint.phases.items()
            ),
        )
    if checkpoint.barrier.watermark_ms:
        facts.add_row("watermark", _time(checkpoint.barrier.watermark_ms))
    screen.print(facts)
    _show_positions(screen, directory.lineage.sources, checkpoint.barrier)
    _show_details(screen, "Reports", "participant", checkpoint.reports, {"position"})
    _show_details(screen, "Commits", "sink", checkpoint.commits, set())
    _show_details(screen, "Attempts", "epoch", {str(e): {"attempt": a} for e, a in checkpoint.attempts.items()}, set())


# --- the directory ----------------------------------------------------------------------------------------------------


def _show_lineage(screen: Console, directory: CheckpointDirectory) -> None:
    lineage = directory.lineage
    facts = _facts()
    facts.add_row("directory", plain(directory.location))
    if lineage.query_name:
        facts.add_row("query", plain(lineage.query_name))
    facts.add_row("lineage", f"{plain(lineage.id)}, since {_time(lineage.created_ms)}")
    for source in lineage.sources:
        facts.add_row("source", plain(source))
    for uid, description in sorted(lineage.sinks.items()):
        facts.add_row("sink", f"[bold]{plain(uid)}[/]: {plain(description)}")
    facts.add_row("epochs", _epochs(directory))
    screen.print(facts)


def _epochs(directory: CheckpointDirectory) -> str:
    if directory.planned < 0:
        return "none yet"
    decided = "none decided" if directory.decided < 0 else f"decided up to {directory.decided}"
    return decided if directory.planned <= directory.decided else f"{decided}, {directory.planned} begun"


def _show_checkpoints(screen: Console, directory: CheckpointDirectory) -> None:
    if not directory.checkpoints:
        screen.print("\nNo checkpoint has completed yet.")
        return
    days = {_time(checkpoint.triggered_ms)[:10] for checkpoint in directory.checkpoints}
    day = days.pop() if len(days) == 1 else ""
    table = _table()
    table.add_column("id", justify="right")
    table.add_column("status")
    table.add_column("kind")
    table.add_column(f"triggered\n{day}".strip())
    for name in ("took", "epochs", "rows", _BYTES):
        table.add_column(name, justify="right")
    table.add_column("commits")
    before = -1
    for checkpoint in directory.checkpoints:
        # One that completes before its forerunner is committed names that one's epochs too; each is shown once here.
        added, before = [epoch for epoch in checkpoint.attempts if epoch > before], checkpoint.id
        table.add_row(
            str(checkpoint.id),
            _status(checkpoint),
            checkpoint.kind.value,
            _time(checkpoint.triggered_ms)[11 if day else 0 :],
            _seconds(checkpoint.completed_ms - checkpoint.triggered_ms),
            _span(added),
            f"{_total(checkpoint, 'rows'):,}",
            decimal(_total(checkpoint, _BYTES)),
            "\n".join(f"{plain(uid)}: {_brief(details)}" for uid, details in sorted(checkpoint.commits.items())),
        )
    _show(screen, "Checkpoints", table)


def _show_records(screen: Console, directory: CheckpointDirectory) -> None:
    if not directory.records:
        screen.print("\nNo epoch is waiting for its commit.")
        return
    table = _table()
    table.add_column("epoch", justify="right")
    table.add_column("token", justify="right")
    for name in ("attempt", "prepared", "decided", "sinks"):
        table.add_column(name)
    for record in directory.records:
        decided = directory.is_decided(record)
        table.add_row(
            str(record.epoch),
            str(record.attempt.token),
            plain(record.attempt.id),
            _time(record.prepared_at_ms),
            "[yellow]yes: to be committed[/]" if decided else "no: invisible, run again",
            plain(", ".join(sorted(record.handles))),
        )
    _show(screen, "Prepared epochs", table)


# --- one checkpoint ---------------------------------------------------------------------------------------------------


def _show_positions(screen: Console, sources: tuple[str, ...], barrier: Barrier) -> None:
    table = _table()
    table.add_column("source")
    table.add_column("partition")
    table.add_column("next offset", justify="right")
    for index, position in enumerate(barrier.positions):
        source = plain(sources[index] if index < len(sources) else f"source {index}")
        for where, offset in _positions(barrier, index, position):
            table.add_row(source, plain(where), offset)
            source = ""
    _show(screen, "Barrier", table)


def _positions(barrier: Barrier, index: int, position: str | None) -> Iterable[tuple[str, str]]:
    if position is None:
        return [("nothing delivered yet", "")]
    try:
        offsets = barrier.kafka_offsets(index)
    except CorruptRecordError:  # not a Kafka source: its position is its own
        return [(position, "")]
    return [(f"{topic}-{partition}", f"{offset:,}") for (topic, partition), offset in sorted(offsets.items())]


def _show_details(
    screen: Console, title: str, name: str, details: Mapping[str, Mapping[str, Any]], without: set[str]
) -> None:
    table = _table()
    table.add_column(name)
    table.add_column("details")
    for key, values in details.items():
        shown = {field: value for field, value in values.items() if field not in without}
        if shown:
            table.add_row(plain(key), ", ".join(_field(field, value) for field, value in shown.items()))
    if table.row_count:
        _show(screen, title, table)


# --- words and numbers ------------------------------------------------------------------------------------------------


def _facts() -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    return table


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def _show(screen: Console, title: str, table: Table) -> None:
    screen.print(f"\n[bold]{title}[/]")
    screen.print(table)


def _status(checkpoint: CompletedCheckpoint) -> str:
    return "[green]committed[/]" if checkpoint.committed else "[yellow]completed[/]"


def _time(millis: int) -> str:
    try:
        return datetime.fromtimestamp(millis / 1000).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):  # rows may carry watermarks that no calendar knows
        return f"{millis} ms after 1970"


def _after(millis: int, before: int) -> str:
    return f"{_time(millis)}, after {_seconds(millis - before)}"


def _seconds(millis: int) -> str:
    return f"{millis} ms" if millis < 1000 else f"{millis / 1000:.1f} s"


def _span(epochs: Iterable[int]) -> str:
    """The epochs of a checkpoint follow one another: the first and the last tell all."""
    numbers = sorted(epochs)
    return "" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _total(checkpoint: CompletedCheckpoint, figure: str) -> int:
    figures = [report.get(figure) for report in checkpoint.reports.values()]
    return sum(number for number in figures if isinstance(number, int))


def _brief(details: Mapping[str, Any]) -> str:
    fields = sorted(
        (item for item in details.items() if item[0] not in _HIDDEN_IN_LISTS), key=lambda item: item[0] != "version"
    )
    return ", ".join(_field(name, value) for name, value in fields)


def _field(name: str, value: Any) -> str:
    if name == _BYTES and isinstance(value, int):
        return decimal(value)
    if name in ("rows", "files") and isinstance(value, int):
        return f"{value:,} {name}"
    return f"{plain(name)} {plain(str(value))}"
