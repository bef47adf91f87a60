"""Exactly-once to Kafka topics."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from lockstep.choices import choose
from lockstep.errors import CheckpointDirectoryError, ConfigurationError
from lockstep.protocol.failpoint import reach
from lockstep.sinks.handles import handle_fields, metrics_of, staged_by
from lockstep.sinks.kafka_markers import Marker, Markers, highest_epoch
from lockstep.sinks.kafka_publisher import Publisher, PublishError, RowRefusedError, staged_files
from lockstep.sinks.kafka_rows import RecordColumns, RecordPlan, TopicRules, find_columns, record_size, refusal
from lockstep.sinks.opening import refuse_old_copy
from lockstep.sinks.staging import Staging, checked_relative
from lockstep.sinks.two_phase import (
    Attempt,
    CommitOutcome,
    CommitStatus,
    Handle,
    PreparedEpoch,
    SinkContext,
    TwoPhaseCommitSink,
)
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.kafka_admin import KafkaAdmin, unknown_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)

PRODUCER_DEFAULTS = {
    "linger.ms": "20",
    "batch.size": str(256 * 1024),
    "buffer.memory": str(64 * 1024 * 1024),
    "max.block.ms": "30000",
    "delivery.timeout.ms": "60000",
    "request.timeout.ms": "15000",
}
"""The first three are for throughput; the others bound how long one try of a commit may hang: it is tried again."""
_OWNED = {
    "bootstrap.servers": "the argument bootstrap_servers",
    "transactional.id": "the argument transactional_id_prefix; the rest of the id tells this sink from all others",
    "enable.idempotence": "nothing: exactly-once needs it on",
    "acks": "nothing: exactly-once needs acks=all",
    "key.serializer": "nothing: keys are bytes; convert them with DataFrame functions",
    "value.serializer": "nothing: values are bytes; convert them with DataFrame functions such as to_json",
    "isolation.level": "nothing: it is a consumer's setting",
}
_NUMBERS = ("transaction.timeout.ms", "max.request.size", "buffer.memory", "batch.size")
_FIRST_TIMEOUT_MS = 60_000  # Kafka's default
_LONGEST_TIMEOUT_MS = 900_000  # what a broker allows unless told otherwise
_CLOSE_SECONDS = 5.0
_MOST_LANES = 64
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


class DeliveryGuarantee(Enum):
    """What a restart may do to the topic."""

    EXACTLY_ONCE = "exactly_once"
    AT_LEAST_ONCE = "at_least_once"


class KafkaSink(TwoPhaseCommitSink):
    """Publishes epochs to Kafka; a read-committed reader sees each once, whole, after Spark has decided it.

    Phase 1 stages the rows as files in the checkpoint directory: nothing of an undecided epoch is ever sent to Kafka.
    Phase 2 sends them in one transaction, together with a *marker*, a record in a compacted topic that says which epoch
    this is. After any crash, and any length of time, the marker tells what was published. No transaction is open between
    epochs, so a pipeline that is stopped or dead holds back no reader (one that dies in the middle of publishing does
    until it is restarted, at most for ``transaction.timeout.ms``), and no transaction can time out with decided rows.

    Rows that Kafka would never take (too large, no topic, a partition that isn't there) fail the epoch before it is
    decided, with their position.

    Parameters
    ----------
    bootstrap_servers
        One or more ``host:port``, as a string with commas or a list.
    topic, topic_column
        Give one: the topic for all rows, or the column that names it row by row. Topics must exist.
    key, value, headers, partition, timestamp
        Columns that make up a record. By default ``key``, ``value`` and ``headers`` are used if the rows have columns of
        these names, as in Spark's Kafka sink; without a column ``value``, or with ``value="*"``, the value is all columns
        as JSON. Key and value are strings or binary (a number as key becomes its text); headers are
        ``array<struct<key: string, value: binary>>``; partition is an int; timestamp a timestamp or milliseconds.
    delivery
        ``exactly_once`` or ``at_least_once``: the latter leaves the work to Spark's own Kafka sink, which publishes while
        the epoch is computed: lower latency, no marker topic, no ``timestamp``; rows of failed attempts are seen too.
    parallelism
        With more than 1, an epoch is published in up to so many transactions at once. Every row still appears exactly once
        and in order within its Spark partition, but a reader may see one part of an epoch before another.
    marker_topic
        Created if missing: one partition, compacted. By default ``lockstep-markers-<uid>``.
    transactional_id_prefix
        Where ACLs are in use, the principal needs DESCRIBE and WRITE on this prefix.
    options
        Any producer setting of Kafka with the prefix ``kafka.``, e.g. ``kafka.compression.type``.

    Examples
    --------
    >>> KafkaSink("localhost:9092", topic="totals", key="account")  # doctest: +SKIP
    """

    reads_whole_batch = True

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str],
        topic: str | None = None,
        *,
        topic_column: str | None = None,
        key: str | None = None,
        value: str | None = None,
        headers: str | None = None,
        partition: str | None = None,
        timestamp: str | None = None,
        delivery: DeliveryGuarantee | str = DeliveryGuarantee.EXACTLY_ONCE,
        parallelism: int = 1,
        marker_topic: str | None = None,
        transactional_id_prefix: str = "lockstep-",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        servers = bootstrap_servers if isinstance(bootstrap_servers, str) else ",".join(bootstrap_servers)
        if not servers.strip():
            raise ConfigurationError("bootstrap_servers is empty: give one or more host:port.")
        if topic is not None and topic_column is not None:
            raise ConfigurationError("KafkaSink takes topic= or topic_column=, not both.")
        for option, name in (("topic", topic), ("marker_topic", marker_topic)):
            if name is not None and not _TOPIC_NAME.fullmatch(name):
                raise ConfigurationError(f"{option}={name!r} is no topic name: use letters, digits, '.', '_' and '-'.")
        if isinstance(parallelism, bool) or not isinstance(parallelism, int) or not 1 <= parallelism <= _MOST_LANES:
            raise ConfigurationError(f"parallelism={parallelism!r}: use a whole number from 1 to {_MOST_LANES}.")
        self._delivery = choose(DeliveryGuarantee, delivery, "delivery")
        if timestamp is not None and self._delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            raise ConfigurationError(
                "timestamp= needs delivery='exactly_once': Spark's own Kafka sink, which at_least_once uses, sets none."
            )
        self._topic = topic
        self._given = RecordColumns(topic_column, partition, key, value, headers, timestamp)
        self._parallelism = parallelism
        self._marker_topic = marker_topic
        self._prefix = transactional_id_prefix
        self._client = ClientSettings({"bootstrap.servers": servers, **_client_settings(options or {})})
        self._partitions: dict[str, int] = {}  # of topics that are known to exist
        self._rules: dict[str, TopicRules] = {}  # of topics whose settings this client may see
        self._lanes: dict[int, Publisher] = {}  # ready to publish: no earlier producer can any more
        self._published: dict[int, Marker] = {}  # by lane, what its marker says; known from the moment a lane is ready
        self._timeout_ms = _FIRST_TIMEOUT_MS
        self._longest_ms = _LONGEST_TIMEOUT_MS
        self._lock = threading.Lock()  # AT_LEAST_ONCE checkpoints commit on the query's thread too

    def describe(self) -> str:
        where = (
            f"Kafka topic {self._topic}" if self._topic else f"Kafka topics by column {self._given.topic or 'topic'}"
        )
        # Part of the name: what one has prepared, the other could not commit.
        return where if self._delivery is DeliveryGuarantee.EXACTLY_ONCE else f"{where}, at least once"

    # --- start ------------------------------------------------------------------------------------------------------

    def open(self, context: SinkContext) -> None:
        if context.output_mode == "complete":
            raise ConfigurationError(
                f"{self.describe()}: output mode 'complete' would publish the whole result again and again. Use "
                "outputMode('append') or outputMode('update')."
            )
        self._context = context
        self._columns = find_columns(context.schema, self._given, self._topic, self.describe())
        self._plan = RecordPlan(context.schema, self._columns)
        self._staging = Staging(context.spark, context.staging)
        self._partitions.clear()
        with self._admin() as admin:
            if self._topic is not None:
                self._learn(admin, [self._topic])
                self._refuse_keyless(self._topic)
            if self._delivery is DeliveryGuarantee.EXACTLY_ONCE:
                self._markers = Markers(
                    context.spark,
                    self._client,
                    self._marker_topic or f"lockstep-markers-{context.uid}",
                    f"{context.lineage}/{context.uid}",
                    self._prefix,
                )
                self._markers.create_topic(admin)
        if self._delivery is DeliveryGuarantee.EXACTLY_ONCE:
            self._refuse_foreign_markers()

    def _refuse_keyless(self, topic: str) -> None:
        if self._rules_of(topic).needs_key and self._columns.key is None:
            raise ConfigurationError(
                f"{self.describe()}: topic {topic} is compacted, so its records need keys. Name a column with key=."
            )

    def _learn(self, admin: KafkaAdmin, topics: Sequence[str]) -> None:
        found = Counter(partition.topic for partition in admin.partitions(topics))
        if not admin.may({"WRITE"}, topics):
            raise ConfigurationError(
                f"Not authorized to write to {', '.join(topics)}. The principal needs an ACL with operations DESCRIBE and "
                "WRITE on the topic."
            )
        self._learn_rules(admin, topics)
        self._partitions.update(found)

    def _learn_rules(self, admin: KafkaAdmin, topics: Sequence[str]) -> None:
        for topic in topics:
            if (settings := admin.topic_settings(topic)) is not None:
                self._rules[topic] = TopicRules.read(settings)

    def _rules_of(self, topic: str | None) -> TopicRules:
        """What a record for the topic must keep to, the client's own limits included."""
        known = self._rules.get(topic or "", TopicRules())
        limits = [self._request_size(), int(self._client.get("buffer.memory", PRODUCER_DEFAULTS["buffer.memory"]))]
        if known.largest is not None and self._client.get("compression.type", "none") == "none":
            limits.append(known.largest)  # what a compressed record takes, only the client can tell
        return replace(known, largest=min(limits))

    def _request_size(self) -> int:
        """The largest record that the client sends: it looks before it compresses."""
        return int(self._client.get("max.request.size", max([1024 * 1024, *self._batch_limits()])))

    def _batch_limits(self) -> list[int]:
        return [rules.largest for rules in self._rules.values() if rules.largest is not None]

    def _refuse_foreign_markers(self) -> None:
        context = self._context
        found = self._markers.read(certain=False)
        self._try_transactions(birth=found is None and not context.returning)
        if found is None:
            if context.returning:
                raise CheckpointDirectoryError(
                    f"{self.describe()}: the marker topic {self._markers.topic!r} at {self._client['bootstrap.servers']} "
                    "knows nothing of this sink, which has published before: the topic was deleted, or this is another "
                    "cluster. What is published can't be told any more. For a new cluster, give the sink a uid of its own."
                )
            return
        refuse_old_copy(self._context, self, highest_epoch(found))

    def _try_transactions(self, *, birth: bool) -> None:
        """Show, before data moves, that the producer's settings and the ACLs are good for transactions.

        At the first start, say in the marker topic that this sink exists.
        """
        try:
            with closing(self._publisher("birth")) as publisher:
                publisher.initialise()
                if birth:
                    publisher.begin()
                    publisher.mark(self._markers.topic, *self._markers.birth())
                    publisher.commit()
        except PublishError as error:
            raise ConfigurationError(f"{self.describe()} can't be written to in transactions. {error}") from None

    # --- phase 1 ----------------------------------------------------------------------------------------------------

    def begin(self, attempt: Attempt) -> Handle:
        return {"attempt": attempt.id}

    def write(self, handle: Handle, batch: DataFrame) -> None:
        rules = self._rules_of(self._topic)
        records = self._plan.apply(batch, rules, self._partitions.get(self._topic or ""), _now_ms())
        try:
            if self._delivery is DeliveryGuarantee.AT_LEAST_ONCE:
                self._write_now(records)
            else:
                self._staging.write(records, handle["attempt"])
        except Exception as error:
            sentence = refusal(error)
            if sentence is None:
                raise
            raise RowRefusedError(f"{self.describe()} can't take {sentence}", "RowRefused") from None

    def _write_now(self, records: DataFrame) -> None:
        writer = records.write.format("kafka").options(**{f"kafka.{key}": value for key, value in self._client.items()})
        if self._topic is not None:
            writer = writer.option("topic", self._topic)
        writer.save()

    def pre_commit(self, handle: Handle) -> Handle:
        attempt = handle["attempt"]
        if self._delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return handle
        found = staged_files(self._staging, attempt)
        files = [{"path": path, "bytes": size, "rows": rows} for path, size, rows in found]
        if not files:
            self._staging.delete(attempt)
        topics = [self._topic] if self._topic else self._checked_topics([path for path, _, _ in found])
        return {
            "attempt": attempt,
            "topic": self._topic,
            "topics": topics,
            "lanes": self._lanes_of(files),
            "metrics": {
                "rows": sum(file["rows"] for file in files),
                "bytes": sum(file["bytes"] for file in files),
                "files": len(files),
            },
        }

    def _lanes_of(self, files: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Files by lane. Those of one Spark partition go together: their rows have an order."""
        lanes: list[list[dict[str, Any]]] = [[] for _ in range(self._parallelism)]
        for file in files:
            task = re.search(r"/part-(\d+)", file["path"])
            lanes[int(task.group(1)) % self._parallelism if task else 0].append(file)
        return [lane for lane in lanes if lane]

    def _checked_topics(self, paths: Sequence[str]) -> list[str]:
        """The topics that staged rows name. What does not exist, or takes no such row, must be said before the decision."""
        from pyspark.sql import functions as F

        if not paths:
            return []
        staged = self._context.spark.read.parquet(*[self._staging.absolute(path) for path in paths])
        nothing = F.lit(None).cast("long")
        has = self._columns
        named = (
            staged.groupBy("topic")
            .agg(
                (F.max("partition") if has.partition is not None else nothing).alias("partition"),
                F.max(record_size(staged.columns)).alias("size"),
                F.count_if(F.col("key").isNull()).alias("keyless"),
                (F.min("timestamp") if has.timestamp is not None else nothing).alias("oldest"),
                (F.max("timestamp") if has.timestamp is not None else nothing).alias("newest"),
            )
            .collect()
        )
        new = sorted(row.topic for row in named if row.topic not in self._partitions)
        if new:
            with self._admin() as admin:
                known = admin.topics()
                if missing := [topic for topic in new if topic not in known]:
                    raise unknown_topics(missing, known, self._client["bootstrap.servers"])
                self._learn(admin, new)
        for row in named:
            there = self._partitions[row.topic]
            problem = self._rules_of(row.topic).problem(row.size, row.keyless, row.oldest, row.newest, _now_ms())
            if row.partition is not None and row.partition >= there:
                problem = f"partition {row.partition}, and the topic has {there}"
            if problem is not None:
                raise RowRefusedError(f"{self.describe()}: topic {row.topic} can't take {problem}.", "RowRefused")
        return [row.topic for row in named]

    def abort(self, attempt: Attempt, handle: Handle) -> None:
        self._staging.delete(staged_by(handle_fields(handle, self.describe(), attempt.epoch), attempt.epoch))

    def clean_up(self, is_stray: Callable[[str], bool]) -> None:
        for attempt_id in self._staging.attempts():
            if is_stray(attempt_id):
                self._staging.delete(attempt_id)

    # --- phase 2 ----------------------------------------------------------------------------------------------------

    def commit(self, prepared: PreparedEpoch) -> CommitOutcome:
        """Publish the epoch, unless its marker says that it is published.

        1. A newer driver has taken over: refuse.
        2. Make the lanes ready: ``initTransactions`` fences all earlier producers and ends what they left open; then read
           the markers, which can't move any more unless by this producer.
        3. Send the rows of every lane that has not published the epoch, and the lane's marker; commit.
        4. The staged files are not needed any more.

        After any error in between it is not known what was published: the lanes are closed, and step 2 finds out.
        """
        if self._delivery is DeliveryGuarantee.AT_LEAST_ONCE:
            return CommitOutcome.done()  # they are there already
        epoch = _Prepared.read(prepared, self._topic, self.describe())
        if not epoch.lanes:
            return CommitOutcome.done()  # no rows
        with self._lock:
            started = time.monotonic()
            try:
                token = self._context.token()  # 1.
                outcome = self._publish(epoch, token)
            except (RowRefusedError, CheckpointDirectoryError) as error:
                self._let_go(abort=True)
                return CommitOutcome.failed(str(error))
            except PublishError as error:
                self._let_go(abort=error.kind != "TimeoutException")
                self._context.token()
                return self._after(error, time.monotonic() - started)
            except BaseException:
                self._let_go(abort=False)
                raise
        try:
            self._staging.delete(epoch.staged_by)  # 4.
        except Exception as error:  # invisible rows are left behind: a cost, not a wrong result
            _log.warning("epoch %d: %s could not remove staged files: %s", prepared.epoch, self.describe(), error)
        return outcome

    def _publish(self, given: _Prepared, token: int) -> CommitOutcome:
        lanes = given.lanes
        self._make_ready(range(len(lanes)), given.topics)  # 2.
        todo = [k for k in range(len(lanes)) if self._published[k].epoch < given.epoch]
        others = {self._published[k].attempt for k in range(len(lanes)) if self._published[k].epoch == given.epoch}
        by_attempt = next(iter(others - {given.attempt}), next(iter(others), None))
        if not todo:
            return CommitOutcome.already_done(by_attempt)
        # Only with checkpoints AT_LEAST_ONCE can another attempt have published a part, perhaps divided otherwise.
        todo = [k for k in range(len(lanes)) if self._published[k].attempt != given.attempt]
        marker = Marker(given.epoch, given.attempt, token)
        with ThreadPoolExecutor(len(todo)) as pool:  # 3.
            for future in [pool.submit(self._publish_lane, k, lanes[k], marker) for k in todo]:
                future.result()
        return CommitOutcome(CommitStatus.DONE, by_attempt=by_attempt, details=given.metrics)

    def _publish_lane(self, lane: int, files: Sequence[_StagedFile], marker: Marker) -> None:
        publisher = self._lanes[lane]
        publisher.begin()
        sent = publisher.send([self._staging.absolute(file.path) for file in files], self._topic)
        if changed := [file for file, rows in zip(files, sent, strict=True) if file.rows != rows]:
            raise RowRefusedError(
                f"the staged file {changed[0].path} has no longer the {changed[0].rows} rows that it was staged with. "
                "Restore it from a backup and start again.",
                "RowRefused",
            )
        publisher.mark(self._markers.topic, *self._markers.progress(lane, marker))
        reach("kafka.commit.before")
        publisher.commit()
        self._published[lane] = marker
        reach("kafka.commit.after")

    def _make_ready(self, lanes: range, topics: Sequence[str]) -> None:
        new = [lane for lane in lanes if lane not in self._lanes]
        if not new:
            return
        with self._admin() as admin:
            self._learn_rules(admin, topics)  # they may have changed, or this is another process
        for lane in new:
            publisher = self._publisher(str(lane))
            self._lanes[lane] = publisher
            publisher.initialise()
        found = self._markers.read(certain=True)
        if found is None:
            raise CheckpointDirectoryError(
                f"{self.describe()}: the marker topic {self._markers.topic!r} was emptied while the query ran: what is "
                "published can't be told any more."
            )
        refuse_old_copy(self._context, self, highest_epoch(found))
        self._context.token()  # initTransactions may have fenced a newer driver's producer: that one tries again
        for lane in new:
            self._published[lane] = found.get(lane, Marker(-1, "", 0))

    def _publisher(self, suffix: str) -> Publisher:
        # A batch of several records that is larger than its topic allows makes the client split it for ever.
        batch = min([int(self._client.get("batch.size", PRODUCER_DEFAULTS["batch.size"])), *self._batch_limits()])
        settings = {
            **PRODUCER_DEFAULTS,
            "max.request.size": str(self._request_size()),
            "transaction.timeout.ms": str(self._timeout_ms),
            **self._client,
            "batch.size": str(batch),
            "acks": "all",
            "enable.idempotence": "true",
            "transactional.id": f"{self._prefix}{self._context.lineage}-{self._context.uid}-{suffix}",
        }
        return Publisher(self._context.spark, ClientSettings(settings), self._staging.hadoop)

    def _let_go(self, *, abort: bool) -> None:
        """Forget what is not certain any more. An open transaction would hold readers back until the next try."""
        lanes, self._lanes, self._published = self._lanes, {}, {}
        for publisher in lanes.values():
            try:
                if abort:
                    publisher.abort()
            except PublishError as error:  # none is open, or a newer producer has ended it
                abort = error.kind != "TimeoutException"  # the others would wait as long
            except Exception as error:
                _log.warning("%s: a transaction could not be aborted: %s", self.describe(), error)
            finally:
                with suppress(Exception):
                    publisher.close()

    def _after(self, error: PublishError, seconds: float) -> CommitOutcome:
        """A publish that takes longer than its transaction may live would fail for ever: give the next one more time."""
        given = int(self._client.get("transaction.timeout.ms", 0))
        if error.kind == "InvalidTxnTimeoutException":
            if given or self._timeout_ms == _FIRST_TIMEOUT_MS:
                return CommitOutcome.failed(str(error))
            self._longest_ms = self._timeout_ms // 2  # the broker allows no more
            self._timeout_ms = self._longest_ms
        elif seconds * 1000 > 0.9 * (given or self._timeout_ms):
            if given:
                return CommitOutcome.retry(
                    f"{error} It took {seconds:.0f} s: raise kafka.transaction.timeout.ms={given}."
                )
            self._timeout_ms = min(self._timeout_ms * 2, self._longest_ms)
        return CommitOutcome.retry(str(error))

    def close(self) -> None:
        """Never waits for a commit that hangs: its transaction ends with its timeout, and the next start goes on."""
        publishers = list(self._lanes.values())
        if self._lock.acquire(timeout=_CLOSE_SECONDS):
            try:
                self._let_go(abort=False)
            finally:
                self._lock.release()
        else:
            for publisher in publishers:
                publisher.close()

    def _admin(self) -> KafkaAdmin:
        return KafkaAdmin(self._context.spark, self._client, operation="WRITE", owner="sink")


@dataclass(frozen=True)
class _StagedFile:
    path: str  # in the staging directory
    rows: int


@dataclass(frozen=True)
class _Prepared:
    """The handle of an epoch, looked through: what was staged for this topic, for this epoch, and nothing else."""

    epoch: int
    attempt: str
    staged_by: str
    topics: list[str]
    lanes: list[list[_StagedFile]]
    metrics: dict[str, int]

    @classmethod
    def read(cls, prepared: PreparedEpoch, topic: str | None, target: str) -> _Prepared:
        fields = handle_fields(prepared.handle, target, prepared.epoch)
        owner = staged_by(fields, prepared.epoch)
        named = None if fields.is_null("topic") else fields.text("topic")
        if named != topic:
            raise fields.wrong("topic", named, f"the sink's own topic, {topic!r},")
        topics = fields.texts("topics")
        if not all(_TOPIC_NAME.fullmatch(one) for one in topics):
            raise fields.wrong("topics", topics, "a list of topics")
        lanes = fields.list_of_lists("lanes")
        if len(lanes) > _MOST_LANES:
            raise fields.wrong("lanes", lanes, f"a list of at most {_MOST_LANES} lanes")
        staged = []
        for lane in lanes:
            paths = [checked_relative(file.text("path"), target) for file in lane]
            if not paths or not all(path.startswith(f"{owner}/") for path in paths):
                raise fields.refusal(f"its files are not those that attempt {owner} has staged: {paths[:3]}.")
            rows = [file.count("rows") for file in lane]
            staged.append([_StagedFile(*one) for one in zip(paths, rows, strict=True)])
        metrics = metrics_of(fields, sum(map(len, staged)))
        return cls(prepared.epoch, prepared.attempt.id, owner, topics, staged, metrics)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _client_settings(options: Mapping[str, Any]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        if not name.startswith("kafka."):
            raise ConfigurationError(f"unknown option {key} of KafkaSink: producer settings start with 'kafka.'.")
        name = name.removeprefix("kafka.")
        if name in _OWNED:
            raise ConfigurationError(f"option {key} is set by Lockstep. Use instead: {_OWNED[name]}.")
        if name == "interceptor.classes":
            raise ConfigurationError(f"option {key} is not supported: interceptors may change records.")
        if name in _NUMBERS and not str(value).isdigit():
            raise ConfigurationError(f"option {key}={value!r} is no whole number.")
        settings[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return settings
