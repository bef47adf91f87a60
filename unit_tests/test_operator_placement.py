"""Key groups are spread evenly over the tasks, because Spark's hash of their places is their number."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.operators.placement import group_at, place_of

SPARK = {0: 933211791, 1: -559580957, -1: -1604776387, 31: 972445202, 2147483647: 133916647, -2147483648: 723455942}


def test_hash_is_that_of_spark() -> None:
    """Figures of ``SELECT hash(n)``, Spark 4.0."""
    assert [group_at(number) for number in SPARK] == list(SPARK.values())


@given(st.integers(-(2**31), 2**31 - 1))
def test_every_place_has_one_group_and_every_group_one_place(number: int) -> None:
    assert group_at(place_of(number)) == number
    assert place_of(group_at(number)) == number


@pytest.mark.parametrize("tasks", [1, 2, 7, 32, 200])
@pytest.mark.parametrize("groups", [1, 32, 100, 128])
def test_no_task_has_more_than_one_group_above_another(groups: int, tasks: int) -> None:
    load = Counter(group_at(place_of(group)) % tasks for group in range(groups))
    assert max(load.values()) == -(-groups // tasks)
    assert len(load) == min(groups, tasks)
