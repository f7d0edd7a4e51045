"""Tensors made from a few numbers: range, linspace, one_hot, sequence_mask."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, moved_axis
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    OpDef,
    PartialValue,
    Sample,
    ShapeContext,
    define_op,
    sample,
)
from flowrt.graph.ops.array.reductions import max_op, sum_op
from flowrt.graph.ops.base.axes import factors, input_rank
from flowrt.graph.ops.base.identities import cast, static_value, with_layout_of
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape
from flowrt.graph.ops.elementwise.arithmetic import add, add_n_op, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, less, where_v2
from flowrt.graph.partial_value import MAX_ELEMENTS
from flowrt.graph.shapes import Shape, is_static, normalize_axis
from flowrt.graph.typing import NumericLike, TensorLike

# --- range


def _range_length(start: Any, limit: Any, delta: Any) -> int:
    if delta == 0:
        raise InvalidArgumentError("delta: expected a step that is not 0; got 0")
    if (limit - start) * delta < 0:
        below = "at most" if delta > 0 else "at least"
        raise InvalidArgumentError(
            f"start: expected {below} limit for delta {delta}; got {start} and limit {limit}"
        )
    steps = abs(limit - start) / abs(delta)
    whole = isinstance(start, int) and isinstance(limit, int) and isinstance(delta, int)
    return len(builtins.range(start, limit, delta)) if whole else math.ceil(steps)


def _range_shape(s: ShapeContext) -> Sequence[Shape]:
    s.check_scalars(0, 1, 2)
    numbers = [s.value(i) for i in builtins.range(3)]
    return [(None if None in numbers else _range_length(*numbers),)]


def _range(xp: Any, start: Any, limit: Any, delta: Any, Tidx: DType, out: Any = None) -> Any:
    steps = xp.arange(_range_length(start, limit, delta), dtype=np.int64 if Tidx.is_integer else np.float64)
    return delivered(xp, steps * delta + start, Tidx.np, out)


def _range_value(s: ShapeContext) -> PartialValue:
    numbers = [s.value(i) for i in builtins.range(3)]
    if None in numbers or not s.attrs["Tidx"].is_integer or _range_length(*numbers) > MAX_ELEMENTS:
        return None
    return tuple(builtins.range(*numbers))


range_op: OpDef[Tensor] = define_op(
    "Range",
    "start: host Tidx in REAL, limit: host Tidx, delta: host Tidx -> Tidx",
    shape=_range_shape,
    kernel=_range,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.int32(0), np.int32(5), np.int32(2)),
        sample(np.int64(3), np.int64(-3), np.int64(-2)),
        sample(np.float32(0), np.float32(1), np.float32(0.1)),
        sample(np.int8(1), np.int8(1), np.int8(1)),
    ),
    value=_range_value,
    doc="start, start + delta, ... up to limit, without it.",
)

_RANGE_DTYPES = (dtypes.int32, dtypes.int64, dtypes.float32, dtypes.float64)


def range(
    start: TensorLike,
    limit: TensorLike | None = None,
    delta: TensorLike = 1,
    dtype: DTypeLike | None = None,
    name: str = "range",
) -> Tensor:
    """The vector start, start + delta, ... up to ``limit``, exclusive; with one argument from 0 up to it.

    Args:
        start: The first number, or the only argument's limit.
        limit: The bound, exclusive.
        delta: The step, negative to count down.
        dtype: The dtype; None for the widest of the arguments' (int32, int64, float32, float64 in this
            order).

    Returns:
        A vector.

    Raises:
        InvalidArgumentError: The delta is 0 or has the wrong sign.

    Example:
        >>> tf.range(2, 10, 3).eval()
        array([2, 5, 8], dtype=int32)
    """
    if limit is None:
        start, limit = 0, start
    wanted = None if dtype is None else as_dtype(dtype)
    with get_default_graph().name_scope(name) as scope:
        numbers = [
            convert_to_tensor(value, None if isinstance(value, Tensor) else wanted, name=part)
            for part, value in (("start", start), ("limit", limit), ("delta", delta))
        ]
        kind = wanted or _widest([n.dtype for n in numbers])
        result: Tensor = range_op(*(cast(n, kind) for n in numbers), name=scope)
    return result


def _widest(found: Iterable[DType]) -> DType:
    kinds = set(found)
    if len(kinds) == 1:
        return kinds.pop()
    if not kinds <= set(_RANGE_DTYPES):
        names = ", ".join(sorted(k.name for k in kinds))
        raise DTypeError(
            f"range: expected arguments of one dtype, or int32, int64, float32, float64; got {names}"
        )
    return max(kinds, key=_RANGE_DTYPES.index)


# --- linspace


def _lin_space_shape(s: ShapeContext) -> Sequence[Shape]:
    s.check_scalars(0, 1, 2)
    count = s.value(2)
    if count is not None and count < 0:
        raise InvalidArgumentError(f"num: expected at least 0; got {count}")
    return [(count,)]


def _lin_space(xp: Any, start: Any, stop: Any, num: int, out: Any = None) -> Any:
    wide = xp.float64 if start.dtype == np.float64 else xp.float32
    first, last = start.astype(wide), stop.astype(wide)
    values = first + xp.arange(num, dtype=wide) * ((last - first) / max(num - 1, 1)).astype(wide)
    if num > 1:
        values[-1] = last
    return delivered(xp, values, start.dtype, out)


def _fractions(op: Operation) -> Tensor:
    """Relative position of each element between start and stop, from 0 to 1."""
    return lin_space_op(np.array(0, op.inputs[0].dtype.np), np.array(1, op.inputs[0].dtype.np), op.inputs[2])


def _lin_space_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    late = sum_op(multiply(dy, _fractions(op)), [0])
    return [subtract(sum_op(dy, [0]), late), late, None]


def _lin_space_jvp(op: Operation, d_start: Tensor | None, d_stop: Tensor | None, _: None) -> list[Tensor]:
    late = _fractions(op)
    parts = []
    if d_start is not None:
        parts.append(multiply(subtract(np.array(1, late.dtype.np), late), d_start))
    if d_stop is not None:
        parts.append(multiply(late, d_stop))
    return [add_n_op(parts)]


lin_space_op: OpDef[Tensor] = define_op(
    "LinSpace",
    "start: T in FLOATING, stop: T, num: host Tidx in INDEX -> T",
    shape=_lin_space_shape,
    kernel=_lin_space,
    vjp=_lin_space_vjp,
    jvp=_lin_space_jvp,
    samples=lambda rng: (
        sample(np.array(1.0), np.array(-3.0), np.int32(5)),
        sample(np.array(1.0), np.array(2.0), np.int64(1)),
        sample(np.array(0, np.float32), np.array(1, np.float32), np.int32(0)),
        sample(np.array(0, np.float16), np.array(1, np.float16), np.int32(4)),
    ),
    doc="``num`` evenly spaced numbers from ``start`` to ``stop``, both included.",
)


def linspace(start: TensorLike, stop: Any, num: Any, name: str | None = None, axis: int = 0) -> Tensor:
    """``num`` evenly spaced values from ``start`` to ``stop``, both included, along a new dimension ``axis``.

    Integers become float64. Raises `InvalidArgumentError` for a negative ``num`` and shapes that do not fit.

    Example:
        >>> tf.linspace(0.0, 1.0, 5).eval()
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    with get_default_graph().name_scope(name or "linspace"):
        first = convert_to_tensor(start, name="start")
        first = cast(first, dtypes.float64) if first.dtype.is_integer else first
        last = cast(convert_to_tensor(stop, name="stop"), first.dtype)
        dims = first.spec.shape
        if dims == () and last.spec.shape == ():
            return lin_space_op(first, last, num)
        if dims is None:
            raise InvalidArgumentError(f"linspace: expected a start of known rank; got {first!r}")
        position = normalize_axis(axis, len(dims) + 1)
        zero, one = (np.array(v, first.dtype.np) for v in (0, 1))
        spread = [1] * position + [-1] + [1] * (len(dims) - position)
        late = reshape(lin_space_op(zero, one, num), spread)
        early = subtract(one, late)
        return add(multiply(early, expand_dims(first, position)), multiply(late, expand_dims(last, position)))


