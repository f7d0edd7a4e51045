"""Lists of tensors: TensorFlow's ops on the elements of a list, and additional ones for gradients.

A list is a tensor of dtype `variant` with a `flowrt.graph.resources.tensor_list.TensorList` as its value.
Rules of this file and of `flowrt.graph.ops.lists.stacked_lists`:

  1. The static shape of a list tensor is the common static shape of its *elements*; their dtype is an attr.
  2. Elements are copied into a list: a kernel's inputs are in memory that the plan reuses. A read returns the
     element itself, as a view: code that returns a view from a step must copy it.
  3. The gradient of a list is a list of the same length; elements that are not set mean zeros. PushBack and
     PopBack are thus each other's transpose, and a gradient does not need the lists of the forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.construction.list_slices import ListSlices
from flowrt.graph.node import Node
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, define_op, op_def
from flowrt.graph.op_facets import ListAccess, ListUse, Traits, Vjp
from flowrt.graph.ops.array.concat_and_split import concat_op
from flowrt.graph.ops.array.slicing import strided_slice_op
from flowrt.graph.ops.base.filling import zeros_like_op
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape as shape_of
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.graph.shapes import Shape, format_shape, is_static, merge

_TYPES = {"element_dtype": dtypes.ANY}
OF_OUTPUT = "element_dtype: type"
"""The attr of ops without an input that determines the elements' dtype."""

WRITE_ONCE = "_write_once: bool = False"
"""A `TensorArray`'s elements are written once: a second write raises `InvalidArgumentError`. So an element
has no gradient before it is written, and the gradient of the list passes a write as it is.
"""

RESTORES = "_restores"
"""The private attr of a push onto the gradient of a list from which an element was taken: there is room."""

STACK = "_stack"
"""Private attr of a push onto an unbounded list of values that a gradient reads or accumulates."""

SWAPS = "_swap_memory"
"""Private attr of a loop that keeps the values its gradient reads in host memory, and of the pushes to and
reads from those lists, including their gradients.
"""


def writes_once(node: Node) -> bool:
    """Whether ``node`` sets an element of a list that raises if the element was set before."""
    return bool(node.attrs["_write_once"])


def swapping(op: Operation) -> dict[str, Any]:
    """The attr for operations derived from ``op``, if ``op`` has it."""
    return {SWAPS: True} if op.node.attrs.get(SWAPS) else {}


# --- shapes of elements


def as_element_shape(value: Any) -> Shape:
    """A shape from an op's ``element_shape``, a host value as far as it is known: -1 is an unknown rank, in a
    vector an unknown dimension.
    """
    if isinstance(value, tuple):
        return tuple([None if d is None or d < 0 else d for d in value])
    if value not in (None, -1):
        raise InvalidArgumentError(f"element_shape: expected a vector, or -1; got {value}")
    return None


def format_element_shape(shape: Shape) -> Any:
    """``shape`` as an op's ``element_shape``."""
    return -1 if shape is None else [-1 if d is None else d for d in shape]


# --- arrays in lists


def stored(xp: Any, value: Any, dtype: DType) -> Any:
    """A copy of ``value`` to be kept in a list: rule 2. A list needs none."""
    return value if dtype is dtypes.variant else xp.array(value, dtype.np)[...]


def zeros(xp: Any, shape: Shape, dtype: DType, what: str) -> Any:
    """The value read for an element ``what`` that is not set. Raises `InvalidArgumentError` unless the shape
    is known.
    """
    if not is_static(shape) or dtype is dtypes.variant:
        got = format_shape(shape)
        raise InvalidArgumentError(f"{what}: expected it to be written, or a known element_shape; got {got}")
    return np.full(shape, b"", object) if dtype is dtypes.string else xp.zeros(shape, dtype.np)


def check_dtype(handle: TensorList, dtype: DType) -> None:
    """Raises `DTypeError` unless the elements of ``handle`` are of ``dtype``."""
    if handle.spec.dtype is not dtype:
        raise DTypeError(f"expected a list of {dtype.name}; got one of {handle.spec.dtype.name}")


def check_unset(handle: TensorList, index: int) -> None:
    """Raises `InvalidArgumentError` if the element was written."""
    if handle.get(index) is not None:
        raise InvalidArgumentError(
            f"expected an index that was not written yet; got {index}. Each element of a TensorArray is "
            "written once"
        )


def grown(handle: TensorList, length: int) -> TensorList:
    """``handle`` with elements that are not set up to ``length``: O(1) for each that is added."""
    for _ in range(handle.length, length):
        handle = handle.push(None)
    return handle


# --- gradients


