"""`GroupCrossDeviceOps`: reductions over the replicas of several workers, each of which builds its graph.

replicas of this worker  ->  one sum here  ->  all-reduce of the workers, a bucket at a time  ->  each device

Of the gradients of one call those that are sparse go another way: their rows are gathered from all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.distribute import collectives
from flowrt.distribute.collectives.group import Group
from flowrt.distribute.strategies.buckets import in_buckets
from flowrt.distribute.strategies.communication_options import CommunicationOptions
from flowrt.distribute.strategies.cross_device_ops import (
    CrossDeviceOps,
    ReductionToOneDevice,
    divided,
    on_devices,
    placed_on,
)
from flowrt.distribute.strategies.reduce_op import ReduceOp
from flowrt.distribute.strategies.values import DistributedValues, Mirrored
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Tensor
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.ops.identities import cast


class GroupCrossDeviceOps(CrossDeviceOps):
    """``group`` has a rank a worker; this worker's replicas, of ``replicas`` in all, are on ``devices``."""

    def __init__(
        self, group: Group, devices: Sequence[str], replicas: int, options: CommunicationOptions
    ) -> None:
        self._group, self._device, self._replicas, self._options = group, devices[0], replicas, options
        self._local = ReductionToOneDevice(self._device)

    def _batch_reduce(
        self, op: ReduceOp, pairs: Sequence[tuple[DistributedValues, tuple[str, ...]]]
    ) -> list[Any]:
        sums = [self._local.reduce(ReduceOp.SUM, value, self._device) for value, _ in pairs]
        with placed_on(self._device):
            totals = self._summed(sums)
            if op is ReduceOp.MEAN:
                totals = [divided(total, self._replicas) for total in totals]
        return [on_devices(total, devices) for total, (_, devices) in zip(totals, pairs, strict=True)]

    def _summed(self, values: Sequence[Any]) -> list[Any]:
        """Each of ``values`` summed over the workers."""
        prepared = [self._densified(value) for value in values]
        dense = [value for value in prepared if not isinstance(value, IndexedSlices)]
        sums = iter(in_buckets(dense, self._options.bucket_bytes, self._all_reduced))
        return [
            self._all_rows(value) if isinstance(value, IndexedSlices) else next(sums) for value in prepared
        ]

    def _all_reduced(self, tensor: Tensor) -> Tensor:
        wire = self._options.wire_dtype(tensor.dtype)
        (total,) = collectives.all_reduce([cast(tensor, wire)], "sum", self._group)
        reduced: Tensor = cast(total, tensor.dtype)
        return reduced

    def _densified(self, value: Any) -> Any:
        """``value``, but dense if the workers cannot know that they have equally many rows."""
        if isinstance(value, IndexedSlices) and not value.values.shape.is_fully_defined():
            return convert_to_tensor(value)
        return value

    def _all_rows(self, value: IndexedSlices) -> IndexedSlices:
        (values,) = collectives.all_gather([value.values], 0, self._group)
        (indices,) = collectives.all_gather([value.indices], 0, self._group)
        return IndexedSlices(values, indices, value.dense_shape)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """The first worker's ``tensor`` on each of ``destinations``."""
        return super().broadcast(self.from_chief(convert_to_tensor(tensor)), destinations)

    def from_chief(self, tensor: Tensor) -> Tensor:
        """What ``tensor`` is at the first worker. It needs a static shape."""
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
