"""Compiled loops against the plain kernels, with FLOWRT_JIT off, eager and background: every sample of every
op, extreme values, feeds in any layout, random graphs.

The bound: `ULP` units in the last place of the result, or of the largest number that was added up to it. A
loop may contract ``a * b + c``, and add up a row in another order; its functions are within 2 ulp of the
exact result, NumPy's within 4. Below the smallest normal number only absolute differences count, since some
kernels give 0 there. The compiled plan of the background is the eager one, to the last bit.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import host_jit
from flowrt.executor import tiers
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.op_def import Effect, OpDef, registered_ops
from flowrt.graph.ops import all as all_ops  # noqa: F401  (defines every op)
from tests.executor.fused_sessions import in_all_modes
from tests.graph.test_all_ops import build, feeds_of, flat_inputs
from tests.graph.test_loop_rules import EXTREMES, extreme_cases, has_no_loop, with_loop

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ULP = 8

BLOCKS = 6
"""Into how many graphs the ops are spread."""


def assert_close(found: Any, plain: Any, terms: Sequence[Any], what: str) -> None:
    """``terms``: what may have been added up to each element; it broadcasts, or counts as a whole."""
    assert (found.dtype, found.shape) == (plain.dtype, plain.shape), what
    if plain.dtype.kind != "f":
        np.testing.assert_array_equal(found, plain, err_msg=what)
        return
    with np.errstate(all="ignore"):
        is_near = np.abs(found - plain) <= ULP * np.spacing(size_of(found, plain, terms))
    is_same = (found == plain) | (np.isnan(found) & np.isnan(plain)) | is_near
    assert is_same.all(), (what, found[~is_same], plain[~is_same])


def size_of(found: Any, plain: Any, terms: Sequence[Any]) -> Any:
    """The number whose last place counts."""
    info = np.finfo(plain.dtype)
    size = np.maximum(np.fmax(np.abs(found), np.abs(plain)), info.tiny / info.eps * info.eps)
    for term in terms:
        if np.asarray(term).dtype.kind == "f" and np.size(term):
            finite = np.where(np.isfinite(term), np.abs(term), 0)
            size = np.maximum(size, finite if finite.shape == plain.shape else finite.max())
    return np.where(np.isfinite(size), size, 0).astype(plain.dtype)
