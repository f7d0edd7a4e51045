"""Joining and splitting tensors: concat and split, stack and unstack.

Joins and splits are each other's gradients. Their kernels copy: only ``alias`` ops may return views.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import on_axes, on_axis_attr
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import LINEAR, OpDef, PartialValue, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.axes import factors, input_rank
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast, identity, static_value
from flowrt.graph.ops.base.kernel_output import copies, delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.partial_value import MAX_ELEMENTS, as_host_value
from flowrt.graph.shapes import (
    Dimension,
    Shape,
    compatible,
    format_shape,
    merge,
    normalize_axis,
    num_elements,
)
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike


def _join_values(s: ShapeContext, count: int, join: Any) -> PartialValue:
    """The partial value of the first ``count`` inputs joined by ``join``; None when nothing is known."""
    values = [s.value(i) for i in range(count)]
    sizes = [num_elements(dims) for dims in s.shapes[:count]]
    if all(v is None for v in values) or None in sizes or sum(sizes) > MAX_ELEMENTS:  # type: ignore[arg-type]
        return None
    parts: list[Any] = []
    for dims, value in zip(s.shapes, values, strict=False):
        nothing: Any = np.empty(dims or (), object)
        parts.append(nothing if value is None else np.array(value, object).reshape(dims))
    return as_host_value(join(parts))


# --- concat


def _concat_shape(s: ShapeContext) -> Sequence[Shape]:
    *parts, _ = s.shapes
    known = [p for p in parts if p is not None]
    if () in known:
        raise InvalidArgumentError("expected values of at least one dimension; got a scalar. Use stack()")
    if not known:
        return [None]
    rank, axis = len(known[0]), s.value(len(parts))
    if axis is None:
        together: Shape = (None,) * rank
        for part in known:
            merge(part, together)
        return [together]
    axis = normalize_axis(axis, rank)
    rest: Shape = (None,) * rank
    for part in known:
        others = (*part[:axis], None, *part[axis + 1 :])
        if len(part) != rank or not compatible(rest, others):
            given = ", ".join(format_shape(p) for p in s.shapes[:-1])
            raise InvalidArgumentError(f"expected equal shapes except along axis {axis}; got {given}")
        rest = merge(rest, others)
    assert rest is not None
    sizes = [None if part is None else part[axis] for part in parts]
    total = None if None in sizes else sum(sizes)  # type: ignore[arg-type]
    return [(*rest[:axis], total, *rest[axis + 1 :])]


def _concat_value(s: ShapeContext) -> PartialValue:
    count = len(s.shapes) - 1
    axis = s.value(count)
    return None if axis is None else _join_values(s, count, lambda parts: np.concatenate(parts, axis=axis))


def _concat_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    *values, axis = op.inputs
    if len(values) == 1:
        return [dy, None]
    sizes = [_size_along(v, axis) for v in values]
    return [*split_v(dy, sizes, cast(axis, dtypes.int32), num_split=len(values)), None]


def _size_along(x: Tensor, axis: Tensor) -> Any:
    """Dimension ``axis`` of ``x``: an int when it is known, otherwise a tensor."""
    dims, known = x.spec.shape, static_value(axis)
    size = None if dims is None or known is None else dims[known]
    return getitem(shape(x), axis) if size is None else size


def _cut_axes(s: ShapeContext, at: int, value: int) -> str | None:
    """The rule of a split of input ``value`` along the axis in input ``at``."""
    rank, axis = input_rank(s, value), s.value(at)
    if rank is None or axis is None:
        return None
    parts = [factors(rank, {axis % rank}, f"p{k}x") for k in range(s.attrs["num_split"])]
    return f"{factors(rank, {axis % rank})} -> {', '.join(parts)}"


def _concat_axes(s: ShapeContext) -> str | None:
    rank, count = input_rank(s), len(s.shapes) - 1
    axis = s.value(count)
    if rank is None or axis is None:
        return None
    parts = [factors(rank, {axis % rank}, f"p{k}x") for k in range(count)]
    return f"{', '.join(parts)} -> {factors(rank, {axis % rank})}"


def _pack_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    if rank is None:
        return None
    return f"{', '.join([factors(rank)] * len(s.shapes))} -> {_with_axis(rank, s.attrs['axis'])}"


def _unpack_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    if rank is None:
        return None
    return f"{_with_axis(rank - 1, s.attrs['axis'])} -> {', '.join([factors(rank - 1)] * s.attrs['num'])}"


def _with_axis(rank: int, axis: int) -> str:
    """``rank`` factors with a whole one at ``axis``."""
    names = factors(rank).split()
    return " ".join([*names[: axis % (rank + 1)], "s!", *names[axis % (rank + 1) :]])


concat_op: OpDef[Tensor] = define_op(
    "ConcatV2",
    "values: N * T in STORED, axis: host Tidx in INDEX -> T",
    shape=_concat_shape,
    kernel=lambda xp, values, axis, out=None: xp.concatenate(values, axis=axis, out=out),
    vjp=_concat_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample((rng.standard_normal((2, 3)), rng.standard_normal((1, 3))), np.int32(0)),
        sample(
            (rng.standard_normal((2, 1)), rng.standard_normal((2, 0)), rng.standard_normal((2, 2))),
            np.int64(-1),
        ),
        sample((np.array([b"a"], object), np.array([b"b", b""], object)), np.int32(0)),
        sample((np.ones((1, 2), np.complex64),), np.int32(1)),
    ),
    value=_concat_value,
    batch=on_axes(),
    axes=_concat_axes,
    traits=Traits(narrows=True),
    doc="The values concatenated along ``axis``.",
)


def _offsets(xp: Any, concat_dim: Any, shape: Sequence[Any], shape_type: DType, out: Any = None) -> list[Any]:
    """The first index of each of several tensors in their concatenation, as vectors."""
    axis, first = normalize_axis(int(concat_dim), len(shape[0])), np.array(shape[0])
    ends = [0, *itertools.accumulate(int(dims[axis]) for dims in shape)]
    for dims in shape:
        if len(dims) != len(first) or (np.delete(dims, axis) != np.delete(first, axis)).any():
            given = ", ".join(format_shape(tuple(map(int, each))) for each in shape)
            raise InvalidArgumentError(f"expected equal shapes except along axis {axis}; got {given}")
    is_axis, places = np.arange(len(first)) == axis, [None] * len(shape) if out is None else out
    return [
        delivered(np, np.where(is_axis, begin, 0).astype(shape_type.np), shape_type.np, place)
        for begin, place in zip(ends[:-1], places, strict=True)
    ]


concat_offset_op: OpDef[list[Tensor]] = define_op(
    "ConcatOffset",
    "concat_dim: host int32, shape: host N * shape_type in INDEX -> offset: host N * shape_type",
    shape=lambda s: s.shapes[1:],
    kernel=_offsets,
    samples=lambda rng: (
        sample(np.int32(1), (np.array([2, 3], np.int32), np.array([2, 1], np.int32))),
        sample(np.int32(-1), (np.array([0], np.int64), np.array([4], np.int64), np.array([1], np.int64))),
    ),
    doc="The index at which each of several tensors of these shapes begins in their concatenation.",
)


def _rank(axis: Any) -> int | None:
    return axis.shape.rank if isinstance(axis, Tensor) else np.ndim(axis) if not isinstance(axis, list) else 1


@takes_composites
def concat(values: TensorLike, axis: Any, name: str = "concat") -> Tensor:
    """``values`` joined along ``axis``.

    Args:
        values: Tensors of one rank and dtype, which have the same shape but along ``axis``.
        axis: The dimension, negative from the last.

    Returns:
        A tensor, along ``axis`` as long as all ``values`` together.

    Raises:
        InvalidArgumentError: The values are scalars (see `stack`), or their shapes do not fit.

    Example:
        >>> tf.concat([[[1, 2]], [[3, 4]]], axis=0).eval()
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    items = list(values) if isinstance(values, (list, tuple)) else [values]
    if not items:
        raise misuse("concat: expected at least one value; got none")
    if type(axis) is not int and _rank(axis) not in (None, 0):
        raise misuse(
            f"concat: expected the axis as a scalar integer; got {axis!r}. The order is concat(values, axis)"
        )
    return identity(items[0], name=name) if len(items) == 1 else concat_op(items, axis, name=name)


