"""Running totals along an axis: cumsum, cumprod, cumulative_logsumexp."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.graph.graph import Operation, Tensor
from flowrt.graph.op_def import (
    BY_VJP,
    LINEAR,
    OpDef,
    Sample,
    ShapeContext,
    attr_bool,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.ops.arithmetic import add_v2, conjugated, multiply, subtract
from flowrt.graph.ops.comparison import greater, where_v2, zero_of
from flowrt.graph.ops.division import realdiv
from flowrt.graph.shapes import Shape, normalize_axis

Scan = Callable[[Any, Any, int, Any], None]
"""``scan(xp, x, axis, out)`` writes the running totals of ``x`` into ``out``."""


def _scan_shape(s: ShapeContext) -> Sequence[Shape]:
    axis = s.value(1)
    if s.shapes[0] is not None and isinstance(axis, int):
        normalize_axis(axis, len(s.shapes[0]))
    return [s.shapes[0]]


def _scan_kernel(scan: Scan, start: float) -> Any:
    """The kernel of a scan: ``exclusive`` moves the totals on by one and begins with ``start``."""

    def kernel(xp: Any, x: Any, axis: Any, exclusive: bool, reverse: bool, out: Any = None) -> Any:
        axis = normalize_axis(axis, x.ndim)
        out = xp.empty(x.shape, x.dtype) if out is None else out
        if not x.size:
            return out
        source, target = (xp.flip(x, axis), xp.flip(out, axis)) if reverse else (x, out)
        if exclusive:
            before = (slice(None),) * axis
            target[(*before, slice(0, 1))] = start
            source, target = source[(*before, slice(0, -1))], target[(*before, slice(1, None))]
        if source.size:
            scan(xp, source, axis, target)
        return out

    return kernel


def _cumsum(xp: Any, x: Any, axis: int, out: Any) -> None:
    out[...] = xp.cumsum(x, axis, dtype=_accumulator(x))


def _cumprod(xp: Any, x: Any, axis: int, out: Any) -> None:
    out[...] = xp.cumprod(x, axis, dtype=_accumulator(x))


def _cumulative_logsumexp(xp: Any, x: Any, axis: int, out: Any) -> None:
    """Hillis and Steele's scan (1986): log2(n) steps, each on the whole array."""
    total = x.astype(_accumulator(x))
    before, count, step = (slice(None),) * axis, x.shape[axis], 1
    while step < count:
        later, earlier = (*before, slice(step, None)), (*before, slice(0, -step))
        total[later] = xp.logaddexp(total[later], total[earlier])
        step *= 2
    out[...] = total


def _accumulator(x: Any) -> Any:
    """float32 for 16-bit floats, whose totals would soon stand still, otherwise the input's own dtype."""
    return np.float32 if x.dtype.itemsize == 2 and x.dtype.kind not in "iu" else x.dtype


def _options(op: Operation) -> tuple[bool, bool]:
    return op.get_attr("exclusive"), op.get_attr("reverse")


def _cumsum_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    exclusive, reverse = _options(op)
    return [cumsum(dy, op.inputs[1], exclusive, not reverse), None]


def _cumprod_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    exclusive, reverse = _options(op)
    total = cumsum(multiply(conjugated(op.outputs[0]), dy), op.inputs[1], exclusive, not reverse)
    return [realdiv(total, conjugated(op.inputs[0])), None]


def _signed_scan(op: Operation, signed: Tensor, weight: Tensor, factor: Tensor, reverse: bool) -> Tensor:
    """exp(factor) * the running totals of ``signed * exp(weight)``, through logarithms, by sign."""
    parts = []
    for part in (signed, op_def("Neg")(signed)):
        one, lowest = np.ones((), part.dtype.np), np.array(part.dtype.min, part.dtype.np)
        positive = greater(part, zero_of(part.dtype))
        logarithm = where_v2(positive, op_def("Log")(where_v2(positive, part, one)), lowest)
        total = cumulative_logsumexp(
            add_v2(logarithm, weight), op.inputs[1], op.get_attr("exclusive"), reverse
        )
        parts.append(op_def("Exp")(add_v2(total, factor)))
    result: Tensor = subtract(*parts)
    return result


