"""Offsets committed for queries with Spark's own sinks, seen by kafka-python; and security settings, on a real broker."""

from __future__ import annotations

import json
import logging
import socket
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import admin as confluent_admin
from kafka import KafkaConsumer
from pyspark.sql import SparkSession

from integration_tests.native_sink import Run, eventually, observed, produce
from lockstep.broker import EmbeddedBroker
from lockstep.errors import ConfigurationError
from lockstep.protocol.barrier import TopicPartition
from lockstep.sources import KafkaSource, OffsetCommitListener, OffsetCommitMode
from lockstep.sources.kafka_admin import KafkaAdmin
from lockstep.sources.plan import stream_sources

if TYPE_CHECKING:
    from integration_tests.conftest import Broker

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),  # sockets of pyspark's collect()
    pytest.mark.filterwarnings("ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning"),
]

PASSWORD = "correct-horse-battery"
JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    return Run(spark, tmp_path)


@pytest.fixture
def listener(spark: SparkSession) -> Iterator[OffsetCommitListener]:
    listening = OffsetCommitListener(spark)
    spark.streams.addListener(listening)
    yield listening
    spark.streams.removeListener(listening)


def test_listener_commits_finished_batches_of_spark_s_own_sinks(
    spark: SparkSession, kafka: Broker, topic: str, group: str, run: Run, listener: OffsetCommitListener
) -> None:
    servers = kafka.bootstrap_servers
    produce(servers, topic, 0, "a", "b", "c")
    source = KafkaSource(servers, topic, group_id=group)
    run.to_the_end(source.load(spark))
    expected = {TopicPartition(topic, 0): 3, TopicPartition(topic, 1): 0}
    eventually(lambda: observed(servers, group) == expected)
    query = run.start(source.load(spark), processingTime="200 milliseconds")
    try:
        produce(servers, topic, 1, "d")
        eventually(lambda: observed(servers, group) == {**expected, TopicPartition(topic, 1): 1})
    finally:
        query.stop()
    assert run.values() == {"a", "b", "c", "d"}
    assert listener.metrics()["commits_failed"] == 0


def test_listener_takes_the_group_of_a_plain_stream_from_its_options_and_obeys_the_commit_mode(
    spark: SparkSession, kafka: Broker, topic: str, group: str, tmp_path: Path, listener: OffsetCommitListener
) -> None:
    servers = kafka.bootstrap_servers
    produce(servers, topic, 0, "a", "b")
    plain = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    plain = plain.option("startingOffsets", "earliest")
    disabled = KafkaSource(servers, topic, group_id=f"{group}-off", commit_mode=OffsetCommitMode.DISABLED)
    Run(spark, tmp_path / "off").to_the_end(disabled.load(spark))
    Run(spark, tmp_path / "none").to_the_end(plain.load())
    Run(spark, tmp_path / "on").to_the_end(plain.option("lockstep.group.id", group).load())
    assert listener.flush(20)
    eventually(lambda: observed(servers, group) == {TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0})
    assert observed(servers, f"{group}-off") == {}


def test_listener_follows_a_query_that_ran_before_it_and_lets_go_when_the_query_ends(
    spark: SparkSession, kafka: Broker, topic: str, group: str, run: Run
) -> None:
    servers = kafka.bootstrap_servers
    produce(servers, topic, 0, "a")
    query = run.start(KafkaSource(servers, topic, group_id=group).load(spark), processingTime="200 milliseconds")
    late = OffsetCommitListener(spark)
    spark.streams.addListener(late)
    try:
        eventually(lambda: run.values() == {"a"})
        produce(servers, topic, 0, "b")
        eventually(lambda: observed(servers, group).get(TopicPartition(topic, 0)) == 2)
    finally:
        spark.streams.removeListener(late)
        query.stop()
    eventually(lambda: not any(thread.name.endswith(str(query.id)) for thread in threading.enumerate()))


def test_refused_commit_is_a_warning_and_is_tried_again_when_idle(
    spark: SparkSession,
    kafka: Broker,
    topic: str,
    group: str,
    run: Run,
    listener: OffsetCommitListener,
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = kafka.bootstrap_servers
    member = KafkaConsumer(topic, bootstrap_servers=servers, group_id=group, enable_auto_commit=False)
    member.poll(timeout_ms=3000)  # joins: while a group has members, a broker takes offsets from them alone
    produce(servers, topic, 0, "a")
    query = run.start(KafkaSource(servers, topic, group_id=group).load(spark), processingTime="200 milliseconds")
    try:
        with caplog.at_level(logging.WARNING):
            eventually(lambda: listener.metrics()["commits_failed"] > 0)
        assert "active members" in caplog.text
        assert query.isActive
        member.close()
        eventually(lambda: observed(servers, group) == {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0})
    finally:
        query.stop()


@pytest.fixture(scope="module")
def sasl_broker() -> Iterator[tuple[EmbeddedBroker, str]]:
    """A broker with a second listener that asks for a user and a password; and that listener's address."""
    with socket.socket() as one, socket.socket() as two, socket.socket() as three:
        for each in (one, two, three):
            each.bind(("127.0.0.1", 0))
        port, controller, secure = (each.getsockname()[1] for each in (one, two, three))
    address = "127.0.0.1"
    properties = {
        "listeners": f"PLAINTEXT://{address}:{port},CONTROLLER://{address}:{controller},SASL_PLAINTEXT://{address}:{secure}",
        "advertised.listeners": f"PLAINTEXT://{address}:{port},SASL_PLAINTEXT://{address}:{secure}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:ANONYMOUS",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{JAAS} user_etl="{PASSWORD}";',
    }
    with EmbeddedBroker(heap="256m", properties=properties, port=port, controller_port=controller) as broker:
        yield broker, f"{address}:{secure}"


def as_etl(password: str = PASSWORD) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.jaas.config": f'{JAAS} username="etl" password="{password}";',
    }


