"""A slice of chaos by fixed seeds, five minutes with the starts. ``make thorough`` takes longer."""

from __future__ import annotations

import pytest

from integration_tests.chaos.__main__ import CLUSTER, LOCAL
from integration_tests.chaos.run import Chaos
from integration_tests.sessions import THOROUGH


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed, master, brokers", [(12, CLUSTER, 3), (11, LOCAL, 1)])
def test_nothing_is_lost_repeated_or_torn_whatever_strikes(seed: int, master: str, brokers: int) -> None:
    lines: list[str] = []
    tally = Chaos(
        seed=seed,
        rounds=100,
        minutes=3.0 if THOROUGH else 1.0,
        nemeses=(),
        brokers=brokers,
        segment=100,
        rows_per_second=60,
        masters=(master,),
        told=lambda tally, line: lines.append(line),
    ).run()
    told = "\n".join(lines)
    assert [violation.text for violation in tally.violations] == [], told
    assert tally.rounds, told
    assert tally.rows > 500
    assert tally.looks["table"] > 20
    assert tally.looks["topic"] > 20
    assert tally.as_json()["lost"] == 0
