"""What a job is told, and the environment it runs in: settings at Flink's best that both jobs share."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import StreamTableEnvironment

PARALLELISM = 2


@dataclass(frozen=True)
class Order:
    """One run: all rows of a topic, checkpoints and results in a directory. ``client`` are settings of Kafka's consumer."""

    servers: str
    topic: str
    directory: str
    checkpoint_seconds: float
    client: Mapping[str, str]

    def path(self, name: str) -> str:
        return str(Path(self.directory, name))

    def environment(self, settings: Mapping[str, str]) -> StreamTableEnvironment:
        """A mini-cluster of this JVM: exactly-once, state on the heap, records handed on without a copy."""
        configuration = Configuration()
        wanted = {
            "parallelism.default": str(PARALLELISM),
            "taskmanager.numberOfTaskSlots": str(PARALLELISM),
            "taskmanager.memory.managed.size": "512m",
            "taskmanager.memory.network.min": "256m",
            "taskmanager.memory.network.max": "256m",
            "execution.checkpointing.mode": "EXACTLY_ONCE",
            "execution.checkpointing.interval": f"{self.checkpoint_seconds * 1000:.0f} ms",
            "execution.checkpointing.storage": "filesystem",
            "execution.checkpointing.dir": Path(self.path("checkpoints")).as_uri(),
            "state.backend.type": "hashmap",
            "restart-strategy.type": "disable",  # a benchmark that fails must not look slow instead
            "pipeline.object-reuse": "true",
            "python.executable": sys.executable,
            "python.client.executable": sys.executable,
            **settings,
        }
        for name, setting in wanted.items():
            configuration.set_string(name, setting)
        return StreamTableEnvironment.create(StreamExecutionEnvironment.get_execution_environment(configuration))

    def topic_table(self, columns: str, formats: Mapping[str, str]) -> str:
        """The topic as table ``rows``, as it is at the start: from its first row to the last one that is there then."""
        kafka = {
            "connector": "kafka",
            "topic": self.topic,
            "properties.bootstrap.servers": self.servers,
            "scan.startup.mode": "earliest-offset",
            "scan.bounded.mode": "latest-offset",
            **{f"properties.{name}": setting for name, setting in self.client.items()},
        }
        return create_table("rows", columns, kafka | formats)


def create_table(name: str, columns: str, options: Mapping[str, str]) -> str:
    given = ", ".join(f"'{option}' = '{setting}'" for option, setting in options.items())
    return f"CREATE TABLE `{name}` ({columns}) WITH ({given})"
