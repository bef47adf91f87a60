"""Our Kafka image as a Testcontainers container, with the same small surface as ``EmbeddedBroker``.

A container outlives the process that started it. Testcontainers' own answer to that, Ryuk, is an image that may not be
there, so it is switched off, and a guarded process takes its place: it removes the container when the test run is gone,
also when that was killed.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, cast

import docker
from testcontainers.core.container import DockerContainer

from lockstep.broker import probe, topics
from lockstep.broker.embedded import free_ports
from lockstep.broker.guarded import GuardedProcess
from lockstep.broker.jars import KAFKA_VERSION
from lockstep.errors import EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Mapping

os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"

IMAGE = f"lockstep-kafka:{KAFKA_VERSION}"
OUTSIDE_PORT = 9094

_BUILD = Path(__file__).parent.parent / "docker" / "build.sh"
_BUILD_SECONDS = 1200
_TAIL_LINES = 30

_REAPER = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: None)
signal.pause()
import docker
try:
    docker.from_env().containers.get(sys.argv[1]).remove(force=True, v=True)
except docker.errors.APIError:
    pass
"""


def engine_answers() -> bool:
    """Whether there is a Docker engine to talk to. Asked in a process of its own: a refused client leaks its socket."""
    question = [sys.executable, "-c", "import docker; docker.from_env(timeout=5).ping()"]
    return subprocess.run(question, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def build_missing_image() -> None:
    """Build our image unless the engine has it. Test processes that run side by side build it once."""
    with open(Path(tempfile.gettempdir(), "lockstep-build-image.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _build_if_missing()


def _build_if_missing() -> None:
    client = docker.from_env()
    try:
        if client.images.list(name=IMAGE):
            return
    finally:
        client.close()
    built = subprocess.run(
        [_BUILD, "kafka"],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=_BUILD_SECONDS,
    )
    if built.returncode != 0:
        raise EnvironmentProblemError(
            f"docker/build.sh could not build {IMAGE}; where its base image cannot be pulled, run docker/engine.sh "
            f"first. It said:\n{built.stdout}{built.stderr}"
        )


class KafkaContainer(DockerContainer):
    """One Kafka broker in a container. ``start`` returns when topics can be created and written.

    The host port is chosen before the start, because a broker tells its clients the address to come back to. Like the
    embedded broker it is reachable from this machine only.
    """

    def __init__(self, *, partitions: int = 1, start_timeout: float = 60.0) -> None:
        super().__init__(IMAGE)
        self._partitions = partitions
        self._start_timeout = start_timeout
        self._host, self._port = "127.0.0.1", free_ports(1)[0]
        self._reaper: GuardedProcess | None = None
        self.with_name(f"lockstep-test-{uuid.uuid4().hex[:12]}")
        self.with_env("KAFKA_OUTSIDE", self.bootstrap_servers)
        # Docker also takes an address with the port; Testcontainers' types do not say so.
        cast("dict[str, object]", self.ports)[str(OUTSIDE_PORT)] = (self._host, self._port)

    @property
    def name(self) -> str:
        return str(self._name)

    @property
    def bootstrap_servers(self) -> str:
        return f"{self._host}:{self._port}"

    def start(self) -> KafkaContainer:
        reaper = [sys.executable, "-c", _REAPER, self.name]
        self._reaper = GuardedProcess([reaper], log=Path(os.devnull), grace=30.0)
        try:
            super().start()
            self._await_answer()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        super().stop(force, delete_volume)
        self._container = None
        reaper, self._reaper = self._reaper, None
        if reaper is not None:
            reaper.release()

    def create_topic(self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None) -> None:
        topics.create_topic(self.bootstrap_servers, name, partitions or self._partitions, config)

    def add_partitions(self, name: str, total: int) -> None:
        topics.add_partitions(self.bootstrap_servers, name, total)

    def _await_answer(self) -> None:
        container = self.get_wrapped_container()
        deadline = time.monotonic() + self._start_timeout
        while not probe.answers(self._host, self._port):
            container.reload()
            if container.status == "exited" or time.monotonic() > deadline:
                tail = container.logs(tail=_TAIL_LINES).decode(errors="replace")
                raise EnvironmentProblemError(
                    f"Kafka in container {self.name} is {container.status} and does not answer after at most "
                    f"{self._start_timeout:g} s. The end of its log may say why:\n{tail}"
                )
            time.sleep(0.1)