# --- split


def _split_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, count = s.shapes[1], s.attrs["num_split"]
    if count < 1:
        raise InvalidArgumentError(f"num_split: expected at least 1; got {count}")
    if dims is None or s.value(0) is None:
        return [None if dims is None else (None,) * len(dims)] * count
    axis = normalize_axis(s.value(0), len(dims))
    size = equal_part(dims[axis], count)
    return [(*dims[:axis], size, *dims[axis + 1 :])] * count


def equal_part(dim: int | None, count: int) -> int | None:
    """``dim / count``. Raises `InvalidArgumentError` when that leaves a remainder."""
    if dim is not None and dim % count:
        raise InvalidArgumentError(f"expected a dimension that divides into {count} equal parts; got {dim}")
    return None if dim is None else dim // count


def _split(xp: Any, split_dim: int, value: Any, num_split: int) -> list[Any]:
    size = equal_part(value.shape[split_dim], num_split)
    return _parts(value, [size] * num_split, split_dim)


def _parts(value: Any, sizes: Sequence[Any], axis: int) -> list[Any]:
    """Views of ``value``."""
    before = (slice(None),) * (axis % value.ndim)
    ends = list(itertools.accumulate(sizes))
    return [value[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)]


def _dense(op: Operation, dys: Sequence[Tensor | None]) -> list[Tensor]:
    """The incoming gradients as dense tensors, zeros if missing."""
    return [zeros_like(y) if dy is None else dy for y, dy in zip(op.outputs, dys, strict=True)]