def _cumulative_logsumexp_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, y = op.inputs[0], op.outputs[0]
    return [_signed_scan(op, dy, op_def("Neg")(y), x, not op.get_attr("reverse")), None]


def _cumulative_logsumexp_jvp(op: Operation, dx: Tensor, _: Any) -> list[Tensor]:
    x, y = op.inputs[0], op.outputs[0]
    finite = where_v2(
        op_def("IsFinite")(y), y, zero_of(y.dtype)
    )  # -inf where the sum is empty, and does not change
    return [_signed_scan(op, dx, x, op_def("Neg")(finite), op.get_attr("reverse"))]


def _scan_samples(low: float, dtype: Any) -> Callable[[np.random.Generator], Iterable[Sample]]:
    """Samples for a scan; without a ``dtype`` those with infinite totals are not differentiated."""
    finite = dtype is not None

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        yield sample(rng.uniform(low, 2, 4), np.array(0, np.int32))
        yield sample(
            rng.uniform(low, 2, (2, 3)), np.array(-1, np.int64), exclusive=True, differentiable=finite
        )
        yield sample(rng.uniform(low, 2, (3, 2)), np.array(0, np.int32), reverse=True)
        yield sample(
            rng.uniform(low, 2, (2, 3)),
            np.array(1, np.int32),
            exclusive=True,
            reverse=True,
            differentiable=finite,
        )
        yield sample(np.zeros((2, 0), np.float32), np.array(1, np.int32))
        yield sample(rng.uniform(low, 2, 5).astype(dtypes.bfloat16.np), np.array(0, np.int32))
        if dtype is not None:
            yield sample(np.array([[1, 2], [3, 4]], dtype), np.array(1, np.int32))

    return samples


def _scan_op(name: str, kernel: Any, types: Iterable[DType], **rules: Any) -> OpDef:
    return define_op(
        name,
        "x: T, axis: host Tidx -> T",
        types={"T": types, "Tidx": dtypes.INDEX},
        attrs={"exclusive": attr_bool(False), "reverse": attr_bool(False)},
        shape=_scan_shape,
        kernel=kernel,
        **rules,
    )


cumsum_op = _scan_op(
    "Cumsum",
    _scan_kernel(_cumsum, 0),
    dtypes.NUMERIC,
    vjp=_cumsum_vjp,
    jvp=LINEAR,
    samples=_scan_samples(-2, np.int8),
    doc="Sums of the elements up to each.",
)

cumprod_op = _scan_op(
    "Cumprod",
    _scan_kernel(_cumprod, 1),
    dtypes.NUMERIC,
    vjp=_cumprod_vjp,
    jvp=BY_VJP,
    samples=_scan_samples(0.5, np.complex64),
    doc="Products of the elements up to each.",
)

cumulative_logsumexp_op = _scan_op(
    "CumulativeLogsumexp",
    _scan_kernel(_cumulative_logsumexp, -np.inf),
    dtypes.FLOATING,
    vjp=_cumulative_logsumexp_vjp,
    jvp=_cumulative_logsumexp_jvp,
    samples=_scan_samples(-2, None),
    doc="log(sum(exp(x))) of the elements up to each.",
)


def cumsum(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Sums along ``axis`` of the elements to each, without it if ``exclusive``, backwards if ``reverse``."""
    total: Tensor = cumsum_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)
    return total


def cumprod(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """Products along ``axis`` of the elements up to each, otherwise as `cumsum`."""
    total: Tensor = cumprod_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)
    return total


def cumulative_logsumexp(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Tensor:
    """log(sum(exp(x))) along ``axis`` of the elements up to each; the empty sum's is -inf."""
    total: Tensor = cumulative_logsumexp_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)
    return total
