"""Parts of draws: the elements of one block of a random tensor, without drawing the rest.

    numbers of equal width      each element is a fixed number of bits of the stream, which begins anywhere
    numbers of varying width    drawn in chunks of 4,096 elements, each a sequence of its own

A part is bit for bit the slice of the whole draw, so that results do not depend on how many devices share a
tensor.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.graph.resources.random_stream import Draw

CHUNK = 4096

Fill: TypeAlias = Callable[[np.random.Generator, Any], object]
"""``fill(generator, values)`` draws numbers into ``values``, a vector."""

BlockFill: TypeAlias = Callable[[Draw, int, Any], object]
"""``fill(draw, block, values)`` does so from that block of the draw on."""


class Part(NamedTuple):
    """The block that begins at ``begin`` in a draw of the shape ``of``; without these, a draw itself."""

    of: Sequence[int]
    begin: Sequence[int]


def by_generator(fill: Fill) -> BlockFill:
    """``fill`` with a generator that begins at the block."""
    return lambda draw, block, values: fill(draw.generator(block=block), values)


def fill_equal(draw: Draw, values: Any, part: Part, per_block: int, fill: BlockFill) -> None:
    """Draw ``values``, an array in row-major order, of which ``per_block`` elements take 256 bits."""
    flat = values.reshape(-1)
    for start, stop, place in _runs(values.shape, part):
        block, skipped = divmod(start, per_block)
        wanted = flat[place : place + stop - start]
        if not skipped:
            fill(draw, block, wanted)
        else:
            drawn = np.empty(skipped + wanted.size, wanted.dtype)
            fill(draw, block, drawn)
            wanted[:] = drawn[skipped:]


def fill_chunks(draw: Draw, values: Any, part: Part, fill: Fill) -> None:
    """Draw ``values``, an array in row-major order, in chunks, each by a call of ``fill``."""
    flat, total = values.reshape(-1), math.prod(part.of or values.shape)
    last, drawn = -1, flat[:0]
    for start, stop, place in _runs(values.shape, part):
        for chunk in range(start // CHUNK, -(-stop // CHUNK)):
            first, end = chunk * CHUNK, min((chunk + 1) * CHUNK, total)
            low, high = max(start, first), min(stop, end)
            wanted = flat[place + low - start : place + high - start]
            if wanted.size == end - first:
                fill(draw.generator(chunk), wanted)
                continue
            if chunk != last:
                last, drawn = chunk, np.empty(end - first, flat.dtype)
                fill(draw.generator(chunk), drawn)
            wanted[:] = drawn[low - first : high - first]


def _runs(shape: Sequence[int], part: Part) -> Iterator[tuple[int, int, int]]:
    """The ranges (start, stop) of elements of the whole draw that a part of ``shape`` has, in its order, and
    for each the number of elements before it.
    """
    size = math.prod(shape)
    if not size:
        return
    if not part.of:
        yield 0, size, 0
        return
    strides = [math.prod(part.of[dim + 1 :]) for dim in range(len(shape))]
    cut = max((dim for dim in range(len(shape)) if shape[dim] != part.of[dim]), default=0)
    length = math.prod(shape[cut:])
    inner = sum(begin * stride for begin, stride in zip(part.begin[cut:], strides[cut:], strict=True))
    outer = [
        range(begin * stride, (begin + n) * stride, stride)
        for begin, n, stride in zip(part.begin[:cut], shape[:cut], strides[:cut], strict=True)
    ]
    for number, offsets in enumerate(itertools.product(*outer)):
        start = sum(offsets) + inner
        yield start, start + length, number * length
