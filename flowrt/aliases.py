"""Other names of things: what TensorFlow 1 scripts commonly say, each beside what flowrt calls it.

Everything here is exported from `flowrt` as it stands. Functions for switches that flowrt does not have (eager execution,
reference variables) accept the call where the state asked for is the one that flowrt is always in.
"""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import float16 as half
from flowrt.dtypes import float64 as double
from flowrt.errors import UnimplementedError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Operation, Tensor, get_default_graph
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.ops.script import no_op
from flowrt.graph.ops.state import (
    resource_scatter_div,
    resource_scatter_max,
    resource_scatter_min,
    resource_scatter_mul,
)
from flowrt.graph.ops.statistics import argmax as arg_max
from flowrt.graph.ops.statistics import argmin as arg_min
from flowrt.graph.partial_value import partial_value
from flowrt.variables import Variable
from flowrt.variables import global_variables as all_variables
from flowrt.variables import global_variables_initializer as initialize_all_variables
from flowrt.variables import local_variables_initializer as initialize_local_variables
from flowrt.variables import variables_initializer as initialize_variables


class AggregationMethod:
    """Accepted by `gradients`, which always adds with one AddN."""

    ADD_N, DEFAULT, EXPERIMENTAL_TREE, EXPERIMENTAL_ACCUMULATE_N = range(4)


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """See `Variable.assign`."""
    return ref.assign(value, name=name)  # type: ignore[no-any-return]


def assign_add(ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None) -> Tensor:
    return ref.assign_add(value, name=name)  # type: ignore[no-any-return]


def assign_sub(ref: Variable, value: Any, use_locking: bool | None = None, name: str | None = None) -> Tensor:
    return ref.assign_sub(value, name=name)  # type: ignore[no-any-return]


def scatter_update(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """Set rows of ``ref``; returns the new value."""
    return ref.scatter_update(_slices(ref, indices, updates), name=name)


def scatter_add(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref.scatter_add(_slices(ref, indices, updates), name=name)


def scatter_sub(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref.scatter_sub(_slices(ref, indices, updates), name=name)


def scatter_mul(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref._scatter(resource_scatter_mul, _slices(ref, indices, updates), name)


def scatter_div(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref._scatter(resource_scatter_div, _slices(ref, indices, updates), name)


def scatter_min(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref._scatter(resource_scatter_min, _slices(ref, indices, updates), name)


def scatter_max(
    ref: Variable, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    return ref._scatter(resource_scatter_max, _slices(ref, indices, updates), name)


def _slices(ref: Variable, indices: Any, updates: Any) -> IndexedSlices:
    return IndexedSlices(convert_to_tensor(updates, ref.dtype), convert_to_tensor(indices))


def tables_initializer(name: str = "init_all_tables") -> Operation:
    """There are no lookup tables: nothing to do."""
    return no_op(name=name)  # type: ignore[no-any-return]


initialize_all_tables = tables_initializer


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """The value of a small integer tensor as far as it is known while the graph is built, or None."""
    if not isinstance(tensor, Tensor):
        return tensor
    if tensor.op.type == "Const":
        return tensor.op.get_attr("value")
    value = partial_value(get_default_graph().node, tensor.ref)
    return None if not partial and isinstance(value, tuple) and None in value else value


def dimension_value(dimension: Any) -> int | None:
    return dimension.value if hasattr(dimension, "value") else dimension  # type: ignore[no-any-return]


def dimension_at_index(shape: Any, index: int) -> Any:
    return shape[index]


def executing_eagerly() -> bool:
    return False


def enable_eager_execution(*_: Any, **__: Any) -> None:
    raise UnimplementedError("enable_eager_execution: flowrt builds graphs; run them in a Session")


def enable_resource_variables() -> None:
    """Variables are resource variables always."""


def resource_variables_enabled() -> bool:
    return True


def disable_resource_variables() -> None:
    """Accepted: scripts written for reference variables run on resource variables."""


def disable_eager_execution() -> None:
    """There is none."""


def disable_v2_behavior() -> None:
    """There is none."""


def disable_v2_tensorshape() -> None:
    """There is none."""


def disable_tensor_equality() -> None:
    """``==`` on tensors compares identities, as in TensorFlow 1."""


def disable_control_flow_v2() -> None:
    """Accepted: control flow is structured always."""


def enable_control_flow_v2() -> None:
    """Control flow is structured always."""


def no_gradient(op_type: str) -> None:
    """Accepted: an op's definition says whether it has a gradient."""


NotDifferentiable = NoGradient = no_gradient

__all__ = [
    "AggregationMethod",
    "NoGradient",
    "NotDifferentiable",
    "all_variables",
    "arg_max",
    "arg_min",
    "assign",
    "assign_add",
    "assign_sub",
    "dimension_at_index",
    "dimension_value",
    "disable_control_flow_v2",
    "disable_eager_execution",
    "disable_resource_variables",
    "disable_tensor_equality",
    "disable_v2_behavior",
    "disable_v2_tensorshape",
    "double",
    "enable_control_flow_v2",
    "enable_eager_execution",
    "enable_resource_variables",
    "executing_eagerly",
    "get_static_value",
    "half",
    "initialize_all_tables",
    "initialize_all_variables",
    "initialize_local_variables",
    "initialize_variables",
    "no_gradient",
    "resource_variables_enabled",
    "scatter_add",
    "scatter_div",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
    "scatter_update",
    "tables_initializer",
]
