"""Constants and placeholders."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from flowrt.dtypes import DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import constant_tensor, in_scope
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.node import Node, TensorSpec
from flowrt.graph.op_def import BY_EXECUTOR, Effect, Effects, OpDef, PartialValue, ShapeContext, define_op
from flowrt.graph.partial_value import MAX_ELEMENTS, as_host_value
from flowrt.graph.shapes import Shape, as_shape, merge, num_elements
from flowrt.graph.typing import ShapeLike, TensorLike


def _const_value(s: ShapeContext) -> PartialValue:
    array = s.attrs["value"]
    rows = math.prod(max(dim, 1) for dim in array.shape)  # an empty array may still be a billion empty rows
    if rows > MAX_ELEMENTS or array.dtype.kind not in "iubf":
        return None
    return as_host_value(array)


_define = partial[OpDef[Tensor]](
    define_op, signature="-> dtype in STORED", kernel=BY_EXECUTOR, samples=lambda rng: ()
)
"""Defines an op without inputs; the executor provides its value."""

const = _define(
    "Const",
    attrs="value: tensor, dtype: type",
    shape=lambda s: [s.attrs["value"].shape],
    value=_const_value,
    doc="A value that is part of the graph: the array in attribute ``value``.",
)


def const_beside(node: Node, name: str, array: np.ndarray[Any, Any], controls: tuple[str, ...] = ()) -> Node:
    """`Node.beside` of a constant."""
    spec = TensorSpec(as_dtype(array.dtype), array.shape)
    return node.beside(name, const, (), controls, {"value": array, "dtype": spec.dtype}, (spec,))


def constant(
    value: TensorLike,
    dtype: DTypeLike | None = None,
    shape: ShapeLike = None,
    name: str = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """A constant tensor.

    Args:
        value: A number, string, array, or nested lists of those.
        dtype: The elements' dtype; by default that of the array, float32 for Python floats and int32 for
            ints.
        shape: The shape that the values fill in row-major order, the last one repeated as needed; None for
            that of ``value``.
        verify_shape: Whether ``value`` must have exactly that shape.

    Returns:
        A tensor with the value.

    Raises:
        DTypeError: The value does not fit ``dtype``.
        InvalidArgumentError: There are more values than ``shape`` holds, or with ``verify_shape`` the shapes
            differ.

    Example:
        >>> tf.constant([1, 2, 3]).eval()
        array([1, 2, 3], dtype=int32)
        >>> tf.constant(7.0, shape=[2, 2]).eval()
        array([[7., 7.],
               [7., 7.]], dtype=float32)
    """
    try:
        array = as_array(value, None if dtype is None else as_dtype(dtype))
        array = array if shape is None else _fill_shape(array, as_shape(shape), verify_shape)
    except InvalidArgumentError as error:
        raise in_scope(error, name) from None
    return constant_tensor(array, name)


def _fill_shape(array: np.ndarray[Any, Any], shape: Shape, verify_shape: bool) -> np.ndarray[Any, Any]:
    count = num_elements(shape)
    if shape is None or count is None:
        raise InvalidArgumentError(f"expected a fully defined shape; got {shape}")
    if array.shape == shape:
        return array
    if verify_shape or array.size > count or (array.size == 0 and count > 0):
        raise InvalidArgumentError(f"expected values of shape {list(shape)}; got shape {list(array.shape)}")
    flat = np.empty(count, array.dtype)
    flat[: array.size] = array.ravel()
    if array.size < count:
        flat[array.size :] = array.ravel()[-1]
    return flat.reshape(shape)


_define_source = partial(
    _define,
    attrs="dtype: type, shape: shape = None",
    shape=lambda s: [s.attrs["shape"]],
    effects=Effects(Effect.SOURCE),
)
"""Defines one with a value from outside the graph."""

placeholder_op: OpDef[Tensor] = _define_source(
    "Placeholder", doc="A value that the caller feeds at each run."
)


def placeholder(dtype: DTypeLike, shape: ShapeLike = None, name: str | None = None) -> Tensor:
    """A tensor that must be fed: its value is given to each run that needs it.

    Args:
        dtype: The elements' dtype.
        shape: The shape that feeds are checked against, with None for unknown dimensions; None for any shape.

    Returns:
        A tensor without a value: a run that needs it without a feed raises `InvalidArgumentError`.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 2])
        >>> session.run(x * 2, {x: [[1.0, 2.0]]})
        array([[2., 4.]], dtype=float32)
    """
    return placeholder_op(dtype=dtype, shape=shape, name=name or "Placeholder")


def _default_shape(s: ShapeContext) -> list[Shape]:
    merge(s.shapes[0], s.attrs["shape"])  # the default has to be a value that may be fed
    return [s.attrs["shape"]]


placeholder_with_default_op = define_op(
    "PlaceholderWithDefault",
    "input: dtype in ANY -> dtype",
    attrs="shape: shape",
    shape=_default_shape,
    kernel=lambda xp, x: x,
    vjp=lambda op, dy: [dy],
    jvp=lambda op, dx: [dx],
    effects=Effects(Effect.SOURCE),
    alias=True,
    doc="A value that the caller may feed; otherwise its input.",
)


def placeholder_with_default(input: TensorLike, shape: ShapeLike, name: str | None = None) -> Tensor:
    """A tensor with ``input``'s value unless fed; ``shape`` may be partial.

    Example:
        >>> rate = tf.placeholder_with_default(0.5, [])
        >>> session.run(rate), session.run(rate, {rate: 0.1})
        (np.float32(0.5), np.float32(0.1))
    """
    return placeholder_with_default_op(input, shape=as_shape(shape), name=name)


KNOWN = "_known"
"""Private attr of a function's parameter: the part of its value that is equal in all calls."""

feed_op = _define_source(
    "_Feed",
    value=lambda s: s.attrs.get(KNOWN),
    doc="Stands for a value from outside: a fed tensor of a step, a parameter of a function.",
)


def feed_beside(node: Node, name: str, spec: TensorSpec) -> Node:
    """`Node.beside` of a feed."""
    return node.beside(name, feed_op, attrs={"dtype": spec.dtype, "shape": spec.shape}, outputs=(spec,))
