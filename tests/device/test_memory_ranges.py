"""The addresses of arrays are NumPy's, and a union of ranges is the set of its bytes."""

from __future__ import annotations

import numpy as np
import pytest

from flowrt.device.memory_ranges import Ranges, bounds, overlap


@pytest.mark.parametrize("seed", range(10))
def test_the_bounds_of_a_view_are_numpys(seed: int) -> None:
    rng = np.random.default_rng(seed)
    view = np.zeros((5, 6, 7), np.float32)[rng.integers(3) :: rng.choice([-2, -1, 1, 2]), ::-1, 2:5]
    view = view.transpose(rng.permutation(3))
    assert bounds(view) == np.lib.array_utils.byte_bounds(view)


def test_a_union_overlaps_what_one_of_its_ranges_overlaps() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        added: list[tuple[int, int]] = []
        union = Ranges()
        for start, length in zip(
            rng.integers(0, 60, 6).tolist(), rng.integers(0, 9, 6).tolist(), strict=True
        ):
            union.add((start, start + length))
            added.append((start, start + length))
            for at in range(70):
                asked = at, at + 1
                assert union.overlaps(asked) == any(overlap(each, asked) for each in added)
