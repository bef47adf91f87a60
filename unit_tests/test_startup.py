"""Startup modes of the Kafka source, and the checks of its arguments: no Spark, no Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import ConfigurationError, UnknownTopicError
from lockstep.protocol.barrier import TopicPartition
from lockstep.sources import KafkaSource, OffsetCommitMode, OffsetReset, StartupMode
from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.kafka_admin import KafkaAdmin
from lockstep.sources.plan import kafka_stream
from lockstep.sources.startup import HeldOffsets, Resolution, Startup, parse_specific_offsets, resolve

P0, P1, P2 = (TopicPartition("orders", number) for number in range(3))
HELD = {P0: HeldOffsets(10, 100), P1: HeldOffsets(0, 50), P2: HeldOffsets(0, 0)}
GROUP = Startup(StartupMode.GROUP_OFFSETS)


def offsets_of(resolution: Resolution) -> dict[TopicPartition, int]:
    topics = json.loads(resolution.options["startingOffsets"])
    return {TopicPartition(t, int(p)): offset for t, numbers in topics.items() for p, offset in numbers.items()}


def source(**arguments: object) -> KafkaSource:
    return KafkaSource("localhost:9092", **{"topics": "orders", **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", [StartupMode.EARLIEST, StartupMode.LATEST])
def test_earliest_and_latest_need_no_broker(mode: StartupMode) -> None:
    assert not Startup(mode).reads_offsets
    assert resolve(Startup(mode)).options == {"startingOffsets": mode.value}


def test_timestamp_falls_back_to_latest_where_no_record_is_that_new() -> None:
    startup = Startup(StartupMode.TIMESTAMP, timestamp_ms=1_700_000_000_000)
    assert resolve(startup).options == {
        "startingTimestamp": "1700000000000",
        "startingOffsetsByTimestampStrategy": "latest",
    }


def test_group_offsets_are_where_reading_starts() -> None:
    assert offsets_of(resolve(GROUP, HELD, {P0: 42, P1: 7, P2: 0})) == {P0: 42, P1: 7, P2: 0}


@pytest.mark.parametrize(("reset", "expected"), [(OffsetReset.EARLIEST, -2), (OffsetReset.LATEST, -1)])
def test_partition_without_group_offset_starts_by_the_reset_strategy(reset: OffsetReset, expected: int) -> None:
    resolution = resolve(Startup(StartupMode.GROUP_OFFSETS, reset), HELD, {P0: 42})
    assert offsets_of(resolution) == {P0: 42, P1: expected, P2: expected}


def test_group_without_any_offset_starts_every_partition_by_the_reset_strategy() -> None:
    assert resolve(GROUP, HELD, {}).options == {"startingOffsets": "earliest"}


def test_group_offset_that_the_broker_no_longer_holds_counts_as_missing_and_is_told() -> None:
    resolution = resolve(GROUP, HELD, {P0: 9, P1: 51, P2: 0})
    assert offsets_of(resolution) == {P0: -2, P1: -2, P2: 0}
    assert [("orders-0" in w, "orders-1" in w) for w in resolution.warnings] == [(True, False), (False, True)]


def test_reset_none_refuses_a_first_start_and_says_why() -> None:
    resolution = resolve(Startup(StartupMode.GROUP_OFFSETS, OffsetReset.NONE), HELD, {P0: 42}, "orders-etl")
    assert resolution.problem is not None
    assert all(word in resolution.problem for word in ("orders-etl", "orders-1", "orders-2", "offset_reset"))
    assert "orders-0" not in resolution.problem
    assert not set(offsets_of(resolution)) & set(HELD), "Spark must refuse these offsets"


def test_reset_none_is_no_problem_when_the_group_has_all_offsets() -> None:
    resolution = resolve(Startup(StartupMode.GROUP_OFFSETS, OffsetReset.NONE), HELD, {P0: 42, P1: 1, P2: 0})
    assert resolution.problem is None


def test_specific_offsets_fall_back_to_group_offsets_then_to_the_reset_strategy() -> None:
    startup = Startup(StartupMode.SPECIFIC_OFFSETS, OffsetReset.LATEST, specific_offsets={P0: 50})
    assert offsets_of(resolve(startup, HELD, {P0: 11, P1: 7})) == {P0: 50, P1: 7, P2: -1}


def test_specific_offsets_may_be_sparks_words_for_earliest_and_latest() -> None:
    startup = Startup(StartupMode.SPECIFIC_OFFSETS, specific_offsets={P0: -1, P1: -2, P2: 0})
    assert offsets_of(resolve(startup, HELD)) == {P0: -1, P1: -2, P2: 0}


def test_specific_offset_of_a_partition_that_is_not_read_is_an_error() -> None:
    startup = Startup(StartupMode.SPECIFIC_OFFSETS, specific_offsets={TopicPartition("ordres", 0): 1})
    with pytest.raises(UnknownTopicError, match="ordres-0"):
        resolve(startup, HELD)


@given(
    specific=st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(-2, 120), min_size=1),
    group=st.dictionaries(st.sampled_from([P0, P1, P2]), st.integers(0, 120)),
    reset=st.sampled_from([OffsetReset.EARLIEST, OffsetReset.LATEST]),
)
def test_every_partition_gets_a_start_that_the_broker_holds(
    specific: dict[TopicPartition, int], group: dict[TopicPartition, int], reset: OffsetReset
) -> None:
    resolution = resolve(Startup(StartupMode.SPECIFIC_OFFSETS, reset, specific_offsets=specific), HELD, group)
    if resolution.options["startingOffsets"] == reset.value:
        return
    starts = offsets_of(resolution)
    assert set(starts) == set(HELD)
    for partition, offset in starts.items():
        assert offset in (-1, -2) or offset in HELD[partition]
        if partition in specific and specific[partition] in HELD[partition]:
            assert offset == specific[partition]


def test_specific_offsets_can_be_written_in_two_ways() -> None:
    expected = {P0: 1, P1: 2}
    assert parse_specific_offsets({("orders", 0): 1, ("orders", 1): 2}) == expected
    assert parse_specific_offsets({"orders": {0: 1, 1: 2}}) == expected


@pytest.mark.parametrize("wrong", [{"orders": 5}, {("orders",): 1}, {("orders", "x"): 1}, {1: 2}])
def test_specific_offsets_in_another_form_are_refused(wrong: dict[object, object]) -> None:
    with pytest.raises(ConfigurationError, match="specific_offsets"):
        parse_specific_offsets(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("argument", ["startup_mode", "offset_reset", "commit_mode"])
def test_unknown_choice_is_refused_with_the_valid_ones(argument: str) -> None:
    kinds = {"startup_mode": StartupMode, "offset_reset": OffsetReset, "commit_mode": OffsetCommitMode}
    with pytest.raises(ConfigurationError) as caught:
        source(**{argument: "earlyest"})
    assert all(member.value in str(caught.value) for member in kinds[argument])


@pytest.mark.parametrize(
    ("arguments", "mode"),
    [
        ({}, "earliest"),
        ({"group_id": "g"}, "group_offsets"),
        ({"group_id": "g", "startup_mode": "LATEST"}, "latest"),
        ({"timestamp": 5}, "timestamp"),
        ({"specific_offsets": {("orders", 0): 1}}, "specific_offsets"),
        ({"startup_mode": "specific-offsets", "specific_offsets": {("orders", 0): 1}}, "specific_offsets"),
    ],
)
def test_startup_mode_by_default_is_what_the_arguments_say(arguments: dict[str, object], mode: str) -> None:
    assert f"startup_mode='{mode}'" in repr(source(**arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topics": None}, "exactly one"),
        ({"topic_pattern": "o.*"}, "exactly one"),
        ({"topics": None, "partitions": {"orders": 1}}, "partitions"),
        ({"startup_mode": "group_offsets"}, "group_id"),
        ({"startup_mode": "timestamp"}, "timestamp"),
        ({"startup_mode": "latest", "timestamp": 1}, "timestamp"),
        ({"startup_mode": "specific_offsets"}, "specific_offsets"),
        ({"specific_offsets": {("orders", 0): -3}}, "orders-0"),
        ({"timestamp": datetime(2024, 1, 1)}, "time zone"),
        ({"timestamp": -1}, "1970"),
        ({"group_id": " "}, "group_id"),
        ({"commit_interval": "soon"}, "commit_interval"),
        ({"commit_interval": "0 s"}, "commit_interval"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        source(**arguments)


@pytest.mark.parametrize("servers", ["", [], "localhost", "localhost:"])
def test_address_without_a_port_is_refused(servers: object) -> None:
    with pytest.raises(ConfigurationError, match="bootstrap_servers"):
        KafkaSource(servers, "orders")  # type: ignore[arg-type]


def test_timestamp_may_be_a_datetime_with_a_time_zone() -> None:
    assert source(timestamp=datetime(2024, 1, 1, tzinfo=timezone.utc))._startup.timestamp_ms == 1_704_067_200_000


def test_unknown_option_is_refused_with_the_closest_name() -> None:
    with pytest.raises(ConfigurationError, match="maxOffsetsPerTrigger"):
        source(options={"maxOffsetPerTriggers": 5})


@pytest.mark.parametrize(
    ("option", "argument"),
    [
        ("subscribe", "topics"),
        ("startingOffsets", "startup_mode"),
        ("kafka.group.id", "group_id"),
        ("kafka.auto.offset.reset", "offset_reset"),
        ("kafka.enable.auto.commit", "commit_mode"),
        ("kafka.bootstrap.servers", "bootstrap_servers"),
    ],
)
def test_option_that_lockstep_owns_is_refused_with_the_argument_to_use(option: str, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"argument {argument} "):
        source(options={option: "x"})


def test_users_client_settings_win_over_the_defaults() -> None:
    settings = source(options={"kafka.max.poll.records": 7, "kafka.client.rack": "r1"})._client_settings()
    assert (settings["max.poll.records"], settings["client.rack"]) == ("7", "r1")


def test_secrets_are_in_no_repr() -> None:
    secrets = {
        "kafka.sasl.jaas.config": 'PlainLoginModule required username="u" password="hunter2000";',
        "kafka.ssl.keystore.password": "hunter2001",
        "kafka.ssl.key.password": "hunter2002",
        "kafka.sasl.login.callback.secret": "hunter2003",
    }
    stream = kafka_stream(0, {"subscribe": "orders", "kafka.bootstrap.servers": "b:1", **secrets})
    assert "hunter" not in repr(source(options=secrets)) + repr(stream) + repr(stream.client_settings)
    assert "b:1" in repr(stream)


def test_secrets_are_cut_out_of_messages_from_below() -> None:
    settings = ClientSettings({"sasl.jaas.config": 'X required password="hunter2000";', "client.id": "me-and-you"})
    assert "hunter2000" not in settings.redact("bad token hunter2000 for me-and-you")
    assert "me-and-you" in settings.redact("bad token hunter2000 for me-and-you")


def test_group_and_commit_mode_of_a_plain_stream_come_from_its_options() -> None:
    options = {
        "subscribe": "a, b",
        "kafka.bootstrap.servers": "b:1",
        "Lockstep.Group.Id": "mine",
        "lockstep.offset.commit.mode": "PERIODIC",
        "lockstep.offset.commit.interval": "250 ms",
    }
    stream = kafka_stream(3, options)
    assert (stream.index, stream.group_id, stream.topics) == (3, "mine", "topics a, b")
    assert stream.commit_mode is OffsetCommitMode.PERIODIC
    assert stream.commit_interval.total_seconds() == 0.25
    assert kafka_stream(0, {"kafka.group.id": "spark's", "assign": "{}"}).group_id == "spark's"


def test_stream_without_a_group_commits_nothing() -> None:
    assert not kafka_stream(0, {"subscribe": "a"}).commits_offsets


def test_spark_connect_session_is_refused() -> None:
    remote = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        source().load(remote)
    with pytest.raises(ConfigurationError, match="Spark Connect"):
        KafkaAdmin(remote, {})


def test_importing_the_sources_starts_no_jvm() -> None:
    code = (
        "import lockstep.sources, sys; from pyspark import SparkContext;"
        "sys.exit(SparkContext._gateway is not None or SparkContext._jvm is not None)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
