"""Which chunks are brought anew: the fewest, for chunks of one size, by brute force."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt.graph.passes.layouts.place_chunks import Placed, place_chunks


def moves(uses: Sequence[str], placed: Sequence[Placed]) -> int:
    return sum(place.brought == i for i, place in enumerate(placed))


def fewest(uses: Sequence[str], count: int) -> int:
    """The least possible number of moves if ``count`` chunks may be there, and that of the use before stays
    while one comes.
    """

    @functools.cache
    def from_use(i: int, here: frozenset[str]) -> int:
        if i == len(uses):
            return 0
        if uses[i] in here:
            return from_use(i + 1, here)
        if len(here) < count:
            return 1 + from_use(i + 1, here | {uses[i]})
        free = [other for other in here if i == 0 or other != uses[i - 1]] or list(here)
        return 1 + min(from_use(i + 1, here - {gone} | {uses[i]}) for gone in free)

    return from_use(0, frozenset())


def sequences(length: int) -> list[str]:
    """All sequences of so many uses, but for the names: a new chunk is always the next letter."""
    found = [""]
    for _ in range(length):
        found = [uses + chr(97 + i) for uses in found for i in range(len(set(uses)) + 1)]
    return found


@pytest.mark.parametrize("length", [*range(1, 8), *[pytest.param(n, marks=pytest.mark.slow) for n in (8, 9)]])
def test_moves_are_the_fewest_possible(length: int) -> None:
    """Of all sequences of up to 9 uses, for as many chunks as may be there."""
    for uses in sequences(length):
        for count in range(1, len(set(uses)) + 1):
            placed = place_chunks(uses, dict.fromkeys(uses, 8), 8 * count)
            assert moves(uses, placed) == fewest(uses, count), (uses, count)


@given(st.text("abcdefg", min_size=10, max_size=14), st.integers(1, 5))
def test_so_are_those_of_longer_sequences(uses: str, count: int) -> None:
    placed = place_chunks(uses, dict.fromkeys(uses, 8), 8 * count)
    assert moves(uses, placed) == fewest(uses, count)


@given(
    st.lists(st.sampled_from("abcdef"), max_size=40),
    st.fixed_dictionaries({name: st.integers(1, 9) for name in "abcdef"}),
    st.integers(9, 60),
)
def test_what_is_there_is_never_above_the_limit(
    uses: list[str], sizes: Mapping[str, int], limit: int
) -> None:
    """A chunk is there from when all that it comes after has ended until the first that comes after it."""
    here: dict[str, int] = {}
    for i, (chunk, place) in enumerate(zip(uses, place_chunks(uses, sizes, limit), strict=True)):
        for gone in place.after:
            assert here.pop(uses[gone]) == gone  # its last use so far
        if place.brought == i:
            assert chunk not in here
        else:
            assert uses[place.brought] == chunk
            assert chunk in here
        here[chunk] = i
        assert sum(sizes[other] for other in here) <= limit


def test_without_a_limit_all_are_brought_anew_and_two_are_there() -> None:
    assert place_chunks("abcb", {}, None) == [Placed(0, ()), Placed(1, ()), Placed(2, (0,)), Placed(3, (1,))]
