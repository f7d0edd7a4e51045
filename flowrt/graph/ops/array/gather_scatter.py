"""Gather and scatter: reading and writing slices of a tensor at computed indices.

Rules of this file: gather and scatter are each other's gradients; an index out of range is an error that
names it, and on a GPU reads 0 or is left out (`flowrt.graph.ops.base.indexing`); the gradient of a gather of
rows (axis 0) is sparse, an `IndexedSlices`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import takes_composites
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import LINEAR, OpDef, PartialValue, Rule, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Kernel, Loop, LoopPattern, Traits, Vjp
from flowrt.graph.ops.array import batch_axis
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.parts import sharded_gather
from flowrt.graph.ops.array.ranges import range_op
from flowrt.graph.ops.array.reductions import prod_op
from flowrt.graph.ops.array.scatter_rows import fold_rows
from flowrt.graph.ops.array.segments import unsorted_segment_sum
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.axes import factors, input_rank
from flowrt.graph.ops.base.filling import broadcast_to, zeros_like
from flowrt.graph.ops.base.identities import cast, static_value, target_shape, unchanged
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.indexing import check_range, places_of, put_rows, take, take_slices
from flowrt.graph.ops.base.kernel_output import accumulator, delivered
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.math import negative
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.shapes import Shape, format_shape, merge, normalize_axis, num_elements
from flowrt.graph.typing import NumericLike, TensorLike
from flowrt.loops.loop_program import LoopBuilder, LoopValue, Matrix

__all__ = [
    "batch_gather", "gather", "gather_nd", "scatter_nd", "tensor_scatter_add", "tensor_scatter_nd_add",
    "tensor_scatter_nd_sub", "tensor_scatter_nd_update", "tensor_scatter_sub", "tensor_scatter_update",
]  # fmt: skip

# --- gather


def _batch_dims(batch_dims: int, indices_rank: int) -> int:
    if not -indices_rank <= batch_dims <= indices_rank:
        raise InvalidArgumentError(
            f"batch_dims: expected at most indices' rank {indices_rank}; got {batch_dims}"
        )
    return batch_dims + indices_rank if batch_dims < 0 else batch_dims


def _gather_shape(s: ShapeContext) -> Sequence[Shape]:
    dims, ids, axis = s.shapes[0], s.shapes[1], s.value(2)
    if dims is None or ids is None:
        return [None]
    if not dims:
        raise InvalidArgumentError("params: expected at least one dimension; got a scalar")
    batch = _batch_dims(s.attrs["batch_dims"], len(ids))
    if axis is None:
        return [(None,) * (len(dims) + len(ids) - 1 - batch)]
    axis = normalize_axis(axis, len(dims))
    if batch > axis:
        raise InvalidArgumentError(f"axis: expected one not before batch_dims {batch}; got {axis}")
    common = merge(dims[:batch], ids[:batch])
    assert common is not None
    return [(*common, *dims[batch:axis], *ids[batch:], *dims[axis + 1 :])]


def _gather(xp: Any, params: Any, indices: Any, axis: int, batch_dims: int, out: Any = None) -> Any:
    axis, batch = normalize_axis(axis, params.ndim), _batch_dims(batch_dims, indices.ndim)
    check_range(xp, "indices", indices, params.shape[axis])
    if xp is np and indices.ndim == 0:  # a slice: a tenth of the time of `take`
        found = params[(*(slice(None),) * axis, int(indices), ...)]
        if out is None:
            return found.copy()
    elif out is not None and xp is np and batch == 0:
        return np.take(params, indices, axis, out, mode="clip")  # in range; "raise" would copy the output
    else:
        found = take_slices(xp, params, indices, axis, batch)
    return delivered(xp, found, params.dtype, out)


def _gather_loop(
    b: LoopBuilder, params: Matrix, indices: LoopValue, axis: int, *, batch_dims: int
) -> LoopValue | None:
    """Rows of a matrix; 0 for one that is not there, as on a GPU: where checks are the kernel refuses it."""
    if batch_dims:
        return None
    row = b.cast(indices, "int64")
    is_there = (row >= 0) & (row < params.rows)
    b.check(is_there)
    return b.select(is_there, params.at(b.select(is_there, row, 0)), 0)


def _gather_value(s: ShapeContext) -> PartialValue:
    value, ids = s.value(0), s.value(1)
    if value is None or ids is None or s.value(2) != 0 or s.attrs["batch_dims"] != 0:
        return None
    places = np.array(ids, object)
    if any(i is None or not 0 <= i < len(value) for i in places.reshape(-1)):
        return None
    taken = np.array(value, object).take(places.astype(np.int64), axis=0)
    return as_host_value(np.array(taken, object))


def _gather_vjp(op: Operation, dy: Tensor) -> list[Any]:
    params, indices, axis_tensor = op.inputs
    axis, dims, ids = static_value(axis_tensor), params.spec.shape, indices.spec.shape
    if axis == 0 and op.get_attr("batch_dims") == 0:
        if ids is not None and len(ids) == 1:
            return [IndexedSlices(dy, indices, shape(params)), None, None]
        flat = reshape(indices, [-1])  # the number of rows without elements cannot be inferred
        rows = reshape(dy, concat([shape(flat), getitem(shape(params), slice(1, None))], 0))
        return [IndexedSlices(rows, flat, shape(params)), None, None]
    if axis is None or dims is None or ids is None:
        raise op.error(UnimplementedError, "gradient: expected a constant axis and inputs of known rank")
    batch = _batch_dims(op.get_attr("batch_dims"), len(ids))
    return [_gathered_sum(params, indices, dy, normalize_axis(axis, len(dims)), batch), None, None]


def _gathered_sum(params: Tensor, indices: Tensor, dy: Tensor, axis: int, batch: int) -> Tensor:
    """``dy`` summed over the positions that a gather read; each batch entry has its own range of ids."""
    rank = len(params.spec.shape or ())
    entries, between = _count(params, 0, batch), _count(params, batch, axis)
    rows, width, taken = (
        _count(params, axis, axis + 1),
        _count(params, axis + 1, rank),
        _count(indices, batch, None),
    )
    picked = transpose(reshape(dy, [entries, between, taken, width]), [0, 2, 1, 3])
    ids, total = reshape(indices, [entries, taken]), rows
    if batch:
        total = multiply(convert_to_tensor(entries), rows)
        ids = add(ids, cast(expand_dims(range_op(0, total, rows), 1), ids.dtype))
    summed = unsorted_segment_sum(picked, ids, total)
    rows_last = transpose(reshape(summed, [entries, rows, between, width]), [0, 2, 1, 3])
    return reshape(rows_last, shape(params))


def _count(x: Tensor, first: int, last: int | None) -> Any:
    """The product of the dimensions ``first`` to ``last``: an int when they are known."""
    known = num_elements((x.spec.shape or ())[first:last])
    if known is not None:
        return known
    return prod_op(getitem(shape(x), slice(first, last)), [0])


def _gather_samples(rng: np.random.Generator) -> Iterable[Sample]:
    x = rng.standard_normal((3, 4, 2))
    zero, one, two = np.int32(0), np.int32(1), np.int64(2)
    yield sample(x, np.array([2, 0, 2], np.int32), zero)
    yield sample(x, np.array([[3, 1], [0, 0]]), one)
    yield sample(x, np.array(1), np.int32(-1))
    yield sample(x, np.array([[3, 1], [0, 0], [2, 2]]), one, batch_dims=1)
    yield sample(x, np.array([1, 0, 0], np.int32), two, batch_dims=1)
    yield sample(np.array([b"a", b"b"], object), np.array(1, np.int32), zero)
    yield sample(np.ones((2, 2), np.complex64), np.zeros((0,), np.int32), zero)


def _gather_axes(s: ShapeContext) -> str | None:
    rank, indices, axis, batch = input_rank(s), input_rank(s, 1), s.value(2), s.attrs["batch_dims"]
    if rank is None or indices is None or axis is None:
        return None
    names = factors(rank).split()
    batch = batch + indices if batch < 0 else batch
    rows = [*names[:batch], *[f"i{k}" for k in range(batch, indices)]]
    axis, before = axis % rank, f"{' '.join(names[: axis % rank])}"
    behind = " ".join(names[axis + 1 :])
    return f"{before} v! {behind}, {' '.join(rows)} -> {before} {' '.join(rows[batch:])} {behind}"


gather_op: OpDef[Tensor] = define_op(
    "GatherV2",
    "params: Tparams in STORED, indices: Tindices in INDEX | int16, axis: host Taxis in INDEX -> Tparams",
    attrs="batch_dims: int = 0",
    shape=_gather_shape,
    kernel=_gather,
    vjp=_gather_vjp,
    jvp=LINEAR,
    samples=_gather_samples,
    value=_gather_value,
    loop=Loop(_gather_loop, LoopPattern.GATHER),
    batch=batch_axis.gather,
    axes=_gather_axes,
    sharded=sharded_gather,
    traits=Traits(narrows=True),
    doc="The slices of params along ``axis`` at ``indices``; the first ``batch_dims`` dimensions are paired.",
)


@takes_composites
def gather(
    params: TensorLike,
    indices: NumericLike,
    validate_indices: bool | None = None,
    name: str | None = None,
    axis: NumericLike | None = None,
    batch_dims: int = 0,
) -> Tensor:
    """The slices of ``params`` along ``axis`` at ``indices``.

    On a GPU an index out of range gives zeros instead of an error.

    Args:
        params: A tensor.
        indices: Integers of any shape.
        validate_indices: Accepted: indices are always validated.
        axis: The dimension, by default the first after the batch.
        batch_dims: The number of first dimensions that ``params`` and ``indices`` have in common.

    Returns:
        A tensor of shape ``params.shape[:axis] + indices.shape[batch_dims:] + params.shape[axis + 1:]``.

    Raises:
        InvalidArgumentError: At run time, an index is out of range.

    Example:
        >>> tf.gather([10, 20, 30], [2, 0]).eval()
        array([30, 10], dtype=int32)
    """
    if axis is None:
        axis = batch_dims if batch_dims >= 0 else batch_dims + len(convert_to_tensor(indices).shape)
    if isinstance(axis, int) and axis == 0 and hasattr(params, "sparse_read"):
        return params.sparse_read(indices, name=name)  # of a variable: only the rows are read
    return gather_op(params, indices, axis, batch_dims=batch_dims, name=name)


def batch_gather(params: TensorLike, indices: NumericLike, name: str | None = None) -> Tensor:
    """`gather` along the last axis of ``indices``; its other dimensions are batch dimensions."""
    ids = convert_to_tensor(indices)
    if ids.spec.shape is None:
        raise InvalidArgumentError(f"batch_gather: expected indices of known rank; got {ids!r}")
    last = len(ids.spec.shape) - 1
    return gather(params, ids, name=name or "batch_gather", axis=last, batch_dims=last)


# --- coordinates: gather_nd and the scatters


def _places(xp: Any, indices: Any, dims: Sequence[int]) -> tuple[Any, int]:
    """Coordinates ``[..., k]`` into the first k of ``dims`` as row numbers, and the length of a row."""
    depth = indices.shape[-1]
    if depth > len(dims):
        raise InvalidArgumentError(f"indices: expected at most {len(dims)} coordinates per row; got {depth}")
    check_range(xp, "indices", indices, tuple(dims[:depth]))
    return places_of(xp, indices, dims[:depth]), math.prod(dims[depth:])


def _row_shape(dims: Shape, indices: Shape) -> Shape:
    """The shape of the slices of a tensor of ``dims`` at coordinates of shape ``indices``."""
    if indices is None or dims is None or not indices or indices[-1] is None:
        if indices == ():
            raise InvalidArgumentError(
                "indices: expected at least one dimension, of coordinates; got a scalar"
            )
        return None
    if indices[-1] > len(dims):
        raise InvalidArgumentError(
            f"indices: expected at most {len(dims)} coordinates per row; got {indices[-1]}"
        )
    return (*indices[:-1], *dims[indices[-1] :])


def _gather_nd(xp: Any, params: Any, indices: Any, out: Any = None) -> Any:
    places, width = _places(xp, indices, params.shape)
    count = math.prod(params.shape[: indices.shape[-1]])
    table = params.reshape(count, width)
    if xp is np and out is not None and out.flags.c_contiguous:
        np.take(table, places, 0, out.reshape(len(places), width), mode="clip")  # in range, as in `_gather`
        return out
    rows = take(xp, table, places).reshape(indices.shape[:-1] + params.shape[indices.shape[-1] :])
    return delivered(xp, rows, params.dtype, out)


def _gather_nd_axes(s: ShapeContext) -> str | None:
    rank, indices = input_rank(s), s.shapes[1]
    if rank is None or not indices or indices[-1] is None:
        return None
    places = " ".join(f"i{k}" for k in range(len(indices) - 1))
    return f"{factors(rank, range(indices[-1]))}, {places} x! -> {places} {_behind(rank, indices[-1])}"


def _behind(rank: int, first: int) -> str:
    """The factors of the dimensions from ``first`` on."""
    return " ".join(f"d{i}" for i in range(first, rank))


gather_nd_op: OpDef[Tensor] = define_op(
    "GatherNd",
    "params: Tparams in STORED, indices: Tindices in INDEX | int16 -> Tparams",
    shape=lambda s: [_row_shape(s.shapes[0], s.shapes[1])],
    kernel=_gather_nd,
    vjp=lambda op, dy: [scatter_nd(op.inputs[1], dy, shape(op.inputs[0], out_type=op.inputs[1].dtype)), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3, 2)), np.array([[1, 2], [0, 0], [1, 2]], np.int32)),
        sample(rng.standard_normal((2, 3)), np.array([[[1]], [[0]]])),
        sample(rng.standard_normal((2, 3)), np.zeros((2, 0), np.int32)),
        sample(np.array([b"a", b"b"], object), np.array([1], np.int32)),
    ),
    batch=batch_axis.gather_nd,
    axes=_gather_nd_axes,
    traits=Traits(narrows=True),
    doc="The slices of params at the coordinates that the last dimension of ``indices`` holds.",
)


def gather_nd(
    params: TensorLike, indices: NumericLike, name: str | None = None, batch_dims: int = 0
) -> Tensor:
    """The slices of ``params`` at coordinates: indices of shape ``[*s, k]`` give ``[*s, *params.shape[k:]]``.

    The first ``batch_dims`` dimensions of both are paired. Raises `InvalidArgumentError`, also at run time
    for coordinates out of range; on a GPU these give zeros.

    Example:
        >>> tf.gather_nd([[1, 2], [3, 4]], [[0, 1], [1, 0]]).eval()
        array([2, 3], dtype=int32)
    """
    if batch_dims == 0:
        return gather_nd_op(params, indices, name=name)
    with get_default_graph().name_scope(name or "GatherNd"):
        coordinates = _with_batch_coordinates(convert_to_tensor(indices), batch_dims)
        return gather_nd_op(params, coordinates)


def _with_batch_coordinates(indices: Tensor, batch_dims: int) -> Tensor:
    dims = indices.spec.shape
    if dims is None or not 0 <= batch_dims < len(dims):
        raise InvalidArgumentError(
            f"batch_dims: expected at least 0 and less than the rank of {indices!r}; got {batch_dims}"
        )
    full = concat([getitem(shape(indices), slice(0, -1)), [1]], 0)
    columns = []
    for axis in range(batch_dims):
        steps = cast(range_op(0, getitem(shape(indices), axis), 1), indices.dtype)
        spread = [-1 if i == axis else 1 for i in range(len(dims))]
        columns.append(broadcast_to(reshape(steps, spread), full))
    return concat([*columns, indices], -1)


# --- scatter


def _check_updates(dims: Shape, indices: Shape, updates: Shape) -> None:
    wanted = _row_shape(dims, indices)
    try:
        merge(wanted, updates)
    except InvalidArgumentError:
        raise InvalidArgumentError(
            f"updates: expected shape {format_shape(wanted)}; got {format_shape(updates)}"
        ) from None


def _scatter_nd_shape(s: ShapeContext) -> Sequence[Shape]:
    dims = target_shape(s, 2)
    _check_updates(dims, s.shapes[0], s.shapes[1])
    return [dims]


def _scatter(xp: Any, ufunc: str | None, target: Any, indices: Any, updates: Any) -> Any:
    """``target`` (changed and returned) with ``updates`` folded in by ``ufunc``, or put in their place."""
    _check_updates(target.shape, indices.shape, updates.shape)
    places, width = _places(xp, indices, target.shape)
    rows = target.reshape(math.prod(target.shape[: indices.shape[-1]]), width)
    given = updates.reshape(len(places), width)
    if ufunc is None:
        put_rows(xp, rows, places, given)
    else:
        fold_rows(xp, ufunc, rows, places, given)
    return target


def _scatter_nd(xp: Any, indices: Any, updates: Any, shape: Any, out: Any = None) -> Any:
    wide = accumulator(updates)
    is_direct = out is not None and out.dtype == wide and out.flags.c_contiguous
    target = out if is_direct else xp.empty(shape, wide)
    target[...] = 0
    return delivered(xp, _scatter(xp, "add", target, indices, updates), updates.dtype, out)


def _scatter_axes(s: ShapeContext) -> str | None:
    indices, updates = s.shapes[0], input_rank(s, 1)
    if not indices or indices[-1] is None or updates is None:
        return None
    places = " ".join(f"i{k}" for k in range(len(indices) - 1))
    row = " ".join(f"d{k}" for k in range(updates - len(indices) + 1))
    made = " ".join(f"v{k}!" for k in range(indices[-1]))
    return f"{places} x!, {places} {row} -> {made} {row}"


scatter_nd: OpDef[Tensor] = define_op(
    "ScatterNd",
    "indices: Tindices in INDEX, updates: T in NUMERIC | bool, shape: host shape Tindices -> T",
    shape=_scatter_nd_shape,
    kernel=_scatter_nd,
    vjp=lambda op, dy: [None, gather_nd_op(dy, op.inputs[0]), None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(np.array([[0, 1], [1, 1], [0, 1]]), rng.standard_normal((3, 2)), np.array([2, 2, 2])),
        sample(np.array([[3]], np.int32), rng.standard_normal((1,)), np.array([5], np.int32)),
        sample(np.array([[0], [0]], np.int32), np.ones(2, np.float16), np.array([2], np.int32)),
        sample(np.zeros((0, 1), np.int32), np.zeros(0, np.int8), np.array([2], np.int32)),
    ),
    batch=batch_axis.scatter_nd,
    axes=_scatter_axes,
    doc="""Zeros of ``shape`` with each of ``updates`` added at its coordinates.

    On a GPU coordinates out of range are left out.

    Example:
        >>> tf.scatter_nd([[1], [3]], [5, 7], [4]).eval()
        array([0, 5, 0, 7], dtype=int32)
    """,
)


def _tensor_scatter_shape(s: ShapeContext) -> Sequence[Shape]:
    _check_updates(s.shapes[0], s.shapes[1], s.shapes[2])
    return unchanged(s)


def _tensor_scatter(ufunc: str | None) -> Kernel:
    def kernel(xp: Any, tensor: Any, indices: Any, updates: Any, out: Any = None) -> Any:
        if out is None or not out.flags.c_contiguous:
            changed = _scatter(xp, ufunc, xp.array(tensor, order="C"), indices, updates)
            return delivered(xp, changed, tensor.dtype, out)
        out[...] = tensor
        return _scatter(xp, ufunc, out, indices, updates)

    return kernel


def _tensor_scatter_axes(s: ShapeContext) -> str | None:
    rank, indices = input_rank(s), s.shapes[1]
    if rank is None or not indices or indices[-1] is None:
        return None
    places = " ".join(f"i{k}!" for k in range(len(indices) - 1))
    dims = factors(rank, range(indices[-1]))
    return f"{dims}, {places} x!, {places} {_behind(rank, indices[-1])} -> {dims}"


def _tensor_scatter_op(name: str, ufunc: str | None, types: str, vjp: Vjp | Rule, doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        f"tensor: T in {types}, indices: Tindices in INDEX, updates: T -> T",
        shape=_tensor_scatter_shape,
        kernel=_tensor_scatter(ufunc),
        vjp=vjp,
        jvp=LINEAR,
        samples=lambda rng: (
            sample(rng.standard_normal((3, 2)), np.array([[2], [0]], np.int32), rng.standard_normal((2, 2))),
            sample(rng.standard_normal((3, 2)), np.array([[2, 1]]), rng.standard_normal((1,))),
            sample(np.ones(2, np.int32), np.zeros((0, 1), np.int32), np.zeros(0, np.int32)),
        ),
        batch=batch_axis.tensor_scatter,
        axes=_tensor_scatter_axes,
        doc=doc + " On a GPU coordinates out of range are left out.",
    )


def _update_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    _, indices, updates = op.inputs
    return [tensor_scatter_nd_update(dy, indices, zeros_like(updates)), None, gather_nd_op(dy, indices)]


tensor_scatter_nd_update = _tensor_scatter_op(
    "TensorScatterUpdate", None, "ANY", _update_vjp, "The tensor with ``updates`` at their coordinates."
)
tensor_scatter_nd_add = _tensor_scatter_op(
    "TensorScatterAdd",
    "add",
    "NUMERIC",
    lambda op, dy: [dy, None, gather_nd_op(dy, op.inputs[1])],
    "The tensor with each of ``updates`` added at its coordinates.",
)
tensor_scatter_nd_sub = _tensor_scatter_op(
    "TensorScatterSub",
    "subtract",
    "NUMERIC",
    lambda op, dy: [dy, None, negative(gather_nd_op(dy, op.inputs[1]))],
    "The tensor with each of ``updates`` subtracted at its coordinates.",
)
tensor_scatter_update = tensor_scatter_nd_update
tensor_scatter_add = tensor_scatter_nd_add
tensor_scatter_sub = tensor_scatter_nd_sub
