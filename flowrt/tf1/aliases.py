"""Aliases: names common in TensorFlow 1 scripts, each mapped to flowrt's name.

Everything here is exported from `flowrt` unchanged. Functions for switches that flowrt does not have (eager
execution, reference variables) accept calls that request the state that flowrt is always in.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from logging import Logger, getLogger
from typing import Any

import numpy as np

from flowrt import protos
from flowrt.dtypes import DTypeLike, as_dtype, int32, int64
from flowrt.dtypes import float16 as half
from flowrt.dtypes import float64 as double
from flowrt.errors import DTypeError, UnimplementedError
from flowrt.functions.arrangements import (
    batch_to_space,
    batch_to_space_nd,
    extract_image_patches,
    space_to_batch,
    space_to_batch_nd,
    unravel_index,
)
from flowrt.graph.construction.array_values import as_array
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.messages.tensor_proto import decode_tensor, encode_tensor
from flowrt.graph.ops.array.gather_scatter import (
    tensor_scatter_add,
    tensor_scatter_sub,
    tensor_scatter_update,
)
from flowrt.graph.ops.array.reductions import reduce_all
from flowrt.graph.ops.array.statistics import argmax, argmin
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.base.shape_manipulation import matrix_transpose, reshape, shape
from flowrt.graph.ops.elementwise.comparison import less, less_equal
from flowrt.graph.ops.elementwise.division import floor_div
from flowrt.graph.ops.nn.activations import log_sigmoid
from flowrt.graph.ops.text.assertions import check_numerics
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.partial_value import partial_value
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, TensorLike
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.variables.variable import global_variables as all_variables
from flowrt.variables.variable import global_variables_initializer as initialize_all_variables
from flowrt.variables.variable import local_variables_initializer as initialize_local_variables
from flowrt.variables.variable import variables_initializer as initialize_variables


class AggregationMethod:
    """Accepted by `gradients`, which always adds with one AddN."""

    ADD_N, DEFAULT, EXPERIMENTAL_TREE, EXPERIMENTAL_ACCUMULATE_N = range(4)


def arg_max(
    input: TensorLike, dimension: NumericLike, output_type: DTypeLike = int64, name: str | None = None
) -> Tensor:
    return argmax(input, dimension, name=name, output_type=output_type)


def arg_min(
    input: TensorLike, dimension: NumericLike, output_type: DTypeLike = int64, name: str | None = None
) -> Tensor:
    return argmin(input, dimension, name=name, output_type=output_type)


def assign(
    ref: Variable,
    value: TensorLike,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """Set the variable ``ref``.

    Args:
        ref: A variable.
        value: The new value, of the variable's shape and dtype.
        validate_shape: Accepted: the variable says whether its shape is fixed.
        use_locking: Accepted: updates are always atomic.

    Returns:
        A tensor with the new value: running it sets the variable.

    Raises:
        DTypeError: ``ref`` is no variable.

    Example:
        >>> v = tf.Variable(1.0)
        >>> session.run(v.initializer)
        >>> session.run(tf.assign(v, 3.0))
        np.float32(3.0)
    """
    return _variable(ref, "assign").assign(value, name=name)


def assign_add(
    ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Add ``value`` to the variable ``ref``; returns the new value.

    Example:
        >>> v = tf.Variable(1.0)
        >>> session.run(v.initializer)
        >>> session.run(tf.assign_add(v, 2.0))
        np.float32(3.0)
    """
    return _variable(ref, "assign_add").assign_add(value, name=name)


