"""One broker, or three with replication. Drivers reach them through a network that can be cut; everybody else directly."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from confluent_kafka.admin import AdminClient, NewTopic

from integration_tests.chaos.proxy import Network
from lockstep.broker import EmbeddedBroker
from lockstep.broker.embedded import free_ports, new_cluster_id

LOOPBACK = "127.0.0.1"


class Cluster:
    """Brokers that can be killed, paused and cut off. Data survives; ports stay."""

    def __init__(self, brokers: int, directory: Path) -> None:
        self.size = brokers
        self.network = Network()
        direct, control, inner, outer = (free_ports(4 * brokers)[i::4] for i in range(4))
        self.bootstrap_servers = ",".join(f"{LOOPBACK}:{port}" for port in direct)
        self.servers_of_drivers = ",".join(f"{LOOPBACK}:{port}" for port in outer)
        voters = ",".join(f"{number + 1}@{LOOPBACK}:{port}" for number, port in enumerate(control))
        cluster_id = new_cluster_id()
        self._brokers = []
        for number in range(brokers):
            listeners = {"PLAINTEXT": direct[number], "DRIVERS": inner[number], "CONTROLLER": control[number]}
            seen_as = {"PLAINTEXT": direct[number], "DRIVERS": outer[number]}
            self.network.relay(outer[number], inner[number])
            self._brokers.append(
                EmbeddedBroker(
                    heap="320m",
                    data_dir=Path(tempfile.mkdtemp(dir=directory, prefix=f"broker-{number}-")),
                    port=direct[number],
                    controller_port=control[number],
                    cluster_id=cluster_id,
                    start_timeout=120,
                    properties={
                        "node.id": str(number + 1),
                        "controller.quorum.voters": voters,
                        "listeners": _urls(listeners),
                        "advertised.listeners": _urls(seen_as),
                        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in listeners),
                        "inter.broker.listener.name": "PLAINTEXT",
                        **_replicated(brokers),
                    },
                )
            )

    def __enter__(self) -> Cluster:
        with ThreadPoolExecutor(self.size) as pool:  # the first answers when a majority is there
            list(pool.map(lambda broker: broker.start(), self._brokers))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in range(self.size):
            self.resume(number)
        for broker in self._brokers:
            with contextlib.suppress(Exception):
                broker.kill()
            broker.stop()
        self.network.close()

    def create_topic(self, name: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers})
        topic = NewTopic(name, num_partitions=partitions, replication_factor=self.size)
        admin.create_topics([topic], operation_timeout=60)[name].result()

    def kill(self, numbers: list[int]) -> None:
        for number in numbers:
            self._brokers[number].kill()

    def start(self, numbers: list[int]) -> None:
        with ThreadPoolExecutor(len(numbers)) as pool:
            list(pool.map(lambda number: self._brokers[number].start(), numbers))

    def pause(self, number: int) -> None:
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        pid = self._brokers[number].pid
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)


def _urls(listeners: dict[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())


def _replicated(brokers: int) -> dict[str, str]:
    replicas, in_sync = str(brokers), str(brokers // 2 + 1)
    return {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
    }
