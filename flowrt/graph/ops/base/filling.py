"""One value in many places: fill, zeros, ones, broadcast_to, and `unbroadcast`, their transpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched, rank_of
from flowrt.graph.construction.build import convert_to_tensor, in_scope
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.construction.operation import Operation
from flowrt.graph.op_def import (
    LINEAR,
    NONDIFFERENTIABLE,
    OpDef,
    PartialValue,
    Sample,
    ShapeContext,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.op_facets import Loop, Traits
from flowrt.graph.ops.base.identities import NUMBERS_AND_BOOL, arrays, result_shape, target_shape, unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.shapes import Shape, TensorShape, as_shape, broadcast, format_shape, is_static, num_elements
from flowrt.graph.typing import ShapeTensorLike, TensorLike

__all__ = [
    "broadcast_dynamic_shape", "broadcast_static_shape", "broadcast_to", "fill", "ones", "ones_like", "zeros",
    "zeros_like",
]  # fmt: skip

CONSTANT_LIMIT = 1000


"""Elements; `zeros` and `ones` above it are a Fill, so that the graph stays small (TensorFlow's number)."""


# --- fill, zeros, ones


def _fill(xp: Any, dims: Any, value: Any, T: DType, out: Any = None) -> Any:
    if out is None:
        return xp.full(dims, value, T.np)
    out[...] = value
    return out


def _fill_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[1] not in (None, ()):
        raise InvalidArgumentError(f"value: expected a scalar; got shape {format_shape(s.shapes[1])}")
    return [result_shape(s)]


MAX_KNOWN = 1024
"""Maximum number of elements of a filled vector with a statically known value: it may become a shape. A pass
takes 1 us for each.
"""


def _fill_value(s: ShapeContext) -> PartialValue:
    dims, value = s.value(0), s.value(1)
    if dims is None or None in dims or len(dims) > 1 or (dims and dims[0] > MAX_KNOWN):
        return None
    return (value,) * dims[0] if dims else value


def _batch_fill(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length = op.inputs[0].spec.shape
    if length is None or length[0] is None:
        return None
    return batched(
        broadcast_to(b.with_last_axes(values[1].tensor, length[0]), b.behind(b.size, values[0].tensor))
    )


fill = define_op(
    "Fill",
    "dims: host shape index_type in INDEX, value: T in STORED -> T",
    shape=_fill_shape,
    kernel=_fill,
    vjp=lambda op, dy: [None, op_def("Sum")(reshape(dy, [-1]), [0])],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.array([2, 3], np.int32), rng.standard_normal(())),
        sample(np.zeros(0, np.int64), np.array(2.5)),
        sample(np.array([0, 4], np.int32), np.array(3, np.int8)),
        sample(np.array([2], np.int32), np.array(b"x", object)),
    ),
    value=_fill_value,
    batch=_batch_fill,
    doc="""A tensor of shape ``dims`` filled with ``value``.

    Example:
        >>> tf.fill([2, 2], 7).eval()
        array([[7, 7],
               [7, 7]], dtype=int32)
    """,
)


def _filled(shape: Any, number: int, dtype: DType, name: str) -> Tensor:
    value = np.array(b"" if dtype is dtypes.string else number, dtype.np)
    if isinstance(shape, Tensor) or not _is_plain_shape(shape):
        return fill(shape, value, name=name)
    try:
        dims = as_shape(shape)
        count = num_elements(dims)
        if dims is None or count is None:
            raise InvalidArgumentError(f"expected a fully defined shape; got {format_shape(dims)}")
    except InvalidArgumentError as error:
        raise in_scope(error, name) from None
    if count < CONSTANT_LIMIT:
        return constant(np.full(dims, value, dtype.np), name=name)
    return fill(as_array(dims), value, name=name)


def _is_plain_shape(shape: Any) -> bool:
    if isinstance(shape, (list, tuple)):
        return not any(isinstance(d, Tensor) or hasattr(d, "__flowrt_tensor__") for d in shape)
    return not hasattr(shape, "__flowrt_tensor__")


def zeros(shape: ShapeTensorLike, dtype: DTypeLike = dtypes.float32, name: str | None = None) -> Tensor:
    """Zeros (False, empty strings).

    Args:
        shape: A shape or an integer vector.
        dtype: The elements' dtype.

    Returns:
        A tensor of ``shape``.

    Example:
        >>> tf.zeros([2, 3]).eval()
        array([[0., 0., 0.],
               [0., 0., 0.]], dtype=float32)
    """
    return _filled(shape, 0, as_dtype(dtype), name or "zeros")


