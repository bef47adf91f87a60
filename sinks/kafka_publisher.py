"""The one place that publishes to Kafka: a transactional Java producer in the driver's JVM, fed from staged files.

Kafka's client is Spark's own, so whatever connects the source connects this too. The loop over the rows is Java
(``EpochPublisher.java``), compiled by the compiler that Spark generates its code with: no jar to build or to ship.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import resources
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaPackage

from lockstep.errors import EnvironmentProblemError, LockstepError
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.kafka_admin import JAVA_ERRORS, causes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.sinks.staging import Staging

_SOURCE = "EpochPublisher.java"
_CLASS = "lockstep.kafka.EpochPublisher"
_compiled: WeakKeyDictionary[Any, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()  # by gateway: one JVM, one class
_compiling = Lock()


class PublishError(LockstepError):
    """Kafka did not take a transaction. ``kind`` is the simple name of the client's exception."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class RowRefusedError(PublishError):
    """Kafka will never take a certain row as it is."""


class Publisher:
    """A transactional producer. One thread at a time."""

    def __init__(self, spark: SparkSession, settings: ClientSettings, hadoop: Any) -> None:
        self._settings = settings
        self._java = self._call(lambda: _new(spark, _java_map(spark, settings), hadoop))

    def initialise(self) -> None:
        """Fence every earlier producer with this transactional id, and end what it left open."""
        self._call(self._java.initialise)

    def begin(self) -> None:
        self._call(self._java.begin)

    def send(self, files: Sequence[str], topic: str | None) -> list[int]:
        """Send the rows of staged files, in order, and wait until all have arrived. They are not visible yet.

        Returns how many each file had.
        """
        sent = []
        for file in files:
            sent.append(int(self._call(lambda file=file: self._java.send(file, topic))))
            if self._java.refused():
                break
        self._flush()
        return sent

    def mark(self, topic: str, key: str, value: str) -> None:
        self._call(lambda: self._java.mark(topic, key, value))
        self._flush()

    def commit(self) -> None:
        """Make everything since ``begin`` visible, at once. After an error nobody knows whether it is: ask the marker."""
        self._call(self._java.commit)

    def abort(self) -> None:
        self._call(self._java.abort)

    def close(self) -> None:
        """Let go of the connections; never waits for the broker."""
        self._java.close()

    def _flush(self) -> None:
        self._call(self._java.flush)
        if self._java.refused():
            raise self._refusal()

    def _refusal(self) -> PublishError:
        file, row = self._java.refusedFile(), int(self._java.refusedRow())
        reason = self._java.refusalReason()
        kind = str(reason.getClass().getSimpleName())
        said = self._settings.redact(str(reason.getMessage()))
        where = "the epoch's marker" if file is None else f"row {row} of staged file {file}"
        if kind == "RecordTooLargeException":
            return RowRefusedError(
                f"Kafka refuses {where} as too large: {said} Raise max.message.bytes of the topic, and "
                "kafka.max.request.size in the sink's options.",
                kind,
            )
        if kind in ("InvalidRecordException", "InvalidTimestampException"):
            return RowRefusedError(
                f"Kafka refuses {where}, or another of its batch: {kind}: {said} The topic has changed since the "
                "row was staged: give it back what the rows need (message.timestamp.*, cleanup.policy).",
                kind,
            )
        return explained(kind, f"{where}: {said}")

    def _call(self, action: Any) -> Any:
        try:
            return action()
        except JAVA_ERRORS as error:
            raise _from_java(error, self._settings) from None


def explained(kind: str, said: str) -> PublishError:
    """What an exception of the Kafka client means for the sink, and what to do."""
    remedy = {
        "TransactionalIdAuthorizationException": "The principal needs an ACL with operations DESCRIBE and WRITE on the "
        "TRANSACTIONAL_ID prefix of the sink (transactional_id_prefix).",
        "TopicAuthorizationException": "The principal needs an ACL with operations DESCRIBE and WRITE on the topic.",
        "ClusterAuthorizationException": "The principal needs an ACL with operation IDEMPOTENT_WRITE on the cluster, or "
        "WRITE on the topic.",
        "UnknownTopicOrPartitionException": "The topic was there when the query started: create it again.",
        "InvalidTxnTimeoutException": "Set kafka.transaction.timeout.ms in the sink's options to at most the broker's "
        "transaction.max.timeout.ms.",
    }.get(kind, "")
    if kind == "TimeoutException" and "not present in metadata" in said:
        remedy = "The topic was there when the query started: create it again."
    return PublishError(f"Kafka answered with {kind}: {said} {remedy}".rstrip(), kind)


