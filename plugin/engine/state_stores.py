"""Spark's state stores outlive their query: each may write a last snapshot when its maintenance comes round.

A directory whose versions of the state begin anew must not get one of those: it would later be read for a state of the
same number. So a query that ends leaves word until when its stores may live, and a rewind waits for that.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from lockstep.protocol.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATH = "lockstep/state-in-use"
_SLACK = 1.5  # the maintenance itself takes a while
_LONGEST_MS = 600_000  # whatever clocks and files say

_log = logging.getLogger(__name__)


def note_end(spark: SparkSession, storage: Storage) -> None:
    """A query with state has ended here."""
    interval = int(spark._jsparkSession.sessionState().conf().streamingMaintenanceInterval())
    storage.write(PATH, str(_now() + int(interval * _SLACK)).encode())


def wait_for_end(storage: Storage) -> None:
    """Until no state store of an ended query writes here any more."""
    seconds = seconds_left(storage.read(PATH), _now())
    if seconds > 0:
        _log.warning("waiting %.0f s: Spark may still write state of the query that ended here", seconds)
        time.sleep(seconds)


def seconds_left(stored: bytes | None, now: int) -> float:
    """How long to wait. A word that can't be read counts as none: it is written anew by every query."""
    try:
        until = int((stored or b"0").decode("ascii"))
    except ValueError:
        until = 0
    return min(max(0, until - now), _LONGEST_MS) / 1000


def _now() -> int:
    return time.time_ns() // 1_000_000
