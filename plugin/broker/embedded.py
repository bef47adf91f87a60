"""A real Kafka broker in a child process: one class that starts it, stops it, kills it, and starts it again."""

from __future__ import annotations

import base64
import logging
import secrets
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.broker import kraft, probe, topics
from lockstep.broker.guarded import GuardedProcess
from lockstep.broker.jars import kafka_jars
from lockstep.broker.java import require_java
from lockstep.errors import ConfigurationError, EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

logger = logging.getLogger(__name__)

_PORT_ATTEMPTS = 3
_POLL_SECONDS = 0.05
_TAIL_LINES = 30


class EmbeddedBroker:
    """One Kafka broker, in KRaft mode, for tests and demonstrations. Needs Java 17, and a network for its first use.

    Promised:

    - it listens on the loopback interface only;
    - :meth:`start` returns when topics can be created and written, or raises with the end of the broker's log;
    - the broker ends with this process, also when this one is killed with SIGKILL, and a temporary data directory is gone
      then too;
    - with a ``data_dir`` of your own, a broker that was stopped or killed comes back on the same ports with its records.

    Not promised: durability across a crash of the machine, and any security.

    Parameters
    ----------
    partitions
        How many partitions a topic gets unless told otherwise.
    heap
        The most memory for the broker's heap.
    data_dir
        Where records are kept. Left as it is at the end. By default a temporary directory, removed by :meth:`stop`.
    properties
        Server properties of your own; they win over ours.
    port, controller_port
        Fixed ports. By default free ones, chosen at the first start and kept by this object from then on.
    cluster_id
        For brokers that form a cluster by their ``properties``: the same for all. By default a new one.
    start_timeout
        How many seconds a start may take. Fetching the jars, once per machine, is not counted.

    Examples
    --------
    >>> with EmbeddedBroker() as broker:  # doctest: +SKIP
    ...     broker.create_topic("orders", partitions=4)
    ...     print(broker.bootstrap_servers)
    """

    def __init__(
        self,
        *,
        partitions: int = 1,
        heap: str = "512m",
        data_dir: str | Path | None = None,
        properties: Mapping[str, str] | None = None,
        port: int | None = None,
        controller_port: int | None = None,
        cluster_id: str | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._partitions = partitions
        self._heap = heap
        self._own_dir = Path(data_dir).resolve() if data_dir is not None else None
        self._properties = dict(properties or {})
        self._port = port
        self._controller_port = controller_port
        self._cluster_id = cluster_id
        self._start_timeout = start_timeout
        self._directory = self._own_dir
        self._process: GuardedProcess | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to. Known from the first start on."""
        if self._port is None:
            raise ConfigurationError("The broker has no address yet: start it first.")
        return f"{kraft.LOOPBACK}:{self._port}"

    @property
    def data_dir(self) -> Path:
        """The directory that holds records, configuration and log."""
        if self._directory is None:
            raise ConfigurationError("The broker has no directory yet: start it first, or give it a data_dir.")
        return self._directory

    @property
    def log_file(self) -> Path:
        """The broker's log. It is in :attr:`data_dir`, and goes with it."""
        return self.data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """The broker's process id, while it runs."""
        return self._process.pid if self._process else None

    def start(self) -> EmbeddedBroker:
        """Start the broker and return when it answers. After :meth:`kill` it continues with the same data and ports."""
        if self._process is not None and not self._process.ended:
            raise ConfigurationError(f"The broker is running already, at {self.bootstrap_servers}.")
        java, jars = require_java(), kafka_jars()
        if self._process is not None:
            self._process.release(keep=True)
            self._process = None
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="lockstep-kafka-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        try:
            self._start_on_free_ports(java, jars)
        except BaseException:
            self.stop()
            raise
        logger.info("broker answers at %s, log in %s", self.bootstrap_servers, self.log_file)
        return self

    def stop(self) -> None:
        """End the broker, and remove its data directory if it was a temporary one. May be called at any time, twice too."""
        process, self._process = self._process, None
        if process is not None:
            process.release()
        if self._own_dir is None and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)  # the guard did this already, unless it never started
        self._directory = self._own_dir

    def kill(self) -> None:
        """End the broker's JVM with SIGKILL, as a crash would. Data and ports stay for the next :meth:`start`."""
        if self._process is not None:
            self._process.kill()

    def create_topic(self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        """Create a topic and return when all its partitions can be written. Needs the ``demo`` extra."""
        topics.create_topic(self.bootstrap_servers, name, partitions or self._partitions, config)

    def add_partitions(self, name: str, total: int) -> None:
        """Widen a topic to ``total`` partitions and return when all can be written. Needs the ``demo`` extra."""
        topics.add_partitions(self.bootstrap_servers, name, total)

    def __enter__(self) -> EmbeddedBroker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_on_free_ports(self, java: Path, jars: Path) -> None:
        """Between choosing a free port and listening on it, another process may take it: then choose again."""
        port, controller_port = self._port, self._controller_port
        for given in (port, controller_port):
            if given is not None:
                _require_free(given)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            free = free_ports(2)
            self._port, self._controller_port = port or free[0], controller_port or free[1]
            written = self.log_file.stat().st_size if self.log_file.exists() else 0
            self._process = self._launch(java, jars, self._port, self._controller_port)
            if self._await_answer(self._process, self._port):
                return
            log = self.log_file.read_bytes()[written:].decode(errors="replace")
            chosen_by_us = port is None or controller_port is None
            if attempt == _PORT_ATTEMPTS or not chosen_by_us or "Address already in use" not in log:
                raise EnvironmentProblemError(self._failure(self._process.ended, log))
            self._process.release(keep=True)

    def _launch(self, java: Path, jars: Path, port: int, controller_port: int) -> GuardedProcess:
        directory = self.data_dir
        config, log4j, data = directory / "server.properties", directory / "log4j2.properties", directory / "data"
        properties = kraft.server_properties(
            port=port,
            controller_port=controller_port,
            data=data,
            partitions=self._partitions,
            extra=self._properties,
        )
        config.write_text(kraft.render(properties))
        log4j.write_text(kraft.LOG4J)
        shutil.rmtree(kraft.temporary_files(config), ignore_errors=True)
        kraft.temporary_files(config).mkdir()
        commands = [kraft.run_command(java, jars, config, log4j, self._heap)]
        if not (data / "meta.properties").exists():
            commands.insert(0, kraft.format_command(java, jars, config, self._cluster_id or new_cluster_id()))
        temporary = self._own_dir is None
        return GuardedProcess(
            commands, log=self.log_file, remove=directory if temporary else None, grace=0.0 if temporary else 10.0
        )

    def _await_answer(self, process: GuardedProcess, port: int) -> bool:
        deadline = time.monotonic() + self._start_timeout
        while time.monotonic() < deadline and not process.ended:
            if probe.answers(kraft.LOOPBACK, port):
                return True
            time.sleep(_POLL_SECONDS)
        return False

    def _failure(self, ended: bool, log: str) -> str:
        what = "ended while it was starting" if ended else f"did not answer within {self._start_timeout:g} s"
        tail = "\n".join(log.splitlines()[-_TAIL_LINES:])
        return f"The Kafka broker {what}. The end of its log may say why:\n{tail}"


def free_ports(count: int) -> list[int]:
    """Ports on the loopback interface that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((kraft.LOOPBACK, 0))
        return [int(each.getsockname()[1]) for each in sockets]


def _require_free(port: int) -> None:
    """Whoever has the port now would be taken for our broker as soon as it answers."""
    with socket.socket() as taker:
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taker.bind((kraft.LOOPBACK, port))
        except OSError as error:
            raise EnvironmentProblemError(
                f"Port {port} cannot be listened on ({error.strerror}): stop what uses it, or choose another port."
            ) from error


def new_cluster_id() -> str:
    """An id such as Kafka makes for a new cluster."""
    # Kafka's ids are 16 bytes in URL-safe base64. A fixed first byte keeps it from starting like an option, with a dash.
    return base64.urlsafe_b64encode(b"L" + secrets.token_bytes(15)).decode().rstrip("=")