def _from_java(error: Exception, settings: ClientSettings) -> PublishError:
    chain = causes(error)
    own = [cause for cause in chain if ".kafka." in cause[0]] or chain[:1]
    said = ": ".join(dict.fromkeys(message.rstrip(" .") for _, message in own if message))
    kind = own[0][0].rpartition(".")[2]
    if kind in ("FileNotFoundException", "EOFException") or own[0][0].startswith("org.apache.parquet"):
        return RowRefusedError(f"a staged file can't be read: {said}. Restore it from a backup and start again.", kind)
    return explained(kind, f"{settings.redact(said)}.")


def newest_markers(
    spark: SparkSession, settings: ClientSettings, topic: str, *, certain: bool, seconds: float
) -> dict[str, str]:
    """The newest committed value of each key in the marker topic.

    ``certain``: everything that was committed before this call is there, or it raises. Otherwise what is hidden behind a
    transaction that somebody has open may be missing.
    """
    try:
        found = _static(spark, "newest", _java_map(spark, settings), topic, certain, int(seconds * 1000))
    except JAVA_ERRORS as error:
        raise _from_java(error, settings) from None
    if found is None:
        raise PublishError(
            f"what is published can't be told yet: a transaction is open in the marker topic {topic!r}, and ends at the "
            "latest with its timeout",
            "OpenTransaction",
        )
    return {str(key): str(value) for key, value in found.items()}


def staged_files(staging: Staging, attempt: str) -> list[tuple[str, int, int]]:
    """Path (in the staging directory), bytes and rows of each file that an attempt has staged; without empty ones."""
    spark = staging.spark
    found = _static(spark, "staged", staging.absolute(attempt), staging.hadoop)
    named = (str(line).split("\t") for line in found)
    return [(f"{attempt}/{name}", int(size), int(rows)) for name, size, rows in named]


def _class(spark: SparkSession) -> tuple[Any, dict[str, Any]]:
    """The compiled class and its methods, once per JVM."""
    jvm: Any = spark._jvm
    gateway = spark.sparkContext._gateway
    with _compiling:
        if gateway not in _compiled:
            if isinstance(jvm.org.apache.kafka.clients.producer.KafkaProducer, JavaPackage):
                raise EnvironmentProblemError(
                    "Kafka's client is not on the driver's class path. Build the session with lockstep.configure(...), "
                    "or add org.apache.spark:spark-sql-kafka-0-10_2.13 to spark.jars.packages before it starts."
                )
            compiler = jvm.org.codehaus.janino.SimpleCompiler()
            compiler.setParentClassLoader(jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader())
            compiler.cook(resources.files(__package__).joinpath(_SOURCE).read_text("utf-8"))
            java = compiler.getClassLoader().loadClass(_CLASS)
            _compiled[gateway] = java, {str(method.getName()): method for method in java.getMethods()}
        return _compiled[gateway]


def _new(spark: SparkSession, *arguments: Any) -> Any:
    java, _ = _class(spark)
    return java.getConstructors()[0].newInstance(_java_array(spark, arguments))


def _static(spark: SparkSession, name: str, *arguments: Any) -> Any:
    """Call a static method of the class, which only its own class loader knows."""
    _, methods = _class(spark)
    return methods[name].invoke(None, _java_array(spark, arguments))


def _java_array(spark: SparkSession, values: Sequence[Any]) -> Any:
    gateway: Any = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(values))
    for index, value in enumerate(values):
        array[index] = value
    return array


def _java_map(spark: SparkSession, settings: Mapping[str, str]) -> Any:
    jvm: Any = spark._jvm
    java = jvm.java.util.HashMap()
    for key, value in settings.items():
        java.put(key, value)
    return java
