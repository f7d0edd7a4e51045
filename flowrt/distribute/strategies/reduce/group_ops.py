"""`GroupCrossDeviceOps`: reductions over the replicas of several workers that each build a graph.

replicas of this worker  ->  local sum  ->  all-reduce of the workers, bucket by bucket  ->  each device

Sparse gradients are handled separately: their rows are gathered from all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.distribute import collectives
from flowrt.distribute.collectives.group import Group
from flowrt.distribute.strategies.reduce.cross_device_ops import (
    CrossDeviceOps,
    Pairs,
    ReductionToOneDevice,
    devices_of,
    divided,
    joint_label,
    label_of,
    on_devices,
    placed_on,
)
from flowrt.distribute.strategies.values.buckets import in_buckets
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.distribute.strategies.values.distributed_values import DistributedValues, Mirrored
from flowrt.distribute.strategies.values.reduce_op import ReduceOp
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.indexed_slices import IndexedSlices


class GroupCrossDeviceOps(CrossDeviceOps):
    """``group`` has a rank a worker; this worker's replicas, of ``replicas`` in all, are on ``devices``."""

    def __init__(
        self, group: Group, devices: Sequence[str], replicas: int, options: CommunicationOptions
    ) -> None:
        self._group, self._device, self._replicas, self._options = group, devices[0], replicas, options
        self._local = ReductionToOneDevice(self._device)

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: DistributedValues, destinations: Any, options: Any
    ) -> Any:
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Pairs, options: Any
    ) -> list[Any]:
        pairs = value_destination_pairs
        sums = [self._local.reduce(ReduceOp.SUM, value, self._device) for value, _ in pairs]
        with placed_on(self._device):
            totals = self._summed(sums, [label_of(*pair) for pair in pairs])
            if reduce_op is ReduceOp.MEAN:
                totals = [divided(total, self._replicas) for total in totals]
        return [on_devices(total, devices_of(to)) for total, (_, to) in zip(totals, pairs, strict=True)]

    def _summed(self, values: Sequence[Any], labels: Sequence[str]) -> list[Any]:
        """Each of ``values``, called ``labels``, summed over the workers."""
        prepared = [self._densified(value) for value in values]
        named = list(zip(prepared, labels, strict=True))
        dense = [pair for pair in named if not isinstance(pair[0], IndexedSlices)]

        def all_reduced(tensor: Tensor, members: Sequence[int]) -> Tensor:
            return self._all_reduced(tensor, [dense[member][1] for member in members])

        sums = iter(in_buckets([value for value, _ in dense], self._options.bucket_bytes, all_reduced))
        return [
            self._all_rows(value, label) if isinstance(value, IndexedSlices) else next(sums)
            for value, label in named
        ]

    def _all_reduced(self, tensor: Tensor, labels: Sequence[str]) -> Tensor:
        wire = self._options.wire_dtype(tensor.dtype)
        with get_default_graph().name_scope(f"all_reduce/{joint_label(labels)}"):
            (total,) = collectives.all_reduce([cast(tensor, wire)], "sum", self._group)
            reduced: Tensor = cast(total, tensor.dtype)
        return reduced

    def _densified(self, value: Any) -> Any:
        """``value``, made dense if the workers may have different numbers of rows."""
        if isinstance(value, IndexedSlices) and not value.values.shape.is_fully_defined():
            return convert_to_tensor(value)
        return value

    def _all_rows(self, value: IndexedSlices, label: str) -> IndexedSlices:
        with get_default_graph().name_scope(f"all_gather/{label}"):
            (values,) = collectives.all_gather([value.values], 0, self._group)
            (indices,) = collectives.all_gather([value.indices], 0, self._group)
        return IndexedSlices(values, indices, value.dense_shape)

    def broadcast_implementation(self, tensor: Any, destinations: Any) -> Any:
        """The first worker's ``tensor`` on each of ``destinations``."""
        return super().broadcast_implementation(self.from_chief(convert_to_tensor(tensor)), destinations)

    def from_chief(self, tensor: Tensor) -> Tensor:
        """Broadcast the first worker's ``tensor``, which needs a static shape."""
        given = tensor if 0 in self._group.ranks else (tensor.dtype, tensor.shape)
        (received,) = collectives.broadcast(given, [self._device], 0, self._group)
        return received

    def gather(self, per_replica_value: DistributedValues, destinations: Any, axis: int) -> Any:
        """The values of all workers' replicas along ``axis``; each worker's have one shape together."""
        here = super().gather(per_replica_value, self._device, axis)
        with placed_on(self._device):
            (joined,) = collectives.all_gather([here], axis, self._group)
        placed = super().gather(Mirrored([joined]), destinations, axis)
        return placed
