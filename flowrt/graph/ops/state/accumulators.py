"""Conditional accumulators' operations: a handle for a `GradientAccumulator` of the session, apply, take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, Effects, OpDef, ShapeContext, define_handle, define_op
from flowrt.graph.ops.state.variable_ops import variable_shape
from flowrt.graph.resources.gradient_accumulator import DenseTotal, GradientAccumulator, SparseTotal, Total
from flowrt.graph.shapes import Shape, compatible, format_shape


def _define_accumulator(name: str, total: Callable[[Shape], Total], doc: str) -> OpDef[Tensor]:
    def state(node: Node) -> GradientAccumulator:
        return GradientAccumulator(
            node.name, total(node.attrs["shape"]), node.attrs["reduction_type"] == "MEAN"
        )

    return define_handle(
        name,
        state,
        doc,
        output="handle: resource",
        attrs=(
            "dtype: type, shape: shape = None, container: string = '', shared_name: string = '', "
            "reduction_type: string = 'MEAN'"
        ),
        value=lambda s: (s.attrs["dtype"], s.attrs["shape"]),
    )


conditional_accumulator_op = _define_accumulator(
    "ResourceConditionalAccumulator", DenseTotal, "The handle of a session's sum of gradients."
)
sparse_conditional_accumulator_op = _define_accumulator(
    "SparseConditionalAccumulator", SparseTotal, "The handle of a session's sum of sparse gradients."
)


# --- dense


def _check_gradient(s: ShapeContext) -> list[Shape]:
    expected = variable_shape(s)
    if not compatible(expected, s.shapes[2]):
        raise InvalidArgumentError(
            f"expected a gradient of shape {format_shape(expected)}; got {format_shape(s.shapes[2])}"
        )
    return []


accumulator_apply_gradient_op: OpDef[Operation] = define_op(
    "ResourceAccumulatorApplyGradient",
    "handle: resource, local_step: host int64, gradient: dtype in NUMERIC ->",
    shape=_check_gradient,
    kernel=lambda xp, handle, local_step, gradient: handle.apply(xp, local_step, gradient),
    effects=Effects(Effect.WRITE),
    doc="Adds a gradient to an accumulator, unless it is older than the accumulator's step.",
)

accumulator_take_gradient_op = define_op(
    "ResourceAccumulatorTakeGradient",
    "handle: resource, num_required: host int32 -> average: dtype in NUMERIC",
    attrs="dtype: type",
    shape=lambda s: [variable_shape(s)],
    kernel=lambda xp, handle, num_required: handle.take(xp, num_required),
    effects=Effects(Effect.WRITE, waits=True),
    doc="Waits for a number of gradients and takes their mean or sum; increments the accumulator's step.",
)


# --- sparse


def _apply_sparse(
    xp: Any, handle: GradientAccumulator, local_step: int, indices: Any, values: Any, shape: Any
) -> None:
    handle.apply(xp, local_step, (indices, values, shape))


sparse_accumulator_apply_gradient_op: OpDef[Operation] = define_op(
    "SparseAccumulatorApplyGradient",
    "handle: resource, local_step: host int64, gradient_indices: int64, "
    "gradient_values: dtype in NUMERIC, gradient_shape: int64 ->",
    kernel=_apply_sparse,
    effects=Effects(Effect.WRITE),
    doc="Adds a sparse gradient to an accumulator, unless it is older than the accumulator's step. An"
    " empty shape: not"
    " known.",
)


def _take_sparse(
    xp: Any, handle: GradientAccumulator, num_required: int, dtype: dtypes.DType
) -> tuple[Any, ...]:
    indices, rows, shape = handle.take(xp, num_required)
    values = xp.stack(rows) if rows else xp.zeros((0, *shape[1:]), dtype.np)
    return xp.asarray(np.array(indices, np.int64)), values, xp.asarray(np.array(shape, np.int64))


def _sparse_shapes(s: ShapeContext) -> list[Shape]:
    known = variable_shape(s)
    return [(None,), None if known is None else (None, *known[1:]), (None,)]


sparse_accumulator_take_gradient_op: OpDef[list[Tensor]] = define_op(
    "SparseAccumulatorTakeGradient",
    "handle: resource, num_required: host int32 -> indices: int64, values: dtype in NUMERIC, shape: int64",
    attrs="dtype: type",
    shape=_sparse_shapes,
    kernel=_take_sparse,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Waits for a number of sparse gradients and takes them: sorted indices, values, shape.",
)


# --- both

accumulator_set_global_step_op: OpDef[Operation] = define_op(
    "ResourceAccumulatorSetGlobalStep",
    "handle: resource, new_global_step: host int64 ->",
    kernel=lambda xp, handle, new_global_step: handle.set_step(new_global_step),
    effects=Effects(Effect.WRITE),
    doc="Sets an accumulator's step.",
)

accumulator_num_accumulated_op = define_op(
    "ResourceAccumulatorNumAccumulated",
    "handle: resource -> num_accumulated: int32",
    shape=lambda s: [()],
    kernel=lambda xp, handle: xp.asarray(np.array(handle.count, np.int32)),
    effects=Effects(Effect.READ),
    doc="The number of gradients added to an accumulator since the last take.",
)
