"""`AllReduceCrossDeviceOps`: reductions by the collectives, in which every device does a share of the sum.

Small tensors cost a collective's latency each. ``num_packs`` joins all that are reduced at once to so many
buffers a device and dtype, about equally large, which are reduced in the place of the tensors and taken apart
again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.distribute.collectives import all_reduce
from flowrt.distribute.strategies.cross_device_ops import (
    CrossDeviceOps,
    ReductionToOneDevice,
    on_device,
    placed_on,
)
from flowrt.distribute.strategies.reduce_op import ReduceOp
from flowrt.distribute.strategies.values import DistributedValues, Mirrored
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.graph import Tensor
from flowrt.graph.indexed_slices import IndexedSlices
from flowrt.graph.ops.joining import concat, split
from flowrt.graph.ops.shaping import reshape


class AllReduceCrossDeviceOps(CrossDeviceOps):
    """Sums dense values that are wanted where the replicas are by an all-reduce; others on one device.

    ``all_reduce_alg`` names the algorithm as `flowrt.distribute.collectives.all_reduce` has them; "auto"
    leaves the choice to the cost model. With ``num_packs=0`` each tensor goes by itself. Raises
    `InvalidArgumentError` for a negative number.
    """

    def __init__(self, all_reduce_alg: str = "auto", num_packs: int = 1) -> None:
        if num_packs < 0:
            raise InvalidArgumentError(f"num_packs: expected 0 or more; got {num_packs}")
        self._algorithm, self._num_packs = all_reduce_alg, num_packs
        self._others = ReductionToOneDevice()

    def _batch_reduce(
        self, op: ReduceOp, pairs: Sequence[tuple[DistributedValues, tuple[str, ...]]]
    ) -> list[Any]:
        is_direct = [_is_wanted_everywhere(value, devices) for value, devices in pairs]
        direct = [value for (value, _), yes in zip(pairs, is_direct, strict=True) if yes]
        reduced = iter(self._all_reduced(op, direct))
        return [
            Mirrored([on_device(part, to) for part, to in zip(next(reduced), devices, strict=True)])
            if yes
            else self._others.reduce(op, value, devices)
            for (value, devices), yes in zip(pairs, is_direct, strict=True)
        ]

    def _all_reduced(self, op: ReduceOp, values: Sequence[DistributedValues]) -> list[list[Tensor]]:
        """For each of ``values`` the reduced tensor of each replica."""
        results: list[list[Tensor]] = [[] for _ in values]
        for members in packs([value.values[0] for value in values], self._num_packs):
            columns = zip(*(values[member].values for member in members), strict=True)
            packed = [_packed(column) for column in columns]
            for replica, total in enumerate(all_reduce(packed, op.name.lower(), lowering=self._algorithm)):
                like = [values[member].values[replica] for member in members]
                for member, part in zip(members, _unpacked(total, like), strict=True):
                    results[member].append(part)
        return results


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
    """The numbers of ``tensors``, each in one pack: of one dtype, in order, and so that each of the ``count``
    packs of a dtype has about as many elements. Without static shapes, and for no packs, one a tensor.
    """
    alone = [[i] for i, t in enumerate(tensors) if not (count and t.shape.is_fully_defined())]
    by_dtype: dict[DType, list[int]] = {}
    for i, tensor in enumerate(tensors):
        if count and tensor.shape.is_fully_defined():
            by_dtype.setdefault(tensor.dtype, []).append(i)
    return [pack for members in by_dtype.values() for pack in _cut(members, tensors, count)] + alone


def _cut(members: Sequence[int], tensors: Sequence[Tensor], count: int) -> list[list[int]]:
    """``members`` in order in ``count`` packs at most: a tensor goes where its middle element belongs."""
    sizes = [int(tensors[i].shape.num_elements() or 0) for i in members]
    total, before = sum(sizes) or 1, 0
    cut: dict[int, list[int]] = {}
    for member, size in zip(members, sizes, strict=True):
        cut.setdefault(min(count * (2 * before + size) // (2 * total), count - 1), []).append(member)
        before += size
    return list(cut.values())


def _packed(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    with placed_on(tensors[0].device):
        flat: Tensor = concat([reshape(tensor, [-1]) for tensor in tensors], 0)
        return flat


def _unpacked(total: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    if len(like) == 1:
        return [total]
    with placed_on(like[0].device):
        parts = split(total, [int(tensor.shape.num_elements() or 0) for tensor in like])
        return [reshape(part, tensor.shape) for part, tensor in zip(parts, like, strict=True)]
