"""KafkaSink keeps the contract of sinks, with one transaction per epoch and with several. Read with kafka-python."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

from integration_tests.conftest import Broker, MakeTopic
from integration_tests.sessions import ONLY_THOROUGH, contract_session
from integration_tests.targets import read_committed
from lockstep.sinks import KafkaSink
from lockstep.testing import SinkContract


@pytest.mark.usefixtures("spark")
class TestKafkaSink(SinkContract):
    in_order = True
    partitions = 1
    broker: ClassVar[Broker]
    make_topic: ClassVar[Any]

    @pytest.fixture(autouse=True)
    def _broker(self, kafka: Broker, make_topic: MakeTopic) -> None:
        type(self).broker = kafka
        type(self).make_topic = staticmethod(make_topic)

    def session(self) -> SparkSession:
        return contract_session()

    def new_target(self) -> dict[str, str]:
        return {"servers": self.broker.bootstrap_servers, "topic": self.make_topic(self.partitions)}

    def make_sink(self, target: Any) -> KafkaSink:
        return KafkaSink(target["servers"], topic=target["topic"])

    def read(self, target: Any) -> Sequence[int]:
        return [json.loads(value)["id"] for value in read_committed(target["servers"], target["topic"])]


@ONLY_THOROUGH
class TestKafkaSinkInParallel(TestKafkaSink):
    in_order = False
    whole_epochs = False
    partitions = 3
    test_epochs_of_a_killed_process_are_committed_by_another = None  # costs a JVM; the class above shows it

    def make_sink(self, target: Any) -> KafkaSink:
        return KafkaSink(target["servers"], topic=target["topic"], parallelism=2)
