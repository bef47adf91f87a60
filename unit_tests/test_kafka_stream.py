"""What a Kafka stream's options say about it."""

from __future__ import annotations

import pytest

from lockstep.sources.client_settings import ClientSettings
from lockstep.sources.plan import kafka_stream


@pytest.mark.parametrize(
    ("options", "topic", "read"),
    [
        ({"subscribe": "orders, payments"}, "payments", True),
        ({"subscribe": "orders"}, "my-orders", False),
        ({"subscribePattern": "orders"}, "my-orders", True),  # Spark searches
        ({"subscribePattern": "^(?:orders)$"}, "my-orders", False),
        ({"subscribePattern": r"\p{Lower}+"}, "orders", True),  # Java's syntax is not ours to judge
        ({"subscribePattern": "[a-z&&[^b]]+"}, "orders", True),
        ({"assign": '{"orders-eu": [0, 1]}'}, "orders-eu", True),
        ({"assign": '{"orders-eu": [0, 1]}'}, "orders", False),
    ],
)
def test_subscription_tells_which_topics_are_read(options: dict[str, str], topic: str, read: bool) -> None:
    assert kafka_stream(0, options).reads(topic) is read


@pytest.mark.parametrize("password", ["hunter22", "a=b;c,d", "x"])
def test_secrets_are_taken_out_of_messages_whole(password: str) -> None:
    settings = ClientSettings({"sasl.jaas.config": f'Login required username="me" password="{password}";'})
    assert password not in settings.redact(f"cannot log in with <{password}>").replace("cannot log in with", "")
    assert password not in repr(settings).replace("ClientSettings", "").replace("sasl.jaas.config", "")
