"""``lockstep broker``: a Kafka broker in the foreground."""

from __future__ import annotations

import argparse
import os
import re
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from lockstep.broker import EmbeddedBroker
from lockstep.cli.terminal import at_least, command, console, interruptible
from lockstep.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from rich.console import Console

    from lockstep.cli.terminal import Commands

_HIGHEST_PORT = 65535
_POLL_SECONDS = 0.5
_TAIL_LINES = 20

_DESCRIPTION = """\
Run a real Kafka broker on this machine, in the foreground, until Ctrl-C or
SIGTERM. It needs Java 17, and a network for its first use only, to fetch
Kafka's jars. It listens on the loopback interface, and forgets its records at
the end."""

_EXAMPLES = """\
  lockstep broker                                     a free port, no topics
  lockstep broker --port 9092 --topic orders:3
  lockstep broker --topic orders:3 --topic refunds    as many as you like"""


class Topic(NamedTuple):
    """A topic to create; without a number of partitions, it gets the broker's."""

    name: str
    partitions: int | None


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "broker",
        run,
        summary="run a Kafka broker on this machine, to try things with",
        description=_DESCRIPTION,
        examples=_EXAMPLES,
    )
    parser.add_argument("--port", type=_port, help="where to listen (default: a free port)")
    parser.add_argument(
        "--heap", type=_heap, default="512m", help="the most memory for its heap (default: %(default)s)"
    )
    parser.add_argument(
        "--partitions", type=at_least(1), default=1, metavar="N", help="of topics that don't say (default: %(default)s)"
    )
    parser.add_argument(
        "--topic",
        type=parse_topic,
        action="append",
        default=[],
        dest="topics",
        metavar="NAME[:PARTITIONS]",
        help="create this topic; may be given several times",
    )


def parse_topic(text: str) -> Topic:
    name, colon, number = text.partition(":")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", name) or name in (".", ".."):
        raise argparse.ArgumentTypeError(f"{text!r}: a topic's name has letters, digits, '.', '_' and '-'")
    if colon and not (number.isdigit() and int(number) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: after the colon goes a number of partitions, as in {name}:3")
    return Topic(name, int(number) if colon else None)


def run(arguments: argparse.Namespace) -> int:
    screen = console()
    try:
        with interruptible(), ExitStack() as stack:
            with screen.status("Starting Kafka (its jars are fetched at the first use on a machine) …"):
                broker = EmbeddedBroker(partitions=arguments.partitions, heap=arguments.heap, port=arguments.port)
                stack.enter_context(broker)
                for topic in arguments.topics:
                    broker.create_topic(topic.name, topic.partitions)
            _announce(screen, broker, arguments.topics, arguments.partitions)
            _watch(broker)
    except KeyboardInterrupt:
        screen.print("The broker has ended, and its records are gone.")
    return 0


def _announce(screen: Console, broker: EmbeddedBroker, topics: list[Topic], partitions: int) -> None:
    screen.print(f"Kafka answers at [bold green]{broker.bootstrap_servers}[/]")
    for topic in topics:
        screen.print(f"  topic  {topic.name}, partitions: {topic.partitions or partitions}")
    screen.print(f"  log    {broker.log_file}", soft_wrap=True)
    screen.print(f"  stop   Ctrl-C, or kill {os.getpid()}")


def _watch(broker: EmbeddedBroker) -> None:
    """Until Ctrl-C, or until the broker ends by itself, which is an error."""
    while broker.pid is not None:
        time.sleep(_POLL_SECONDS)
    tail = "\n".join(broker.log_file.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
    raise EnvironmentProblemError(f"The Kafka broker has ended by itself. The end of its log may say why:\n{tail}")


def _port(text: str) -> int:
    port = at_least(1)(text)
    if port > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{port} is not a port: the highest is {_HIGHEST_PORT}")
    return port


def _heap(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[kmgKMG]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not an amount of memory that Java knows; write 512m or 1g")
    return text
