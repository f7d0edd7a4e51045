"""`ReplicaContext`: the interface of a strategy for a function that runs once per replica; `InlineReplica`:
without a thread, as its function is called as it is, and a merge has nothing to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flowrt.base.structure import Structure, flatten, pack_as
from flowrt.distribute.strategies.values.reduce_op import ReduceOp, as_reduce_op
from flowrt.errors import FailedPreconditionError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.derivatives.custom_gradient import custom_gradient
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.variables.distribution_context import DistributionContext, distribution_context, entered_context


class ReplicaContext(ABC):
    """One replica of ``strategy``, while its function is called.

    ``replica_id_in_sync_group`` numbers the replicas of all workers, ``local_replica_id`` those of this
    process's graph.
    """

    def __init__(self, strategy: Any, replica_id_in_sync_group: int, local_replica_id: int) -> None:
        self._strategy = strategy
        self._replica_id, self.local_replica_id = replica_id_in_sync_group, local_replica_id

    @property
    def strategy(self) -> Any:
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        return self.strategy.num_replicas_in_sync

    @property
    def devices(self) -> tuple[str, ...]:
        """The device on which the replica's operations are, in a tuple."""
        return (self.strategy.extended.worker_devices[self.local_replica_id],)

    def merge_call(
        self, merge_fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """This replica's part of ``merge_fn(strategy, *args, **kwargs)``, which is called once for all
        replicas, cross-replica.

        All replicas have to get here. What differs between their arguments becomes `PerReplica`; of a result
        that is distributed each gets its own. Raises `FailedPreconditionError` when this is not the context
        of the replica that is being built.
        """
        if not self._is_built():
            raise FailedPreconditionError(
                "merge_call: expected a call in the function given to strategy.run(), by its own replica; "
                "got one elsewhere. Call get_replica_context() inside the function"
            )
        return self._merge(merge_fn, args, kwargs or {})

    def _is_built(self) -> bool:
        """Whether the thread is in this replica."""
        context = distribution_context()
        return context is not None and context.replica is self

    @abstractmethod
    def _merge(self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`merge_call`, once it is clear that it may be."""

    def all_reduce(self, reduce_op: ReduceOp | str, value: Structure, options: Any = None) -> Structure:
        """The sum or mean of the replicas' ``value``, on each. Its gradient is that of all replicas' losses:
        the gradients of the results, reduced in the same way. `IndexedSlices` are returned as such, without a
        gradient. ``options`` are accepted.
        """
        op, leaves = as_reduce_op(reduce_op), flatten(value)
        sparse = [isinstance(leaf, IndexedSlices) for leaf in leaves]
        slices = [leaf for leaf, is_sparse in zip(leaves, sparse, strict=True) if is_sparse]
        dense = [
            convert_to_tensor(leaf) for leaf, is_sparse in zip(leaves, sparse, strict=True) if not is_sparse
        ]
        summed_slices = iter(self._reduced(op, slices) if slices else [])
        summed = iter(self._differentiably_reduced(op, dense) if dense else [])
        return pack_as(value, [next(summed_slices if is_sparse else summed) for is_sparse in sparse])

    def _reduced(self, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
        return self.merge_call(_reduce_to_all, (op, list(values)))

    def _differentiably_reduced(self, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
        @custom_gradient
        def reduced(*xs: Any) -> Any:
            return self._reduced(op, xs), gradient

        def gradient(*dys: Any) -> list[Any]:
            present = iter(self._reduced(op, [dy for dy in dys if dy is not None]))
            return [None if dy is None else next(present) for dy in dys]

        return reduced(*values)

    def all_gather(self, value: Structure, axis: int, options: Any = None) -> Structure:
        """The replicas' ``value`` one after the other along ``axis``, on each; they may differ in that
        dimension only. ``options`` are accepted.
        """
        tensors = [convert_to_tensor(leaf) for leaf in flatten(value)]
        return pack_as(value, self.merge_call(_gather_to_all, (tensors, axis)))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.replica_id_in_sync_group} of {self.num_replicas_in_sync}>"


def _reduce_to_all(strategy: Any, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
    extended = strategy.extended
    return extended.batch_reduce_to(op, [(value, extended.worker_devices) for value in values])


def _gather_to_all(strategy: Any, values: Sequence[Any], axis: int) -> list[Any]:
    extended = strategy.extended
    return [extended.gather_to(value, extended.worker_devices, axis) for value in values]


class InlineReplica(ReplicaContext):
    """The only replica of ``strategy``."""

    def __init__(self, strategy: Any) -> None:
        super().__init__(strategy, 0, 0)

    def _merge(self, merge_fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        with entered_context(DistributionContext(self.strategy)):
            return merge_fn(self.strategy, *args, **kwargs)
