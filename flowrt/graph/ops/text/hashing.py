"""Hashes of strings that are the same everywhere: FarmHash's 64-bit fingerprint, as in TensorFlow's buckets.

The algorithm is public (Pike, 2014, `farmhashna`): strings up to 16, 32, 64 bytes, and longer ones, are mixed
by different steps of multiplications and rotations, all modulo 2**64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import leading
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef, define_op, sample
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.text.strings import host_array, words

_MASK = (1 << 64) - 1
_K0, _K1, _K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F


def fingerprint64(text: bytes) -> int:
    """The fingerprint, from 0 to 2**64 - 1."""
    size = len(text)
    if size > 64:
        return _of_many(text)
    if size > 32:
        return _of_64(text)
    if size > 16:
        return _of_32(text)
    return _of_16(text)


def _word(text: bytes, at: int) -> int:
    return int.from_bytes(text[at : at + 8], "little")


def _rotated(value: int, by: int) -> int:
    value &= _MASK
    return (value >> by | value << 64 - by) & _MASK


def _shifted(value: int) -> int:
    value &= _MASK
    return value ^ value >> 47


def _mixed(u: int, v: int, factor: int) -> int:
    first = _shifted(((u ^ v) & _MASK) * factor)
    return _shifted(((v ^ first) & _MASK) * factor) * factor & _MASK


def _of_16(text: bytes) -> int:
    size = len(text)
    factor = _K2 + size * 2
    if size >= 8:
        first, last = _word(text, 0) + _K2, _word(text, size - 8)
        return _mixed(
            _rotated(last, 37) * factor + first & _MASK, (_rotated(first, 25) + last) * factor & _MASK, factor
        )
    if size >= 4:
        first, last = (int.from_bytes(text[at : at + 4], "little") for at in (0, size - 4))
        return _mixed(size + (first << 3), last, factor)
    if size:
        low, high = text[0] + (text[size >> 1] << 8), size + (text[-1] << 2)
        return _shifted(low * _K2 ^ high * _K0) * _K2 & _MASK
    return _K2


def _of_32(text: bytes) -> int:
    size = len(text)
    factor = _K2 + size * 2
    a, b = _word(text, 0) * _K1, _word(text, 8)
    c, d = _word(text, size - 8) * factor, _word(text, size - 16) * _K2
    return _mixed(
        _rotated(a + b, 43) + _rotated(c, 30) + d & _MASK, a + _rotated(b + _K2, 18) + c & _MASK, factor
    )


def _of_64(text: bytes) -> int:
    size = len(text)
    factor = _K2 + size * 2
    a, b = _word(text, 0) * _K2, _word(text, 8)
    c, d = _word(text, size - 8) * factor, _word(text, size - 16) * _K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d & _MASK
    z = _mixed(y, a + _rotated(b + _K2, 18) + c & _MASK, factor)
    e, f = _word(text, 16) * factor, _word(text, 24)
    g, h = (y + _word(text, size - 32)) * factor, (z + _word(text, size - 24)) * factor
    return _mixed(
        _rotated(e + f, 43) + _rotated(g, 30) + h & _MASK, e + _rotated(f + a, 18) + g & _MASK, factor
    )


def _weak(text: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    """Two seeds mixed with 32 bytes."""
    w, x, y, z = (_word(text, at + 8 * i) for i in range(4))
    a += w
    b = _rotated(b + a + z, 21)
    return a + x + y + z & _MASK, b + _rotated(a + x + y, 44) + a & _MASK


def _of_many(text: bytes) -> int:
    size, seed = len(text), 81
    x, y = seed * _K2 + _word(text, 0) & _MASK, seed * _K1 + 113 & _MASK
    z = _shifted(y * _K2 + 113) * _K2 & _MASK
    v, w = (0, 0), (0, 0)
    end = (size - 1) // 64 * 64
    for at in range(0, end, 64):
        x, y, z, v, w = _round(text, at, _K1, (x, y, z), v, w, 1)
    at, rest = size - 64, size - 1 & 63
    factor = _K1 + ((z & 0xFF) << 1)
    first = w[0] + rest
    v = v[0] + first & _MASK, v[1]
    w = first + v[0] & _MASK, w[1]
    x, y, z, v, w = _round(text, at, factor, (x, y, z), v, w, 9)
    return _mixed(
        _mixed(v[0], w[0], factor) + _shifted(y) * _K0 + z & _MASK,
        _mixed(v[1], w[1], factor) + x & _MASK,
        factor,
    )


def _round(
    text: bytes,
    at: int,
    factor: int,
    xyz: tuple[int, int, int],
    v: tuple[int, int],
    w: tuple[int, int],
    by: int,
) -> tuple[int, int, int, tuple[int, int], tuple[int, int]]:
    """64 bytes, mixed into the state."""
    x, y, z = xyz
    x = _rotated(x + y + v[0] + _word(text, at + 8), 37) * factor & _MASK
    y = _rotated(y + v[1] + _word(text, at + 48), 42) * factor & _MASK
    x ^= w[1] * by & _MASK
    y = y + v[0] * by + _word(text, at + 40) & _MASK
    z = _rotated(z + w[0], 33) * factor & _MASK
    v = _weak(text, at, v[1] * factor & _MASK, x + w[0] & _MASK)
    w = _weak(text, at + 32, z + w[1] & _MASK, y + _word(text, at + 16) & _MASK)
    return z, y, x, v, w


def _buckets(xp: Any, input: Any, num_buckets: int, out: Any = None) -> Any:
    if num_buckets < 1:
        raise InvalidArgumentError(f"num_buckets: expected at least 1; got {num_buckets}")
    texts = host_array(input)
    found = [fingerprint64(text) % num_buckets for text in texts.reshape(-1).tolist()]
    return delivered(xp, xp.asarray(np.array(found, np.int64).reshape(texts.shape)), np.int64, out)


string_to_hash_bucket_fast: OpDef[Tensor] = define_op(
    "StringToHashBucketFast",
    "input: string -> output: int64",
    attrs="num_buckets: int",
    shape=unchanged,
    kernel=_buckets,
    samples=lambda rng: (sample(words([b"hello", b""]), num_buckets=10),),
    batch=leading,
    doc="A number below ``num_buckets`` for each string: the remainder of its fingerprint.",
)
