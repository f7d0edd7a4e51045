"""From what a caller feeds to the arrays that a program reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import as_array
from flowrt.graph.graph import Graph, Tensor
from flowrt.graph.shapes import compatible, format_shape, is_static


def resolve_feed(graph: Graph, key: Any) -> Tensor:
    """The tensor that a key of ``feed_dict`` means. Raises `DTypeError` or `InvalidArgumentError`."""
    if hasattr(key, "_as_graph_element"):
        raise InvalidArgumentError(
            f"feed_dict: expected a tensor; got the variable {key!r}, each use of which is a read of its "
            "own. Use load() or assign(), or feed the tensor that is read"
        )
    tensor: Tensor = graph.as_graph_element(key, allow_operation=False)
    if not graph.is_feedable(tensor) or tensor.dtype in (dtypes.resource, dtypes.variant):
        message = f"feed_dict: tensor {tensor.name!r} of dtype {tensor.dtype.name} may not be fed"
        raise tensor.op.error(InvalidArgumentError, message)
    return tensor


def converter(tensor: Tensor) -> Callable[[Any], Any]:
    """A function that turns a fed value into an array of ``tensor``'s dtype and of a shape that fits it.

    An array of the right dtype is taken as it is, without a copy. The function raises `DTypeError` when the
    value would lose its kind or precision, `InvalidArgumentError` for a shape that does not fit.
    """
    dtype, shape = tensor.dtype.np, tensor.spec.shape
    exact = shape if is_static(shape) else None
    numbers = (float, int) if tensor.dtype in dtypes.FLOATING else ()

    def convert(value: Any) -> Any:
        if type(value) in numbers:
            try:
                value = np.array(value, dtype)
            except OverflowError:
                value = _convert(tensor, value)
        elif type(value) is not np.ndarray or value.dtype != dtype:
            value = _convert(tensor, value)
        if value.shape != exact and not compatible(value.shape, shape):
            expected, got = format_shape(shape), format_shape(value.shape)
            message = f"feed_dict: expected a value of shape {expected}; got shape {got}"
            raise tensor.op.error(InvalidArgumentError, message)
        return value

    return convert


def _convert(tensor: Tensor, value: Any) -> Any:
    if isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__"):
        raise tensor.op.error(DTypeError, f"feed_dict: expected a value; got the graph element {value!r}")
    if tensor.dtype is dtypes.string:
        return as_array(value, dtypes.string)
    try:
        given = np.asarray(value)
    except ValueError as error:
        message = f"feed_dict: expected a rectangular array; got a ragged sequence ({error})"
        raise tensor.op.error(InvalidArgumentError, message) from None
    wanted = tensor.dtype.np
    if given.dtype.kind in "OSU" or (given.dtype.kind == "c" and wanted.kind != "c"):
        message = (
            f"feed_dict: expected {tensor.dtype.name}; got {type(value).__name__} of dtype {given.dtype}"
        )
        raise tensor.op.error(DTypeError, message)
    with np.errstate(all="ignore"):
        array = given.astype(wanted)
    if tensor.dtype.is_integer and given.dtype != wanted and not np.array_equal(array, given):
        message = (
            f"feed_dict: expected {tensor.dtype.name}; got values of dtype {given.dtype} that it cannot hold"
        )
        raise tensor.op.error(DTypeError, message)
    return array