def of_elements(rule: Vjp) -> Vjp:
    """The vjp ``rule``, without gradients of elements that have none, such as integers. The list itself has
    one, in O(1) per step: a loop cannot determine the contents of the lists that it carries.
    """

    def vjp(op: Operation, *dys: Any) -> Sequence[Any]:
        if all(dy is None for dy in dys):
            return [None] * len(op.inputs)
        dxs = rule(op, *dys)
        return [dx if _has_gradient(x.dtype) else None for x, dx in zip(op.inputs, dxs, strict=True)]

    return vjp


def _has_gradient(dtype: DType) -> bool:
    return dtype in dtypes.INEXACT or dtype is dtypes.variant


def _zeros_like(x: Tensor) -> Tensor:
    return zeros_like_list(x) if x.dtype is dtypes.variant else zeros_like_op(x)


def _shape_of(element: Tensor) -> Any:
    """The shape of ``element`` as an op's ``element_shape``."""
    if element.dtype is dtypes.variant:
        return format_element_shape(element.spec.shape)
    return shape_of(element)


def linear(op: Operation, *tangents: Any) -> Any:
    """The jvp of ops that are linear in lists and elements: the op itself on the tangents."""
    inputs = [
        t if t is not None else _zeros_like(x) if _has_gradient(x.dtype) else x
        for x, t in zip(op.inputs, tangents, strict=True)
    ]
    result = op.op_def(*inputs, **{key: op.node.attrs[key] for key in op.op_def.attrs})
    outputs = list(result) if isinstance(result, list) else [result]
    return [y if _has_gradient(y.dtype) else None for y in outputs]


def define_list_op(name: str, signature: str, *, vjp: Vjp | None = None, **rules: Any) -> OpDef[Tensor]:
    """Define an op that is linear in lists and elements, or without ``vjp`` has no gradient.

    It has no samples: lists are not arrays.
    """
    return define_op(
        name,
        signature,
        vjp=NONDIFFERENTIABLE if vjp is None else of_elements(vjp),
        jvp=NONDIFFERENTIABLE if vjp is None else linear,
        samples=lambda rng: (),
        **rules,
    )


# --- lists


def _empty(xp: Any, element_shape: Any, max_num_elements: int, element_dtype: DType) -> TensorList:
    limit = None if max_num_elements < 0 else max_num_elements
    return TensorList(ListSpec(element_dtype, as_element_shape(element_shape), limit))


empty_tensor_list = define_list_op(
    "EmptyTensorList",
    "element_shape: host shape_type in INDEX, max_num_elements: host int32 -> handle: variant",
    types=_TYPES,
    attrs=OF_OUTPUT,
    shape=lambda s: [as_element_shape(s.value(0))],
    kernel=_empty,
    lists=ListAccess(ListUse.EMPTY),
    doc="A list without elements, which may get max_num_elements (-1: any number).",
)


def _reserve(xp: Any, element_shape: Any, num_elements: int, element_dtype: DType) -> TensorList:
    return TensorList(ListSpec(element_dtype, as_element_shape(element_shape))).resized(num_elements)


tensor_list_reserve = define_list_op(
    "TensorListReserve",
    "element_shape: host shape_type in INDEX, num_elements: host int32 -> handle: variant",
    types=_TYPES,
    attrs=OF_OUTPUT,
    shape=lambda s: [as_element_shape(s.value(0))],
    kernel=_reserve,
    lists=ListAccess(ListUse.RESERVED),
    doc="A list of num_elements elements that are not set.",
)


def _zero(element: Any) -> Any:
    """Zeros for ``element``: an array that is not set, but a list of the same length."""
    if not isinstance(element, TensorList):
        return None
    return TensorList(element.spec, [_zero(e) for e in element.elements()])


zeros_like_list = define_list_op(
    "TensorListZerosLike",
    "input_handle: variant -> y: variant",
    shape=lambda s: s.shapes,
    kernel=lambda xp, handle: _zero(handle),
    axes="..a -> ..a",
    doc="A list of the same length and kind, without an array that is set.",
)


tensor_list_length = define_list_op(
    "TensorListLength",
    "input_handle: variant -> length: host int32",
    shape=lambda s: [()],
    kernel=lambda xp, handle, out=None: delivered(np, np.array(handle.length, np.int32), np.int32, out),
    axes="..a~ -> ",
    doc="The number of elements.",
)


tensor_list_resize: OpDef[Tensor] = define_list_op(
    "TensorListResize",
    "input_handle: variant, size: host int32 -> output_handle: variant",
    shape=lambda s: [s.shapes[0]],
    kernel=lambda xp, handle, size: handle.resized(size),
    vjp=lambda op, dy: [tensor_list_resize(dy, tensor_list_length(op.inputs[0])), None],
    axes="..a -> ..a",
    doc="The list truncated to size elements, or extended by elements that are not set.",
)


