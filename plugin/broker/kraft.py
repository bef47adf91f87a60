"""What a single Kafka broker in KRaft mode is configured with, and the commands that format and run it.

Nothing is started here: these are values, so that they can be looked at and tested.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

LOOPBACK = "127.0.0.1"

LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
logger.config.name = org.apache.kafka.common.config.AbstractConfig
logger.config.level = WARN
"""

SINGLE_BROKER = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # One broker holds every replica there is.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # Few partitions, threads and buffers: it starts fast and fits in a small heap.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "background.threads": "2",
    "log.cleaner.dedupe.buffer.size": "8388608",
    # A group that a test starts should not wait for more members.
    "group.initial.rebalance.delay.ms": "0",
    # A killed broker waits for its old session to end before it is back; a shorter one could end on a busy machine.
    "broker.heartbeat.interval.ms": "1000",
    "broker.session.timeout.ms": "6000",
    # A mistyped topic is an error, not a new topic.
    "auto.create.topics.enable": "false",
}


def server_properties(
    *, port: int, controller_port: int, data: Path, partitions: int, extra: Mapping[str, str]
) -> dict[str, str]:
    """The broker's configuration. ``extra`` wins over all of it."""
    return {
        **SINGLE_BROKER,
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},CONTROLLER://{LOOPBACK}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{port}",
        "controller.quorum.voters": f"1@{LOOPBACK}:{controller_port}",
        "log.dirs": str(data),
        "num.partitions": str(partitions),
        **extra,
    }


def render(properties: Mapping[str, str]) -> str:
    """The text of a Java properties file."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())


def format_command(java: Path, jars: Path, config: Path, cluster_id: str) -> list[str]:
    """Prepares the data directory. It must run once, before the broker's first start."""
    return [
        *_jvm(java, jars, "128m", temporary_files(config)),
        "-XX:TieredStopAtLevel=1",  # too short a run for the optimising compiler: half the time without it
        *("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(config)),
    ]


def run_command(java: Path, jars: Path, config: Path, log4j: Path, heap: str) -> list[str]:
    """Runs the broker in the foreground."""
    return [
        *_jvm(java, jars, heap, temporary_files(config)),
        f"-Dlog4j2.configurationFile={log4j}",
        "kafka.Kafka",
        str(config),
    ]


def temporary_files(config: Path) -> Path:
    """Where the broker with this configuration keeps what it calls temporary: one that is killed leaves libraries there."""
    return config.with_name("temporary")


def _jvm(java: Path, jars: Path, heap: str, temporary: Path) -> list[str]:
    return [
        *(str(java), f"-Xmx{heap}", "-XX:+ExitOnOutOfMemoryError", "-XX:-UsePerfData"),
        *(
            "-Djava.awt.headless=true",
            "-Djava.net.preferIPv4Stack=true",
            f"-Djava.io.tmpdir={temporary}",
            "-cp",
            f"{jars}/*",
        ),
    ]
