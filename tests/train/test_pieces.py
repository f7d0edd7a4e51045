"""Blocks of tensors: what they have in common, whether they make a whole, and who writes them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowrt.train.checkpoints.pieces import (
    Holder,
    Slices,
    block_of,
    choose_writers,
    extent,
    inside,
    intersect,
    overlapping,
)

SHAPE = (4, 3, 5)


class Block(NamedTuple):
    offset: tuple[int, ...]
    shape: tuple[int, ...]


@st.composite
def parts(draw: st.DrawFn, least: int = 0) -> Slices:
    found = []
    for size in SHAPE:
        start = draw(st.integers(0, size - least))
        found.append(slice(start, draw(st.integers(start + least, size))))
    return tuple(found)


def mask(part: Slices) -> np.ndarray:
    found = np.zeros(SHAPE, bool)
    found[part] = True
    return found


@given(parts(), parts())
def test_the_common_part_has_the_elements_of_both(one: Slices, other: Slices) -> None:
    common, both = intersect(one, other), mask(one) & mask(other)
    if common is None:
        assert not both.any()
        return
    np.testing.assert_array_equal(mask(common), both)
    whole = np.arange(60).reshape(SHAPE)
    np.testing.assert_array_equal(whole[one][inside(common, one)], whole[common])


@given(parts(least=1))
def test_the_extent_of_a_part_is_from_its_first_element_to_its_last(part: Slices) -> None:
    first, end = extent(part, SHAPE)
    numbers = np.arange(60).reshape(SHAPE)[part]
    assert (first, end) == (numbers.min(), numbers.max() + 1)


def test_a_scalar_is_a_part_of_itself() -> None:
    assert intersect((), ()) == ()
    assert extent((), ()) == (0, 1)
    assert overlapping([Block((), ()), Block((), ())]) == (0, 1)


@given(st.lists(parts(least=1), max_size=6))
def test_two_blocks_overlap_if_they_share_an_element(found: list[Slices]) -> None:
    pair = overlapping([Block(*block_of(part)) for part in found])
    if pair is None:
        assert sum(mask(part).astype(int) for part in found).max(initial=0) <= 1 if found else True
    else:
        assert pair[0] < pair[1]
        assert (mask(found[pair[0]]) & mask(found[pair[1]])).any()


def test_thousands_of_blocks_are_compared_in_parts() -> None:
    blocks = [Block((i,), (1,)) for i in range(1000)]
    assert overlapping(blocks) is None
    assert overlapping([*blocks, Block((997,), (1,))]) == (997, 1000)


def test_each_piece_is_written_once_and_all_write_about_as_many_bytes() -> None:
    """Eight equal variables, replicated on 2 x 2 devices, and a shard of each process's own."""
    everybody = [Holder(task, 2 * task + i) for task in (0, 1) for i in (0, 1)]
    chosen = choose_writers([*[(100, everybody)] * 8, (300, everybody[:1]), (100, everybody[3:])])
    assert chosen[-2:] == [everybody[0], everybody[3]]
    written = dict.fromkeys(everybody, 0)
    for writer, nbytes in zip(chosen, [100] * 8 + [300, 100], strict=True):
        written[writer] += nbytes
    assert sorted(written.values()) == [300, 300, 300, 300]


@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 3), min_size=1))))
def test_writers_hold_what_they_write_and_do_not_depend_on_the_order_of_holders(found: list) -> None:
    holders = [(nbytes, [Holder(n // 2, n) for n in devices]) for nbytes, devices in found]
    chosen = choose_writers(holders)
    assert all(writer in of for writer, (_, of) in zip(chosen, holders, strict=True))
    assert chosen == choose_writers([(nbytes, of[::-1]) for nbytes, of in holders])