def deny(broker: EmbeddedBroker, kind: str, name: str) -> None:
    acls: Any = confluent_admin
    literal, read, denied = acls.ResourcePatternType.LITERAL, acls.AclOperation.READ, acls.AclPermissionType.DENY
    acl = acls.AclBinding(acls.ResourceType[kind], name, literal, "User:etl", "*", read, denied)
    admin = acls.AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_acls([acl]).values():
        future.result(30)


def test_missing_permission_is_an_error_that_names_the_group_or_topic_and_the_acl(
    spark: SparkSession, sasl_broker: tuple[EmbeddedBroker, str]
) -> None:
    broker, secure = sasl_broker
    broker.create_topic("open", 1)
    broker.create_topic("closed", 1)
    deny(broker, "GROUP", "forbidden-group")
    deny(broker, "TOPIC", "closed")
    settings = {key.removeprefix("kafka."): value for key, value in as_etl().items()}
    with KafkaAdmin(spark, {"bootstrap.servers": secure, **settings}) as admin:
        with pytest.raises(ConfigurationError, match=r"ACL.*READ on GROUP forbidden-group"):
            admin.commit_group_offsets("forbidden-group", {TopicPartition("open", 0): 0})
        with pytest.raises(ConfigurationError, match=r"ACL.*READ on TOPIC closed"):
            admin.commit_group_offsets("allowed-group", {TopicPartition("closed", 0): 0})
        admin.commit_group_offsets("allowed-group", {TopicPartition("open", 0): 0})


@pytest.fixture
def spark_log(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """A file with all that Spark's JVM logs at INFO during the test."""
    jvm: Any = spark._jvm
    path = tmp_path / "spark.log"
    core = jvm.org.apache.logging.log4j.core
    builder = (
        core.appender.FileAppender.newBuilder().setName(path.name).withFileName(str(path)).withImmediateFlush(True)
    )
    appender = builder.setLayout(core.layout.PatternLayout.createDefaultLayout()).build()
    appender.start()
    context = jvm.org.apache.logging.log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    level = root.getLevel()
    root.addAppender(appender, jvm.org.apache.logging.log4j.Level.INFO, None)
    root.setLevel(jvm.org.apache.logging.log4j.Level.INFO)
    context.updateLoggers()
    yield path
    root.removeAppender(path.name)
    root.setLevel(level)
    context.updateLoggers()
    appender.stop()


def test_security_settings_reach_source_and_committer_and_the_password_is_nowhere(
    spark: SparkSession,
    sasl_broker: tuple[EmbeddedBroker, str],
    group: str,
    run: Run,
    listener: OffsetCommitListener,
    spark_log: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker, secure = sasl_broker
    broker.create_topic("secured", 1)
    produce(broker.bootstrap_servers, "secured", 0, "a", "b")
    with caplog.at_level(logging.DEBUG, logger="lockstep"):
        source = KafkaSource(secure, "secured", group_id=group, options=as_etl())
        frame = source.load(spark)
        assert run.to_the_end(frame) == {"a", "b"}
        eventually(lambda: observed(broker.bootstrap_servers, group) == {TopicPartition("secured", 0): 2})
        with pytest.raises(ConfigurationError, match="refused the credentials") as refused:
            KafkaSource(secure, "secured", options=as_etl(f"{PASSWORD}-wrong")).load(spark)
        wrong_syntax = {**as_etl(), "kafka.sasl.jaas.config": f"{JAAS} password={PASSWORD}"}
        with pytest.raises(ConfigurationError, match=r"sasl\.jaas\.config") as unreadable:
            KafkaSource(secure, "secured", options=wrong_syntax).load(spark)
    assert "SASL_PLAINTEXT" in spark_log.read_text(), "the client's settings are logged by Kafka itself"
    shown = [caplog.text, spark_log.read_text(), repr(source), repr(stream_sources(frame)), str(frame)]
    shown += [str(refused.value), str(unreadable.value), json.dumps(listener.metrics())]
    assert not any(PASSWORD in text for text in shown)
