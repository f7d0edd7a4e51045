"""Buckets: tensors that travel together, in the order in which they are made."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

CAP_BYTES = 25 * 2**20
"""The size of a bucket, that of PyTorch's DistributedDataParallel (Li et al. 2020)."""


def fill_buckets(tensors: Sequence[tuple[Hashable | None, int]], cap_bytes: int) -> list[list[int]]:
    """The numbers of ``tensors``, given as kind and bytes, in order and each in one bucket: of one kind, and
    of ``cap_bytes`` at most unless it holds only one. One of kind None is alone.

    >>> fill_buckets([("a", 3), ("b", 1), ("a", 1), (None, 9), ("a", 1)], 4)
    [[0, 2], [1], [3], [4]]
    """
    found: list[list[int]] = []
    filled: dict[Hashable, tuple[list[int], int]] = {}
    for number, (kind, n_bytes) in enumerate(tensors):
        bucket, used = filled.get(kind, ([], 0))
        if kind is None or not bucket or used + n_bytes > cap_bytes:
            bucket, used = [], 0
            found.append(bucket)
        bucket.append(number)
        if kind is not None:
            filled[kind] = bucket, used + n_bytes
    return found