def ones(shape: ShapeTensorLike, dtype: DTypeLike = dtypes.float32, name: str | None = None) -> Tensor:
    """Ones (True).

    Args:
        shape: A shape or an integer vector.
        dtype: The elements' dtype.

    Returns:
        A tensor of ``shape``.

    Example:
        >>> tf.ones([2], tf.int32).eval()
        array([1, 1], dtype=int32)
    """
    return _filled(shape, 1, as_dtype(dtype), name or "ones")


def _full_like(xp: Any, x: Any, number: int, out: Any) -> Any:
    if out is None:
        return xp.full(x.shape, number, x.dtype)
    out.fill(number)
    return out


def _like_op(name: str, number: int, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        "x: T in NUMERIC | bool -> y: T",
        shape=unchanged,
        kernel=lambda xp, x, out=None: _full_like(xp, x, number, out),
        vjp=NONDIFFERENTIABLE,
        samples=arrays(),
        traits=Traits(elementwise=True),
        loop=Loop(lambda b, x: b.const(number, x.dtype)),
        doc=doc,
    )


zeros_like_op = _like_op("ZerosLike", 0, "Zeros of the input's shape and dtype.")
ones_like_op = _like_op("OnesLike", 1, "Ones of the input's shape and dtype.")


@takes_composites
def zeros_like(
    tensor: TensorLike, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Zeros in the shape of another tensor.

    Args:
        tensor: A tensor.
        dtype: The dtype of the result; None for that of ``tensor``.
        optimize: Whether the result is a constant where the shape is known.

    Returns:
        A tensor of zeros.

    Example:
        >>> tf.zeros_like([[1, 2]]).eval()
        array([[0, 0]], dtype=int32)
    """
    return _filled_like(tensor, 0, dtype, name or "zeros_like", optimize)


@takes_composites
def ones_like(
    tensor: TensorLike, dtype: DTypeLike | None = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Ones in the shape of another tensor.

    Args:
        tensor: A tensor.
        dtype: The dtype of the result; None for that of ``tensor``.
        optimize: Whether the result is a constant where the shape is known.

    Returns:
        A tensor of ones.

    Example:
        >>> tf.ones_like([[1.5, 2.0]]).eval()
        array([[1., 1.]], dtype=float32)
    """
    return _filled_like(tensor, 1, dtype, name or "ones_like", optimize)


def _filled_like(tensor: Any, number: int, dtype: Any, name: str, optimize: bool) -> Tensor:
    tensor = convert_to_tensor(tensor)
    target = tensor.dtype if dtype is None else as_dtype(dtype)
    if optimize and is_static(tensor.spec.shape):
        return _filled(tensor.spec.shape, number, target, name)
    if target is tensor.dtype and target in NUMBERS_AND_BOOL:
        return (ones_like_op if number else zeros_like_op)(tensor, name=name)
    with get_default_graph().name_scope(name):
        return _filled(shape(tensor), number, target, name)


# --- broadcast


def _broadcast_to_shape(s: ShapeContext) -> Sequence[Shape]:
    target, own = target_shape(s, 1), s.shapes[0]
    if target is None or own is None:
        return [target]
    tail = target[len(target) - len(own) :]
    if len(own) > len(target) or not all(
        d in (1, None, t) or t is None for d, t in zip(own, tail, strict=True)
    ):
        raise InvalidArgumentError(
            f"expected a shape that {format_shape(own)} broadcasts to; got {list(target)}"
        )
    return [target]


def _broadcast_to(xp: Any, input: Any, shape: Any, out: Any = None) -> Any:
    if out is None:
        return xp.array(xp.broadcast_to(input, shape))  # the view is read-only and has zero strides
    xp.copyto(out, input)
    return out


def _batch_broadcast_to(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    length, own = op.inputs[1].spec.shape, rank_of(op.inputs[0])
    if length is None or length[0] is None or own is None:
        return None
    tensor = b.with_inner_axes(values[0].tensor, length[0] - own)
    return b.apply(op, [tensor, b.behind(b.size, values[1].tensor)])


broadcast_to = define_op(
    "BroadcastTo",
    "input: T in STORED, shape: host shape Tidx in INDEX -> T",
    shape=_broadcast_to_shape,
    kernel=_broadcast_to,
    vjp=lambda op, dy: [unbroadcast(dy, op.inputs[0]), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 1)), np.array([4, 2, 3], np.int32)),
        sample(rng.standard_normal(()), np.array([2], np.int64)),
        sample(np.array([True]), np.array([0], np.int32)),
        sample(np.ones((2, 1), np.complex64), np.array([2, 2], np.int32)),
    ),
    loop=Loop(lambda b, input, shape: input),
    batch=_batch_broadcast_to,
    axes="... -> ...",
    traits=Traits(narrows=True),
    doc="""The input repeated along new dimensions and those that are 1, to ``shape``.

    Example:
        >>> tf.broadcast_to([1, 2], [2, 2]).eval()
        array([[1, 2],
               [1, 2]], dtype=int32)
    """,
)


