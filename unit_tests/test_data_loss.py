"""What Kafka has removed before it was read is told partition by partition; what is there is nobody's loss."""

from __future__ import annotations

import pytest

from lockstep.protocol.barrier import TopicPartition
from lockstep.sources.data_loss import losses
from lockstep.sources.plan import kafka_stream
from lockstep.sources.startup import HeldOffsets

ORDERS = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("next_offset", "held", "said"),
    [
        (5, HeldOffsets(15, 20), "orders-0 begins at offset 15, and offsets 5 to 14 were to come next"),
        (14, HeldOffsets(15, 15), "orders-0 begins at offset 15, and offsets 14 to 14 were to come next"),
        (10, HeldOffsets(0, 3), "orders-0 ends at offset 3, and offset 10 was to come next: the topic was deleted"),
    ],
)
def test_missing_offsets_are_named(next_offset: int, held: HeldOffsets, said: str) -> None:
    (lost,) = losses({ORDERS: next_offset}, {ORDERS: held})
    assert lost.startswith(said)


def test_partition_that_is_gone_is_named_beside_those_that_are_there() -> None:
    gone = TopicPartition("orders", 1)
    (lost,) = losses({ORDERS: 5, gone: 7}, {ORDERS: HeldOffsets(0, 9)})
    assert lost == "orders-1 does not exist any more, and offset 7 was to come next"


@pytest.mark.parametrize("next_offset", [0, 5, 9])
def test_position_between_first_and_last_offset_has_lost_nothing(next_offset: int) -> None:
    assert losses({ORDERS: next_offset}, {ORDERS: HeldOffsets(0, 9)}) == []


def test_broker_that_could_not_be_asked_says_nothing_of_losses() -> None:
    assert losses({ORDERS: 5}, {}) == []


@pytest.mark.parametrize(
    ("options", "fails"),
    [
        ({}, True),
        ({"failOnDataLoss": "true"}, True),
        ({"failondataloss": "False"}, False),
        ({"failOnDataLoss": "x"}, True),
    ],
)
def test_loss_fails_the_query_unless_the_option_says_otherwise(options: dict[str, str], fails: bool) -> None:
    stream = kafka_stream(0, {"kafka.bootstrap.servers": "b:1", "subscribe": "orders", **options})
    assert stream.fail_on_data_loss is fails