split_op: OpDef[list[Tensor]] = define_op(
    "Split",
    "split_dim: host int32, value: T in STORED -> num_split * T",
    attrs="num_split: int",
    shape=_split_shape,
    kernel=_split,
    vjp=lambda op, *dys: [None, concat(_dense(op, dys), op.inputs[0])],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.int32(1), rng.standard_normal((2, 4)), num_split=2),
        sample(np.int32(-1), rng.standard_normal((2, 3)), num_split=3),
        sample(np.int32(0), rng.integers(0, 9, (2,)), num_split=1),
        sample(np.int32(0), np.zeros((0, 2), np.complex64), num_split=2),
    ),
    alias=True,
    batch=on_axes(0),
    axes=lambda s: _cut_axes(s, 0, 1),
    doc="The value cut into ``num_split`` equal parts along ``split_dim``.",
)


def _split_v_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, sizes, axis, count = s.shapes[0], s.value(1), s.value(2), s.attrs["num_split"]
    given = len(sizes) if sizes is not None else (s.shapes[1] or (None,))[0]
    if given not in (None, count):
        raise InvalidArgumentError(f"size_splits: expected {count} sizes; got {given}")
    if dims is None or axis is None:
        return [None if dims is None else (None,) * len(dims)] * count
    axis = normalize_axis(axis, len(dims))
    parts = [None] * count if sizes is None or None in sizes else _sizes(dims[axis], sizes)
    return [(*dims[:axis], part, *dims[axis + 1 :]) for part in parts]