lin_space = linspace

# --- one_hot


def _one_hot_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, depth = s.shapes[0], s.value(1)
    if depth is not None and depth < 0:
        raise InvalidArgumentError(f"depth: expected at least 0; got {depth}")
    if dims is None:
        return [None]
    axis = normalize_axis(s.attrs["axis"], len(dims) + 1)
    return [(*dims[:axis], depth, *dims[axis:])]


def _one_hot(
    xp: Any, indices: Any, depth: int, on_value: Any, off_value: Any, axis: int, out: Any = None
) -> Any:
    place = normalize_axis(axis, indices.ndim + 1)
    classes = xp.arange(depth).reshape((-1,) + (1,) * (indices.ndim - place))
    is_on = xp.expand_dims(indices, place) == classes
    if out is None:
        return xp.where(is_on, on_value, off_value)
    out[...] = off_value
    xp.copyto(out, on_value, where=is_on)
    return out


def _one_hot_samples(rng: np.random.Generator) -> Iterable[Sample]:
    ids = np.array([[0, 2], [-1, 5]], np.int32)
    yield sample(ids, np.int32(3), np.array(1.5), np.array(-1.0), differentiable=False)
    yield sample(ids.astype(np.uint8), np.int32(3), np.array(True), np.array(False), axis=0)
    yield sample(np.array(1), np.int32(2), np.array(b"on", object), np.array(b"", object))
    yield sample(ids, np.int32(0), np.array(1, np.float16), np.array(0, np.float16), axis=1)


