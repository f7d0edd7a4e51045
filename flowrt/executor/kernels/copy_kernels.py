"""Copies of small arrays as compiled loops, for use in compiled sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall
from flowrt.executor.kernels.loop_layout import layout_of, strides_in, whole_on
from flowrt.graph.passes.fusion.group import Level
from flowrt.loops.loop_program import DTYPES, LoopBuilder, LoopValue

Array = np.ndarray[Any, Any]


def copy_call(target: Array, source: Array) -> MachineCall:
    """A call that copies ``source`` to ``target``, of the same shape, with a cast to its dtype. The arrays
    must be kept alive.
    """
    return elementwise_call(lambda b, value: b.cast(value, target.dtype.name), [source, target])


def elementwise_call(rule: Callable[..., LoopValue], arrays: Sequence[Array]) -> MachineCall:
    """A call that computes the last of ``arrays`` from the others, which broadcast to its shape, by
    ``rule(builder, *values)``. The arrays must be kept alive.
    """
    *inputs, target = arrays
    builder = LoopBuilder()
    values = [builder.load(builder.operand(array.dtype.name)) for array in inputs]
    builder.put(rule(builder, *values), builder.operand(target.dtype.name))
    strides = [strides_in(array, Level.ELEMENT, target.shape) for array in arrays]
    return whole_on(layout_of(builder.build(), target.shape, strides), arrays)


def clear_call(array: Array) -> MachineCall:
    """Sets ``array``, which must stay, to 0."""
    return elementwise_call(lambda b: b.spread(b.const(0, array.dtype.name)), [array])


def is_fit(array: Any) -> bool:
    """Whether loops can read and write it."""
    return isinstance(array, np.ndarray) and array.flags.aligned and array.dtype.name in DTYPES
