"""Discrete Fourier transforms over the last one, two or three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType, complex128, float64
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import LINEAR, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.padding import pad_op
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.identities import cast, unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.elementwise.comparison import equal
from flowrt.graph.ops.elementwise.division import divide
from flowrt.graph.ops.elementwise.math import reciprocal
from flowrt.graph.shapes import Shape, format_shape, is_static


def _check_rank(found: Shape, rank: int) -> None:
    if found is not None and len(found) < rank:
        raise InvalidArgumentError(f"input: expected rank {rank} at least; got shape {format_shape(found)}")


def _size_of(x: Tensor, rank: int) -> Tensor:
    """The number of elements of the last ``rank`` dimensions, in the dtype of ``x``."""
    known = x.spec.shape
    if known is not None and None not in known[-rank:]:
        return cast(np.float64(math.prod(n or 0 for n in known[-rank:])), x.dtype)
    return cast(reduce_prod(shape(x)[-rank:]), x.dtype)


def _define_complex(rank: int) -> tuple[OpDef[Tensor], OpDef[Tensor]]:
    name = "FFT" if rank == 1 else f"FFT{rank}D"
    axes = (-3, -2, -1)[-rank:]

    def shapes(s: ShapeContext) -> Sequence[Shape]:
        _check_rank(s.shapes[0], rank)
        return unchanged(s)

    def samples(rng: np.random.Generator) -> Any:
        x = rng.standard_normal((2, 2, 3, 4, 5)[-rank - 1 :])
        return (sample(x + 1j * x[::-1]), sample((x + 2j * x).astype(np.complex64)))

    def transformed(function: str) -> Any:
        def kernel(xp: Any, input: Any, out: Any = None) -> Any:
            return delivered(xp, getattr(xp.fft, function)(input, axes=axes), input.dtype, out)

        return kernel

    forward: OpDef[Tensor] = define_op(
        name,
        "input: Tcomplex in complex64 | complex128 -> output: Tcomplex",
        shape=shapes,
        kernel=transformed("fftn"),
        vjp=lambda op, dy: [multiply(inverse(dy), _size_of(dy, rank))],
        jvp=LINEAR,
        samples=samples,
        doc=f"The discrete Fourier transform over the last {rank} dimensions.",
    )
    inverse: OpDef[Tensor] = define_op(
        f"I{name}",
        "input: Tcomplex in complex64 | complex128 -> output: Tcomplex",
        shape=shapes,
        kernel=transformed("ifftn"),
        vjp=lambda op, dy: [multiply(forward(dy), reciprocal(_size_of(dy, rank)))],
        jvp=LINEAR,
        samples=samples,
        doc=f"The inverse of {name}.",
    )
    return forward, inverse


def _occurrences(length: Tensor, dtype: DType) -> Tensor:
    """The number of times that each of the ``length // 2 + 1`` coefficients of a real signal is in its whole
    transform: twice, once conjugated, but for the first, and the middle one of an even length.
    """
    at = range(length // 2 + 1)
    return 2 - cast(equal(2 * at % length, 0), dtype)


def _with_cut_off(dy: Tensor, x: Tensor, rank: int) -> Tensor:
    """``dy`` in the shape of ``x``, of which the transform has cut off the ends of ``rank`` dimensions."""
    if is_static(x.spec.shape) and dy.spec.shape == x.spec.shape:
        return dy
    cut = (shape(x) - shape(dy))[-rank:]
    before = zeros_like(shape(x))
    return pad_op(dy, stack([before, concat([before[:-rank], cut], 0)], 1))


def _define_real(rank: int) -> tuple[OpDef[Tensor], OpDef[Tensor]]:
    name = "RFFT" if rank == 1 else f"RFFT{rank}D"
    axes = (-3, -2, -1)[-rank:]

    def sizes(s: ShapeContext, last: Any) -> Sequence[Shape]:
        known, lengths = s.shapes[0], s.value(1)
        _check_rank(known, rank)
        if lengths is not None and len(lengths) != rank:
            raise InvalidArgumentError(f"fft_length: expected {rank} lengths; got {list(lengths)}")
        if known is None:
            return [None]
        ends = (None,) * rank if lengths is None else tuple(lengths)
        return [(*known[:-rank], *ends[:-1], None if ends[-1] is None else last(ends[-1]))]

    def check_lengths(found: tuple[int, ...], needed: list[int]) -> None:
        if any(size < least for size, least in zip(found[-rank:], needed, strict=True)):
            raise InvalidArgumentError(f"expected at least {needed} elements at the end; got {list(found)}")

    def to_complex(xp: Any, input: Any, fft_length: Any, Tcomplex: DType, out: Any = None) -> Any:
        check_lengths(input.shape, list(fft_length))
        return delivered(xp, xp.fft.rfftn(input, tuple(fft_length), axes=axes), Tcomplex.np, out)

    def to_real(xp: Any, input: Any, fft_length: Any, Treal: DType, out: Any = None) -> Any:
        check_lengths(input.shape, [*fft_length[:-1], fft_length[-1] // 2 + 1])
        return delivered(xp, xp.fft.irfftn(input, tuple(fft_length), axes=axes), Treal.np, out)

    def forward_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
        x, lengths = op.inputs
        once = divide(dy, cast(_occurrences(lengths[-1], x.dtype), dy.dtype))
        found = inverse(once, lengths, Treal=x.dtype)
        return [_with_cut_off(multiply(found, cast(reduce_prod(lengths), x.dtype)), x, rank), None]

    def inverse_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
        x, lengths = op.inputs
        share = divide(_occurrences(lengths[-1], dy.dtype), cast(reduce_prod(lengths), dy.dtype))
        found = multiply(forward(dy, lengths, Tcomplex=x.dtype), cast(share, x.dtype))
        return [_with_cut_off(found, x, rank), None]

    def lengths_of(last: int) -> Any:
        return np.array([3, 3, last][-rank:], np.int32)

    forward: OpDef[Tensor] = define_op(
        name,
        "input: Treal in float32 | float64, fft_length: host int32 "
        "-> output: Tcomplex in complex64 | complex128",
        attrs="Tcomplex: type = complex64",
        shape=lambda s: sizes(s, lambda n: n // 2 + 1 if n else 0),
        kernel=to_complex,
        vjp=forward_vjp,
        jvp=LINEAR,
        samples=lambda rng: [
            sample(
                rng.standard_normal((2, 3, 4, 5)[-rank - 1 :]),
                lengths_of(last),
                Tcomplex=complex128,
                differentiable=False,  # by real differences
            )
            for last in (5, 4)
        ],
        doc=f"The Fourier transform of real numbers over the last {rank} dimensions, without what repeats.",
    )
    inverse: OpDef[Tensor] = define_op(
        f"I{name}",
        "input: Tcomplex in complex64 | complex128, fft_length: host int32 "
        "-> output: Treal in float32 | float64",
        attrs="Treal: type = float32",
        shape=lambda s: sizes(s, lambda n: n),
        kernel=to_real,
        vjp=inverse_vjp,
        jvp=LINEAR,
        samples=lambda rng: [
            sample(
                rng.standard_normal((2, 3, 4, 4)[-rank - 1 :]) + 1j * rng.standard_normal(4),
                lengths_of(last),
                Treal=float64,
            )
            for last in (5, 4)
        ],
        doc=f"The inverse of {name}.",
    )
    return forward, inverse


fft, ifft = _define_complex(1)
fft2d, ifft2d = _define_complex(2)
fft3d, ifft3d = _define_complex(3)
rfft_op, irfft_op = _define_real(1)
rfft2d_op, irfft2d_op = _define_real(2)
rfft3d_op, irfft3d_op = _define_real(3)
