"""Finds, before a query goes on, which records Kafka has removed that the query has yet to read.

Spark finds out too, later and in words that name neither what is missing nor all of it at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lockstep.errors import DataLossError, LockstepError
from lockstep.protocol.barrier import Barrier, TopicPartition
from lockstep.sources.kafka_admin import KafkaAdmin
from lockstep.sources.plan import KafkaStream, StreamSource
from lockstep.sources.startup import HeldOffsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)
_SHOWN = 5


def refuse_lost_records(spark: SparkSession, sources: Sequence[StreamSource], last: Barrier) -> None:
    """Raise :class:`DataLossError` when records after ``last``, the last decided barrier, are gone.

    With ``failOnDataLoss=false`` the loss is declared in the log, and the query goes on with what there is.
    """
    for source in sources:
        if not isinstance(source, KafkaStream):
            continue
        needed = {tp: at for tp, at in last.kafka_offsets(source.index).items() if source.reads(tp.topic)}
        lost = losses(needed, _held(spark, source, needed))
        if not lost:
            continue
        more = f", and {len(lost) - _SHOWN} more partitions" if len(lost) > _SHOWN else ""
        said = (
            f"{source.description}: records that the query has yet to read are gone: {'; '.join(lost[:_SHOWN])}{more}."
        )
        if source.fail_on_data_loss:
            raise DataLossError(
                f"{said} All epochs that were decided are committed, and nothing else. Set the source's option "
                "failOnDataLoss=false to go on without these records; or start with a new checkpoint directory, from where "
                "the topic begins now."
            )
        _log.warning("%s The query goes on without them (failOnDataLoss=false).", said)


def losses(needed: Mapping[TopicPartition, int], held: Mapping[TopicPartition, HeldOffsets]) -> list[str]:
    """What is missing, partition by partition. A ``held`` that is empty tells nothing."""
    lost = []
    for partition, at in sorted(needed.items()) if held else ():
        name = f"{partition.topic}-{partition.partition}"
        there = held.get(partition)
        if there is None:
            lost.append(f"{name} does not exist any more, and offset {at} was to come next")
        elif at < there.earliest:
            lost.append(
                f"{name} begins at offset {there.earliest}, and offsets {at} to {there.earliest - 1} were to come next"
            )
        elif at > there.latest:
            lost.append(
                f"{name} ends at offset {there.latest}, and offset {at} was to come next: the topic was deleted and created "
                "again, or has lost its newest records"
            )
    return lost


def _held(
    spark: SparkSession, source: KafkaStream, needed: Mapping[TopicPartition, int]
) -> dict[TopicPartition, HeldOffsets]:
    try:
        with KafkaAdmin(spark, source.client_settings) as admin:
            topics = {partition.topic for partition in needed} & set(admin.topics())
            there = set(admin.partitions(topics)) & needed.keys() if topics else set()
            return admin.held_offsets(there) if there else {}
    except LockstepError as error:
        _log.warning(
            "%s: could not be asked whether all records are there, so Spark will tell: %s", source.description, error
        )
        return {}
