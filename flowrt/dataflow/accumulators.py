"""Conditional accumulators: sums of gradients of several steps, taken by one, relative to a step counter."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import as_dtype, int64
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.state import accumulators as ops
from flowrt.graph.shapes import as_shape
from flowrt.graph.typing import TensorLike

REDUCTIONS = ("MEAN", "SUM")


class ConditionalAccumulatorBase:
    """A handle and the operations of both kinds. A gradient with a ``local_step`` below the accumulator's
    step is silently dropped; every take increments that step.
    """

    def __init__(
        self, define: OpDef, dtype: Any, shape: Any, shared_name: str | None, name: str, reduction_type: str
    ) -> None:
        if reduction_type not in REDUCTIONS:
            raise InvalidArgumentError(f"reduction_type: expected MEAN or SUM; got {reduction_type!r}")
        self.dtype = as_dtype(dtype)
        self._accumulator_ref: Tensor = define(
            dtype=self.dtype,
            shape=as_shape(shape),
            container=get_default_graph().get_container_scope(),
            shared_name=shared_name or "",
            reduction_type=reduction_type,
            name=name,
        )

    @property
    def accumulator_ref(self) -> Tensor:
        """The accumulator's handle."""
        return self._accumulator_ref

    @property
    def name(self) -> str:
        return self._accumulator_ref.op.name

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """The number of gradients added since the last take: int32."""
        with get_default_graph().colocate_with(self._accumulator_ref):
            return ops.accumulator_num_accumulated_op(self._accumulator_ref, name=name)

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Operation:
        """The operation that sets the accumulator's step."""
        with get_default_graph().colocate_with(self._accumulator_ref):
            return ops.accumulator_set_global_step_op(
                self._accumulator_ref, _as_int64(new_global_step), name=name
            )


class ConditionalAccumulator(ConditionalAccumulatorBase):
    """An accumulator of dense gradients, shared in a cluster by ``shared_name`` (or name) and device."""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(ops.conditional_accumulator_op, dtype, shape, shared_name, name, reduction_type)

    def apply_grad(self, grad: TensorLike, local_step: Any = 0, name: str | None = None) -> Operation:
        """The operation that adds ``grad``. Raises `InvalidArgumentError` for one of another shape."""
        with get_default_graph().colocate_with(self._accumulator_ref):
            return ops.accumulator_apply_gradient_op(
                self._accumulator_ref, _as_int64(local_step), convert_to_tensor(grad, self.dtype), name=name
            )

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """The mean (or sum) of all gradients, once there are ``num_required``."""
        with get_default_graph().colocate_with(self._accumulator_ref):
            return ops.accumulator_take_gradient_op(
                self._accumulator_ref, num_required, dtype=self.dtype, name=name
            )


class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """An accumulator of `IndexedSlices`. A row's mean is over the gradients that have it."""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        super().__init__(
            ops.sparse_conditional_accumulator_op, dtype, shape, shared_name, name, reduction_type
        )

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: Any = 0, name: str | None = None
    ) -> Operation:
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self,
        grad_indices: Any,
        grad_values: TensorLike,
        grad_shape: Any = None,
        local_step: Any = 0,
        name: str | None = None,
    ) -> Operation:
        """The operation that adds the rows ``grad_values`` at ``grad_indices`` of an array of
        ``grad_shape``.
        """
        shape = _as_int64([] if grad_shape is None else grad_shape)
        with get_default_graph().colocate_with(self._accumulator_ref):
            return ops.sparse_accumulator_apply_gradient_op(
                self._accumulator_ref,
                _as_int64(local_step),
                _as_int64(grad_indices),
                convert_to_tensor(grad_values, self.dtype),
                shape,
                name=name,
            )

    def take_grad(self, num_required: Any, name: str | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """``(indices, values, shape)`` of the mean (or sum), once there are ``num_required`` gradients."""
        with get_default_graph().colocate_with(self._accumulator_ref):
            indices, values, shape = ops.sparse_accumulator_take_gradient_op(
                self._accumulator_ref, num_required, dtype=self.dtype, name=name
            )
            return indices, values, shape

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        indices, values, shape = self.take_grad(num_required, name)
        return IndexedSlices(values, indices, shape)


def _as_int64(value: Any) -> Tensor:
    tensor = convert_to_tensor(value) if hasattr(value, "dtype") else convert_to_tensor(value, int64)
    return cast(tensor, int64)
