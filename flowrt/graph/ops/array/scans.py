"""Running totals along an axis: cumsum, cumprod, cumulative_logsumexp."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.graph.construction.batching_rules import on_axes
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.op_def import LINEAR, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Kernel
from flowrt.graph.ops.base.axes import factors, input_rank, whole_along
from flowrt.graph.ops.base.kernel_output import accumulator
from flowrt.graph.ops.elementwise.arithmetic import add_n, add_v2, conjugated, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import greater, where_v2, zero_of
from flowrt.graph.ops.elementwise.math import exp, is_finite, log, negative
from flowrt.graph.shapes import Shape, merge, normalize_axis
from flowrt.graph.typing import NumericLike, TensorLike

Scan = Callable[[Any, Any, int, Any], None]
"""``scan(xp, x, axis, out)`` writes the running totals of ``x`` into ``out``."""


def _scan_shape(s: ShapeContext) -> Sequence[Shape]:
    s.check_scalars(1)
    axis = s.value(1)
    if s.shapes[0] is not None and axis is not None:
        normalize_axis(axis, len(s.shapes[0]))
    return [s.shapes[0]]


def _scan_kernel(scan: Scan, start: float) -> Kernel:
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
    out[...] = xp.cumsum(x, axis, dtype=accumulator(x))


def _cumprod(xp: Any, x: Any, axis: int, out: Any) -> None:
    out[...] = xp.cumprod(x, axis, dtype=accumulator(x))


def _cumulative_logsumexp(xp: Any, x: Any, axis: int, out: Any) -> None:
    """Hillis and Steele's scan (1986): log2(n) steps, each on the whole array."""
    total = x.astype(accumulator(x))
    before, count, step = (slice(None),) * axis, x.shape[axis], 1
    while step < count:
        later, earlier = (*before, slice(step, None)), (*before, slice(0, -step))
        total[later] = xp.logaddexp(total[later], total[earlier])
        step *= 2
    out[...] = total


def _options(op: Operation) -> tuple[bool, bool]:
    return op.get_attr("exclusive"), op.get_attr("reverse")


def _cumsum_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    exclusive, reverse = _options(op)
    return [cumsum(dy, op.inputs[1], exclusive, not reverse), None]


def _cumprod_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    """Gradient without division, so that zeros need no special case: the product of the preceding elements,
    times the sum of following products weighted by their gradients, which is a recurrence from the other end.
    """
    (x, axis), (exclusive, reverse) = op.inputs, _options(op)
    x = conjugated(x)
    if exclusive:
        before, behind = conjugated(op.outputs[0]), recurrence(x, dy, axis, reverse=not reverse)
    else:
        before = cumprod(x, axis, exclusive=True, reverse=reverse)
        behind = add_v2(dy, recurrence(x, multiply(x, dy), axis, reverse=not reverse))
    return [multiply(before, behind), None]


def _recurrence_shape(s: ShapeContext) -> Sequence[Shape]:
    axis = s.value(2)
    both = merge(s.shapes[0], s.shapes[1])
    if both is not None and isinstance(axis, int):
        normalize_axis(axis, len(both))
    return [both]


def _recurrence(xp: Any, a: Any, b: Any, axis: Any, reverse: bool, out: Any = None) -> Any:
    """Step by step for short axes. A long axis is split into about sqrt(n) blocks that advance together,
    followed by a pass that carries the states from block to block: 2 sqrt(n) steps in Python, not n.
    """
    axis = normalize_axis(axis, a.ndim)
    out = xp.empty(a.shape, a.dtype) if out is None else out
    if not a.size:
        return out
    factors, terms, before = (xp.moveaxis(array, axis, 0) for array in (a, b, out))
    if reverse:
        factors, terms, before = factors[::-1], terms[::-1], before[::-1]
    wide = accumulator(a)
    factors, terms = factors.astype(wide), terms.astype(wide)
    length = factors.shape[0]
    if length <= LONG_AXIS:
        before[...] = _states_before(xp, factors, terms)
    else:
        before[...] = _states_before_by_blocks(xp, factors, terms, math.isqrt(length))
    return out


