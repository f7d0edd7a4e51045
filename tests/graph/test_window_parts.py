"""Windows without padding, against their definition."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from flowrt.graph.ops.window_parts import Where, count, element_parts, window_parts
from flowrt.graph.ops.windows import Axis, Step, lay_windows


@st.composite
def axes_of_windows(draw: st.DrawFn) -> tuple[Axis, ...]:
    """Of one or two axes; padding may be longer than the windows, strides too, and inputs shorter."""

    def axis() -> Axis:
        taps, before, after = draw(st.integers(1, 4)), draw(st.integers(0, 5)), draw(st.integers(0, 5))
        length = draw(st.integers(max(1, taps - before - after), 9))
        padding = draw(st.sampled_from(["SAME", "EXPLICIT"]))
        return lay_windows(length, taps, Step(draw(st.integers(1, 5)), 1, padding, (before, after)))

    return tuple(axis() for _ in range(draw(st.sampled_from([1, 2, 2]))))


Pair = tuple[tuple[int, ...], int, tuple[int, ...]]
"""(window, tap, element)"""


def all_pairs(axes: tuple[Axis, ...]) -> list[Pair]:
    """Which tap of which window is which element of the input, window after window."""
    found = []
    for window in product(*[range(a.outputs) for a in axes]):
        for number, tap in enumerate(product(*[range(a.taps) for a in axes])):
            element = tuple(w * a.stride - a.before + t for w, t, a in zip(window, tap, axes, strict=True))
            if all(0 <= e < a.length for e, a in zip(element, axes, strict=True)):
                found.append((window, number, element))
    return found


def places(where: Where, sizes: list[int]) -> list[tuple[int, ...]]:
    """Taken as a slice of an array of these sizes."""
    indices: Any = np.stack(np.indices(sizes), axis=-1)[where]
    return [tuple(index) for index in indices.reshape(-1, len(sizes)).tolist()]


@given(axes_of_windows())
def test_each_window_is_in_one_part_with_the_taps_that_it_has(axes: tuple[Axis, ...]) -> None:
    lengths, outputs = [a.length for a in axes], [a.outputs for a in axes]
    windows: list[tuple[int, ...]] = []
    pairs: list[Pair] = []
    for part, taps in window_parts(axes):
        windows += places(part, outputs)
        assert list(taps) == sorted(taps)
        for number, where in taps.items():
            pairs += [
                (w, number, e) for w, e in zip(places(part, outputs), places(where, lengths), strict=True)
            ]
    assert sorted(windows) == list(product(*map(range, outputs)))
    assert sorted(pairs) == sorted(all_pairs(axes))


@given(axes_of_windows())
def test_each_element_is_in_one_part_with_its_windows_in_order(axes: tuple[Axis, ...]) -> None:
    lengths, outputs = [a.length for a in axes], [a.outputs for a in axes]
    users: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for windows, elements in element_parts(axes):
        for where, seen_as in elements:
            here = places(where, lengths)
            assert users.keys().isdisjoint(here)
            users |= {e: [] for e in here}
            for i, number in seen_as:
                for w, e in zip(places(windows[i], outputs), here, strict=True):
                    users[e].append((w, number))
    expected: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for window, number, element in all_pairs(axes):
        expected.setdefault(element, []).append((window, number))
    assert users == expected


def test_elements_are_counted() -> None:
    assert count([]) == 0
    assert count([(slice(0, 5, 2), slice(1, 3)), (slice(4, 4), slice(0, 9))]) == 6
