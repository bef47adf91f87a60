"""Time, injected: the protocol never looks at the wall by itself."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Milliseconds since 1970 for records, and a steady clock in seconds for waiting and timeouts."""

    def epoch_millis(self) -> int: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clocks."""

    def epoch_millis(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
