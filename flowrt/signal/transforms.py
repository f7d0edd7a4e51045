"""Fourier transforms, cosine transforms, and shifts of the zero frequency to the middle and back.

Cosine transforms are computed by Fourier transforms of real numbers: see J. Makhoul, A Fast Cosine Transform
in One and Two Dimensions, IEEE Transactions on Acoustics, Speech, and Signal Processing 28 (1980). Their
scales are SciPy's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.dtypes import complex64, complex128, float32, float64, int32
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.tile_and_reverse import reverse, roll
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import rank, shape
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.elementwise.complex_parts import complex, real
from flowrt.graph.ops.elementwise.math import cos, rsqrt, sin
from flowrt.graph.ops.linalg.fourier import (
    fft,
    fft2d,
    fft3d,
    ifft,
    ifft2d,
    ifft3d,
    irfft2d_op,
    irfft3d_op,
    irfft_op,
    rfft2d_op,
    rfft3d_op,
    rfft_op,
)
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.signal.sizes import as_size, at_least_zero, last_sizes
from flowrt.variables.graph_scopes import name_scope

__all__ = [
    "dct", "fft", "fft2d", "fft3d", "fftshift", "idct", "ifft", "ifft2d", "ifft3d", "ifftshift", "irfft",
    "irfft2d", "irfft3d", "rfft", "rfft2d", "rfft3d",
]  # fmt: skip

# --- Fourier transforms of real numbers


def rfft(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """The Fourier transform of real numbers over the last dimension: its first ``fft_length // 2 + 1``
    coefficients, from which the others follow.

    ``fft_length``, [1], is the size of the input by default. What is longer is cut off, what is shorter has
    zeros behind it.

    Example:
        >>> tf.signal.rfft([1.0, 0.0, 0.0, 0.0]).eval()
        array([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    return _from_real(rfft_op, 1, input_tensor, fft_length, name)


def rfft2d(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """`rfft` over the last two dimensions; ``fft_length`` is [2]."""
    return _from_real(rfft2d_op, 2, input_tensor, fft_length, name)


def rfft3d(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """`rfft` over the last three dimensions; ``fft_length`` is [3]."""
    return _from_real(rfft3d_op, 3, input_tensor, fft_length, name)


def irfft(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """The real numbers that have the given `rfft`. ``fft_length``, [1], is their number: by default the even
    one that gives as many coefficients.
    """
    return _to_real(irfft_op, 1, input_tensor, fft_length, name)


def irfft2d(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """`irfft` over the last two dimensions; ``fft_length`` is [2]."""
    return _to_real(irfft2d_op, 2, input_tensor, fft_length, name)


def irfft3d(input_tensor: NumericLike, fft_length: Any = None, name: str | None = None) -> Tensor:
    """`irfft` over the last three dimensions; ``fft_length`` is [3]."""
    return _to_real(irfft3d_op, 3, input_tensor, fft_length, name)


def _from_real(op: OpDef[Tensor], rank: int, x: NumericLike, fft_length: Any, name: str | None) -> Tensor:
    signal = convert_to_tensor(x)
    lengths = last_sizes(signal, rank) if fft_length is None else _lengths(fft_length, rank)
    wide = complex128 if signal.dtype == float64 else complex64
    return op(_with_zeros(signal, lengths), lengths, Tcomplex=wide, name=name)


def _to_real(op: OpDef[Tensor], rank: int, x: NumericLike, fft_length: Any, name: str | None) -> Tensor:
    spectrum = convert_to_tensor(x)
    *outer, last = last_sizes(spectrum, rank)
    lengths = [*outer, 2 * (last - 1)] if fft_length is None else _lengths(fft_length, rank)
    complete = _with_zeros(spectrum, [*lengths[:-1], lengths[-1] // 2 + 1])
    narrow = float64 if spectrum.dtype == complex128 else float32
    return op(complete, lengths, Treal=narrow, name=name)


def _lengths(fft_length: Any, rank: int) -> list[Any]:
    given = convert_to_tensor(fft_length, int32)
    return [as_size(given[i]) for i in (0, 1, 2)[:rank]]


def _with_zeros(x: Tensor, lengths: Sequence[Any]) -> Tensor:
    """``x`` with zeros behind its last dimensions, up to ``lengths`` where those are longer."""
    sizes = last_sizes(x, len(lengths))
    missing = [at_least_zero(wanted - size) for size, wanted in zip(sizes, lengths, strict=True)]
    return pad(x, [*[[0, 0]] * (len(x.shape) - len(lengths)), *([0, count] for count in missing)])


# --- cosine transforms


def dct(
    input: NumericLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The discrete cosine transform of ``type`` 1, 2, 3 or 4 over the last dimension, [..., samples].

    ``n`` is the number of samples: what is longer is cut off, what is shorter has zeros behind it.
    ``norm="ortho"`` makes the transform orthonormal. Raises `InvalidArgumentError` for another type, ``axis``
    or ``norm``, and for an orthonormal transform of type 1.

    Example:
        >>> tf.signal.dct([1.0, 1.0]).eval()
        array([4., 0.], dtype=float32)
    """
    if type not in _COSINE_TRANSFORMS or axis != -1 or norm not in (None, "ortho") or (type == 1 and norm):
        raise misuse(
            "dct: expected type 1, 2, 3 or 4, axis -1, and norm None or, if the type is not 1, 'ortho'; "
            f"got type={type!r}, axis={axis!r}, norm={norm!r}",
            InvalidArgumentError,
        )
    with name_scope(name, "dct", [input]):
        x = convert_to_tensor(input)
        if n is not None:
            x = _with_zeros(x, [n])[..., :n]
        return _COSINE_TRANSFORMS[type](x, norm == "ortho")


def idct(
    input: NumericLike,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The inverse of `dct`; without ``norm`` it is not scaled: 2 * samples times the inverse (type 1: 2 *
    (samples - 1) times).
    """
    return dct(input, {2: 3, 3: 2}.get(type, type), n, axis, norm, name or "idct")


def _dct1(x: Tensor, is_orthonormal: bool) -> Tensor:
    return real(rfft(concat([x, reverse(x[..., 1:-1], [-1])], -1)))


def _dct2(x: Tensor, is_orthonormal: bool) -> Tensor:
    (count,) = last_sizes(x, 1)
    found = 2 * real(rfft(x, [2 * count])[..., :count] * _turned(x, -0.5, count))
    return found * _orthonormal(x, count, 0.5) if is_orthonormal else found


def _dct3(x: Tensor, is_orthonormal: bool) -> Tensor:
    (count,) = last_sizes(x, 1)
    weighted = x * _orthonormal(x, count, 1.0) if is_orthonormal else x
    scaled = complex(weighted, zeros_like(weighted)) * _turned(x, 0.5, count)
    return 2 * cast(count, x.dtype) * irfft(scaled, [2 * count])[..., :count]


def _dct4(x: Tensor, is_orthonormal: bool) -> Tensor:
    (count,) = last_sizes(x, 1)
    odd = _dct2(_with_zeros(x, [2 * count]), False)[..., 1::2]
    return odd * rsqrt(2 * cast(count, x.dtype)) if is_orthonormal else odd


_COSINE_TRANSFORMS: dict[int, Callable[[Tensor, bool], Tensor]] = {1: _dct1, 2: _dct2, 3: _dct3, 4: _dct4}


def _turned(x: Tensor, half_turns: float, count: Any) -> Tensor:
    """exp(i pi half_turns k / count) for k = 0 ... count - 1."""
    angles = math.pi * half_turns * cast(range(count), x.dtype) / cast(count, x.dtype)
    return complex(cos(angles), sin(angles))


def _orthonormal(x: Tensor, count: Any, first: float) -> Tensor:
    """The factors of the coefficients in an orthonormal transform, ``first`` / sqrt(count) at the front."""
    at_front = cast(equal(range(count), 0), x.dtype)
    return (math.sqrt(0.5) + (first - math.sqrt(0.5)) * at_front) * rsqrt(cast(count, x.dtype))


# --- shifts


def fftshift(x: NumericLike, axes: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """``x`` with the zero frequency of ``axes``, by default of all, moved from the front to the middle."""
    return _shifted(x, axes, lambda size: size // 2, name or "fftshift")


def ifftshift(x: NumericLike, axes: int | Sequence[int] | None = None, name: str | None = None) -> Tensor:
    """The inverse of `fftshift`; the two differ for odd sizes."""
    return _shifted(x, axes, lambda size: -(size // 2), name or "ifftshift")


def _shifted(
    x: NumericLike, axes: int | Sequence[int] | None, by: Callable[[Tensor], Tensor], name: str
) -> Tensor:
    with name_scope(name):
        tensor = convert_to_tensor(x)
        chosen = range(rank(tensor)) if axes is None else convert_to_tensor(axes, int32)
        return roll(tensor, by(gather(shape(tensor), chosen % rank(tensor))), chosen)
