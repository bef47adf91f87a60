"""Sessions of clicks: event-time timers close a session when its user has been away for the gap.

Clicks come as JSON, ``{"id": 1, "user": "u", "time": "2025-01-01T12:00:00Z"}``. Clicks of a user that are less than
``--gap`` seconds apart are one session, in whatever order they arrive. Its row goes to the table when the watermark has
passed the gap: a timer does that, so the user need not come back.

    lockstep broker --port 9092 --topic clicks:3        # in another terminal, if you have no Kafka
    python examples/sessions.py --topic clicks --table /tmp/lake/sessions --checkpoint /tmp/checkpoints/sessions

The watermark is the latest time seen in any click, less ``--lateness``: time passes only while somebody clicks. A click
that comes even later is not lost. It joins a session that is still open, or else is a session of its own.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import job

import lockstep
from lockstep import KeyedProcessFunction, MapState

INPUT = "id bigint, user string, time timestamp"
OUTPUT = "user string, started timestamp, ended timestamp, clicks bigint"
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Sessions(KeyedProcessFunction):
    """Keeps a user's open sessions by the time at which each closes: as a rule one, two when clicks come out of order."""

    open_sessions = MapState("bigint", "started timestamp, ended timestamp, clicks bigint")

    def __init__(self, gap: timedelta) -> None:
        self.gap = gap

    def process_element(self, click: Any, ctx: Any) -> None:
        started, ended, clicks = click.time, click.time, 1
        for closes, session in self.open_sessions.items():
            if session.started - self.gap < click.time < session.ended + self.gap:  # the click belongs to it
                started, ended = min(started, session.started), max(ended, session.ended)
                clicks += session.clicks
                self.open_sessions.remove(closes)
                ctx.delete_event_time_timer(closes)
        closes = (ended + self.gap - EPOCH) // timedelta(milliseconds=1)
        self.open_sessions.put(closes, (started, ended, clicks))
        ctx.register_event_time_timer(closes)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[Any, ...]]:
        session = self.open_sessions.get(timestamp)
        self.open_sessions.remove(timestamp)
        yield ctx.key, session.started, session.ended, session.clicks


def main(arguments: Sequence[str] | None = None) -> None:
    parser = job.parser(__doc__, group="sessions")
    parser.add_argument("--gap", type=float, default=1800, help="seconds that end a session; default: %(default)s")
    parser.add_argument("--lateness", type=float, default=60, help="seconds to wait for late clicks; %(default)s")
    options = parser.parse_args(arguments)
    spark = job.session("sessions")
    clicks = job.read_json(spark, options, options.topic, INPUT).withWatermark("time", f"{options.lateness} seconds")
    sessions = lockstep.key_by(clicks, "user").process(
        Sessions(timedelta(seconds=options.gap)), uid="sessions", output=OUTPUT
    )
    job.run(sessions, options)


if __name__ == "__main__":
    main()
