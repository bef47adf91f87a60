"""Kafka → keyed state → Delta, Kafka, PostgreSQL and files in one query: all four stay equal, whenever the driver dies.

A driver with four sinks takes half a minute to start. Here it dies at a few steps; ``make thorough`` goes through all.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from integration_tests.crash_site import CrashSite, die_at_each, wait_until
from integration_tests.driver import TRANSACTION_TIMEOUT_MS
from integration_tests.observer import Observer
from integration_tests.sessions import THOROUGH
from integration_tests.targets import read_committed
from lockstep.testing.failpoints import OPERATOR_POINTS, POINTS, SINK_POINTS, SOURCE_POINTS

FEW = ("sink.commit.before", "kafka.commit.before")
BROKER_LOOKS_EVERY = 10  # seconds, for transactions that have timed out


@pytest.mark.timeout(1800 if THOROUGH else 600)
def test_four_sinks_are_equal_to_each_other_and_to_the_input_when_the_driver_dies_at_each_step(
    crossing: CrashSite,
) -> None:
    points = POINTS + SOURCE_POINTS + OPERATOR_POINTS + SINK_POINTS if THOROUGH else FEW

    def while_dead(point: str, observer: Observer) -> None:
        if point == "sink.commit.before":
            _reader_is_not_blocked_by_a_decided_epoch_that_is_not_published(crossing)

    die_at_each(crossing, points, while_dead)


def _reader_is_not_blocked_by_a_decided_epoch_that_is_not_published(site: CrashSite) -> None:
    """Longer than a transaction may last, nobody publishes; what others publish meanwhile is seen at once."""
    assert site.targets is not None
    servers, topic = site.bootstrap_servers, site.targets.topic
    decided = [epoch for epoch in _prepared(site) if epoch <= site.decided()]
    assert decided, "an epoch must be decided and not be published"
    producer = Producer({"bootstrap.servers": servers})
    end = time.monotonic() + TRANSACTION_TIMEOUT_MS / 1000 + BROKER_LOOKS_EVERY + 1
    number = 0
    while time.monotonic() < end:
        message = f"from another producer {number}"
        producer.produce(topic, value=message)
        producer.flush()
        wait_until(
            lambda m=message: m.encode() in read_committed(servers, topic), 1.0, "a reader sees what others publish"
        )
        number += 1
        time.sleep(1)
    assert number > 5
    assert decided == [epoch for epoch in _prepared(site) if epoch <= site.decided()], "nobody publishes meanwhile"


def _prepared(site: CrashSite) -> list[int]:
    """Epochs that wait for their commit."""
    records = Path(site.checkpoint, "lockstep", "prepared").glob("[0-9]*")
    return sorted(int(record.name.partition(".")[0]) for record in records)
