"""The one place that talks to Kafka brokers: the Java AdminClient, in the driver's JVM.

It is the client that Spark's own source uses, with the source's own ``kafka.*`` settings, so that whatever connects the
source (SASL, TLS, OAuth handlers, …) connects this too, and no second client library is needed.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from lockstep.engine.jvm import jvm_of
from lockstep.engine.session import require_classic
from lockstep.errors import (
    BrokerUnreachableError,
    ConfigurationError,
    EnvironmentProblemError,
    LockstepError,
    UnknownTopicError,
)
from lockstep.protocol.barrier import TopicPartition
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.startup import HeldOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_TIMEOUT_MS = 15_000
_REQUEST_TIMEOUT_MS = 10_000
_POLL_SECONDS = 0.1
_GRACE_MS = 5_000  # Kafka's own timeout comes first; this one is for a client that hangs
_ERRORS = "org.apache.kafka.common.errors."
JAVA_ERRORS = (Py4JJavaError, PySparkException)  # PySpark turns some Java exceptions into its own
_REFUSED = {
    "SaslAuthenticationException",
    "SslAuthenticationException",
    "AuthenticationException",
    "IllegalSaslStateException",
    "UnsupportedSaslMechanismException",
    "ClusterAuthorizationException",
}
_UNREACHABLE = {"TimeoutException", "DisconnectException", "BrokerNotAvailableException", "NetworkException"}


class KafkaAdmin:
    """Looks at topics and offsets, and commits group offsets. Every call ends within a bounded time.

    Connects at the first call. The bound is 15 seconds, or the user's ``default.api.timeout.ms``. May be used from any
    thread, by one at a time. Close it: it holds a network thread in the JVM.
    """

    def __init__(
        self, spark: SparkSession, settings: Mapping[str, str], operation: str = "READ", owner: str = "source"
    ) -> None:
        """``operation`` is what the ``owner`` does with topics: for messages about ACLs."""
        require_classic(spark)
        self._operation = operation
        self._owner = owner
        self._jvm = jvm_of(spark)
        self._settings = ClientSettings(settings)
        self._timeout_ms, self._config = _bounded(self._settings)
        self._client: Any = None

    def partitions(self, topics: Collection[str]) -> list[TopicPartition]:
        """All partitions of ``topics``, sorted. A missing topic is an :class:`UnknownTopicError`."""
        try:
            described = self._get(
                lambda client: client.describeTopics(self._names(topics)).allTopicNames(), topics=topics
            )
        except UnknownTopicError:
            raise self._unknown(topics) from None
        return sorted(
            TopicPartition(entry.getKey(), int(info.partition()))
            for entry in described.entrySet()
            for info in entry.getValue().partitions()
        )

    def matching_topics(self, pattern: str) -> list[str]:
        """Topics whose whole name matches the Java regular expression ``pattern``; internal ones are left out."""
        try:
            regex = self._jvm.java.util.regex.Pattern.compile(pattern)
        except JAVA_ERRORS as error:
            reason = causes(error)[0][1].partition("\n")[0]
            raise ConfigurationError(f"topic_pattern {pattern!r} is no regular expression of Java: {reason}.") from None
        return [topic for topic in self.topics() if regex.matcher(topic).matches()]

    def topics(self) -> list[str]:
        """All topics that this client may see, sorted; internal ones are left out."""
        return sorted(str(name) for name in self._get(lambda client: client.listTopics().names()))

    def may(self, operations: set[str], topics: Collection[str]) -> bool:
        """Whether this client is allowed the operations on all of ``topics``. A broker without ACLs allows everything."""
        asking = self._jvm.org.apache.kafka.clients.admin.DescribeTopicsOptions().includeAuthorizedOperations(True)
        found = self._get(
            lambda client: client.describeTopics(self._names(topics), asking).allTopicNames(), topics=topics
        )
        allowed = [entry.getValue().authorizedOperations() for entry in found.entrySet()]
        return all(granted is None or operations <= {str(one) for one in granted} for granted in allowed)

    def topic_settings(self, topic: str) -> dict[str, str] | None:
        """The topic's configuration, or ``None`` when this client may not look at it."""
        config = self._jvm.org.apache.kafka.common.config
        resource = config.ConfigResource(getattr(config, "ConfigResource$Type").TOPIC, topic)
        wanted = self._jvm.java.util.Collections.singletonList(resource)
        try:
            found = self._get(lambda client: client.describeConfigs(wanted).all(), topics=[topic])
        except ConfigurationError:
            return None
        return {str(entry.name()): str(entry.value()) for entry in found.get(resource).entries().toArray()}

    def create_topic(self, topic: str, partitions: int, settings: Mapping[str, str]) -> None:
        """Create the topic, with the broker's default replication, unless it is there; return when it can be used."""
        optional = self._jvm.java.util.Optional
        new = self._jvm.org.apache.kafka.clients.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        config = self._jvm.java.util.HashMap()
        for key, value in settings.items():
            config.put(key, value)
        wanted = self._jvm.java.util.Collections.singletonList(new.configs(config))
        try:
            self._get(lambda client: client.createTopics(wanted).all(), topics=[topic])
        except EnvironmentProblemError as error:
            if "TopicExistsException" not in str(error):
                raise
        deadline = time.monotonic() + self._timeout_ms / 1000
        while topic not in self.topics():  # the broker that answers may not have heard of it yet
            if time.monotonic() > deadline:
                raise EnvironmentProblemError(f"Topic '{topic}' was created, and no broker shows it.")
            time.sleep(_POLL_SECONDS)

    def held_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, HeldOffsets]:
        """First and next offset of every partition."""
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
        earliest, latest = (self._list_offsets(partitions, at) for at in (spec.earliest(), spec.latest()))
        return {partition: HeldOffsets(earliest[partition], latest[partition]) for partition in partitions}

    def group_offsets(self, group: str) -> dict[TopicPartition, int]:
        """What ``group`` has committed; empty when there is no such group."""
        offsets = self._get(
            lambda client: client.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata(), group=group
        )
        return {
            TopicPartition(entry.getKey().topic(), int(entry.getKey().partition())): int(entry.getValue().offset())
            for entry in offsets.entrySet()
            if entry.getValue() is not None
        }

    def commit_group_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the group's offsets, the next to read, for these partitions. Others stay as they are.

        A group that another application consumes with at this moment is refused by the broker.
        """
        committed = self._jvm.java.util.HashMap()
        for partition, offset in offsets.items():
            metadata = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset)
            committed.put(self._java_partition(partition), metadata)
        topics = {partition.topic for partition in offsets}
        self._get(lambda client: client.alterConsumerGroupOffsets(group, committed).all(), group=group, topics=topics)

    def close(self) -> None:
        """Let go of the connections. May be called twice; a later call of another method connects anew."""
        client, self._client = self._client, None
        if client is not None:
            client.close(self._jvm.java.time.Duration.ofSeconds(1))

    def __enter__(self) -> KafkaAdmin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _list_offsets(self, partitions: Collection[TopicPartition], spec: Any) -> dict[TopicPartition, int]:
        keys = {partition: self._java_partition(partition) for partition in partitions}
        request = self._jvm.java.util.HashMap()
        for key in keys.values():
            request.put(key, spec)
        topics = {partition.topic for partition in partitions}
        answer = self._get(lambda client: client.listOffsets(request).all(), topics=topics)
        return {partition: int(answer.get(key).offset()) for partition, key in keys.items()}

    def _names(self, topics: Collection[str]) -> Any:
        names = self._jvm.java.util.ArrayList()
        for topic in sorted(topics):
            names.add(topic)
        return names

    def _java_partition(self, partition: TopicPartition) -> Any:
        return self._jvm.org.apache.kafka.common.TopicPartition(partition.topic, partition.partition)

    def _connected(self) -> Any:
        if self._client is None:
            factory = self._jvm.org.apache.kafka.clients.admin.AdminClient
            if not isinstance(factory, JavaClass):
                raise EnvironmentProblemError(
                    "Kafka's client is not on the driver's class path. Build the session with lockstep.configure(...), "
                    "or add org.apache.spark:spark-sql-kafka-0-10_2.13 to spark.jars.packages before it starts."
                )
            config = self._jvm.java.util.HashMap()
            for key, value in self._config.items():
                config.put(key, value)
            try:
                self._client = factory.create(config)
            except JAVA_ERRORS as error:
                raise self._bad_settings(error) from None  # the Java stack may quote a setting's value
        return self._client

    def _get(self, request: Callable[[Any], Any], *, group: str | None = None, topics: Collection[str] = ()) -> Any:
        client = self._connected()
        try:
            milliseconds = self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS
            return request(client).get(self._timeout_ms + _GRACE_MS, milliseconds)
        except JAVA_ERRORS as error:
            explained = self._explained(error, group, topics)
            if not isinstance(explained, UnknownTopicError):
                self.close()  # a client that can't connect would go on trying, and fill Spark's log
            raise explained from error

    def _explained(self, error: Exception, group: str | None, topics: Collection[str]) -> LockstepError:
        chain = causes(error)
        name, message = next((cause for cause in chain if cause[0].startswith(_ERRORS)), chain[0])
        kind, said = name.rpartition(".")[2], self._settings.redact(message)
        servers = self._settings.get("bootstrap.servers", "")
        names = ", ".join(sorted(topics))
        if kind == "UnknownTopicOrPartitionException":
            return UnknownTopicError(f"Topic {names} does not exist on {servers}. Create it, or correct the name.")
        if kind == "InvalidTopicException":
            return UnknownTopicError(f"'{names}' is no valid topic name. Correct the name.")
        if kind == "GroupAuthorizationException":
            return ConfigurationError(
                f"Not authorized for consumer group '{group}' on {servers}. The principal needs an ACL with operations "
                f"DESCRIBE and READ on GROUP {group}, and READ on the topics."
            )
        if kind == "TopicAuthorizationException":
            return ConfigurationError(
                f"Not authorized for topic {names} on {servers}. The principal needs an ACL with operations DESCRIBE and "
                f"{self._operation} on TOPIC {names}."
            )
        if kind == "UnknownMemberIdException":
            return ConfigurationError(
                f"Consumer group '{group}' has active members, so its offsets can't be set. Another application consumes "
                "with this group id: give the query a group_id of its own."
            )
        if kind in _REFUSED:
            return ConfigurationError(
                f"{servers} refused the credentials ({kind}: {said}). Check security.protocol and the sasl.* or ssl.* "
                f"settings of the {self._owner}."
            )
        if kind in _UNREACHABLE:
            return BrokerUnreachableError(
                f"No Kafka broker answered at {servers} within {self._timeout_ms / 1000:g} s. Check the address, that the "
                "broker runs and advertises a listener that can be reached from here, and security.protocol."
            )
        return EnvironmentProblemError(f"Kafka at {servers} answered with {kind}: {said}")

    def _bad_settings(self, error: Exception) -> ConfigurationError:
        reasons = "; ".join(dict.fromkeys(self._settings.redact(message) for _, message in causes(error) if message))
        return ConfigurationError(
            f"No Kafka client can be made for {self._settings.get('bootstrap.servers')}: {reasons}. "
            f"Check the {self._owner}'s settings: {', '.join(sorted(self._settings))}."
        )

    def _unknown(self, topics: Collection[str]) -> UnknownTopicError:
        known = self.topics()
        missing = [topic for topic in sorted(topics) if topic not in known]
        return unknown_topics(missing or sorted(topics), known, self._settings.get("bootstrap.servers", ""))


def unknown_topics(missing: Collection[str], known: Collection[str], servers: str) -> UnknownTopicError:
    """The error for topics that don't exist, with names that may have been meant."""
    close = sorted({match for topic in missing for match in difflib.get_close_matches(topic, known, n=3)})
    hint = f"Did you mean {' or '.join(close)}?" if close else "Create it, or correct the name."
    quoted = ", ".join(f"'{topic}'" for topic in missing)
    return UnknownTopicError(f"Topic {quoted} does not exist on {servers}. {hint}")


