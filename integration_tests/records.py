"""Writes and reads plain records, as a user's own client would."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer


def produce(bootstrap_servers: str, topic: str, *values: str) -> None:
    """Write ``values`` and return when the broker has them all."""
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    for value in values:
        producer.produce(topic, value.encode())
    assert producer.flush(30) == 0


def consume(bootstrap_servers: str, topic: str, count: int, timeout: float = 30.0) -> list[str]:
    """Read up to ``count`` values from the topic's beginning, and fewer only when ``timeout`` seconds have passed."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": f"{topic}-readers", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        return [(message.value() or b"").decode() for message in consumer.consume(count, timeout=timeout)]
    finally:
        consumer.close()