# --- the last element


def _push_vjp(op: Operation, dy: Tensor) -> Any:
    dtype = op.get_attr("element_dtype")
    return tensor_list_pop_back(dy, _shape_of(op.inputs[1]), element_dtype=dtype, **swapping(op))


tensor_list_push_back = define_list_op(
    "TensorListPushBack",
    "input_handle: variant, tensor: element_dtype in ANY -> output_handle: variant",
    shape=lambda s: [_holds(s.shapes[0], s.shapes[1])],
    kernel=lambda xp, handle, tensor, element_dtype: handle.push(stored(xp, tensor, element_dtype)),
    vjp=_push_vjp,
    lists=ListAccess(ListUse.PUSHED, 1, lambda shapes: shapes[1]),
    axes="..a, ..a -> ..a",
    doc="The list with tensor appended.",
)


def _holds(elements: Shape, value: Shape) -> Shape:
    """The shape of a list that gets an element more. Raises `InvalidArgumentError` if it does not fit."""
    merge(elements, value)
    return elements


def _pop(xp: Any, handle: TensorList, element_shape: Any, element_dtype: DType) -> tuple[TensorList, Any]:
    check_dtype(handle, element_dtype)
    popped, value = handle.pop()
    return popped, _read(xp, handle, value, element_shape, handle.length - 1)


def _pop_vjp(op: Operation, dlist: Tensor | None, dtensor: Tensor | None) -> list[Any]:
    shorter, last = op.outputs
    whole = zeros_like_list(shorter) if dlist is None else dlist
    element = _zeros_like(last) if dtensor is None else dtensor
    attrs: dict[str, Any] = {RESTORES: True, **swapping(op)}
    return [tensor_list_push_back(whole, element, **attrs), None]


tensor_list_pop_back: OpDef[list[Tensor]] = define_op(
    "TensorListPopBack",
    "input_handle: variant, element_shape: host int32 -> "
    "output_handle: variant, tensor: element_dtype in ANY",
    attrs=OF_OUTPUT,
    shape=lambda s: [s.shapes[0], merge(s.shapes[0], as_element_shape(s.value(1)))],
    kernel=_pop,
    vjp=of_elements(_pop_vjp),
    jvp=linear,
    samples=lambda rng: (),
    lists=ListAccess(ListUse.POPPED, 1),
    axes="..a -> ..a, ..a",
    doc="The list without its last element, and that element.",
)


# --- one element


def _get(xp: Any, handle: TensorList, index: int, element_shape: Any, element_dtype: DType) -> Any:
    check_dtype(handle, element_dtype)
    return _read(xp, handle, handle.get(index), element_shape, index)


def _read(xp: Any, handle: TensorList, value: Any, element_shape: Any, index: int) -> Any:
    if value is not None:
        return value
    shape = merge(handle.spec.shape, as_element_shape(element_shape))
    return zeros(xp, shape, handle.spec.dtype, f"element {index}")


tensor_list_get_item = define_list_op(
    "TensorListGetItem",
    "input_handle: variant, index: host int32, element_shape: host int32 -> item: element_dtype in ANY",
    attrs=OF_OUTPUT,
    shape=lambda s: [merge(s.shapes[0], as_element_shape(s.value(2)))],
    kernel=_get,
    vjp=lambda op, dy: [ListSlices(op.inputs[0], op.inputs[1], dy), None, None],
    lists=ListAccess(ListUse.READ, 0),
    axes="..a -> ..a",
    doc="The element at index; zeros of element_shape if it is not set.",
)


def _set(
    xp: Any, handle: TensorList, index: int, item: Any, element_dtype: DType,
    resize_if_index_out_of_bounds: bool, _write_once: bool,
) -> TensorList:  # fmt: skip
    if resize_if_index_out_of_bounds:
        handle = grown(handle, index + 1)
    if _write_once:
        check_unset(handle, index)
    return handle.set(index, stored(xp, item, element_dtype))


def _set_vjp(op: Operation, dy: Tensor) -> list[Any]:
    handle, index, item = op.inputs
    before = dy if writes_once(op.node) else clear_at(dy, index)
    if op.get_attr("resize_if_index_out_of_bounds"):
        before = tensor_list_resize(before, tensor_list_length(handle))
    ditem = tensor_list_get_item(dy, index, _shape_of(item), element_dtype=op.get_attr("element_dtype"))
    return [before, None, ditem]