LONG_AXIS = 256
"""Minimum length for a vector's recurrence by blocks: at this length both take 0.1 ms on a CPU."""


def _states_before(xp: Any, factors: Any, terms: Any) -> Any:
    """s[t - 1] for each t, along the first axis: s[t] = factors[t] s[t - 1] + terms[t], from 0."""
    before = xp.zeros_like(terms)
    for t in range(1, len(terms)):
        before[t] = factors[t - 1] * before[t - 1] + terms[t - 1]
    return before


def _states_before_by_blocks(xp: Any, factors: Any, terms: Any, block: int) -> Any:
    count = -(-len(terms) // block)
    factors_of, terms_of = (_in_blocks(xp, array, count, block) for array in (factors, terms))
    within = _states_before(xp, factors_of, terms_of)  # [block, count, ...]: as if each began at 0
    weights = xp.cumprod(xp.concatenate([xp.ones_like(factors_of[:1]), factors_of]), 0, dtype=terms.dtype)
    if not xp.isfinite(weights).all():  # products of elements that never meet in one result may overflow
        return _states_before(xp, factors, terms)
    ends = factors_of[-1] * within[-1] + terms_of[-1]
    begins = _states_before(xp, weights[-1], ends)
    joined = xp.moveaxis(within + weights[:-1] * begins, 0, 1)
    return joined.reshape(count * block, *terms.shape[1:])[: len(terms)]


def _in_blocks(xp: Any, array: Any, count: int, block: int) -> Any:
    """[n, ...] as [block, count, ...], with zeros at the end."""
    rest = array.shape[1:]
    padded = xp.concatenate([array, xp.zeros((count * block - len(array), *rest), array.dtype)])
    return xp.moveaxis(padded.reshape(count, block, *rest), 1, 0)


def _recurrence_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    a, _, axis = op.inputs
    to_state = recurrence(conjugated(a), dy, axis, reverse=not op.get_attr("reverse"))
    return [multiply(to_state, conjugated(op.outputs[0])), to_state, None]


def _recurrence_jvp(op: Operation, da: Tensor | None, db: Tensor | None, _: Any) -> list[Tensor]:
    a, _, axis = op.inputs
    terms = [multiply(da, op.outputs[0])] if da is not None else []
    terms += [db] if db is not None else []
    return [recurrence(a, add_n(terms), axis, reverse=op.get_attr("reverse"))]


def _signed_scan(op: Operation, signed: Tensor, weight: Tensor, factor: Tensor, reverse: bool) -> Tensor:
    """exp(factor) * the running totals of ``signed * exp(weight)``, through logarithms, by sign."""
    parts = []
    for part in (signed, negative(signed)):
        one, lowest = np.ones((), part.dtype.np), np.array(part.dtype.min, part.dtype.np)
        positive = greater(part, zero_of(part.dtype))
        logarithm = where_v2(positive, log(where_v2(positive, part, one)), lowest)
        total = cumulative_logsumexp(
            add_v2(logarithm, weight), op.inputs[1], op.get_attr("exclusive"), reverse
        )
        parts.append(exp(add_v2(total, factor)))
    return subtract(*parts)


def _cumulative_logsumexp_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    x, y = op.inputs[0], op.outputs[0]
    return [_signed_scan(op, dy, negative(y), x, not op.get_attr("reverse")), None]


def _cumulative_logsumexp_jvp(op: Operation, dx: Tensor, _: Any) -> list[Tensor]:
    x, y = op.inputs[0], op.outputs[0]
    finite = where_v2(is_finite(y), y, zero_of(y.dtype))  # -inf where the sum is empty, and does not change
    return [_signed_scan(op, dx, x, negative(finite), op.get_attr("reverse"))]


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


def _scan_op(name: str, kernel: Kernel, types: str, **rules: Any) -> OpDef[Tensor]:
    return define_op(
        name,
        f"x: T in {types}, axis: host Tidx in INDEX -> out: T",
        attrs="exclusive: bool = False, reverse: bool = False",
        shape=_scan_shape,
        kernel=kernel,
        batch=on_axes(),
        axes=whole_along(lambda s: s.value(1)),
        **rules,
    )


cumsum_op = _scan_op(
    "Cumsum",
    _scan_kernel(_cumsum, 0),
    "NUMERIC",
    vjp=_cumsum_vjp,
    jvp=LINEAR,
    samples=_scan_samples(-2, np.int8),
    doc="Sums of the elements up to each.",
)

cumprod_op = _scan_op(
    "Cumprod",
    _scan_kernel(_cumprod, 1),
    "NUMERIC",
    vjp=_cumprod_vjp,
    samples=_scan_samples(0.5, np.complex64),
    doc="Products of the elements up to each.",
)

cumulative_logsumexp_op = _scan_op(
    "CumulativeLogsumexp",
    _scan_kernel(_cumulative_logsumexp, -np.inf),
    "FLOATING",
    vjp=_cumulative_logsumexp_vjp,
    jvp=_cumulative_logsumexp_jvp,
    samples=_scan_samples(-2, None),
    doc="log(sum(exp(x))) of the elements up to each.",
)


def _recurrence_samples(rng: np.random.Generator) -> Iterable[Sample]:
    def both(*shape: int) -> tuple[Any, Any]:
        return rng.uniform(-2, 2, shape), rng.uniform(-2, 2, shape)

    yield sample(*both(4), np.array(0, np.int32))
    yield sample(*both(2, 3), np.array(-1, np.int64), reverse=True)
    yield sample(np.array([2.0, 0.0, 3.0]), rng.uniform(-2, 2, 3), np.array(0, np.int32))
    yield sample(*both(2, 0), np.array(1, np.int32))
    yield sample(*(array.astype(np.float32) for array in both(2 * LONG_AXIS)), np.array(0, np.int32))
    yield sample(*(array.astype(dtypes.bfloat16.np) for array in both(5)), np.array(0, np.int32))


def _recurrence_axes(s: ShapeContext) -> str | None:
    rank, axis = input_rank(s), s.value(2)
    if rank is None or axis is None:
        return None
    dims = factors(rank, {axis % rank})
    return f"{dims}, {dims} -> {dims}"


recurrence_op = define_op(
    "LinearRecurrence",
    "a: T in NUMERIC, b: T, axis: host Tidx in INDEX -> T",
    attrs="reverse: bool = False",
    shape=_recurrence_shape,
    kernel=_recurrence,
    vjp=_recurrence_vjp,
    jvp=_recurrence_jvp,
    samples=_recurrence_samples,
    batch=on_axes(),
    axes=_recurrence_axes,
    doc="The state before each step of s[t] = a[t] s[t - 1] + b[t], from 0.",
)


def recurrence(a: Any, b: Any, axis: Any = 0, reverse: bool = False, name: str | None = None) -> Tensor:
    """The state *before* each step of s[t] = a[t] s[t - 1] + b[t] along ``axis``, from s[-1] = 0.

    Args:
        a, b: Tensors of one shape and dtype.
        axis: A scalar.
        reverse: From the last element to the first.

    Returns:
        A tensor of that shape: 0, b[0], a[1] b[0] + b[1], ... Its derivatives are recurrences again.
    """
    return recurrence_op(a, b, axis, reverse=reverse, name=name)


def cumsum(
    x: TensorLike,
    axis: NumericLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Sums along ``axis`` of the elements to each, without it if ``exclusive``, backwards if ``reverse``.

    Example:
        >>> tf.cumsum([1, 2, 3]).eval(), tf.cumsum([1, 2, 3], exclusive=True).eval()
        (array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32))
    """
    return cumsum_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)


def cumprod(
    x: TensorLike,
    axis: NumericLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """Products along ``axis`` of the elements up to each, otherwise as `cumsum`."""
    return cumprod_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)


def cumulative_logsumexp(
    x: TensorLike,
    axis: NumericLike = 0,
    exclusive: bool = False,
    reverse: bool = False,
    name: str | None = None,
) -> Tensor:
    """log(sum(exp(x))) along ``axis`` of the elements up to each; the empty sum's is -inf."""
    return cumulative_logsumexp_op(x, axis, exclusive=exclusive, reverse=reverse, name=name)
