"""Choosing and regrouping rows: where, boolean_mask, repeat, dynamic partitions, embedding_lookup.

The shapes of most results depend on data: their first dimension is unknown while the graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.gather_scatter import gather, gather_nd_op
from flowrt.graph.ops.array.ranges import range as range_
from flowrt.graph.ops.array.ranges import sequence_mask, static_array
from flowrt.graph.ops.array.reductions import sum_op
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.filling import broadcast_to, zeros_like
from flowrt.graph.ops.base.identities import cast, target_shape
from flowrt.graph.ops.base.indexing import check_range, places_of, put_rows
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, size, squeeze
from flowrt.graph.ops.elementwise.arithmetic import add, add_n_op, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater, less, select_v2
from flowrt.graph.ops.elementwise.division import floordiv, floormod, truediv
from flowrt.graph.ops.elementwise.math import sqrt
from flowrt.graph.shapes import Shape, compatible, format_shape, merge, normalize_axis
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike, TensorLike

__all__ = ["boolean_mask", "dynamic_partition", "dynamic_stitch", "repeat", "sparse_to_dense"]

# --- by a mask

where_op: OpDef[Tensor] = define_op(
    "Where",
    "input: T in NUMERIC | bool -> index: int64",
    shape=lambda s: [(None, None if s.shapes[0] is None else len(s.shapes[0]))],
    kernel=lambda xp, input: xp.ascontiguousarray(xp.argwhere(input)).astype(np.int64, copy=False),
    samples=lambda rng: (
        sample(np.array([[True, False], [True, True]])),
        sample(np.array([0.0, 1.5])),
        sample(np.array(True)),
        sample(np.zeros((0, 3), np.complex64)),
    ),
    doc="The coordinates of the elements that are not 0, row by row: shape ``[n, rank]``.",
)


@takes_composites
def boolean_mask(
    tensor: TensorLike, mask: TensorLike, name: str = "boolean_mask", axis: NumericLike | None = None
) -> Tensor:
    """The slices of ``tensor`` at which ``mask`` is true; it covers the dimensions of tensor from ``axis``
    on.

    Those dimensions become one of unknown length. Raises `InvalidArgumentError` for a mask of unknown rank, a
    scalar mask, and incompatible shapes.

    Example:
        >>> tf.boolean_mask([1, 2, 3], [True, False, True]).eval()
        array([1, 3], dtype=int32)
    """
    with get_default_graph().name_scope(name):
        values, chosen = (
            convert_to_tensor(tensor, name="tensor"),
            convert_to_tensor(mask, dtypes.bool_, name="mask"),
        )
        dims, pattern = values.spec.shape, chosen.spec.shape
        if not pattern:
            raise misuse(f"boolean_mask: expected a mask of known rank, at least 1; got {chosen!r}")
        first = 0 if axis is None else int(axis)  # type: ignore[arg-type]  # NumPy's, too
        if dims is not None:
            first = normalize_axis(first, len(dims))
            if not compatible(dims[first : first + len(pattern)], pattern):
                raise misuse(
                    f"boolean_mask: expected a mask of the tensor's dimensions from axis {first} on; got a "
                    f"tensor of shape {format_shape(dims)} and a mask of shape {format_shape(pattern)}"
                )
        if len(pattern) > 1:
            whole = shape(values)
            rest = getitem(whole, slice(first + len(pattern), None))
            values = reshape(values, concat([getitem(whole, slice(0, first)), [-1], rest], 0))
            chosen = reshape(chosen, [-1])
        return gather(values, squeeze(where_op(chosen), [1]), axis=first)


def repeat(
    input: TensorLike, repeats: TensorLike, axis: int | None = None, name: str | None = None
) -> Tensor:
    """Each slice of ``input`` along ``axis`` (each element without one) ``repeats`` times in succession.

    ``repeats`` is one number, or one for each slice. Raises `InvalidArgumentError` for others that are known.
    """
    with get_default_graph().name_scope(name or "Repeat"):
        values, counts = convert_to_tensor(input), convert_to_tensor(repeats)
        if axis is None:
            values, axis = reshape(values, [-1]), 0
        dims = values.spec.shape
        if dims is None:
            raise InvalidArgumentError(f"repeat: expected an input of known rank; got {values!r}")
        axis = normalize_axis(axis, len(dims))
        known_length = dims[axis]
        length = getitem(shape(values), axis) if known_length is None else known_length
        known = static_array(counts)
        if known is not None and isinstance(length, int):
            if (known < 0).any() or known.shape not in ((), (1,), (length,)):
                raise misuse(f"repeat: expected one number of at least 0, or {length}; got repeats {known}")
            return gather(values, np.repeat(np.arange(length, dtype=np.int32), known), axis=axis)
        slices = expand_dims(range_(length), 1)
        if counts.spec.shape in ((), (1,)):
            grid = broadcast_to(slices, stack([length, cast(reshape(counts, []), dtypes.int32)]))
            return gather(values, reshape(grid, [-1]), axis=axis)
        mask = sequence_mask(broadcast_to(counts, stack([length])))
        return gather(values, boolean_mask(broadcast_to(slices, shape(mask)), mask), axis=axis)


# --- dynamic_partition and dynamic_stitch


def _rest(dims: Shape, prefix: Shape) -> Shape:
    """``dims`` after ``prefix``, which it must begin with."""
    if dims is None or prefix is None:
        return None
    if len(prefix) > len(dims) or not compatible(dims[: len(prefix)], prefix):
        raise InvalidArgumentError(f"expected a prefix of {format_shape(dims)}; got {format_shape(prefix)}")
    return dims[len(prefix) :]


def _dynamic_partition_shape(s: ShapeContext) -> Sequence[Shape]:
    rest, count = _rest(s.shapes[0], s.shapes[1]), s.attrs["num_partitions"]
    if count < 1:
        raise InvalidArgumentError(f"num_partitions: expected at least 1; got {count}")
    return [None if rest is None else (None, *rest)] * count


def _dynamic_partition(xp: Any, data: Any, partitions: Any, num_partitions: int) -> Any:
    _rest(data.shape, partitions.shape)
    check_range(xp, "partitions", partitions, num_partitions)
    return [data[partitions == i] for i in range(num_partitions)]


def _dynamic_partition_vjp(op: Operation, *dys: Tensor | None) -> list[Tensor | None]:
    data, partitions = op.inputs
    places = dynamic_partition(
        reshape(range_(size(partitions)), shape(partitions)), partitions, num_partitions=len(dys)
    )
    rows = [zeros_like(y) if dy is None else dy for y, dy in zip(op.outputs, dys, strict=True)]
    return [reshape(dynamic_stitch(places, rows), shape(data)), None]


dynamic_partition: OpDef[list[Tensor]] = define_op(
    "DynamicPartition",
    "data: T in ANY, partitions: int32 -> outputs: num_partitions * T",
    attrs="num_partitions: int",
    shape=_dynamic_partition_shape,
    kernel=_dynamic_partition,
    vjp=_dynamic_partition_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((4, 2)), np.array([1, 0, 1, 1], np.int32), num_partitions=2),
        sample(rng.standard_normal((2, 2)), np.array([[1, 0], [1, 1]], np.int32), num_partitions=2),
        sample(rng.standard_normal(3), np.array(1, np.int32), num_partitions=2, differentiable=False),
        sample(np.array([b"a", b"b"], object), np.array([0, 0], np.int32), num_partitions=3),
    ),
    doc="``num_partitions`` tensors: the slices of ``data`` with number 0, 1, ... in ``partitions``.",
)


def _dynamic_stitch_shape(s: ShapeContext) -> Sequence[Shape]:
    count = len(s.shapes) // 2
    rest: Shape = None
    rows: int | None = 0
    for i in range(count):
        rest = merge(rest, _rest(s.shapes[count + i], s.shapes[i]))
        known = s.value(i)
        flat = None if known is None else np.array(known, object).reshape(-1).tolist()
        rows = (
            None
            if rows is None or flat is None or None in flat
            else max([rows, *(place + 1 for place in flat)])
        )
    return [None if rest is None else (rows, *rest)]


def _dynamic_stitch(xp: Any, indices: Any, data: Any, out: Any = None) -> Any:
    rows = max((int(places.max()) + 1 for places in indices if places.size), default=0)
    rest = data[0].shape[indices[0].ndim :]
    result = xp.empty((rows, *rest), data[0].dtype) if out is None else out
    result[...] = 0
    for places, values in zip(indices, data, strict=True):
        check_range(xp, "indices", places, rows)
        put_rows(xp, result, places.reshape(-1), values.reshape((places.size, *rest)))
    return result


def _dynamic_stitch_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    indices = op.inputs[: len(op.inputs) // 2]
    return [None] * len(indices) + [gather(dy, places) for places in indices]


dynamic_stitch: OpDef[Tensor] = define_op(
    "DynamicStitch",
    "indices: N * int32, data: N * T in ANY -> merged: T",
    shape=_dynamic_stitch_shape,
    kernel=_dynamic_stitch,
    vjp=_dynamic_stitch_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(
            (np.array([0, 3], np.int32), np.array([[1], [2]], np.int32)),
            (rng.standard_normal((2, 2)), rng.standard_normal((2, 1, 2))),
        ),
        sample((np.array(1, np.int32), np.zeros(0, np.int32)), (np.float64(2.0), np.zeros(0))),
    ),
    doc="Rows arranged by their indices: ``result[indices[i][j]] = data[i][j]``; the last of equal ones "
    "wins.",
)

# --- sparse_to_dense


def _sparse_to_dense_shape(s: ShapeContext) -> Sequence[Shape]:
    if s.shapes[0] is not None and len(s.shapes[0]) > 2:
        raise InvalidArgumentError(
            f"sparse_indices: expected at most 2 dimensions; got {format_shape(s.shapes[0])}"
        )
    return [target_shape(s, 1)]


def _coordinates(indices: Any) -> Any:
    """Sparse indices (a scalar, a vector, or a matrix) as one row of coordinates each."""
    return indices if indices.ndim == 2 else indices.reshape(-1, 1)


def _sparse_to_dense(
    xp: Any, sparse_indices: Any, output_shape: Any, sparse_values: Any, default_value: Any,
    validate_indices: bool, out: Any = None,
) -> Any:  # fmt: skip
    rows = _coordinates(sparse_indices)
    if rows.shape[1] != len(output_shape):
        raise InvalidArgumentError(f"expected {len(output_shape)} coordinates per value; got {rows.shape[1]}")
    check_range(xp, "sparse_indices", rows, output_shape)
    places = places_of(xp, rows, output_shape)
    if xp is np and validate_indices and (places[1:] <= places[:-1]).any():
        raise InvalidArgumentError("sparse_indices: expected them in ascending order, without repetition")
    if out is None or not out.flags.c_contiguous:
        made = xp.full(math.prod(output_shape), default_value, default_value.dtype)
        put_rows(xp, made, places, sparse_values)
        return delivered(xp, made.reshape(output_shape), default_value.dtype, out)
    out[...] = default_value
    put_rows(xp, out.reshape(-1), places, sparse_values)
    return out


def _sparse_to_dense_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    indices, _, values, _ = op.inputs
    rows = indices if len(indices.shape) == 2 else reshape(indices, [-1, 1])
    picked = gather_nd_op(dy, rows)
    everywhere = sum_op(reshape(dy, [-1]), [0])
    own = sum_op(picked, [0]) if values.spec.shape == () else picked
    return [None, None, own, subtract(everywhere, sum_op(picked, [0]))]


sparse_to_dense_op: OpDef[Tensor] = define_op(
    "SparseToDense",
    "sparse_indices: Tindices in INDEX, output_shape: host Tindices, sparse_values: T in ANY, "
    "default_value: T -> dense: T",
    attrs="validate_indices: bool = True",
    shape=_sparse_to_dense_shape,
    kernel=_sparse_to_dense,
    vjp=_sparse_to_dense_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.array([[0, 1], [1, 0]]), np.array([2, 3]), rng.standard_normal(2), rng.standard_normal(())),
        sample(np.array([1, 3], np.int32), np.array([4], np.int32), rng.standard_normal(()), np.array(9.0)),
        sample(np.array(1), np.array([3]), np.array(b"x", object), np.array(b"", object)),
    ),
    doc="``sparse_values`` at their indices in a tensor of ``output_shape``, ``default_value`` elsewhere.",
)


def sparse_to_dense(
    sparse_indices: Any,
    output_shape: ShapeTensorLike,
    sparse_values: Any,
    default_value: TensorLike = 0,
    validate_indices: bool = True,
    name: str | None = None,
) -> Tensor:
    """A tensor of ``output_shape`` with ``sparse_values`` (a vector or one for all) at their indices.

    ``sparse_indices`` is a scalar, a vector, or has a row of coordinates for each value. Raises
    `InvalidArgumentError` when it runs for indices out of range, and with ``validate_indices`` for ones that
    do not ascend; on a GPU those out of range are left out.
    """
    values = convert_to_tensor(sparse_values)
    if values.dtype is dtypes.string and not isinstance(default_value, Tensor) and default_value == 0:
        default_value = b""
    inputs = (sparse_indices, output_shape, values, default_value)
    return sparse_to_dense_op(*inputs, validate_indices=validate_indices, name=name)


# --- embedding_lookup


def embedding_lookup(
    params: TensorLike,
    ids: TensorLike,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,
    max_norm: float | None = None,
) -> Tensor:
    """The rows of a table for ``ids``.

    Args:
        params: The table ``[rows, *row]``, or a list of its parts.
        ids: Integers of any shape.
        partition_strategy: With several parts, "mod": row i is in part ``i % n``; "div": the parts hold
            consecutive rows, the first ones one more if need be.
        validate_indices: Accepted: indices are always validated.
        max_norm: The Euclidean norm to which larger rows are scaled down; None for none.

    Returns:
        A tensor of shape ``[*ids.shape, *row]``.

    Raises:
        InvalidArgumentError: The parts do not fit each other, or the strategy is unknown.

    Example:
        >>> table = tf.constant([[1.0, 1.0], [2.0, 2.0]])
        >>> tf.nn.embedding_lookup(table, [1, 0, 1]).eval()
        array([[2., 2.],
               [1., 1.],
               [2., 2.]], dtype=float32)
    """
    parts = list(params) if isinstance(params, (list, tuple)) else [params]
    if not parts:
        raise InvalidArgumentError("embedding_lookup: expected at least one table; got none")
    with get_default_graph().name_scope(name or "embedding_lookup"):
        keys = convert_to_tensor(ids, name="ids")
        found = (
            gather(parts[0], keys) if len(parts) == 1 else _lookup_in_parts(parts, keys, partition_strategy)
        )
        return found if max_norm is None else _within_norm(found, keys, max_norm)


def _lookup_in_parts(parts: Sequence[Any], keys: Tensor, strategy: str) -> Tensor:
    flat = reshape(keys, [-1])
    if strategy == "mod":
        count = np.array(len(parts), flat.dtype.np)
        home, local = floormod(flat, count), floordiv(flat, count)
    elif strategy == "div":
        home, local = _consecutive(parts, flat)
    else:
        raise InvalidArgumentError(f"partition_strategy: expected 'mod' or 'div'; got {strategy!r}")
    home = cast(home, dtypes.int32)
    wanted = dynamic_partition(local, home, len(parts))
    places = dynamic_partition(range_(size(flat)), home, len(parts))
    rows = dynamic_stitch(places, [gather(part, each) for part, each in zip(parts, wanted, strict=True)])
    return reshape(rows, concat([shape(keys), getitem(shape(parts[0]), slice(1, None))], 0))


def _consecutive(parts: Sequence[Any], flat: Tensor) -> tuple[Tensor, Tensor]:
    """The part of each id and its row there, if parts hold consecutive rows."""
    rows = cast(add_n_op([getitem(shape(part), 0) for part in parts]), flat.dtype)
    count, one = np.array(len(parts), flat.dtype.np), np.array(1, flat.dtype.np)
    small, larger_parts = floordiv(rows, count), floormod(rows, count)
    large, shifted = add(small, one), subtract(flat, larger_parts)
    home = maximum(floordiv(flat, large), floordiv(shifted, small))
    local = select_v2(less(home, larger_parts), floormod(flat, large), floormod(shifted, small))
    return home, local


def _within_norm(rows: Tensor, keys: Tensor, max_norm: float) -> Tensor:
    """``rows`` scaled down to norm ``max_norm``; avoids the root of 0, with its infinite gradient."""
    dims, own = rows.spec.shape, keys.spec.shape
    if dims is None or own is None:
        raise InvalidArgumentError(f"max_norm: expected ids of known rank; got {keys!r}")
    axes = np.arange(len(own), len(dims), dtype=np.int32)
    squares = sum_op(multiply(rows, rows), axes, keep_dims=True)
    limit = np.array(max_norm, rows.dtype.np)
    too_long = greater(squares, multiply(limit, limit))
    norm = sqrt(select_v2(too_long, squares, multiply(limit, limit)))
    return multiply(rows, truediv(limit, norm))
