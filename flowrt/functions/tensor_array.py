"""`TensorArray`: an array of tensors under TensorFlow 1's interface, over a list tensor.

A `TensorArray` is immutable: a write returns a new one around a new list, its ``flow``. All arrays derived
from one share the inferred shape of the elements, so a shape inferred in a loop's body is known after it.

Control flow passes an array through branches and loops by its flow, and rebuilds the array with
``array._with_flow(tensor)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.identities import identity, static_value
from flowrt.graph.ops.lists.stacked_lists import (
    tensor_list_concat,
    tensor_list_from_tensor,
    tensor_list_gather,
    tensor_list_scatter_into,
    tensor_list_split,
    tensor_list_stack,
)
from flowrt.graph.ops.lists.tensor_lists import (
    format_element_shape,
    tensor_list_get_item,
    tensor_list_length,
    tensor_list_reserve,
    tensor_list_set_item,
)
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.shapes import Shape, TensorShape, as_shape, merge
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike


@final
class _Elements:
    """Type of the elements, shared by arrays derived from one another."""

    def __init__(self, dtype: DType, shape: Shape, is_inferred: bool) -> None:
        self.dtype, self.shape, self._is_inferred = dtype, shape, is_inferred

    def convert(self, value: Any) -> Tensor:
        """``value`` as a tensor of the elements' dtype."""
        return convert_to_tensor(value, self.dtype, name="value")

    def add(self, shape: Shape) -> None:
        """Learn from an element of ``shape``. Raises `InvalidArgumentError` if it does not fit."""
        try:
            merged = merge(self.shape, shape)
        except InvalidArgumentError as error:
            raise misuse(f"TensorArray: {error.message}") from None
        if self._is_inferred:
            self.shape = merged

    @property
    def as_input(self) -> Any:
        """The shape as the list ops take it."""
        return format_element_shape(self.shape)


