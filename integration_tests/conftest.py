"""The broker that integration tests share: from Testcontainers where Docker answers, embedded otherwise.

With ``CI=true`` or ``LOCKSTEP_REQUIRE_DOCKER=1`` a missing Docker engine is a failure; nothing is skipped then.
"""

from __future__ import annotations

import os
import shutil
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pytest

from integration_tests import clients
from integration_tests.crash_site import CrashSite
from integration_tests.kafka_container import KafkaContainer, build_missing_image, engine_answers
from integration_tests.postgres import PostgresServer
from integration_tests.sessions import shared_session
from integration_tests.targets import Targets
from lockstep.broker import EmbeddedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

DEFAULT_PARTITIONS = 2


@pytest.fixture(autouse=True)
def clients_are_closed() -> Iterator[None]:
    """What a test has opened, it leaves closed."""
    yield
    clients.close_all()
    assert clients.open_files() < clients.MOST_OPEN_FILES, "tests leave too many files open"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """One Spark session for the whole run; its JVM ends with the process."""
    return shared_session(tmp_path_factory.mktemp("warehouse"))


class Broker(Protocol):
    """What a test may ask of its broker, whichever it got."""

    @property
    def bootstrap_servers(self) -> str: ...

    def create_topic(
        self, name: str, partitions: int | None = None, config: Mapping[str, str] | None = None
    ) -> None: ...

    def add_partitions(self, name: str, total: int) -> None: ...


class MakeTopic(Protocol):
    """Creates a topic that no other test has, and returns its name."""

    def __call__(self, partitions: int = DEFAULT_PARTITIONS, config: Mapping[str, str] | None = None) -> str: ...


def docker_is_required() -> bool:
    return any(os.environ.get(name, "").lower() in ("1", "true") for name in ("LOCKSTEP_REQUIRE_DOCKER", "CI"))


def docker_is_there() -> bool:
    """Whether to use Docker. Fails where Docker must be there and is not."""
    if engine_answers():
        build_missing_image()
        return True
    if docker_is_required():
        pytest.fail("A Docker engine is required here and none answers. Run docker/engine.sh, or start Docker.")
    return False


@pytest.fixture(scope="session")
def docker_engine() -> None:
    """For tests of Docker itself: without an engine they fail where it is required, and are skipped elsewhere."""
    if not docker_is_there():
        pytest.skip("no Docker engine answers; docker/engine.sh starts one")


@pytest.fixture(scope="session")
def kafka() -> Iterator[Broker]:
    """One broker for the whole run. Take topics from ``topic`` or ``make_topic``, so that tests stay apart."""
    broker: KafkaContainer | EmbeddedBroker
    broker = KafkaContainer() if docker_is_there() else EmbeddedBroker()
    with broker:
        yield broker


@pytest.fixture(scope="session")
def make_topic(kafka: Broker) -> MakeTopic:
    def make(partitions: int = DEFAULT_PARTITIONS, config: Mapping[str, str] | None = None) -> str:
        name = f"topic-{uuid.uuid4().hex[:12]}"
        kafka.create_topic(name, partitions, config)
        return name

    return make


@pytest.fixture
def topic(request: pytest.FixtureRequest, make_topic: MakeTopic) -> str:
    """A fresh topic. ``@pytest.mark.parametrize("topic", [5], indirect=True)`` gives it five partitions."""
    return make_topic(getattr(request, "param", DEFAULT_PARTITIONS))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One server for the whole run. Give tables names of their own."""
    with PostgresServer() as server:
        yield server


@pytest.fixture
def site(tmp_path: Path, kafka: Broker, make_topic: MakeTopic) -> Iterator[CrashSite]:
    """A topic of two partitions, a table and a checkpoint directory."""
    site = CrashSite(tmp_path, kafka.bootstrap_servers, make_topic(2))
    yield site
    shutil.rmtree(site.temporary, ignore_errors=True)


@pytest.fixture
def crossing(tmp_path: Path, kafka: Broker, make_topic: MakeTopic, postgres: PostgresServer) -> Iterator[CrashSite]:
    """The same with keyed state and four sinks, for drivers that die."""
    servers = kafka.bootstrap_servers
    rows = f"rows_{uuid.uuid4().hex[:8]}"
    targets = Targets(str(tmp_path / "table"), str(tmp_path / "files"), servers, make_topic(1), postgres, rows)
    targets.create()
    site = CrashSite(tmp_path, servers, make_topic(2), targets)
    yield site
    shutil.rmtree(site.temporary, ignore_errors=True)
