"""Our Kafka image, through Testcontainers, and the broker that every other integration test gets."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import docker
import pytest
from confluent_kafka.admin import AdminClient

from integration_tests.kafka_container import OUTSIDE_PORT, KafkaContainer
from integration_tests.records import consume, produce

if TYPE_CHECKING:
    from collections.abc import Iterator

    from integration_tests.conftest import Broker

pytestmark = pytest.mark.usefixtures("docker_engine")

OWNER = """
import time
from integration_tests.kafka_container import KafkaContainer
container = KafkaContainer().start()
print(container.name, flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def engine() -> Iterator[docker.DockerClient]:
    client = docker.from_env()
    yield client
    client.close()


def test_shared_broker_is_the_container(kafka: Broker) -> None:
    assert isinstance(kafka, KafkaContainer)


def test_record_goes_through(kafka: Broker, topic: str) -> None:
    produce(kafka.bootstrap_servers, topic, "hello")
    assert consume(kafka.bootstrap_servers, topic, 1) == ["hello"]


@pytest.mark.parametrize("topic", [5], indirect=True)
def test_topic_has_the_partitions_it_was_given(kafka: Broker, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5


def test_broker_is_reachable_from_this_machine_only(kafka: KafkaContainer, engine: docker.DockerClient) -> None:
    bindings = engine.containers.get(kafka.name).ports[f"{OUTSIDE_PORT}/tcp"]
    assert {binding["HostIp"] for binding in bindings} == {"127.0.0.1"}


def test_broker_does_not_run_as_root(kafka: KafkaContainer) -> None:
    assert kafka.get_wrapped_container().exec_run("id -u").output.strip() == b"10001"


def test_image_knows_when_it_is_healthy(kafka: KafkaContainer, engine: docker.DockerClient) -> None:
    deadline = time.monotonic() + 30
    while engine.containers.get(kafka.name).health != "healthy":
        assert time.monotonic() < deadline, "the container is not healthy after 30 s"
        time.sleep(0.2)


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM])
def test_no_container_is_left_when_the_test_run_dies(engine: docker.DockerClient, deadly: signal.Signals) -> None:
    root = Path(__file__).parent.parent
    script = f"import sys; sys.path.append({str(root)!r})\n{OWNER}"
    owner = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        name = owner.stdout.readline().strip()
        assert engine.containers.get(name).status == "running"
    finally:
        owner.send_signal(deadly)
        owner.communicate(timeout=30)
    deadline = time.monotonic() + 30
    while engine.containers.list(all=True, filters={"name": name}):
        assert time.monotonic() < deadline, f"container {name} is still there"
        time.sleep(0.1)