tensor_list_set_item = define_list_op(
    "TensorListSetItem",
    "input_handle: variant, index: host int32, item: element_dtype in ANY -> output_handle: variant",
    attrs=f"resize_if_index_out_of_bounds: bool = False, {WRITE_ONCE}",
    shape=lambda s: [_holds(s.shapes[0], s.shapes[2])],
    kernel=_set,
    vjp=_set_vjp,
    lists=ListAccess(ListUse.SET, 2, lambda shapes: shapes[2]),
    axes="..a, ..a -> ..a",
    doc="The list with item at index.",
)


# --- sums


def _indices(index: Any) -> tuple[int, ...]:
    return index if isinstance(index, tuple) else (index,)


def _clear_at(xp: Any, handle: TensorList, index: Any) -> TensorList:
    for i in _indices(index):
        handle = handle.set(i, _zero(handle.get(i)))
    return handle


clear_at: OpDef[Tensor] = define_list_op(
    "TensorListClearAt",
    "input_handle: variant, index: host int32 -> variant",
    shape=lambda s: [s.shapes[0]],
    kernel=_clear_at,
    vjp=lambda op, dy: [clear_at(dy, op.inputs[1]), None],
    axes="..a -> ..a",
    doc="The list with zeros at index, a scalar or a vector.",
)


def _plus(xp: Any, a: Any, b: Any) -> Any:
    """The sum of two elements that may not be set."""
    if a is None or b is None:
        return b if a is None else a
    return _add(xp, a, b) if isinstance(a, TensorList) else xp.asarray(a + b)[...]


def _add_at(xp: Any, handle: TensorList, index: Any, item: Any, element_dtype: DType) -> TensorList:
    items = item if isinstance(index, tuple) else (item,)
    for i, value in zip(_indices(index), items, strict=True):
        before = handle.get(i)
        after = stored(xp, value, element_dtype) if before is None else _plus(xp, before, value)
        handle = handle.set(i, after)
    return handle


def _add_at_vjp(op: Operation, dy: Tensor) -> list[Any]:
    _, index, item = op.inputs
    dtype: dict[str, Any] = {"element_dtype": op.get_attr("element_dtype")}
    if index.spec.shape == ():
        return [dy, None, tensor_list_get_item(dy, index, _shape_of(item), **dtype)]
    return [dy, None, op_def("TensorListGather")(dy, index, shape_of_rows(item), **dtype)]


def _added_shape(elements: Shape, index: Shape, item: Shape) -> Shape:
    if index is None or len(index) > 1:
        raise InvalidArgumentError(f"index: expected a scalar or a vector; got shape {format_shape(index)}")
    return _holds(elements, item if index == () else rows_of(item))


add_at = define_list_op(
    "TensorListAddAt",
    "input_handle: variant, index: host int32, item: element_dtype in ANY -> variant",
    shape=lambda s: [_added_shape(*s.shapes)],
    kernel=_add_at,
    vjp=_add_at_vjp,
    lists=ListAccess(ListUse.ADDED, 2, lambda shapes: shapes[2] if shapes[1] == () else rows_of(shapes[2])),
    axes=lambda s: "..a, ..a -> ..a" if s.shapes[1] == () else "..a, n! ..a -> ..a",
    doc="The list with item added to the element at index; at a vector of indices, the rows of item.",
)


def _add(xp: Any, a: TensorList, b: TensorList) -> TensorList:
    if a.length != b.length:
        raise InvalidArgumentError(f"expected lists of equal length; got {a.length} and {b.length}")
    return TensorList(a.spec, [_plus(xp, x, y) for x, y in zip(a.elements(), b.elements(), strict=True)])


add_lists = define_list_op(
    "TensorListAdd",
    "a: variant, b: variant -> sum: variant",
    shape=lambda s: [merge(*s.shapes)],
    kernel=_add,
    vjp=lambda op, dy: [dy, dy],
    traits=Traits(commutative=True),
    lists=ListAccess(ListUse.MERGED, written=lambda shapes: shapes[1]),
    axes="..a, ..a -> ..a",
    doc="The sums of the elements of two lists of one length.",
)


# --- lists and the rows of arrays


def rows_of(shape: Shape) -> Shape:
    """The shape of the rows of a tensor of ``shape``. Raises `InvalidArgumentError` for a scalar."""
    if shape == ():
        raise InvalidArgumentError("expected a tensor of at least one dimension; got a scalar")
    return None if shape is None else shape[1:]


def shape_of_rows(tensor: Tensor, first: Sequence[int] = ()) -> Any:
    """The shape of ``tensor``'s rows after the dimensions ``first``, as an op's ``element_shape``."""
    rows = rows_of(tensor.spec.shape)
    if is_static(rows):
        return [*first, *rows]
    dims = strided_slice_op(shape_of(tensor), [1], [0], [1], end_mask=1)
    return concat_op([list(first), dims], 0) if first else dims
