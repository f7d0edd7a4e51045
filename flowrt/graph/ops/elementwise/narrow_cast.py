"""Conversion to and from dtypes of a byte and less: CastNarrow. It runs on the host.

Those dtypes store numbers; to compute with them, convert them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import delivered

_FLOAT8 = frozenset(
    (dtypes.float8_e5m2, dtypes.float8_e4m3fn, dtypes.float8_e4m3fnuz, dtypes.float8_e4m3b11fnuz,
     dtypes.float8_e5m2fnuz)
)  # fmt: skip

_EXPONENT, _FRACTION = 0xFF, (1 << 23) - 1
"""The bits of a float32, the exponent moved to the end."""


def _to_power(x: Any, saturate: bool, round_mode: str) -> Any:
    """The bytes of float8_e8m0fnu: the exponent of a float32, up or down to a power of two."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    exponent, fraction = (bits >> 23) & _EXPONENT, bits & _FRACTION
    half = (_FRACTION + 1) // 2
    match round_mode:
        case "up":
            goes_up = fraction > 0
        case "nearest":
            goes_up = np.where(exponent > 0, fraction >= half, fraction > half)
        case "down":
            goes_up = np.zeros(bits.shape, bool)
        case _:
            raise InvalidArgumentError(f"round_mode: expected up, down or nearest; got {round_mode!r}")
    last = _EXPONENT - 1 if saturate else _EXPONENT
    rounded = np.minimum(exponent + goes_up, last)
    found = np.where(exponent == _EXPONENT, _EXPONENT, rounded)  # infinities and NaN are NaN
    return found.astype(np.uint8).reshape(np.shape(x)).view(ml_dtypes.float8_e8m0fnu)


def _narrowed(x: Any, DstT: DType, saturate: bool, round_mode: str) -> Any:
    with np.errstate(all="ignore"):
        if DstT is dtypes.float8_e8m0fnu:
            return _to_power(x, saturate, round_mode)
        if DstT in _FLOAT8 and saturate:
            limits: Any = ml_dtypes.finfo(DstT.np)  # type: ignore[no-untyped-call]
            wide = x.astype(np.float32) if x.dtype.kind != "f" or x.dtype.itemsize < 4 else x
            return np.clip(wide, np.float32(limits.min), np.float32(limits.max)).astype(DstT.np)
        if x.dtype.itemsize == 1 and x.dtype.kind in "fV":
            return x.astype(np.float32).astype(DstT.np)  # exact: all have fewer digits
        return x.astype(DstT.np)


def _cast_narrow(xp: Any, x: Any, DstT: DType, saturate: bool, round_mode: str, out: Any = None) -> Any:
    return delivered(np, _narrowed(x, DstT, saturate, round_mode), DstT.np, out)


def _samples(rng: np.random.Generator) -> Iterator[Sample]:
    x = np.array([0, -1.5, 3, 448, 1e9, -1e9, np.inf, np.nan], np.float32)
    for dtype in sorted(_FLOAT8, key=lambda each: each.number):
        yield sample(x, DstT=dtype)
        yield sample(x.reshape(2, 4), DstT=dtype, saturate=False)
        yield sample(x[:3].astype(dtype.np), DstT=dtypes.float32)
    for mode in ("up", "down", "nearest"):
        yield sample(np.abs(x), DstT=dtypes.float8_e8m0fnu, round_mode=mode)
    yield sample(x[:3], DstT=dtypes.float4_e2m1fn)
    for dtype in (dtypes.int4, dtypes.uint4, dtypes.int2, dtypes.uint2):
        yield sample(np.array([0, 1], np.int32), DstT=dtype)
        yield sample(np.array([[0], [1]]).astype(dtype.np), DstT=dtypes.float16)


cast_narrow: OpDef[Tensor] = define_op(
    "CastNarrow",
    "x: SrcT in REAL | bool | NARROW -> y: DstT in REAL | bool | NARROW",
    attrs="DstT: type, saturate: bool = True, round_mode: string = 'up'",
    shape=unchanged,
    kernel=_cast_narrow,
    vjp=NONDIFFERENTIABLE,
    samples=_samples,
    traits=Traits(elementwise=True),
    doc="""The input's elements as another dtype, one of which is narrow, rounded to the nearest. Float8 with
    ``saturate`` gets its largest number for what is larger, otherwise an infinity or NaN; float8_e8m0fnu is
    rounded as ``round_mode`` says: up, down, nearest.
    """,
)