def _bounded(settings: Mapping[str, str]) -> tuple[int, dict[str, str]]:
    """The bound of a call in milliseconds, and the settings with it. Kafka refuses a bound below a request's timeout."""
    asked_request = _milliseconds(settings, "request.timeout.ms")
    timeout = _milliseconds(settings, "default.api.timeout.ms") or max(DEFAULT_TIMEOUT_MS, asked_request or 0)
    request = min(asked_request or _REQUEST_TIMEOUT_MS, timeout)
    return timeout, {**settings, "default.api.timeout.ms": str(timeout), "request.timeout.ms": str(request)}


def _milliseconds(settings: Mapping[str, str], key: str) -> int | None:
    text = settings.get(key)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"kafka.{key}={text!r} is no number of milliseconds.") from None


def causes(error: Exception) -> list[tuple[str, str]]:
    """Class name and message of a Java exception and its causes, without the ExecutionException of a future."""
    found: list[tuple[str, str]] = []
    throwable = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while throwable is not None and len(found) < 10:
        found.append((str(throwable.getClass().getName()), str(throwable.getMessage() or "")))
        throwable = throwable.getCause()
    inner = [cause for cause in found if cause[0] != "java.util.concurrent.ExecutionException"]
    return inner or found or [(type(error).__name__, str(error))]
