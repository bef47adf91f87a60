"""Drop repeated events: state with a time to live.

Events come as JSON, ``{"id": "e1", "payload": "..."}``, and some come more than once, as a producer that retries sends
them. The first of each id goes to the table. An id is remembered for ``--remember``, then forgotten: state that is only
ever added to would grow for ever.

    lockstep broker --port 9092 --topic events:3        # in another terminal, if you have no Kafka
    python examples/deduplicate.py --topic events --table /tmp/lake/events --checkpoint /tmp/checkpoints/events

Lockstep itself repeats nothing, with or without this: what is dropped here was sent twice.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import job

import lockstep
from lockstep import KeyedProcessFunction, Ttl, ValueState

INPUT = "id string, payload string"
OUTPUT = "id string, payload string, partition int, offset bigint"


class FirstOnly(KeyedProcessFunction):
    """Hands on the first event of each id."""

    def __init__(self, remember: str = "1 h") -> None:
        # Counted from the last write. A repetition writes nothing here, so it does not prolong an id's life.
        self.seen = ValueState("boolean", default=False, ttl=Ttl(remember))

    def process_element(self, event: Any, ctx: Any) -> Iterator[tuple[Any, ...]]:
        if not self.seen.value():
            self.seen.update(True)
            yield event.id, event.payload, event.partition, event.offset


def main(arguments: Sequence[str] | None = None) -> None:
    parser = job.parser(__doc__, group="deduplicate")
    parser.add_argument("--remember", default="1 h", help="how long an id is known; default: %(default)s")
    options = parser.parse_args(arguments)
    spark = job.session("deduplicate")
    events = job.read_json(spark, options, options.topic, INPUT)
    unique = lockstep.key_by(events, "id").process(FirstOnly(options.remember), uid="unique", output=OUTPUT)
    job.run(unique, options)


if __name__ == "__main__":
    main()
