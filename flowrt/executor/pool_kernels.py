"""Kernels of the host that compiled loops compute: the maximum over windows, and its gradient.

Each tap of the windows is a strided view of the image, so the maximum is an elementwise program over as many
views as there are taps: one pass over the memory, shared by threads. Results equal those of the operation's
own kernel, which does what loops do not have: 16-bit floats, windows of more than `MAX_TAPS` elements.

oneDNN has these too, and as fast, but takes no notice of NaNs and has -3.4e38 for the largest of -inf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.loops import LoopBuilder, LoopProgram, Value
from flowrt.executor.loop_layout import call_on, layout_of
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.pooling import lowest, pool_axes
from flowrt.graph.ops.windows import pad, taps_of

Array: TypeAlias = np.ndarray[Any, Any]
Kernel: TypeAlias = Callable[..., Any]

MAX_TAPS = 9
"""Views of one loop; the gradient has twice as many."""

DTYPES = ("float32", "float64", "int32", "int64")


def _max_pool(op: OpDef, xp: Any, input: Array, out: Any = None, **attrs: Any) -> Any:
    axes = pool_axes(input.shape, **attrs)
    taps = [where for _, where in taps_of(axes)]
    out = np.empty([a.outputs for a in axes], input.dtype) if out is None else out
    if not _is_for_loops(len(taps), input, out):
        return op.kernel(xp, input, out=out, **attrs)
    x = pad(np, input, axes, input.dtype, lowest(input.dtype), 0)
    _run(_maximum(input.dtype.name, len(taps)), [*[x[where] for where in taps], out])
    return out


def _max_pool_grad(
    op: OpDef, xp: Any, orig_input: Array, orig_output: Array, grad: Array, out: Any = None, **attrs: Any
) -> Any:
    axes = pool_axes(orig_input.shape, orig_output, grad, **attrs)
    taps = [where for _, where in taps_of(axes)]
    out = np.empty(orig_input.shape, grad.dtype) if out is None else out
    if not _is_for_loops(len(taps), orig_input, orig_output, grad, out):
        return op.kernel(xp, orig_input, orig_output, grad, out=out, **attrs)
    x = pad(np, orig_input, axes, orig_input.dtype, lowest(orig_input.dtype), 0)
    total = out if x is orig_input else np.empty_like(x)
    if not all(a.outputs * a.stride == a.padded == a.outputs * a.taps for a in axes):
        total[...] = 0  # some element is in no window, or in several
    seen, gradients = [x[where] for where in taps], [total[where] for where in taps]
    if all(a.stride >= a.taps for a in axes):  # no element is in two windows
        _run(_gradients(grad.dtype.name, len(taps)), [orig_output, grad, *seen, *gradients])
    else:
        _add_gradients(orig_output, grad, seen, gradients)
    if total is not out:
        out[...] = total[tuple([a.inner for a in axes])]
    return out


def _add_gradients(y: Array, dy: Array, seen: Sequence[Array], gradients: Sequence[Array]) -> None:
    """Add to each tap the gradients of the windows whose first maximum it is; one tap after the other, since
    an element is a tap of several windows.
    """
    first = np.empty(y.shape, np.int32)
    _run(_first_maximum(dy.dtype.name, len(seen)), [y, *seen, first])
    for number, gradient in enumerate(gradients):
        tap = np.broadcast_to(np.int32(number), y.shape)
        _run(_added_gradient(dy.dtype.name), [first, tap, dy, gradient])


def _is_for_loops(n_taps: int, *arrays: Array) -> bool:
    return n_taps <= MAX_TAPS and all(
        a.dtype.name in DTYPES and a.dtype == arrays[0].dtype and a.size and a.flags.aligned for a in arrays
    )


def _run(program: LoopProgram, arrays: Sequence[Array]) -> None:
    """The loop of an elementwise program over ``arrays``, all of one shape."""
    strides = [tuple([stride // a.itemsize for stride in a.strides]) for a in arrays]
    layout = _layout(program, arrays[0].shape, tuple(strides))
    function, arguments = call_on(layout, arrays)
    function(*arguments)


_layout = lru_cache(maxsize=256)(layout_of)


# --- programs


@lru_cache(maxsize=64)
def _maximum(dtype: str, n_taps: int) -> LoopProgram:
    """Of operands: the taps, and the result."""
    b = LoopBuilder()
    taps = [b.load(b.operand(dtype)) for _ in range(n_taps)]
    b.put(_folded(b, taps), b.operand(dtype))
    return b.build()


def _folded(b: LoopBuilder, values: Sequence[Value]) -> Value:
    total = values[0]
    for value in values[1:]:
        total = b.emit("max", total, value)
    return total


def _hits(b: LoopBuilder, taps: Sequence[Value], maximum: Value) -> Iterator[Value]:
    """For each tap, whether it is the first that has the window's maximum. Nothing has a NaN."""
    is_free = None
    for tap in taps:
        has_it = tap.equals(maximum)
        yield has_it if is_free is None else has_it & is_free
        is_free = ~has_it if is_free is None else is_free & ~has_it


@lru_cache(maxsize=64)
def _gradients(dtype: str, n_taps: int) -> LoopProgram:
    """Of operands: maximum, its gradient, the taps, and their gradients."""
    b = LoopBuilder()
    maximum, gradient, *taps = [b.load(b.operand(dtype)) for _ in range(2 + n_taps)]
    for hit in _hits(b, taps, maximum):
        b.put(gradient * b.cast(hit, dtype), b.operand(dtype))
    return b.build()


@lru_cache(maxsize=64)
def _first_maximum(dtype: str, n_taps: int) -> LoopProgram:
    """Of operands: maximum, the taps, and the number of the first that has it, or -1."""
    b = LoopBuilder()
    maximum, *taps = [b.load(b.operand(dtype)) for _ in range(1 + n_taps)]
    number = b.const(-1, "int32")
    for i, hit in enumerate(_hits(b, taps, maximum)):
        number = b.select(hit, b.const(i, "int32"), number)
    b.put(b.spread(number), b.operand("int32"))
    return b.build()


@lru_cache(maxsize=64)
def _added_gradient(dtype: str) -> LoopProgram:
    """Of operands: which tap has the maximum, a tap's number, the maximum's gradient, and the tap's, to which
    it is added.
    """
    b = LoopBuilder()
    first, tap = b.load(b.operand("int32")), b.load(b.operand("int32"))
    gradient, total = b.load(b.operand(dtype)), b.operand(dtype)
    b.put(b.load(total) + gradient * b.cast(first.equals(tap), dtype), total)
    return b.build()


POOL_KERNELS: Mapping[str, Kernel] = {
    "MaxPool": _max_pool,
    "MaxPool3D": _max_pool,
    "MaxPoolGrad": _max_pool_grad,
    "MaxPool3DGrad": _max_pool_grad,
}
"""By the operation's name: ``kernel(op, xp, *inputs, out=None, **attrs)``."""
