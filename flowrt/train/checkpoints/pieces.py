"""Pieces of tensors: whether they make up a whole, what they have in common, and which device writes which.

A piece is a block of a tensor: the offset of its first element, and its shape. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

Shape: TypeAlias = tuple[int, ...]
Slices: TypeAlias = tuple[slice, ...]
"""One per dimension, with start and stop."""

_ROWS = 256  # of the table of pairs that is looked at together: it stays small for thousands of pieces


class Block(Protocol):
    """A block of a tensor."""

    @property
    def offset(self) -> Shape: ...

    @property
    def shape(self) -> Shape: ...


def whole(shape: Sequence[int]) -> Slices:
    """The slices of a whole tensor."""
    return tuple(slice(0, size) for size in shape)


def slices_of(block: Block) -> Slices:
    """The part of its tensor that ``block`` is."""
    return tuple(slice(at, at + size) for at, size in zip(block.offset, block.shape, strict=True))


def block_of(slices: Slices) -> tuple[Shape, Shape]:
    """The offset and the shape of the part ``slices``."""
    return tuple(s.start for s in slices), tuple(s.stop - s.start for s in slices)


def format_slices(slices: Slices) -> str:
    """The text of ``slices``, as in Python: ``[0:2, 4:8]``."""
    return f"[{', '.join(f'{s.start}:{s.stop}' for s in slices)}]"


def intersect(one: Slices, other: Slices) -> Slices | None:
    """The common part; None if there is no element in it."""
    common = tuple(slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(one, other, strict=True))
    return None if any(s.start >= s.stop for s in common) else common


def inside(part: Slices, outer: Slices) -> Slices:
    """``part``, which is in ``outer``, counted from the first element of ``outer``."""
    return tuple(slice(a.start - b.start, a.stop - b.start) for a, b in zip(part, outer, strict=True))


def extent(part: Slices, shape: Shape) -> tuple[int, int]:
    """The first element of ``part``, and the one after its last, in the row-major order of a tensor of
    ``shape``. It has at least one.
    """
    first = last = 0
    for s, size in zip(part, shape, strict=True):
        first, last = first * size + s.start, last * size + s.stop - 1
    return first, last + 1


def overlapping(blocks: Sequence[Block]) -> tuple[int, int] | None:
    """The numbers of two of ``blocks``, none of them empty, that have an element in common; None if no two
    do.
    """
    if len(blocks) < 2:
        return None
    begins = np.array([block.offset for block in blocks], np.int64)
    ends = begins + np.array([block.shape for block in blocks], np.int64)
    for first in range(0, len(blocks), _ROWS):
        rows = slice(first, first + _ROWS)
        meet = (begins[rows, None] < ends[None]) & (begins[None] < ends[rows, None])
        pairs = np.argwhere(np.triu(meet.all(axis=-1), first + 1))
        if len(pairs):
            return int(pairs[0][0]) + first, int(pairs[0][1])
    return None


class Holder(NamedTuple):
    """A device that holds a piece, in the order in which equals are chosen."""

    task: int
    device: int


def choose_writers(holders: Sequence[tuple[int, Sequence[Holder]]]) -> list[Holder]:
    """The device that writes each piece, of so many bytes and on these devices.

    The largest is given away first, each to the process, and then to the device there, with the fewest bytes
    so far. The result depends on nothing else: all processes find the same.
    """
    of_task: dict[int, int] = {}
    of_device: dict[Holder, int] = {}
    chosen: dict[int, Holder] = {}
    for number in sorted(range(len(holders)), key=lambda n: -holders[n][0]):
        nbytes, candidates = holders[number]
        writer = min(candidates, key=lambda h: (of_task.get(h.task, 0), of_device.get(h, 0), h))
        of_task[writer.task] = of_task.get(writer.task, 0) + nbytes
        of_device[writer] = of_device.get(writer, 0) + nbytes
        chosen[number] = writer
    return [chosen[number] for number in range(len(holders))]


def count(shape: Sequence[int]) -> int:
    """The number of elements."""
    return math.prod(shape)


def plan_shards(nbytes: Mapping[str, int], max_shard_bytes: int) -> Iterator[list[str]]:
    """Each shard's keys, in order, filled up to ``max_shard_bytes``; a larger piece has its own shard."""
    shard: list[str] = []
    used = 0
    for key, size in nbytes.items():
        if shard and used + size > max_shard_bytes:
            yield shard
            shard, used = [], 0
        shard.append(key)
        used += size
    if shard:
        yield shard