def _sizes(dim: int | None, sizes: Sequence[int]) -> list[int | None]:
    """``sizes`` with -1 replaced by the rest of ``dim``."""
    total = sum(size for size in sizes if size != -1)
    free = sizes.count(-1)
    fits = (
        free <= 1
        and all(size >= -1 for size in sizes)
        and (dim is None or (total <= dim if free else total == dim))
    )
    if not fits:
        raise InvalidArgumentError(
            f"size_splits: expected sizes that add up to {dim}, one may be -1; got {list(sizes)}"
        )
    return [size if size != -1 else None if dim is None else dim - total for size in sizes]


split_v: OpDef[list[Tensor]] = define_op(
    "SplitV",
    "value: T in STORED, size_splits: host Tlen in INDEX, split_dim: host int32 -> num_split * T",
    attrs="num_split: int",
    shape=_split_v_shape,
    kernel=lambda xp, value, size_splits, split_dim: _parts(
        value, _sizes(value.shape[split_dim], size_splits), split_dim
    ),
    vjp=lambda op, *dys: [concat(_dense(op, dys), op.inputs[2]), None, None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 5)), np.array([1, -1, 2], np.int32), np.int32(1), num_split=3),
        sample(rng.standard_normal((3, 2)), np.array([3, 0], np.int64), np.int32(-2), num_split=2),
        sample(np.array([b"a", b"b"], object), np.array([1, 1], np.int32), np.int32(0), num_split=2),
    ),
    alias=True,
    batch=on_axes(),
    axes=lambda s: _cut_axes(s, 2, 0),
    doc="The value split into parts of ``size_splits`` along ``split_dim``; one size may be -1: the rest.",
)


def split(
    value: TensorLike,
    num_or_size_splits: Any,
    axis: NumericLike = 0,
    num: int | None = None,
    name: str = "split",
) -> list[Tensor]:
    """``value`` split along ``axis``.

    Args:
        value: A tensor.
        num_or_size_splits: The number of equal parts, or the parts' sizes, of which one may be -1: the rest.
        axis: The dimension, negative from the last.
        num: The number of sizes, if it cannot be inferred.

    Returns:
        A list of tensors.

    Raises:
        InvalidArgumentError: The parts do not fit the dimension.

    Example:
        >>> first, second = tf.split([1, 2, 3, 4, 5], [2, 3])
        >>> second.eval()
        array([3, 4, 5], dtype=int32)
    """
    if isinstance(num_or_size_splits, (int, np.integer, Dimension)):
        return split_op(axis, value, num_split=int(num_or_size_splits), name=name)
    sizes = convert_to_tensor(num_or_size_splits)
    known = sizes.spec.shape
    if known == ():
        raise misuse(f"split: expected an int or a vector of sizes; got the scalar {sizes!r}")
    count = num if num is not None else known[0] if known is not None else None
    if count is None:
        raise misuse(f"split: expected num, as the number of sizes is not known; got {sizes!r}")
    return split_v(value, sizes, axis, num_split=count, name=name)


# --- stack and unstack


def _pack_shape(s: ShapeContext) -> Sequence[Shape]:
    part: Shape = None
    for each in s.shapes:
        if not compatible(part, each):
            given = ", ".join(map(format_shape, s.shapes))
            raise InvalidArgumentError(f"expected values of the same shape; got {given}")
        part = merge(part, each)
    if part is None:
        return [None]
    axis = normalize_axis(s.attrs["axis"], len(part) + 1)
    return [(*part[:axis], len(s.shapes), *part[axis:])]


pack: OpDef[Tensor] = define_op(
    "Pack",
    "values: N * T in STORED -> T",
    attrs="axis: int = 0",
    shape=_pack_shape,
    kernel=lambda xp, values, axis, out=None: xp.stack(values, axis=axis, out=out),
    vjp=lambda op, dy: unpack(dy, num=len(op.inputs), axis=op.get_attr("axis")),
    jvp=LINEAR,
    samples=lambda rng: (
        sample((rng.standard_normal((2, 3)), rng.standard_normal((2, 3))), axis=-1),
        sample((rng.standard_normal(()), rng.standard_normal(()))),
        sample((np.array(b"a", object), np.array(b"b", object))),
        sample((np.zeros((0, 2), np.int8),) * 3, axis=1),
    ),
    value=lambda s: _join_values(s, len(s.shapes), lambda parts: np.stack(parts, axis=s.attrs["axis"])),
    batch=on_axis_attr,
    axes=_pack_axes,
    traits=Traits(narrows=True),
    doc="The values side by side along a new dimension ``axis``.",
)


