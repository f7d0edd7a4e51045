"""Kernels of the host that compiled loops compute: the maximum over windows, and its gradient.

Each tap of the windows is a strided view of the image, so the maximum is an elementwise program over as many
views as there are taps, and the gradient one over the windows that an element is in: each passes over the
memory once, shared by threads, and padding is not even made. Results equal those of the operation's own
kernel, which does what loops do not have: 16-bit floats, windows of more than `MAX_TAPS` elements.

oneDNN has these too, but takes no notice of NaNs, has -3.4e38 for the largest of -inf, and needs the maximum
anew for the gradient. Sums it adds up in the same order, so both have the same bits. Milliseconds of these
loops, of oneDNN's primitives alone and of TensorFlow's (2 cores, AVX-512):

                                   maximum              gradient
    [128, 24, 24, 32] by 2x2 / 2   0.44  0.59  1.03     0.82  1.22   7.8
    [32, 56, 56, 64]  by 3x3 / 2   1.75  2.70  2.57     3.9   4.3   37
    [8, 112, 112, 64] by 3x3 / 2   1.49  2.37  2.71     3.4   4.4   36
    [8, 28, 28, 192]  by 3x3 / 1   0.84  0.67  0.47     2.4   2.3   24
    [32, 24, 24, 6]   by 2x2 / 2   0.06  0.02  0.12     0.11  0.18   0.5
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, TypeAlias

import numpy as np

from flowrt.device.loops import LoopBuilder, LoopProgram, Value
from flowrt.executor.loop_layout import Layout, call_on, layout_of
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.pooling import lowest, pool_axes
from flowrt.graph.ops.window_parts import count, element_parts, window_parts
from flowrt.graph.ops.windows import Axis, begin

Array: TypeAlias = np.ndarray[Any, Any]
Kernel: TypeAlias = Callable[..., Any]
Axes: TypeAlias = tuple[Axis, ...]
Attributes: TypeAlias = tuple[tuple[str, Any], ...]

MAX_TAPS = 9
"""Views of one loop; the gradient has twice as many."""

DTYPES = ("float32", "float64", "int32", "int64")


def _max_pool(op: OpDef, xp: Any, input: Array, out: Any = None, workspace: Any = None, **attrs: Any) -> Any:
    axes = _axes(input.shape, (), tuple(attrs.items()))
    out = np.empty([a.outputs for a in axes], input.dtype) if out is None else out
    if not _is_for_loops(axes, input, out):
        return op.kernel(xp, input, out=out, workspace=workspace, **attrs)
    for windows, taps in window_parts(axes):
        if taps:
            arrays = [*[input[where] for where in taps.values()], out[windows]]
            _run(_maximum, (input.dtype.name, len(taps)), arrays)
        else:
            out[windows] = lowest(input.dtype)
    return out


def _max_pool_grad(
    op: OpDef, xp: Any, orig_input: Array, orig_output: Array, grad: Array, out: Any = None,
    workspace: Any = None, **attrs: Any,
) -> Any:  # fmt: skip
    x, y, dy = orig_input, orig_output, grad
    axes = _axes(x.shape, (y.shape, dy.shape), tuple(attrs.items()))
    out = np.empty(x.shape, dy.dtype) if out is None else out
    if not _is_for_loops(axes, x, y, dy, out):
        return op.kernel(xp, x, y, dy, out=out, workspace=workspace, **attrs)
    if not _are_all_covered(axes):
        out[...] = 0
    if all(a.stride >= a.taps for a in axes):  # no element is in two windows
        _write_gradients(axes, x, y, dy, out)
    else:
        _add_gradients(axes, x, y, dy, out, begin(np, workspace)(y.shape, np.int32))
    return out


def _write_gradients(axes: Axes, x: Array, y: Array, dy: Array, dx: Array) -> None:
    for windows, taps in window_parts(axes):
        if taps:
            seen, gradients = ([array[where] for where in taps.values()] for array in (x, dx))
            _run(_gradients, (dy.dtype.name, len(taps)), [y[windows], dy[windows], *seen, *gradients])


def _add_gradients(axes: Axes, x: Array, y: Array, dy: Array, dx: Array, first: Array) -> None:
    """Give each element the gradients of the windows whose first maximum it is, added up in the order of the
    windows. ``first``: room for which tap that is, one a window.
    """
    for windows, taps in window_parts(axes):
        if taps:
            seen = [x[where] for where in taps.values()]
            _run(_first_maximum, (x.dtype.name, tuple(taps)), [y[windows], *seen, first[windows]])
    for behind, elements in element_parts(axes):
        read = [array[windows] for windows in behind for array in (first, dy)]
        seen_as = tuple([users for _, users in elements])
        _run(_sums, (dy.dtype.name, len(behind), seen_as), [*read, *[dx[where] for where, _ in elements]])


@lru_cache(maxsize=256)
def _axes(x_shape: tuple[int, ...], y_shapes: tuple[tuple[int, ...], ...], attrs: Attributes) -> Axes:
    return tuple(pool_axes(x_shape, *y_shapes, **dict(attrs)))


@lru_cache(maxsize=256)
def _are_all_covered(axes: Axes) -> bool:
    """Whether every element is in a window."""
    written = count(where for part in element_parts(axes) for where, _ in part.elements)
    return written == count([tuple([slice(0, a.length) for a in axes])])


def _is_for_loops(axes: Axes, *arrays: Array) -> bool:
    return math.prod([a.taps for a in axes]) <= MAX_TAPS and all(
        a.dtype.name in DTYPES and a.dtype == arrays[0].dtype and a.size and a.flags.aligned for a in arrays
    )


def _run(program: Callable[..., LoopProgram], kind: tuple[Any, ...], arrays: Sequence[Array]) -> None:
    """The loop of an elementwise ``program(*kind)`` over ``arrays``, all of one shape."""
    strides = [tuple([stride // a.itemsize for stride in a.strides]) for a in arrays]
    function, arguments = call_on(_layout(program, kind, arrays[0].shape, tuple(strides)), arrays)
    function(*arguments)


@lru_cache(maxsize=1024)
def _layout(
    program: Callable[..., LoopProgram], kind: tuple[Any, ...], shape: tuple[int, ...],
    strides: tuple[tuple[int, ...], ...],
) -> Layout:  # fmt: skip
    return layout_of(program(*kind), shape, strides)


# --- programs


def _maximum(dtype: str, n_taps: int) -> LoopProgram:
    """Of operands: the taps, and the result."""
    b = LoopBuilder()
    taps = [b.load(b.operand(dtype)) for _ in range(n_taps)]
    b.put(_largest(b, taps), b.operand(dtype))
    return b.build()


def _largest(b: LoopBuilder, values: Sequence[Value]) -> Value:
    """NaN if one is. To look for NaNs beside takes 0.7 to 0.9 of the time of maxima that keep them."""
    total = values[0]
    for value in values[1:]:
        total = b.select(value > total, value, total)
    if not total.dtype.startswith("float"):
        return total
    has_nan = values[0].differs(values[0])
    for value in values[1:]:
        has_nan = has_nan | value.differs(value)
    return b.select(has_nan, np.nan, total)


def _hits(taps: Sequence[Value], maximum: Value) -> Iterator[Value]:
    """For each tap, whether it is the first that has the window's maximum. Nothing has a NaN."""
    is_free = None
    for tap in taps:
        has_it = tap.equals(maximum)
        yield has_it if is_free is None else has_it & is_free
        is_free = ~has_it if is_free is None else is_free & ~has_it


