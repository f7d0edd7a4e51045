"""`AllReduceCrossDeviceOps`: reductions by the collectives, in which every device computes a share of the
sum.

Small tensors cost a collective's latency each. ``num_packs`` is the number of buffers per device and dtype,
of about equal size, into which the tensors reduced together are packed; the buffers are reduced and unpacked
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.distribute.collectives import all_reduce
from flowrt.distribute.strategies.reduce.cross_device_ops import (
    CrossDeviceOps,
    Pairs,
    ReductionToOneDevice,
    devices_of,
    label_of,
    named_reduction,
    on_device,
    placed_on,
)
from flowrt.distribute.strategies.values.buckets import joined, taken_apart
from flowrt.distribute.strategies.values.distributed_values import DistributedValues, Mirrored
from flowrt.distribute.strategies.values.reduce_op import ReduceOp
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.indexed_slices import IndexedSlices


class AllReduceCrossDeviceOps(CrossDeviceOps):
    """Sums dense values needed on the replicas' devices by an all-reduce; others on one device.

    ``all_reduce_alg`` is the algorithm, as in `flowrt.distribute.collectives.all_reduce`; "auto" leaves the
    choice to the cost model. With ``num_packs=0`` each tensor is reduced separately. Raises
    `InvalidArgumentError` for a negative number.
    """

    def __init__(self, all_reduce_alg: str = "auto", num_packs: int = 1) -> None:
        if num_packs < 0:
            raise InvalidArgumentError(f"num_packs: expected 0 or more; got {num_packs}")
        self._algorithm, self._num_packs = all_reduce_alg, num_packs
        self._others = ReductionToOneDevice()

    def reduce_implementation(
        self, reduce_op: ReduceOp, per_replica_value: DistributedValues, destinations: Any, options: Any
    ) -> Any:
        pairs = [(per_replica_value, destinations)]
        return self.batch_reduce_implementation(reduce_op, pairs, options)[0]

    def batch_reduce_implementation(
        self, reduce_op: ReduceOp, value_destination_pairs: Pairs, options: Any
    ) -> list[Any]:
        is_direct = [_is_wanted_everywhere(value, devices_of(to)) for value, to in value_destination_pairs]
        pairs = list(zip(value_destination_pairs, is_direct, strict=True))
        reduced = iter(self._all_reduced(reduce_op, [pair for pair, yes in pairs if yes]))
        return [next(reduced) if yes else self._others.reduce(reduce_op, *pair) for pair, yes in pairs]

    def _all_reduced(self, op: ReduceOp, pairs: Pairs) -> list[Mirrored]:
        results = [Mirrored(value.values) for value, _ in pairs]
        for members in packs([value.values[0] for value, _ in pairs], self._num_packs):
            pack = [pairs[member] for member in members]
            for member, result in zip(members, self._pack_reduced(op, pack), strict=True):
                results[member] = result
        return results

    def _pack_reduced(self, op: ReduceOp, pairs: Pairs) -> list[Mirrored]:
        """The values of ``pairs``, reduced as one buffer per replica."""
        columns = list(zip(*(value.values for value, _ in pairs), strict=True))
        devices = [devices_of(to) for _, to in pairs]
        with named_reduction([label_of(*pair) for pair in pairs], devices[0]):
            packed = [_packed(column) for column in columns]
            totals = all_reduce(packed, op.name.lower(), lowering=self._algorithm)
            parts = [_unpacked(total, like) for total, like in zip(totals, columns, strict=True)]
            return [
                Mirrored([on_device(part, to) for part, to in zip(of_replicas, places, strict=True)])
                for of_replicas, places in zip(zip(*parts, strict=True), devices, strict=True)
            ]


class HierarchicalCopyAllReduce(AllReduceCrossDeviceOps):
    """Sums within each task first, then between tasks."""

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__("hierarchical", num_packs)


class NcclAllReduce(AllReduceCrossDeviceOps):
    """Sums by the devices' own library."""

    def __init__(self, num_packs: int = 1) -> None:
        super().__init__("native", num_packs)


def _is_wanted_everywhere(value: DistributedValues, devices: Sequence[str]) -> bool:
    is_sparse = isinstance(value.values[0], IndexedSlices)
    return not is_sparse and len(value.values) == len(devices) > 1


def packs(tensors: Sequence[Tensor], count: int) -> list[list[int]]:
    """The indices of ``tensors``, each in one pack: of one dtype, in order, with about equally many elements
    in each of the ``count`` packs of a dtype. Without static shapes, and for no packs, one per tensor.
    """
    alone = [[i] for i, t in enumerate(tensors) if not (count and t.shape.is_fully_defined())]
    by_dtype: dict[DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if count and tensor.shape.is_fully_defined():
            by_dtype.setdefault(tensor.dtype, []).append(i)
    return [pack for members in by_dtype.values() for pack in _cut(members, tensors, count)] + alone


def _cut(members: Sequence[int], tensors: Sequence[Tensor], count: int) -> list[list[int]]:
    """``members`` in order in at most ``count`` packs: a tensor goes to the pack of its middle element."""
    sizes = [int(tensors[i].shape.num_elements() or 0) for i in members]
    total, before = sum(sizes) or 1, 0
    cut: dict[int, list[int]] = {}
    for member, size in zip(members, sizes, strict=True):
        cut.setdefault(min(count * (2 * before + size) // (2 * total), count - 1), []).append(member)
        before += size
    return list(cut.values())


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    with placed_on(tensors[0].device):
        return joined(tensors)


def _unpacked(total: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    with placed_on(like[0].device):
        return taken_apart(total, like)