def unbroadcast(gradient: Tensor, like: Tensor, other: Tensor | None = None) -> Tensor:
    """``gradient``, of the shape that ``like`` was broadcast to, summed over those axes to ``like``'s shape.

    ``other`` is the tensor that ``like`` was combined with, if there is only one: it may show that an unknown
    dimension was not broadcast. No op is added if nothing was broadcast, one op if the shapes are known.
    """
    axes = _broadcast_axes(gradient.spec.shape, like.spec.shape, None if other is None else other.spec.shape)
    if axes == ():
        return gradient
    sum_op = op_def("Sum")
    if axes is None:
        over = broadcast_gradient_args(shape(like), shape(gradient))[0]
        return reshape(sum_op(gradient, over), shape(like))
    new = len(gradient.spec.shape or ()) - len(like.spec.shape or ())
    keep = new == 0
    total: Tensor = sum_op(gradient, np.array(axes, np.int32), keep_dims=keep)
    return total if keep or len(axes) == new else reshape(total, shape(like))


def _broadcast_axes(wide: Shape, narrow: Shape, other: Shape) -> tuple[int, ...] | None:
    """The axes of ``wide`` along which ``narrow`` was repeated to fit ``other``; None if unknown."""
    if narrow is None and other == ():
        return ()
    if wide is None or narrow is None:
        return None
    new = len(wide) - len(narrow)
    others = None if other is None else (1,) * (len(wide) - len(other)) + other
    axes = list(range(new))
    for axis, dim in enumerate(narrow, new):
        if dim == 1 and wide[axis] != 1:
            axes.append(axis)
        elif dim is None and wide[axis] != 1 and (others is None or others[axis] != 1):
            return None
    return tuple(axes)


# --- broadcasting of shapes


def _broadcast_args_value(s: ShapeContext) -> PartialValue:
    known = s.value(0), s.value(1)
    return None if None in known else broadcast(*known)


def _repeated_axes(s0: Sequence[int], s1: Sequence[int]) -> tuple[list[int], list[int]]:
    """The axes of the broadcast along which each of two shapes is 1, repeated or not."""
    broadcast(tuple(s0), tuple(s1))
    rank = max(len(s0), len(s1))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in (s0, s1)]
    first, second = ([axis for axis, dim in enumerate(shape) if dim == 1] for shape in padded)
    return first, second


def _shape_pairs(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([2, 1, 3], np.int32), np.array([4, 3], np.int32))
    yield sample(np.zeros(0, np.int64), np.array([4], np.int64))


broadcast_args = define_op(
    "BroadcastArgs",
    "s0: host T in INDEX, s1: host T -> r0: host T",
    shape=lambda s: [_broadcast_rank(s)],
    kernel=lambda xp, s0, s1, T, out=None: delivered(
        np, np.array(np.broadcast_shapes(s0, s1), T.np), T.np, out
    ),
    samples=_shape_pairs,
    value=_broadcast_args_value,
    doc="The shape to which tensors of shapes s0 and s1 broadcast.",
)


broadcast_gradient_args: OpDef[list[Tensor]] = define_op(
    "BroadcastGradientArgs",
    "s0: host T in INDEX, s1: host T -> r0: host T, r1: host T",
    shape=lambda s: [(None,), (None,)],
    kernel=lambda xp, s0, s1, T: [np.array(axes, T.np) for axes in _repeated_axes(s0, s1)],
    samples=_shape_pairs,
    doc="The axes along which the broadcast of shapes s0 and s1 must be summed to get each of them back.",
)


def _broadcast_rank(s: ShapeContext) -> Shape:
    """The shape of the vector that holds the broadcast of two shapes."""
    if not all(is_static(shape) for shape in s.shapes):
        return (None,)
    ranks = [shape[0] for shape in s.shapes if shape]
    if len(ranks) != 2:
        raise InvalidArgumentError(
            f"expected two vectors; got shapes {', '.join(map(format_shape, s.shapes))}"
        )
    return (max(r for r in ranks if r is not None),)


def broadcast_static_shape(shape_x: TensorLike, shape_y: TensorLike) -> TensorShape:
    """The shape to which tensors of two (partial) shapes broadcast. Raises `InvalidArgumentError`."""
    return TensorShape(broadcast(as_shape(shape_x), as_shape(shape_y)))


def broadcast_dynamic_shape(shape_x: TensorLike, shape_y: TensorLike) -> Tensor:
    """The shape to which tensors of two shapes, given as integer vectors, broadcast."""
    return broadcast_args(shape_x, shape_y)
