"""Uniform random numbers by compiled loops: those of the operation, to the bit, in a fifth of the time.

A block of the stream is a function of its number alone, so threads share the blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from flowrt.device.llvm.host_pool import PARALLEL_NS, run_in_parallel
from flowrt.dtypes import DType
from flowrt.executor.kernels.loop_layout import compiled
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.random.random_ops import random_uniform_op
from flowrt.graph.resources.parts_of_draws import Part, fill_equal
from flowrt.graph.resources.random_stream import Draw, RandomStream
from flowrt.loops.llvm_philox import PER_BLOCK, uniform

NS_PER_BLOCK = 8.0

MIN_BLOCKS = 64
"""Fewer are drawn as fast by NumPy."""

GRAIN = 1024
"""Blocks of a thread's share: 8 us."""


def _uniform(
    op: OpDef,
    xp: Any,
    shape: Any,
    dtype: DType,
    state: RandomStream,
    out: Any = None,
    of: Sequence[int] = (),
    begin: Sequence[int] = (),
) -> Any:
    is_direct = out is None or (out.dtype == dtype.np and out.flags.carray)
    if dtype.name not in PER_BLOCK or not is_direct:
        return op.kernel(xp, shape, dtype=dtype, state=state, out=out, of=of, begin=begin)
    values = np.empty(shape, dtype.np) if out is None else out
    fill_equal(state.draw(), values, Part(of, begin), PER_BLOCK[dtype.name], _fill)
    return values


def _fill(draw: Draw, block: int, values: Any) -> None:
    """Draw ``values``, a vector, from ``block`` on; whole blocks by the loop."""
    per_block = PER_BLOCK[values.dtype.name]
    count = values.size // per_block
    if count < MIN_BLOCKS:
        count = 0
    else:
        loop = compiled(uniform(values.dtype.name))
        table = np.array([values.ctypes.data, *draw.words(block)], np.uint64)
        if count * NS_PER_BLOCK > PARALLEL_NS:
            run_in_parallel(loop.call, table.ctypes.data, 0, count, GRAIN)
        else:
            loop.call(table.ctypes.data, 0, count)
    rest = values[count * per_block :]
    if rest.size:
        draw.generator(block=block + count).random(out=rest, dtype=values.dtype.type)


RANDOM_KERNELS: Mapping[OpDef, Callable[..., Any]] = {random_uniform_op: _uniform}
"""``kernel(op, xp, *inputs, out=None, **attrs)``."""
