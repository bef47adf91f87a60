"""What a demo shows while it runs: two bars, one line for what happens now, and a line for everything that happened."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.spinner import Spinner
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.cli.demo_plan import DemoPlan
    from lockstep.cli.demo_report import DemoReport

_YES, _NO = "[green]✓[/]", "[bold red]✗[/]"


class DemoScreen:
    """Draws on a terminal; elsewhere only the lines of what happened are printed."""

    def __init__(self, console: Console, plan: DemoPlan) -> None:
        self._console = console
        self._begin = time.monotonic()
        self._bars = Progress(
            TextColumn("  {task.description}"), BarColumn(40), MofNCompleteColumn(), console=console, auto_refresh=False
        )
        self._sent = self._bars.add_task("orders sent to Kafka", total=plan.rows)
        self._visible = self._bars.add_task("rows in the table   ", total=plan.rows)
        self._now = Spinner("dots")
        shown = Group(Padding(self._bars, (1, 0, 0, 0)), Padding(self._now, (0, 0, 0, 2)))
        self._live = Live(shown, console=console, refresh_per_second=8, transient=True)
        kills = "1 kill" if plan.kills == 1 else f"{plan.kills} kills"
        console.print(
            f"[bold]{plan.rows:,} orders[/], {plan.rate:,} a second, from Kafka to Delta through [bold]{kills}[/] "
            f"[dim](seed {plan.seed})[/]\n"
        )

    def __enter__(self) -> DemoScreen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def say(self, what: str, text: str, style: str = "cyan") -> None:
        """Something happened."""
        self._console.print(f"[dim]{self.seconds:6.1f} s[/]  [{style}]{what:<9}[/] {text}")

    def now(self, text: str) -> None:
        """What is going on."""
        self._now.update(text=text)

    def rows(self, sent: int, visible: int) -> None:
        self._bars.update(self._sent, completed=sent)
        self._bars.update(self._visible, completed=visible)


def show_report(console: Console, report: DemoReport) -> None:
    found = report.comparison
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    table.add_row("orders in Kafka", f"{report.rows_in:,}", "")
    table.add_row("rows in the table", f"{found.rows_out:,}", _mark(found.rows_out == report.rows_in))
    table.add_row("missing", f"{found.missing:,}", _mark(not found.missing))
    table.add_row("duplicated", f"{found.duplicated:,}", _mark(not found.duplicated))
    if found.unexpected or found.altered:
        table.add_row("never sent", f"{found.unexpected:,}", _mark(not found.unexpected))
        table.add_row("altered", f"{found.altered:,}", _mark(not found.altered))
    where = "end of topic" if report.offsets_match else "elsewhere"
    table.add_row("group offsets", where, _mark(report.offsets_match))
    table.add_row("epochs", f"{report.epochs:,}", "")
    console.print()
    console.print(table)
    console.print()
    for example in found.examples:
        console.print(f"  {example}")
    kills = "one kill" if report.kills == 1 else f"{report.kills} kills"
    if report.exactly_once:
        console.print(f"[bold green]Exactly once[/], through {kills}, in {report.seconds:.0f} s.")
    else:
        console.print(f"[bold red]Not exactly once[/], after {kills}. Again with: --seed {report.seed} --keep DIR")


def _mark(good: bool) -> str:
    return _YES if good else _NO