def assign_sub(
    ref: Variable, value: TensorLike, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    return _variable(ref, "assign_sub").assign_sub(value, name=name)


def _variable(ref: Any, method: str) -> Any:
    """``ref``. Raises `DTypeError` unless it has ``method``, as variables do."""
    if not hasattr(ref, method):
        raise misuse(f"{method}: expected a variable; got {ref!r}", DTypeError)
    return ref


def _scatter(method: str, locks: bool = False) -> Callable[..., Tensor]:
    def scatter(
        ref: Variable, indices: Any, updates: Any, use_locking: bool = locks, name: str | None = None
    ) -> Tensor:
        rows = IndexedSlices(convert_to_tensor(updates, ref.dtype), convert_to_tensor(indices))
        return getattr(ref, method)(rows, name=name)

    scatter.__name__ = scatter.__qualname__ = method
    return scatter


scatter_update = _scatter("scatter_update", locks=True)
scatter_update.__doc__ = """Set rows of ``ref``; returns the new value.

Here and in the other scatters an index out of range is an `InvalidArgumentError` when it runs; on a GPU
it is left out.
"""
scatter_add, scatter_sub, scatter_mul = map(_scatter, ("scatter_add", "scatter_sub", "scatter_mul"))
scatter_div, scatter_min, scatter_max = map(_scatter, ("scatter_div", "scatter_min", "scatter_max"))


def scatter_nd_update(
    ref: Variable,
    indices: NumericLike,
    updates: TensorLike,
    use_locking: bool = True,
    name: str | None = None,
) -> Tensor:
    """Set the elements or slices of ``ref`` at ``indices``; returns the new value. See `scatter_update`."""
    return ref.assign(tensor_scatter_update(ref, indices, updates), name=name)


def scatter_nd_add(
    ref: Variable,
    indices: NumericLike,
    updates: TensorLike,
    use_locking: bool = False,
    name: str | None = None,
) -> Tensor:
    return ref.assign(tensor_scatter_add(ref, indices, updates), name=name)


def scatter_nd_sub(
    ref: Variable,
    indices: NumericLike,
    updates: TensorLike,
    use_locking: bool = False,
    name: str | None = None,
) -> Tensor:
    return ref.assign(tensor_scatter_sub(ref, indices, updates), name=name)


def count_up_to(ref: Variable, limit: int, name: str | None = None) -> Tensor:
    """Increment ``ref``, a scalar; returns its old value. The step raises `OutOfRangeError` at ``limit``."""
    return ref.count_up_to(limit, name)


def shape_n(input: Any, out_type: Any = int32, name: str | None = None) -> list[Tensor]:
    """The shapes of several tensors."""
    return [shape(tensor, out_type=out_type, name=name) for tensor in input]


def is_non_decreasing(x: TensorLike, name: str | None = None) -> Tensor:
    """A scalar bool tensor: true if the elements, in row-major order, never decrease."""
    flat = reshape(convert_to_tensor(x), [-1])
    return reduce_all(less_equal(flat[:-1], flat[1:]), name=name)


def is_strictly_increasing(x: TensorLike, name: str | None = None) -> Tensor:
    """A scalar bool tensor: true if the elements, in row-major order, strictly increase."""
    flat = reshape(convert_to_tensor(x), [-1])
    return reduce_all(less(flat[:-1], flat[1:]), name=name)


def verify_tensor_all_finite(
    t: TensorLike | None = None,
    msg: str | None = None,
    name: str | None = None,
    x: TensorLike | None = None,
    message: str | None = None,
) -> Tensor:
    """``t``; the step raises `InvalidArgumentError` with ``msg`` if an element is infinite or NaN."""
    text = msg if message is None else message
    return check_numerics(t if x is None else x, text or "", name=name)


def init_scope() -> AbstractContextManager[None]:
    """New operations ignore the control dependencies of the enclosing blocks."""
    return get_default_graph().control_dependencies(None)


def make_tensor_proto(values: Any, dtype: DTypeLike | None = None, shape: Any = None) -> Any:
    """A TensorProto message of an array, or of a value repeated in ``shape``."""
    array = as_array(values, None if dtype is None else as_dtype(dtype))
    if shape is not None:
        array = np.broadcast_to(array, shape) if array.size == 1 else array.reshape(shape)
    message = protos.graph_pb2.TensorProto()
    encode_tensor(message, array)
    return message


def make_ndarray(tensor: TensorLike) -> np.ndarray[Any, Any]:
    """The array in a TensorProto message."""
    return decode_tensor(tensor)


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """Run the collection TABLE_INITIALIZERS: those of tables and of iterators."""
    initializers = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
    return group(*initializers, name=name) if initializers else no_op(name=name)


initialize_all_tables = tables_initializer


def get_static_value(tensor: TensorLike, partial: bool = False) -> Any:
    """The value of a small integer tensor as far as it is known while the graph is built, or None."""
    if not isinstance(tensor, Tensor):
        return tensor
    if tensor.op.type == "Const":
        return tensor.op.get_attr("value")
    value = partial_value(get_default_graph().node, tensor.ref)
    return None if not partial and isinstance(value, tuple) and None in value else value


def get_logger() -> Logger:
    """The logger that `flowrt.logging` writes to."""
    return getLogger("flowrt")


def dimension_value(dimension: Any) -> int | None:
    return dimension.value if hasattr(dimension, "value") else dimension


def dimension_at_index(shape: Any, index: int) -> Any:
    return shape[index]


def executing_eagerly() -> bool:
    return False


def enable_eager_execution(*_: Any, **__: Any) -> None:
    raise misuse("enable_eager_execution: flowrt builds graphs; run them in a Session", UnimplementedError)


def enable_resource_variables() -> None:
    """Does nothing: all variables are resource variables."""


def enable_v2_behavior() -> None:
    raise UnimplementedError("enable_v2_behavior: flowrt builds graphs; run them in a Session")


def control_flow_v2_enabled() -> bool:
    return True


def resource_variables_enabled() -> bool:
    return True


def disable_resource_variables() -> None:
    """Accepted: scripts written for reference variables run on resource variables."""


def disable_eager_execution() -> None:
    """Does nothing: flowrt has no eager execution."""


def disable_v2_behavior() -> None:
    """Does nothing: flowrt has no TensorFlow 2 behaviour."""


def disable_v2_tensorshape() -> None:
    """Does nothing: flowrt has no TensorFlow 2 `TensorShape`."""


def disable_tensor_equality() -> None:
    """``==`` on tensors compares identities, as in TensorFlow 1."""


def disable_control_flow_v2() -> None:
    """Does nothing: control flow stays structured."""


def enable_control_flow_v2() -> None:
    """Does nothing: control flow is always structured."""


def no_gradient(op_type: str) -> None:
    """Does nothing: an op's definition says whether it has a gradient."""


NotDifferentiable = NoGradient = no_gradient

__all__ = [
    "AggregationMethod", "NoGradient", "NotDifferentiable", "all_variables", "arg_max", "arg_min", "assign",
    "assign_add", "assign_sub", "batch_to_space", "batch_to_space_nd", "control_flow_v2_enabled",
    "count_up_to", "dimension_at_index", "dimension_value", "disable_control_flow_v2",
    "disable_eager_execution", "disable_resource_variables", "disable_tensor_equality", "disable_v2_behavior",
    "disable_v2_tensorshape", "double", "enable_control_flow_v2", "enable_eager_execution",
    "enable_resource_variables", "enable_v2_behavior", "executing_eagerly", "extract_image_patches",
    "floor_div", "get_logger", "get_static_value", "half", "init_scope", "initialize_all_tables",
    "initialize_all_variables", "initialize_local_variables", "initialize_variables", "is_non_decreasing",
    "is_strictly_increasing", "log_sigmoid", "make_ndarray", "make_tensor_proto", "matrix_transpose",
    "no_gradient", "resource_variables_enabled", "scatter_add", "scatter_div", "scatter_max", "scatter_min",
    "scatter_mul", "scatter_nd_add", "scatter_nd_sub", "scatter_nd_update", "scatter_sub", "scatter_update",
    "shape_n", "space_to_batch", "space_to_batch_nd", "tables_initializer", "unravel_index",
    "verify_tensor_all_finite",
]  # fmt: skip
