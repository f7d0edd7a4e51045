"""How far another clock is ahead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowrt.distribute.wire.clock import Reading, best

WAYS = st.tuples(st.integers(0, 10**9), st.integers(0, 10**9))
"""Nanoseconds there, and back."""


def reading(asked: int, offset: int, way: tuple[int, int]) -> Reading:
    """As it would come of a clock that is ``offset`` ahead."""
    there, back = way
    return Reading(asked, asked + there + offset, asked + there + back)


@given(st.integers(-(10**15), 10**15), st.lists(WAYS, min_size=1))
def test_the_offset_is_wrong_by_no_more_than_it_says(offset: int, ways: list[tuple[int, int]]) -> None:
    readings = [reading(1000 * i, offset, way) for i, way in enumerate(ways)]
    for each in readings:
        assert abs(each.offset - offset) <= each.error
    assert best(readings).error == min(each.error for each in readings)


def test_the_quickest_answer_is_the_best() -> None:
    slow, quick = reading(0, 500, (90, 10)), reading(1000, 500, (6, 4))
    assert best([slow, quick]) == quick
    assert quick.offset == 501
