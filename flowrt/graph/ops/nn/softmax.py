"""Softmax and its logarithm, along any axis.

The ops work along the last axis, on inputs shifted by their maximum, so that nothing overflows; other axes
are moved there and back. float16 and bfloat16 are worked on in float32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.op_def import OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Loop, LoopPattern
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import swapped_with_last, transpose
from flowrt.graph.ops.elementwise.arithmetic import multiply, subtract
from flowrt.graph.ops.elementwise.math import exp
from flowrt.graph.ops.nn import sharded_softmax
from flowrt.graph.shapes import Shape
from flowrt.graph.tf1_signatures import tf1_names
from flowrt.graph.typing import NumericLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue


def shifted(xp: Any, logits: Any, out: Any = None) -> Any:
    """``logits`` less the maximum of each row, in the dtype to work in; in ``out``, which may be ``logits``,
    if that has this dtype.
    """
    wide = logits.astype(accumulator(logits), copy=False)
    if not wide.size:  # nothing has no maximum
        return wide.copy()
    place = out if out is not None and out.dtype == wide.dtype else None
    return xp.subtract(wide, wide.max(axis=-1, keepdims=True), out=place)


def _softmax(xp: Any, logits: Any, out: Any = None) -> Any:
    powers = shifted(xp, logits, out)
    xp.exp(powers, out=powers)
    total = powers.sum(axis=-1, keepdims=True)
    return delivered(xp, xp.true_divide(powers, total, out=powers), logits.dtype, out)


def _log_softmax(xp: Any, logits: Any, out: Any = None) -> Any:
    exponents = shifted(xp, logits, out)
    total = xp.log(xp.exp(exponents).sum(axis=-1, keepdims=True))
    return delivered(xp, xp.subtract(exponents, total, out=exponents), logits.dtype, out)


def _softmax_loop(b: LoopBuilder, logits: LoopValue) -> LoopValue:
    powers = b.exp(logits - b.row_max(logits))
    return powers / b.row_sum(powers)


def _log_softmax_loop(b: LoopBuilder, logits: LoopValue) -> LoopValue:
    exponents = logits - b.row_max(logits)
    return exponents - b.log(b.row_sum(b.exp(exponents)))


def _vector_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0] == ():
        raise InvalidArgumentError("logits: expected rank 1 or more; got a scalar")
    return [s.shapes[0]]


def softmax_derivative(y: Tensor, d: Tensor) -> Tensor:
    """softmax's derivative where its value is ``y``, times ``d``: the matrix is symmetric, so forwards and
    backwards.
    """
    product = multiply(d, y)
    return subtract(product, multiply(reduce_sum(product, -1, keepdims=True), y))


def _samples(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(rng.standard_normal((2, 4)))
    yield sample(rng.standard_normal((2, 1, 3)))
    yield sample(rng.standard_normal(5))
    yield sample(np.zeros((0, 3)))
    yield sample(np.zeros((2, 0)))
    yield sample(np.array([[1e4, -1e4, 0]]), differentiable=False)
    for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16):
        yield sample(rng.standard_normal((3, 4)).astype(dtype.np))


softmax_op: OpDef[Tensor] = define_op(
    "Softmax",
    "logits: T in FLOATING -> softmax: T",
    shape=_vector_shape,
    kernel=_softmax,
    vjp=lambda op, dy: [softmax_derivative(op.outputs[0], dy)],
    jvp=lambda op, dx: [softmax_derivative(op.outputs[0], dx)],
    samples=_samples,
    loop=Loop(_softmax_loop, LoopPattern.ALONG_ROWS),
    batch=leading,
    axes="... c! -> ... c!",
    sharded=sharded_softmax.softmax,
    doc="exp(x) over the sum of exp(x) along the last axis.",
)

log_softmax_op: OpDef[Tensor] = define_op(
    "LogSoftmax",
    "logits: T in FLOATING -> logsoftmax: T",
    shape=_vector_shape,
    kernel=_log_softmax,
    vjp=lambda op, dy: [subtract(dy, multiply(reduce_sum(dy, -1, keepdims=True), exp(op.outputs[0])))],
    jvp=lambda op, dx: [subtract(dx, reduce_sum(multiply(exp(op.outputs[0]), dx), -1, keepdims=True))],
    samples=_samples,
    loop=Loop(_log_softmax_loop, LoopPattern.ALONG_ROWS),
    batch=leading,
    axes="... c! -> ... c!",
    sharded=sharded_softmax.log_softmax,
    doc="x less the logarithm of the sum of exp(x) along the last axis.",
)


@tf1_names(axis="dim")
def softmax(logits: NumericLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """``exp(logits)`` over its sum along ``axis``.

    Args:
        logits: A tensor of floats, at least a vector.
        axis: The dimension of the classes, by default the last.

    Returns:
        A tensor of the same shape and dtype; along ``axis`` its elements are positive, with the sum 1.

    Raises:
        InvalidArgumentError: The logits are a scalar, or do not have that axis.

    Example:
        >>> tf.nn.softmax([[0.0, 0.0], [1.0, 1.0]]).eval()
        array([[0.5, 0.5],
               [0.5, 0.5]], dtype=float32)
    """
    return _along(softmax_op, logits, axis, name)


@tf1_names(axis="dim")
def log_softmax(logits: NumericLike, axis: int | None = None, name: str | None = None) -> Tensor:
    """``logits`` less the logarithm of the sum of ``exp(logits)`` along ``axis``.

    Args:
        logits: A tensor of floats, at least a vector.
        axis: The dimension of the classes, by default the last.

    Returns:
        A tensor of the same shape and dtype.

    Raises:
        InvalidArgumentError: The logits are a scalar, or do not have that axis.

    Example:
        >>> tf.exp(tf.nn.log_softmax([0.0, 0.0])).eval()
        array([0.5, 0.5], dtype=float32)
    """
    return _along(log_softmax_op, logits, axis, name)


def _along(op: OpDef[Tensor], logits: Any, axis: int | None, name: str | None) -> Tensor:
    x = convert_to_tensor(logits)
    perm = None if axis is None else swapped_with_last(x, axis, "logits")
    if perm is None:
        return op(x, name=name)
    with get_default_graph().name_scope(name or op.name) as scope:
        return transpose(op(transpose(x, perm)), perm, name=scope)
