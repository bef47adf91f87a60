"""The broker that comes with the package: a real one, in a JVM of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from integration_tests.records import consume, produce
from lockstep.broker import EmbeddedBroker
from lockstep.errors import ConfigurationError, EnvironmentProblemError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OWNER = """
import sys, time
from lockstep.broker import EmbeddedBroker
broker = EmbeddedBroker().start()
print(broker.pid, broker.data_dir, flush=True)
time.sleep(600)
"""

LISTEN = "0A"
LINUX_ONLY = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def listening_addresses(pid: int) -> set[str]:
    """The addresses, in the kernel's hexadecimal form, on which a process accepts connections."""
    links = [descriptor for descriptor in Path(f"/proc/{pid}/fd").iterdir() if descriptor.is_symlink()]
    inodes = {os.readlink(link).removeprefix("socket:[").rstrip("]") for link in links}
    rows = [
        row.split()
        for table in ("tcp", "tcp6")
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == LISTEN and row[9] in inodes}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(partitions=2) as started:
        yield started


def test_record_goes_through(broker: EmbeddedBroker) -> None:
    broker.create_topic("through")
    produce(broker.bootstrap_servers, "through", "hello")
    assert consume(broker.bootstrap_servers, "through", 1) == ["hello"]


def test_topics_have_the_partitions_they_were_given(broker: EmbeddedBroker) -> None:
    broker.create_topic("default")
    broker.create_topic("wide", partitions=3)
    broker.add_partitions("wide", 5)
    found = AdminClient({"bootstrap.servers": broker.bootstrap_servers}).list_topics(timeout=10).topics
    assert (len(found["default"].partitions), len(found["wide"].partitions)) == (2, 5)


def test_topic_that_exists_is_not_created_again(broker: EmbeddedBroker) -> None:
    broker.create_topic("once")
    with pytest.raises(ConfigurationError, match="topic 'once' could not be created"):
        broker.create_topic("once")


@LINUX_ONLY
def test_only_the_loopback_interface_is_listened_on(broker: EmbeddedBroker) -> None:
    assert broker.pid is not None
    assert listening_addresses(broker.pid) == {"0100007F"}


def test_two_brokers_run_side_by_side(broker: EmbeddedBroker) -> None:
    with EmbeddedBroker() as other:
        assert other.bootstrap_servers != broker.bootstrap_servers
        other.create_topic("theirs")
        produce(other.bootstrap_servers, "theirs", "one")
        assert consume(other.bootstrap_servers, "theirs", 1) == ["one"]
        directory = other.data_dir
    assert not directory.exists()


def test_records_are_there_after_stop_and_start(tmp_path: Path) -> None:
    first = EmbeddedBroker(data_dir=tmp_path).start()
    try:
        address = first.bootstrap_servers
        first.create_topic("kept")
        produce(address, "kept", "one")
    finally:
        first.stop()
    with EmbeddedBroker(data_dir=tmp_path, port=int(address.split(":")[1])) as second:
        assert second.bootstrap_servers == address
        produce(address, "kept", "two")
        assert consume(address, "kept", 2) == ["one", "two"]


def test_records_and_ports_are_there_after_a_crash() -> None:
    with EmbeddedBroker() as broker:
        address, directory = broker.bootstrap_servers, broker.data_dir
        broker.create_topic("kept")
        produce(address, "kept", "one")
        broker.kill()
        assert broker.pid is None
        broker.start()
        assert broker.bootstrap_servers == address
        assert consume(address, "kept", 1) == ["one"]
    assert not directory.exists()


@pytest.mark.parametrize("deadly", [signal.SIGKILL, signal.SIGTERM])
def test_broker_and_its_directory_go_with_their_owner(deadly: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        assert is_running(int(pid))
        assert Path(directory).is_dir()
    finally:
        owner.send_signal(deadly)
        owner.communicate(timeout=30)
    wait_until(lambda: not is_running(int(pid)) and not Path(directory).exists())


@LINUX_ONLY
def test_broker_goes_with_its_guard() -> None:
    with EmbeddedBroker() as broker:
        pid = broker.pid
        assert pid is not None
        guard = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: not is_running(pid))
        directory = broker.data_dir
    assert not directory.exists()


def test_start_that_fails_shows_the_end_of_the_log_and_leaves_nothing() -> None:
    broker = EmbeddedBroker(properties={"process.roles": "nonsense"})
    with pytest.raises(EnvironmentProblemError, match=r"(?s)ended while it was starting.*nonsense"):
        broker.start()
    assert broker.pid is None


def test_port_of_another_broker_is_refused(broker: EmbeddedBroker) -> None:
    taken = int(broker.bootstrap_servers.split(":")[1])
    with pytest.raises(EnvironmentProblemError, match=f"Port {taken} cannot be listened on"):
        EmbeddedBroker(port=taken).start()
