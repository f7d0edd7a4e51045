"""Copies of small arrays as compiled loops, for use in compiled sequences."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.device.llvm.call_sequence import Call, is_compiled
from flowrt.device.loops.loop_program import DTYPES, LoopBuilder
from flowrt.executor.kernels.loop_layout import call_on, layout_of, strides_in
from flowrt.graph.passes.fusion.group import Level

Array = np.ndarray[Any, Any]


def compiled_form(call: Call) -> Call | None:
    """``call`` as machine code; None where it is more than that, and more than a copy."""
    function, arguments = call
    if function is np.copyto and all(map(is_fit, arguments)) and arguments[0].shape == arguments[1].shape:
        call = copy_call(*arguments)
    return call if is_compiled(call) else None


def copy_call(target: Array, source: Array) -> Call:
    """A call that copies ``source`` to ``target``, of the same shape, with a cast to its dtype. The arrays
    must be kept alive.
    """
    builder = LoopBuilder()
    value = builder.load(builder.operand(source.dtype.name))
    builder.put(builder.cast(value, target.dtype.name), builder.operand(target.dtype.name))
    strides = [strides_in(array, Level.ELEMENT, target.shape) for array in (source, target)]
    return call_on(layout_of(builder.build(), target.shape, strides), [source, target])


def clear_call(array: Array) -> Call:
    """Sets ``array``, which must stay, to 0."""
    builder = LoopBuilder()
    zero = builder.const(0, array.dtype.name)
    builder.put(builder.spread(zero), builder.operand(array.dtype.name))
    return call_on(
        layout_of(builder.build(), array.shape, [strides_in(array, Level.ELEMENT, array.shape)]), [array]
    )


def is_fit(array: Any) -> bool:
    """Whether loops can read and write it."""
    return isinstance(array, np.ndarray) and array.flags.aligned and array.dtype.name in DTYPES