@takes_composites
def stack(values: Any, axis: int = 0, name: str = "stack") -> Tensor:
    """Tensors of one shape, side by side along a new dimension.

    Args:
        values: A list of tensors of one shape and dtype. Values without a tensor among them become a
            constant.
        axis: The position of the new dimension, negative from after the last.

    Returns:
        A tensor with one dimension more.

    Raises:
        InvalidArgumentError: The shapes differ, or the axis is out of range.

    Example:
        >>> tf.stack([[1, 2], [3, 4]], axis=1).eval()
        array([[1, 3],
               [2, 4]], dtype=int32)
    """
    if not isinstance(values, (list, tuple)):
        values = unstack(values)
    if axis == 0 and not any(map(_holds_tensor, values)):
        return convert_to_tensor(values, name=name)
    if not values:
        raise InvalidArgumentError("stack: expected at least one value; got none")
    return pack(list(values), axis=axis, name=name)


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_tensor, value))
    return isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__")


def _unpack_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, count = s.shapes[0], s.attrs["num"]
    if dims is None:
        return [None] * count
    axis = normalize_axis(s.attrs["axis"], len(dims))
    if dims[axis] not in (None, count):
        raise InvalidArgumentError(f"expected a dimension of {count} to unstack; got {dims[axis]}")
    return [(*dims[:axis], *dims[axis + 1 :])] * count


def _unpack(xp: Any, value: Any, num: int, axis: int, out: Any = None) -> Any:
    rows = xp.moveaxis(value, axis, 0)
    if len(rows) != num:
        raise InvalidArgumentError(f"expected a dimension of {num} to unstack; got {len(rows)}")
    return copies((rows[i, ...] for i in range(num)), out)


unpack: OpDef[list[Tensor]] = define_op(
    "Unpack",
    "value: T in STORED -> num * T",
    attrs="num: int, axis: int = 0",
    shape=_unpack_shape,
    kernel=_unpack,
    vjp=lambda op, *dys: [pack(_dense(op, dys), axis=op.get_attr("axis"))],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), num=3, axis=-1),
        sample(rng.standard_normal(2), num=2),
        sample(np.array([b"a", b"b"], object), num=2),
        sample(np.zeros((2, 0), np.complex64), num=2),
    ),
    batch=on_axis_attr,
    axes=_unpack_axes,
    traits=Traits(narrows=True),
    doc="The ``num`` slices of the value along ``axis``, without that dimension.",
)


def unstack(value: TensorLike, num: int | None = None, axis: int = 0, name: str = "unstack") -> list[Tensor]:
    """The slices of ``value`` along a dimension.

    Args:
        value: A tensor.
        num: The number of slices, needed where that dimension is not known.
        axis: The dimension, negative from the last.

    Returns:
        A list of tensors with one dimension less.

    Raises:
        InvalidArgumentError: The number of slices is unknown.

    Example:
        >>> first, second = tf.unstack([[1, 2], [3, 4]])
        >>> second.eval()
        array([3, 4], dtype=int32)
    """
    tensor = convert_to_tensor(value)
    if num is None:
        dims = tensor.spec.shape
        num = None if dims is None else dims[normalize_axis(axis, len(dims))]
    if num is None:
        raise InvalidArgumentError(
            f"unstack: expected num, as dimension {axis} of {tensor!r} is not known; got None"
        )
    return unpack(tensor, num=num, axis=axis, name=name)
