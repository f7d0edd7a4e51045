"""Lists of tensors as a whole: TensorFlow's ops between a list and the rows of one array.

The rules are those of `flowrt.graph.ops.lists.tensor_lists`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.construction.list_slices import ListSlices
from flowrt.graph.op_def import OpDef, ShapeContext, define_op
from flowrt.graph.op_facets import ListAccess, ListUse
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.lists.tensor_lists import (
    OF_OUTPUT,
    WRITE_ONCE,
    as_element_shape,
    check_dtype,
    check_unset,
    clear_at,
    define_list_op,
    format_element_shape,
    grown,
    linear,
    of_elements,
    rows_of,
    shape_of_rows,
    tensor_list_length,
    tensor_list_resize,
    writes_once,
    zeros,
)
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.graph.shapes import Shape, merge


def _with_first(first: int | None, rows: Shape) -> Shape:
    """The shape of ``first`` rows."""
    return None if rows is None else (first, *rows)


def _first(shape: Shape) -> int | None:
    return None if shape is None else shape[0]


def _copied_rows(xp: Any, tensor: Any) -> list[Any]:
    """Views of a copy of ``tensor``, one per row."""
    copy = xp.array(tensor)
    return [copy[i, ...] for i in range(len(copy))]


def _is_one_array(handle: TensorList) -> bool:
    """Whether the list was made from the rows of one array. Lists of lists never are."""
    return handle.rows is not None and handle.spec.dtype is not dtypes.variant


# --- stack and unstack


def _stack(
    xp: Any, handle: TensorList, elements: Sequence[Any], element_shape: Any, dtype: DType, out: Any = None
) -> Any:
    """Some ``elements`` of ``handle`` as the rows of an array."""
    check_dtype(handle, dtype)
    shape = merge(handle.spec.shape, as_element_shape(element_shape))
    for known in {e.shape for e in elements if e is not None}:
        shape = merge(shape, known)
    if not elements:
        return delivered(xp, zeros(xp, _with_first(0, shape), dtype, "a stack of no elements"), dtype.np, out)
    unset = next((i for i, e in enumerate(elements) if e is None), None)
    if unset is not None:
        zero = zeros(xp, shape, dtype, f"element {unset}")
        elements = [zero if e is None else e for e in elements]
    return xp.stack(elements, out=out)


def _stack_all(
    xp: Any, handle: TensorList, element_shape: Any, element_dtype: DType, num_elements: int
) -> Any:
    if num_elements not in (-1, handle.length):
        raise InvalidArgumentError(f"expected a list of {num_elements} elements; got {handle.length}")
    check_dtype(handle, element_dtype)
    if _is_one_array(handle):
        merge(handle.rows.shape[1:], as_element_shape(element_shape))
        return handle.rows
    return _stack(xp, handle, handle.elements(), element_shape, element_dtype)


def _stack_shape(s: ShapeContext) -> Shape:
    count = s.attrs["num_elements"]
    return _with_first(None if count < 0 else count, merge(s.shapes[0], as_element_shape(s.value(1))))


tensor_list_stack: OpDef[Tensor] = define_list_op(
    "TensorListStack",
    "input_handle: variant, element_shape: host int32 -> tensor: element_dtype in ANY",
    attrs=f"{OF_OUTPUT}, num_elements: int = -1",
    shape=lambda s: [_stack_shape(s)],
    kernel=_stack_all,
    vjp=lambda op, dy: [tensor_list_from_tensor(dy, format_element_shape(op.inputs[0].spec.shape)), None],
    alias=True,  # if they are rows of one array, which is not modified
    axes="..a -> n ..a",
    doc="All elements, along a new first axis; zeros of element_shape for those that are not set.",
)


def _from_tensor(xp: Any, tensor: Any, element_shape: Any, element_dtype: DType) -> TensorList:
    return TensorList.of_rows(ListSpec(element_dtype, as_element_shape(element_shape)), xp.array(tensor))


def _from_tensor_vjp(op: Operation, dy: Tensor) -> list[Any]:
    tensor, dtype = op.inputs[0], op.get_attr("element_dtype")
    count = _first(tensor.spec.shape)
    stacked = tensor_list_stack(
        dy, shape_of_rows(tensor), element_dtype=dtype, num_elements=-1 if count is None else count
    )
    return [stacked, None]


tensor_list_from_tensor: OpDef[Tensor] = define_list_op(
    "TensorListFromTensor",
    "tensor: element_dtype in ANY, element_shape: host shape_type in INDEX -> output_handle: variant",
    shape=lambda s: [merge(rows_of(s.shapes[0]), as_element_shape(s.value(1)))],
    kernel=_from_tensor,
    vjp=_from_tensor_vjp,
    axes="n! ..a -> ..a",
    doc="The list of the tensor's rows.",
)


# --- some elements


tensor_list_gather = define_list_op(
    "TensorListGather",
    "input_handle: variant, indices: host int32, element_shape: host int32 -> values: element_dtype in ANY",
    attrs=OF_OUTPUT,
    shape=lambda s: [_with_first(_first(s.shapes[1]), merge(s.shapes[0], as_element_shape(s.value(2))))],
    kernel=lambda xp, handle, indices, element_shape, element_dtype, out=None: _stack(
        xp, handle, [handle.get(i) for i in indices], element_shape, element_dtype, out
    ),
    vjp=lambda op, dy: [ListSlices(op.inputs[0], op.inputs[1], dy), None, None],
    axes="..a -> n ..a",
    doc="The elements at indices, along a new first axis.",
)


def _scatter_into(
    xp: Any, handle: TensorList, tensor: Any, indices: tuple[int, ...], element_dtype: DType,
    _resizes: bool, _write_once: bool,
) -> TensorList:  # fmt: skip
    check_dtype(handle, element_dtype)
    if len(indices) != len(tensor) or len(set(indices)) != len(indices):
        raise InvalidArgumentError(f"indices: expected {len(tensor)} different ones; got {list(indices)}")
    if _resizes:
        handle = grown(handle, max(indices, default=-1) + 1)
    for index, row in zip(indices, _copied_rows(xp, tensor), strict=True):
        if _write_once:
            check_unset(handle, index)
        handle = handle.set(index, row)
    return handle


def _scatter(
    xp: Any, tensor: Any, indices: tuple[int, ...], element_shape: Any, num_elements: int,
    element_dtype: DType,
) -> TensorList:  # fmt: skip
    length = max(indices, default=-1) + 1 if num_elements < 0 else num_elements
    handle = TensorList(ListSpec(element_dtype, as_element_shape(element_shape))).resized(length)
    return _scatter_into(xp, handle, tensor, indices, element_dtype, False, False)


def _gather_of(op: Operation, dy: Tensor, tensor: Tensor, indices: Tensor) -> Tensor:
    """The gradient of the rows ``tensor`` that went to ``indices``."""
    return tensor_list_gather(dy, indices, shape_of_rows(tensor), element_dtype=op.get_attr("element_dtype"))


tensor_list_scatter = define_list_op(
    "TensorListScatterV2",
    "tensor: element_dtype in ANY, indices: host int32, element_shape: host shape_type in INDEX,"
    " num_elements: host int32 -> output_handle: variant",
    shape=lambda s: [merge(rows_of(s.shapes[0]), as_element_shape(s.value(2)))],
    kernel=_scatter,
    vjp=lambda op, dy: [_gather_of(op, dy, *op.inputs[:2]), None, None, None],
    axes="n! ..a -> ..a",
    doc="A list of num_elements (-1: as needed) with the tensor's rows at indices, which must be distinct.",
)


def _scatter_into_vjp(op: Operation, dy: Tensor) -> list[Any]:
    handle, tensor, indices = op.inputs
    before = dy if writes_once(op.node) else clear_at(dy, indices)
    if op.get_attr("_resizes"):
        before = tensor_list_resize(before, tensor_list_length(handle))
    return [before, _gather_of(op, dy, tensor, indices), None]


def _scatter_into_shape(s: ShapeContext) -> Shape:
    merge(s.shapes[0], rows_of(s.shapes[1]))
    return s.shapes[0]


tensor_list_scatter_into = define_list_op(
    "TensorListScatterIntoExistingList",
    "input_handle: variant, tensor: element_dtype in ANY, indices: host int32 -> output_handle: variant",
    attrs=f"_resizes: bool = True, {WRITE_ONCE}",
    shape=lambda s: [_scatter_into_shape(s)],
    kernel=_scatter_into,
    vjp=_scatter_into_vjp,
    lists=ListAccess(ListUse.MERGED, written=lambda shapes: rows_of(shapes[1])),
    axes="..a, n! ..a -> ..a",
    doc="The list with the tensor's rows at indices, which must be distinct; extended if an index exceeds "
    "its end.",
)


# --- elements of different lengths, concatenated


def _concat(
    xp: Any, handle: TensorList, element_shape: Any, leading_dims: tuple[int, ...], element_dtype: DType
) -> tuple[Any, Any]:
    check_dtype(handle, element_dtype)
    shape = merge(handle.spec.shape, as_element_shape(element_shape))
    rows, first = rows_of(shape), _first(shape)
    if _is_one_array(handle) and handle.rows.ndim > 1:
        count, length, *others = handle.rows.shape
        merge(rows, others)
        return handle.rows.reshape(count * length, *others), np.full(count, length)
    elements = handle.elements()
    for known in {e.shape for e in elements if e is not None}:
        rows = merge(rows, rows_of(known))
    parts = []
    for i, element in enumerate(elements):
        if element is None:
            count = leading_dims[i] if i < len(leading_dims) else first
            element = zeros(xp, _with_first(count, rows), element_dtype, f"element {i}")
        parts.append(element)
    lengths = np.array([len(part) for part in parts], np.int64)
    if not parts:
        parts = [zeros(xp, _with_first(0, rows), element_dtype, "a concatenation of no elements")]
    return xp.concatenate(parts), lengths


def _concat_vjp(op: Operation, dtensor: Tensor, _: Any) -> list[Any]:
    shape = op.inputs[0].spec.shape
    return [tensor_list_split(dtensor, format_element_shape(shape), op.outputs[1]), None, None]


def _concat_shape(s: ShapeContext) -> Shape:
    return _with_first(None, rows_of(merge(s.shapes[0], as_element_shape(s.value(1)))))


tensor_list_concat: OpDef[list[Tensor]] = define_op(
    "TensorListConcatV2",
    "input_handle: variant, element_shape: host shape_type in INDEX, leading_dims: host int64"
    " -> tensor: element_dtype in ANY, lengths: host int64",
    attrs=OF_OUTPUT,
    shape=lambda s: [_concat_shape(s), (None,)],
    kernel=_concat,
    vjp=of_elements(_concat_vjp),
    jvp=linear,
    samples=lambda rng: (),
    alias=True,  # as `tensor_list_stack`
    doc="All elements concatenated along their first axis, and their lengths. An element that is not set "
    "counts as leading_dims[i] zero rows.",
)


def _split(
    xp: Any, tensor: Any, element_shape: Any, lengths: tuple[int, ...], element_dtype: DType
) -> TensorList:
    if sum(lengths) != len(tensor) or min(lengths, default=0) < 0:
        raise InvalidArgumentError(
            f"lengths: expected lengths of at least 0 that sum to {len(tensor)}, the number of rows; got "
            f"{list(lengths)}"
        )
    copy, ends = xp.array(tensor), np.cumsum(lengths).tolist()
    parts = [copy[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    return TensorList(ListSpec(element_dtype, as_element_shape(element_shape)), parts)


def _split_vjp(op: Operation, dy: Tensor) -> list[Any]:
    tensor, _, lengths = op.inputs
    dtype = op.get_attr("element_dtype")
    return [tensor_list_concat(dy, shape_of_rows(tensor, [-1]), lengths, element_dtype=dtype)[0], None, None]


tensor_list_split = define_list_op(
    "TensorListSplit",
    "tensor: element_dtype in ANY, element_shape: host shape_type in INDEX, lengths: host int64"
    " -> output_handle: variant",
    shape=lambda s: [merge(_with_first(None, rows_of(s.shapes[0])), as_element_shape(s.value(1)))],
    kernel=_split,
    vjp=_split_vjp,
    doc="The list of lengths[0] rows of the tensor, the next lengths[1], and so on.",
)