def _gradients(dtype: str, n_taps: int) -> LoopProgram:
    """Of operands: maximum, its gradient, the taps, and their gradients."""
    b = LoopBuilder()
    maximum, gradient, *taps = [b.load(b.operand(dtype)) for _ in range(2 + n_taps)]
    for hit in _hits(taps, maximum):
        b.put(b.select(hit, gradient, 0), b.operand(dtype))
    return b.build()


def _first_maximum(dtype: str, numbers: Sequence[int]) -> LoopProgram:
    """Of operands: maximum, the taps of these numbers, and the number of the first that has it, or -1."""
    b = LoopBuilder()
    maximum, *taps = [b.load(b.operand(dtype)) for _ in range(1 + len(numbers))]
    first = b.const(-1, "int32")
    for number, tap in reversed(list(zip(numbers, taps, strict=True))):
        first = b.select(tap.equals(maximum), b.const(number, "int32"), first)
    b.put(first, b.operand("int32"))
    return b.build()


def _sums(dtype: str, n_windows: int, elements: Sequence[Sequence[tuple[int, int]]]) -> LoopProgram:
    """Of operands: for each window which tap has its maximum, and the maximum's gradient; and the gradients
    of elements, each tap ``(window, number)`` of some of the windows.
    """
    b = LoopBuilder()
    windows = [(b.load(b.operand("int32")), b.load(b.operand(dtype))) for _ in range(n_windows)]
    for users in elements:
        parts = [b.select(windows[i][0].equals(tap), windows[i][1], 0) for i, tap in users]
        b.put(reduce(operator.add, parts), b.operand(dtype))
    return b.build()


POOL_KERNELS: Mapping[str, Kernel] = {
    "MaxPool": _max_pool,
    "MaxPool3D": _max_pool,
    "MaxPoolGrad": _max_pool_grad,
    "MaxPool3DGrad": _max_pool_grad,
}
"""By the operation's name: ``kernel(op, xp, *inputs, out=None, workspace=None, **attrs)``."""
