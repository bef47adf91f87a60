"""What a Kafka sink has published, as it says itself: markers in a compacted topic.

Two kinds of record, by key: ``<lineage>/<uid>`` is there from the sink's birth on, so that a topic that was emptied is
noticed; ``<lineage>/<uid>/<lane>`` names the newest epoch that a lane has published, and is written in the same transaction
as the epoch's rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from lockstep.errors import CheckpointDirectoryError, ConfigurationError, CorruptRecordError
from lockstep.protocol.fields import Fields, number_in_name, parse_json
from lockstep.sinks.kafka_publisher import newest_markers
from lockstep.sources.client_settings import ClientSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lockstep.sources.kafka_admin import KafkaAdmin

_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),  # small and short-lived segments: a start reads the whole topic
    "segment.ms": str(60 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
_SECONDS = 5.0  # without progress; then the commit is tried again later


@dataclass(frozen=True)
class Marker:
    """The newest epoch that a lane has published, by which attempt, and the token of the driver that published it."""

    epoch: int
    attempt: str
    token: int


def decode(text: str, where: str) -> Marker:
    """Read a marker's value; anything else in its place is an error that says where."""
    try:
        body = Fields(parse_json(text), where, "marker", "")
        return Marker(body.count("epoch"), body.name("attempt"), body.count("token"))
    except (ValueError, CorruptRecordError) as error:
        raise _garbled(where, text) from error


def _garbled(where: str, text: str) -> CorruptRecordError:
    return CorruptRecordError(
        f"{where} holds something that is no marker: {text[:80]!r}. Only the sink may write there. Write the last good "
        "record of this key to the topic again, or start over with a new checkpoint directory and a uid of its own."
    )


def highest_epoch(markers: Mapping[int, Marker]) -> int:
    """The newest epoch that any lane has published; -1 for none."""
    return max((marker.epoch for marker in markers.values()), default=-1)


class Markers:
    """The markers of one sink."""

    def __init__(self, spark: SparkSession, client: ClientSettings, topic: str, name: str, prefix: str) -> None:
        self.topic = topic
        self._prefix = prefix
        self._spark = spark
        self._name = name
        self._settings = ClientSettings(
            {**client, "enable.auto.commit": "false", "allow.auto.create.topics": "false", "fetch.max.wait.ms": "10"}
        )

    def create_topic(self, admin: KafkaAdmin) -> None:
        """Make sure that the topic is there and keeps its records."""
        if self.topic not in admin.topics():
            try:
                admin.create_topic(self.topic, 1, _SETTINGS)
            except ConfigurationError as error:
                raise ConfigurationError(
                    f"the marker topic {self.topic!r} is missing and can't be created: {error} Create it with one partition "
                    "and cleanup.policy=compact, or name another with marker_topic=."
                ) from error
        partitions = len(admin.partitions([self.topic]))
        policy = (admin.topic_settings(self.topic) or _SETTINGS)["cleanup.policy"]
        if partitions != 1 or policy != "compact":
            raise ConfigurationError(
                f"the marker topic {self.topic!r} has {partitions} partitions and cleanup.policy={policy}; markers need one "
                "partition that is compacted, or they would be lost. Change it, or name another with marker_topic=."
            )
        if not admin.may({"READ", "WRITE"}, [self.topic]):
            raise ConfigurationError(
                f"Not authorized for the marker topic {self.topic!r}. The principal needs an ACL with operations DESCRIBE, "
                "READ and WRITE on it."
            )

    def read(self, *, certain: bool) -> dict[int, Marker] | None:
        """The markers by lane; ``None`` when the topic has never heard of this sink.

        ``certain``: all that was published before this call is seen, or it raises. Call it when no earlier producer can
        publish any more.
        """
        found = newest_markers(self._spark, self._settings, self.topic, certain=certain, seconds=_SECONDS)
        if self._name not in found:
            return None
        self._refuse_other_prefix(found[self._name])
        return self._by_lane(found)

    def _refuse_other_prefix(self, birth: str) -> None:
        """An earlier driver's producer is fenced by its transactional id: under another one it would go on."""
        where = f"key {self._name!r} of the marker topic {self.topic!r}"
        try:
            before = Fields(parse_json(birth), where, "marker", "").text("transactional_id_prefix")
        except (ValueError, CorruptRecordError) as error:
            raise _garbled(where, birth) from error
        if before != self._prefix:
            raise ConfigurationError(
                f"transactional_id_prefix={self._prefix!r}: this sink began with {before!r}, by which earlier drivers are "
                "stopped. Keep it, or give the sink a uid of its own."
            )

    def _by_lane(self, found: Mapping[str, str]) -> dict[int, Marker]:
        prefix = f"{self._name}/"
        lanes = {}
        for key, value in found.items():
            if key.startswith(prefix):
                lane = number_in_name(key.removeprefix(prefix))
                if lane is None:
                    raise CheckpointDirectoryError(
                        f"the marker topic {self.topic!r} has a record with the key {key!r}, which is none of the sink's. "
                        "Write a tombstone for that key, and start again."
                    )
                lanes[lane] = decode(value, f"key {key!r} of the marker topic {self.topic!r}")
        return lanes

    def birth(self) -> tuple[str, str]:
        """Key and value of the record that is there from the start."""
        return self._name, json.dumps({"sink": self._name, "transactional_id_prefix": self._prefix})

    def progress(self, lane: int, marker: Marker) -> tuple[str, str]:
        """Key and value of the record that goes with an epoch's rows."""
        return f"{self._name}/{lane}", json.dumps(asdict(marker))