@final
class TensorArray:
    """An array of ``size`` tensors of ``dtype``, each written once, at an index in ``[0, size)``.

    With ``dynamic_size`` writing past the end extends it. ``element_shape`` is the elements' shape, as far as
    known; with ``infer_shape`` all have the same, inferred from writes. ``flow`` (or ``handle``) is a list
    tensor to wrap, without a ``size``. An element that was not written reads as zeros. All operations are
    differentiable. ``clear_after_read``, ``tensor_array_name`` and ``colocate_with_first_write_call`` are
    accepted: elements are kept as long as needed.

    Building raises `InvalidArgumentError` for incompatible shapes and `DTypeError` for other dtypes. A step
    raises `InvalidArgumentError`, with the line of the call, for an index out of range, a second write to an
    index, and an element that was not written and has no known shape.

    Example:
        >>> array = tf.TensorArray(tf.float32, size=2).write(0, 1.0).write(1, 2.0)
        >>> array.stack().eval()
        array([1., 2.], dtype=float32)
    """

    def __init__(
        self,
        dtype: DTypeLike,
        size: NumericLike | None = None,
        dynamic_size: bool | None = None,
        clear_after_read: bool | None = None,
        tensor_array_name: str | None = None,
        handle: Any = None,
        flow: Any = None,
        infer_shape: bool = True,
        element_shape: Any = None,
        colocate_with_first_write_call: bool = True,
        name: str | None = None,
    ) -> None:
        flow = handle if flow is None else flow
        if (size is None) == (flow is None):
            raise misuse(f"TensorArray: expected either size or flow; got size={size!r}, flow={flow!r}")
        if flow is not None and not (isinstance(flow, Tensor) and flow.dtype is dtypes.variant):
            raise misuse(f"TensorArray: expected the flow of another TensorArray; got {flow!r}", DTypeError)
        self._elements = _Elements(as_dtype(dtype), as_shape(element_shape), infer_shape)
        self._is_dynamic = bool(dynamic_size)
        self._size = None
        if flow is None:
            length = convert_to_tensor(size, dtypes.int32)
            self._size = None if self._is_dynamic else static_value(length)
            flow = tensor_list_reserve(
                self._elements.as_input,
                length,
                element_dtype=self.dtype,
                name=name or tensor_array_name or "TensorArray",
            )
        self._flow: Tensor = flow

    def _with_flow(self, flow: Tensor) -> TensorArray:
        """An array like this one, of its size, around the list tensor ``flow``."""
        return self._sized(flow, self._size)

    def _sized(self, flow: Tensor, size: int | None) -> TensorArray:
        """An array like this one around ``flow``, of ``size`` if that is known and cannot grow."""
        array = TensorArray.__new__(TensorArray)
        array._elements, array._is_dynamic, array._flow = self._elements, self._is_dynamic, flow
        array._size = None if self._is_dynamic else size
        return array

    def _joined(self, others: Sequence[Any]) -> TensorArray:
        """This array, without its size unless all ``others`` have it: any of them may take its place."""
        is_shared = all(getattr(each, "_size", None) == self._size for each in others)
        return self if is_shared else self._sized(self._flow, None)

    # --- properties

    @property
    def dtype(self) -> DType:
        return self._elements.dtype

    @property
    def dynamic_size(self) -> bool:
        return self._is_dynamic

    @property
    def element_shape(self) -> TensorShape:
        """The known part of the elements' shape."""
        return TensorShape(self._elements.shape)

    @property
    def flow(self) -> Tensor:
        """The underlying list tensor."""
        return self._flow

    @property
    def handle(self) -> Tensor:
        """The same as ``flow``."""
        return self._flow

    def size(self, name: str | None = None) -> Tensor:
        """The number of elements, an int32 scalar."""
        if self._size is not None:
            return constant(self._size, dtypes.int32, name=name or "TensorArraySize")
        return tensor_list_length(self._flow, name=name or "TensorArraySize")

    # --- one element

    def read(self, index: Any, name: str | None = None) -> Tensor:
        """The element at ``index``, an int32 scalar."""
        return self._read(tensor_list_get_item, index, name=name or "TensorArrayRead")

    def _read(self, op: Callable[..., Tensor], *indices: Any, **attrs: Any) -> Tensor:
        """The elements that ``op`` reads from the list, with the shape that is known."""
        return op(self._flow, *indices, self._elements.as_input, element_dtype=self.dtype, **attrs)

    def write(self, index: Any, value: TensorLike, name: str | None = None) -> TensorArray:
        """The array with ``value`` at ``index``, an int32 scalar."""
        item = self._elements.convert(value)
        self._elements.add(item.spec.shape)
        flow = tensor_list_set_item(
            self._flow,
            index,
            item,
            resize_if_index_out_of_bounds=self._is_dynamic,
            _write_once=True,
            name=name or "TensorArrayWrite",
        )
        return self._with_flow(flow)

    # --- several

    def stack(self, name: str | None = None) -> Tensor:
        """All elements along a new first axis: ``[size, *element]``."""
        size = -1 if self._size is None else self._size
        return self._read(tensor_list_stack, num_elements=size, name=name or "TensorArrayStack")

    def gather(self, indices: NumericLike, name: str | None = None) -> Tensor:
        """The elements at ``indices`` (int32 ``[n]``) along a new first axis: ``[n, *element]``."""
        return self._read(tensor_list_gather, indices, name=name or "TensorArrayGather")

    def concat(self, name: str | None = None) -> Tensor:
        """All elements concatenated along their first axis, in which they may differ."""
        return tensor_list_concat(
            self._flow,
            self._elements.as_input,
            np.zeros(0, np.int64),
            element_dtype=self.dtype,
            name=name or "TensorArrayConcat",
        )[0]

    def unstack(self, value: TensorLike, name: str | None = None) -> TensorArray:
        """The array of the rows of ``value`` ``[size, *element]``."""
        rows = self._elements.convert(value)
        self._add_rows(rows)
        flow = tensor_list_from_tensor(rows, self._elements.as_input, name=name or "TensorArrayUnstack")
        return self._sized(flow, _first(rows))

    def scatter(self, indices: NumericLike, value: TensorLike, name: str | None = None) -> TensorArray:
        """The array with the rows of ``value`` ``[n, *element]`` at ``indices`` (int32 ``[n]``)."""
        rows = self._elements.convert(value)
        self._add_rows(rows)
        flow = tensor_list_scatter_into(
            self._flow,
            rows,
            indices,
            _resizes=self._is_dynamic,
            _write_once=True,
            name=name or "TensorArrayScatter",
        )
        return self._with_flow(flow)

    def split(self, value: TensorLike, lengths: NumericLike, name: str | None = None) -> TensorArray:
        """The array of the first ``lengths[0]`` rows of ``value``, the next ``lengths[1]``, and so on."""
        rows = self._elements.convert(value)
        parts = convert_to_tensor(lengths, dtypes.int64)
        shape = rows.spec.shape
        if shape is not None:
            self._elements.add((None, *shape[1:]))
        flow = tensor_list_split(rows, self._elements.as_input, parts, name=name or "TensorArraySplit")
        return self._sized(flow, _first(parts))

    def _add_rows(self, rows: Tensor) -> None:
        shape = rows.spec.shape
        if shape == ():
            raise misuse(f"TensorArray: expected a tensor of rows; got the scalar {rows!r}")
        if shape is not None:
            self._elements.add(shape[1:])

    # --- the rest of the interface

    def identity(self) -> TensorArray:
        """The array around an identity of its flow."""
        return self._with_flow(identity(self._flow))

    def close(self, name: str | None = None) -> Operation:
        """An operation that does nothing: elements are freed after their last reader."""
        return no_op(name=name)

    def grad(self, source: str, flow: Tensor | None = None, name: str | None = None) -> Any:
        raise misuse(
            "TensorArray.grad: gradients are not TensorArrays. Use flowrt.gradients()", UnimplementedError
        )

    def __repr__(self) -> str:
        return f"<flowrt.TensorArray dtype={self.dtype.name} element_shape={self.element_shape}>"


def _first(tensor: Tensor) -> int | None:
    shape = tensor.spec.shape
    return None if not shape else shape[0]
