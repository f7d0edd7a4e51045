"""Compiled loops against the plain kernels, with FLOWRT_JIT off, eager and background: every sample of every
op, extreme values, feeds in any layout, random graphs.

The bound: `ULP` units in the last place of the result, or of the largest number that was added up to it. A
loop may contract ``a * b + c``, and add up a row in another order; its functions are within 2 ulp of the
exact result, NumPy's within 4. Below the smallest normal number only absolute differences count, since some
kernels give 0 there. The compiled plan of the background is the eager one, to the last bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.device import host_jit
from flowrt.device.loops import DTYPES
from flowrt.graph.op_def import Effect, LoopPattern, OpDef, registered_ops
from flowrt.graph.ops import all as all_ops  # defines every op
from tests.executor.fused_sessions import fused_of, in_all_modes
from tests.graph.test_all_ops import build, feeds_of, flat_inputs
from tests.graph.test_loop_rules import extreme_cases, has_no_loop, with_loop

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

ULP = 8

ADDING = frozenset(
    "Add AddV2 Sub AddN SquaredDifference BiasAdd Sum Mean Softmax LogSoftmax SigmoidGrad TanhGrad"
    " SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits".split()
)
"""Ops in whose rules numbers are added that may cancel."""

BLOCKS = 8
