"""Buckets: tensors that are summed together, in the order in which the backward pass produces them.

The gradients of the last layers are available first. So buckets are filled from the last variable to the
first, and each is all-reduced while earlier layers are still being differentiated (PyTorch's
DistributedDataParallel, Li et al. 2020). The order is that of the graph, equal on all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from flowrt.graph.collectives.buckets import fill_buckets
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.base.shape_manipulation import reshape


def buckets(tensors: Sequence[Tensor], cap_bytes: int) -> list[list[int]]:
    """The numbers of ``tensors``, from the last to the first, each in one bucket: of one dtype, and of
    ``cap_bytes`` at most unless it holds only one. One without a static shape is alone.
    """
    last_first = [_kind_and_bytes(tensor) for tensor in reversed(tensors)]
    last = len(tensors) - 1
    return [[last - number for number in bucket] for bucket in fill_buckets(last_first, cap_bytes)]


def _kind_and_bytes(tensor: Tensor) -> tuple[Hashable | None, int]:
    if not tensor.shape.is_fully_defined():
        return None, 0
    return tensor.dtype, int(tensor.shape.num_elements() or 0) * tensor.dtype.size


def in_buckets(
    tensors: Sequence[Tensor], cap_bytes: int, reduce: Callable[[Tensor, Sequence[int]], Tensor]
) -> list[Tensor]:
    """Each of ``tensors`` reduced. ``reduce`` is called once per bucket, with its elements as a vector and
    the indices of its tensors.
    """
    results: list[Tensor] = list(tensors)
    for bucket in buckets(tensors, cap_bytes):
        members = [tensors[number] for number in bucket]
        total = reduce(joined(members), bucket)
        for number, reduced in zip(bucket, taken_apart(total, members), strict=True):
            results[number] = reduced
    return results


def joined(members: Sequence[Tensor]) -> Tensor:
    """The elements of all ``members`` in a row; of one member itself."""
    if len(members) == 1:
        return members[0]
    return concat([reshape(member, [-1]) for member in members], 0)


def taken_apart(total: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Split the result of `joined` into tensors of the shapes of ``like``."""
    if len(like) == 1:
        return [total]
    parts = split(total, [int(member.shape.num_elements() or 0) for member in like])
    return [reshape(part, member.shape) for part, member in zip(parts, like, strict=True)]
