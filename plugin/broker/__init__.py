"""A real Kafka broker for tests and demonstrations, from Maven's jars: no Docker, no installation."""

from lockstep.broker.embedded import EmbeddedBroker

__all__ = ["EmbeddedBroker"]
