"""What tests of kernels that add up floats share: how exact sums are, and arrays that lie in any way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np

from flowrt.graph.op_def import OpDef

Array = np.ndarray[Any, Any]

UNIT = 2.0**-24
"""Half a unit in the last place of 1."""


def check_sums(kernel: Callable[..., Any], op: OpDef, *arguments: Any, **attrs: Any) -> None:
    """What a host's ``kernel`` gives is as exact as any order of additions is: each of n rounds by half a
    unit of the sum of absolute values. ``op`` on ones says what n is, but for means, of up to 64 terms.
    """
    expected = _exact(op, *arguments, **attrs)
    n_terms, total = (
        _exact(op, *[function(a) if isinstance(a, np.ndarray) else a for a in arguments], **attrs)
        for function in (np.ones_like, abs)
    )
    result = kernel(op, np, *arguments, **attrs)
    assert result.shape == expected.shape
    assert result.dtype == np.float32
    assert np.all(abs(result - expected) <= (n_terms + 64) * UNIT * total)
    out = np.full(expected.shape, 7, np.float32)
    assert kernel(op, np, *arguments, out=out, **attrs) is out
    assert np.array_equal(out, result)


def _exact(op: OpDef, *arguments: Any, **attrs: Any) -> Array:
    wide = [a.astype(np.float64) if isinstance(a, np.ndarray) else a for a in arguments]
    result: Array = op.kernel(np, *wide, **attrs)
    return result


def laid_out(draw: st.DrawFn, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """A random array of ``shape`` that may lie in memory in any way."""
    way = draw(st.sampled_from(["plain", "plain", "sliced", "reversed", "turned"])) if shape else "plain"
    array = rng.standard_normal([2 * n for n in shape] if way == "sliced" else shape).astype(np.float32)
    if way == "sliced":
        return array[tuple([slice(None, None, 2)] * len(shape))]
    if way == "reversed":
        return array[::-1]
    return array.reshape(shape[::-1]).T if way == "turned" else array
