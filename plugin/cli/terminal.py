"""What all subcommands share on the terminal: consoles, help texts, checked arguments, interrupts."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]

_LEAST_PIPED_WIDTH = 120  # where nobody's window sets one, tables need not be folded into 80 columns


def console() -> Console:
    """Standard output."""
    screen = Console(highlight=False)
    if not screen.is_terminal:
        screen.width = max(screen.width, _LEAST_PIPED_WIDTH)
    return screen


def plain(text: str) -> str:
    """A text from a file, for a table: no markup of the console's, and nothing that a terminal would obey."""
    return escape("".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text))


def complain(message: str) -> None:
    """One error on standard error."""
    Console(stderr=True, highlight=False, soft_wrap=True).print("lockstep: error:", message, markup=False)


def confirmed(question: str) -> bool:
    """Asks a person; where there is none, the answer is no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


def command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    *,
    summary: str,
    description: str,
    examples: str,
) -> argparse.ArgumentParser:
    """Add a subcommand whose help ends with examples."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=description,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    # Also after the subcommand, where people type it; the default is the root's.
    parser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.set_defaults(run=run)
    return parser


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: a whole number that is not below ``least``."""

    def parse(text: str) -> int:
        try:
            number = int(text.replace("_", "").replace(",", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if number < least:
            raise argparse.ArgumentTypeError(f"{number} is too small: at least {least}")
        return number

    return parse


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the command as Ctrl-C does: by ``KeyboardInterrupt``, with time to clean up.

    Only the first one counts: an impatient second Ctrl-C would leave half of the cleaning undone. A signal that was
    ignored when the command started (``nohup``) stays ignored.
    """
    names = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    handled = [name for name in names if signal.getsignal(name) is not signal.SIG_IGN]
    before: dict[signal.Signals, Any] = {name: signal.getsignal(name) for name in handled}

    def first(number: int, frame: FrameType | None) -> None:
        for name in handled:
            signal.signal(name, signal.SIG_IGN)
        raise KeyboardInterrupt

    for name in handled:
        signal.signal(name, first)
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
