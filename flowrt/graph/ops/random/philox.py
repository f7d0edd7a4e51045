"""Random bits as a function of a key and a counter, and the numbers that TensorFlow makes of them.

The generator is Philox 4x32 with 10 rounds (J. Salmon et al., *Parallel random numbers: as easy as 1, 2, 3*,
2011): each counter gives a block of four words of 32 bits. A function here makes of blocks ``[n, 4]`` the
numbers ``[n, k]`` that are TensorFlow's, bit for bit; of logarithms and sines the last bit may differ.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType

_WORD = np.uint64(2**32 - 1)
_SCRAMBLING_KEY = 0x02461E293EC8F720

PER_BLOCK = {dtypes.float64: 2, dtypes.int64: 2, dtypes.uint64: 2}
"""The count of numbers that one block gives; it is four of any other dtype."""


class Position(NamedTuple):
    """A place in a sequence of blocks: a key of 64 bits, and the low and high halves of a counter of 128."""

    key: int
    low: int
    high: int

    def blocks(self, offsets: Any) -> Any:
        """The blocks ``[*s, 4]`` at ``offsets``, an array ``[*s]``, from here."""
        low = np.uint64(self.low) + np.asarray(offsets, np.uint64)
        return _blocks(self.key, low, np.uint64(self.high) + (low < self.low).astype(np.uint64))


def position_of(seed: Any) -> Position:
    """The place where the numbers of a seed begin. It is scrambled, so that those of similar seeds differ."""
    first, second = (int(part) % 2**64 for part in seed)
    mixed = Position(_SCRAMBLING_KEY, first, second).blocks(0).view(np.uint64)
    return Position(int(mixed[0]), 0, int(mixed[1]))


def _blocks(key: int, low: Any, high: Any) -> Any:
    a, b, c, d = low & _WORD, low >> 32, high & _WORD, high >> 32
    first, second = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        ac, ca = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b = ca >> 32 ^ b ^ np.uint64(first), ca & _WORD
        c, d = ac >> 32 ^ d ^ np.uint64(second), ac & _WORD
        first, second = (first + 0x9E3779B9) & 0xFFFFFFFF, (second + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack([a, b, c, d], -1).astype(np.uint32)


def integers(blocks: Any, dtype: DType) -> Any:
    """All values of an integer ``dtype``, of 32 or 64 bits, equally likely."""
    return blocks.view(dtype.np)


_MANTISSA_BITS = {dtypes.float16: 10, dtypes.bfloat16: 7, dtypes.float32: 23}


def uniform(blocks: Any, dtype: DType) -> Any:
    """Floats in [0, 1), multiples of the epsilon of ``dtype``."""
    if dtype is dtypes.float64:
        high, low = (blocks[..., i::2].astype(np.uint64) for i in (0, 1))
        return ((high & np.uint64(2**20 - 1)) << 32 | low) * 2.0**-52
    bits = _MANTISSA_BITS[dtype]
    return ((blocks & np.uint32(2**bits - 1)) * np.float32(2.0**-bits)).astype(dtype.np)


def normal(blocks: Any, dtype: DType) -> Any:
    """Normal floats by the method of G. Box and M. Muller (1958), rounded to float32 in its steps as
    TensorFlow does for all dtypes but float64.
    """
    kind = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    drawn = uniform(blocks, kind)
    lengths, angles = np.maximum(drawn[..., ::2], kind.np.type(1e-7)), drawn[..., 1::2]
    turned = (2 * np.pi * angles.astype(np.float64)).astype(kind.np).astype(np.float64)
    logs = np.log(lengths.astype(np.float64)).astype(kind.np)
    radii = np.sqrt(kind.np.type(-2) * logs)
    pairs = [function(turned).astype(kind.np) * radii for function in (np.sin, np.cos)]
    return np.stack(pairs, -1).reshape(drawn.shape).astype(dtype.np)


_RESERVED = 64
"""Blocks that TensorFlow reserves for each number of a group, which is drawn from as many as it needs."""


def truncated_normal(position: Position, groups: Any, dtype: DType) -> Any:
    """Normal floats within two of 0: ``groups`` are the numbers of groups of as many as a block has."""
    size = PER_BLOCK.get(dtype, 4)
    kind = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
    found = np.empty((len(groups), size), dtype.np)
    waiting, count = np.arange(len(groups)), 2
    while waiting.size:
        firsts = groups[waiting] * (size * _RESERVED)
        drawn = normal(position.blocks(firsts[:, None] + np.arange(count)), kind).reshape(len(waiting), -1)
        within = np.abs(drawn) < 2
        is_full = within.sum(-1) >= size
        chosen = np.argsort(~within[is_full], axis=-1, kind="stable")[:, :size]
        found[waiting[is_full]] = np.take_along_axis(drawn[is_full], chosen, -1)
        waiting, count = waiting[~is_full], 2 * count
    return found
