"""Random graphs compute the same in another precision, within its rounding, and give results of one dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.precision import Precision
from tests.each import nightly
from tests.graph.random_graphs import CALLS, CONTROL_FLOW, NOISE, RandomGraph

GRAPHS = 200
PER_TEST = 10
PRODUCTS = (*CALLS, *4 * [RandomGraph.product, RandomGraph.einsum])
WITHOUT_JUMPS = [call for call in PRODUCTS if call.__name__ not in ("chosen", "piecewise_constant")]
"""Calls that are continuous: rounding never changes a result by much."""


def results(drawn: RandomGraph, fetches: Any, update: Any) -> list[Any]:
    """Values before and after an update of the variable, and the variable."""
    with drawn.graph, tf.Session() as session:
        session.run(drawn.variable.initializer)
        found = session.run(fetches, drawn.point)
        session.run(update, drawn.point)
        return [*found, *session.run(fetches, drawn.point), session.run(drawn.variable)]


def check(seed: int, precision: Precision, tolerance: float, kinds: Sequence[Any], with_slopes: bool) -> bool:
    """One random graph in a precision; whether any result changed."""
    drawn = RandomGraph(seed, 8, kinds)
    with drawn.graph:
        slopes = [g for y in drawn.ys for g in tf.gradients(y, drawn.xs) if g is not None]
        fetches = [*drawn.ys, *(map(tf.convert_to_tensor, slopes) if with_slopes else ())]
        changes = [t for t in drawn.made if t.shape.as_list() == [3, 3]]
        update = drawn.variable.assign_add(0.1 * tf.stop_gradient(changes[-1]))
    expected = results(drawn, fetches, update)
    handle = drawn.variable.op
    handle.mutate(attrs={**handle.node.attrs, **precision.attributes(tf.float64)})
    found = results(drawn, fetches, update)
    for narrow, wide in zip(found, expected, strict=True):
        assert narrow.dtype == wide.dtype
        np.testing.assert_allclose(narrow, wide, tolerance, tolerance, err_msg=f"seed {seed}")
    return any((narrow != wide).any() for narrow, wide in zip(found, expected, strict=True))


def check_some(first: int, *arguments: Any) -> None:
    changed = [check(seed, *arguments) for seed in range(first, first + PER_TEST)]
    assert sum(changed) >= PER_TEST // 4


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS, PER_TEST), 1))
def test_float32_for_float64(first: int) -> None:
    check_some(first, Precision("float32", "float64", "float64"), 1e-4, PRODUCTS, True)


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS // 2, PER_TEST), 1))
def test_bfloat16_for_float64(first: int) -> None:
    check_some(first, Precision("bfloat16", "float32", "float64"), 0.1, WITHOUT_JUMPS, False)


@pytest.mark.parametrize("first", nightly(range(0, GRAPHS // 2, PER_TEST), 1))
def test_loops_branches_and_draws_too(first: int) -> None:
    kinds = (*PRODUCTS, *NOISE, *2 * CONTROL_FLOW)
    check_some(first, Precision("float32", "float64", "float64"), 1e-4, kinds, True)