def _batch_one_hot(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    if values[2].is_batched or values[3].is_batched:
        return None
    return b.apply(op, [v.tensor for v in values], axis=moved_axis(op.get_attr("axis")))


def _one_hot_axes(s: ShapeContext) -> str | None:
    rank = input_rank(s)
    if rank is None:
        return None
    names = factors(rank).split()
    axis = s.attrs["axis"] % (rank + 1)
    return f"{factors(rank)}, , -> {' '.join([*names[:axis], 'o!', *names[axis:]])}"


def _sharded_one_hot(op: Operation) -> Sequence[Tensor] | None:
    """The comparison of indices with the numbers of the new dimension, in the layout that ``op`` names."""
    indices, depth, on_value, off_value = op.inputs
    count, dims = static_value(depth), indices.spec.shape
    if count is None or dims is None:
        return None
    place = normalize_axis(op.get_attr("axis"), len(dims) + 1)
    numbers = with_layout_of(op, constant(np.arange(count)))
    spread = reshape(numbers, [*[1] * place, -1, *[1] * (len(dims) - place)])
    return [where_v2(equal(expand_dims(cast(indices, dtypes.int64), place), spread), on_value, off_value)]


one_hot_op: OpDef[Tensor] = define_op(
    "OneHot",
    "indices: TI in uint8 | int8 | int32 | int64, depth: host int32, on_value: T in ANY, off_value: T -> T",
    attrs="axis: int = -1",
    shape=_one_hot_shape,
    kernel=_one_hot,
    vjp=NONDIFFERENTIABLE,
    samples=_one_hot_samples,
    batch=_batch_one_hot,
    axes=_one_hot_axes,
    sharded=_sharded_one_hot,
    doc="One vector per index along ``axis``: ``on_value`` at the index, ``off_value`` elsewhere.",
)


def one_hot(
    indices: NumericLike,
    depth: NumericLike,
    on_value: TensorLike | None = None,
    off_value: TensorLike | None = None,
    axis: int | None = None,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Tensor:
    """One vector of ``depth`` values per index, along a new dimension.

    Args:
        indices: Integers of any shape; one out of range gives only ``off_value``.
        depth: The number of classes.
        on_value: The value at the index, by default 1.
        off_value: The value elsewhere, by default 0.
        axis: The position of the new dimension, by default the last.
        dtype: The dtype of the result: that of the values, float32 if none is given.

    Returns:
        A tensor with one dimension more than ``indices``.

    Raises:
        DTypeError: The dtypes of the values differ.

    Example:
        >>> tf.one_hot([0, 2], depth=3).eval()
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    given = {"on_value": on_value, "off_value": off_value}
    found = {key: convert_to_tensor(v, dtype_hint=dtype).dtype for key, v in given.items() if v is not None}
    kind = as_dtype(dtype) if dtype is not None else next(iter(found.values()), dtypes.float32)
    for key, other in found.items():
        if other is not kind:
            raise DTypeError(f"one_hot: expected {key} of dtype {kind.name}; got {other.name}")
    numbers = [
        np.array(default, kind.np) if v is None else v for v, default in ((on_value, 1), (off_value, 0))
    ]
    name = name or "one_hot"
    return one_hot_op(indices, depth, *numbers, axis=-1 if axis is None else axis, T=kind, name=name)


# --- sequence_mask


def static_array(tensor: Tensor) -> Any:
    """``tensor``'s value where all of it is known while the graph is built, otherwise None."""
    value, dims = static_value(tensor), tensor.spec.shape
    array: Any = np.array(value, object)
    if value is None or not is_static(dims) or any(v is None for v in array.reshape(-1)):
        return None
    return array.reshape(dims).astype(tensor.dtype.np)


def sequence_mask(
    lengths: NumericLike,
    maxlen: NumericLike | None = None,
    dtype: DTypeLike = dtypes.bool_,
    name: str | None = None,
) -> Tensor:
    """One row of ``maxlen`` values (by default the largest length) per length, true up to that length.

    ``lengths`` of shape ``[*s]`` give ``[*s, maxlen]``.

    Example:
        >>> tf.sequence_mask([1, 3], maxlen=3).eval()
        array([[ True, False, False],
               [ True,  True,  True]])
    """
    with get_default_graph().name_scope(name or "SequenceMask"):
        counts = convert_to_tensor(lengths)
        known = static_array(counts)
        if maxlen is None and known is not None:
            maxlen = max(known.max(initial=0), 0)
        elif maxlen is None:
            maxlen = maximum(max_op(reshape(counts, [-1]), [0]), np.array(0, counts.dtype.np))
        longest = convert_to_tensor(maxlen, None if isinstance(maxlen, Tensor) else counts.dtype)
        zero, one = (np.array(v, longest.dtype.np) for v in (0, 1))
        mask = less(cast(range_op(zero, longest, one), counts.dtype), expand_dims(counts, -1))
        return cast(mask, dtype)
