"""Random choices and orders, and draws from distributions with parameters.

The rules of `flowrt.graph.ops.random.random_ops` hold here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, batched, draw, merged, rank_of
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.construction.operation import Operation
from flowrt.graph.op_def import ShapeContext, sample
from flowrt.graph.ops.array.slicing import slice
from flowrt.graph.ops.base.filling import ones_like, unbroadcast
from flowrt.graph.ops.base.identities import cast, result_shape, unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.base.shape_manipulation import shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add_v2, maximum, multiply, subtract
from flowrt.graph.ops.elementwise.division import floormod, realdiv
from flowrt.graph.ops.elementwise.incomplete import random_gamma_grad
from flowrt.graph.ops.random.random_ops import (
    define_draw,
    deliver,
    drawing_dtype,
    fills_directly,
    random_uniform,
    seed_attrs,
)
from flowrt.graph.resources.random_stream import RandomStream
from flowrt.graph.shapes import Shape, concat, format_shape
from flowrt.graph.typing import NumericLike, ShapeTensorLike

__all__ = ["multinomial", "random_crop", "random_gamma", "random_poisson", "random_shuffle"]


def _repeated_shape(s: ShapeContext) -> Sequence[Shape]:
    """Shape rule of ops that draw ``shape`` values for each element of input 1."""
    return [concat([result_shape(s), s.shapes[1]])]


# --- choosing and ordering


def _shuffle(xp: Any, value: Any, state: RandomStream, out: Any = None) -> Any:
    if not value.ndim:
        return delivered(xp, xp.array(value), value.dtype, out)
    order = xp.asarray(state.next().permutation(value.shape[0]))
    if xp is np and out is not None:
        return np.take(value, order, 0, out, mode="clip")  # in range; "raise" would copy the output
    return delivered(xp, xp.take(value, order, axis=0), value.dtype, out)


random_shuffle_op = define_draw(
    "RandomShuffle",
    "value: T in ANY -> T",
    shape=unchanged,
    kernel=_shuffle,
    samples=lambda rng: (
        sample(np.arange(12.0).reshape(4, 3), seed=1),
        sample(np.array(3, np.int32)),
        sample(np.zeros((0, 2), np.float32)),
    ),
    doc="The rows of the input in random order.",
)


def random_shuffle(value: NumericLike, seed: int | None = None, name: str | None = None) -> Tensor:
    """``value`` with its entries along the first dimension in random order."""
    return random_shuffle_op(value, name=name, **seed_attrs(seed))


def _multinomial(
    xp: Any, logits: Any, num_samples: int, output_dtype: DType, state: RandomStream, out: Any = None
) -> Any:
    """Inverts the cumulative distribution: one sorted array holds all rows', row i's shifted by i."""
    rows, classes = logits.shape
    if num_samples < 0 or (classes == 0 and rows * num_samples > 0):
        raise InvalidArgumentError(
            f"expected num_samples >= 0 and a class; got {num_samples}, logits {logits.shape}"
        )
    host = logits.get() if hasattr(logits, "get") else logits
    weights = host.astype(np.float64)
    weights = np.exp(weights - weights.max(axis=1, keepdims=True, initial=-np.inf))
    first = np.arange(rows)[:, None]
    edges = np.cumsum(weights, axis=1)
    edges = (edges / edges[:, -1:] + first).reshape(-1)
    drawn = np.minimum(state.next().random((rows, num_samples)) + first, np.nextafter(first + 1.0, 0.0))
    chosen = (
        np.searchsorted(edges, drawn.reshape(-1), side="right").reshape(rows, num_samples) - first * classes
    )
    return deliver(xp, chosen, output_dtype, out)


def _multinomial_shape(s: ShapeContext) -> Sequence[Shape]:
    s.check_scalars(1)
    logits = s.shapes[0]
    if logits is not None and len(logits) != 2:
        raise InvalidArgumentError(f"logits: expected shape [batch, classes]; got {format_shape(logits)}")
    return [(None if logits is None else logits[0], s.value(1))]


multinomial_op = define_draw(
    "Multinomial",
    "logits: T in REAL, num_samples: host int32 -> output_dtype in INDEX",
    attrs="output_dtype: type = int64",
    shape=_multinomial_shape,
    kernel=_multinomial,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 4)), np.array(5, np.int32), seed=1),
        sample(
            rng.standard_normal((2, 4)).astype(np.float32), np.array(0, np.int32), output_dtype=dtypes.int32
        ),
        sample(np.zeros((0, 4), np.float16), np.array(2, np.int32)),
    ),
    batch=merged(0),
    doc="Indices of randomly drawn classes for each row of unnormalised log-probabilities.",
)


def multinomial(
    logits: NumericLike,
    num_samples: NumericLike,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: DTypeLike | None = None,
) -> Tensor:
    """Class numbers of shape ``[batch, num_samples]``, drawn with the probabilities ``softmax(logits)`` of
    each row.
    """
    dtype = dtypes.int64 if output_dtype is None else as_dtype(output_dtype)
    with get_default_graph().name_scope(name or "multinomial"):
        return multinomial_op(logits, num_samples, output_dtype=dtype, **seed_attrs(seed))


def categorical(
    logits: NumericLike,
    num_samples: NumericLike,
    dtype: DTypeLike | None = None,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """`multinomial` under its newer name (``random.categorical``)."""
    return multinomial(logits, num_samples, seed, name or "categorical", dtype)


def random_crop(
    value: NumericLike, size: NumericLike, seed: int | None = None, name: str | None = None
) -> Tensor:
    """A slice of ``value`` of shape ``size`` at a random place, each equally likely (up to 2**-31 of
    them).
    """
    with get_default_graph().name_scope(name or "random_crop") as scope:
        value, size = convert_to_tensor(value, name="value"), convert_to_tensor(size, dtypes.int32, "size")
        places = add_v2(subtract(shape(value), size), 1)
        drawn = random_uniform(shape(places), maxval=dtypes.int32.max, dtype=dtypes.int32, seed=seed)
        return slice(value, floormod(drawn, places), size, name=scope)


# --- other distributions


def _gamma(xp: Any, shape: Any, alpha: Any, T: DType, state: RandomStream, out: Any = None) -> Any:
    host = np.asarray(alpha.get() if hasattr(alpha, "get") else alpha)
    precision, result = drawing_dtype(T), tuple(shape) + host.shape
    if fills_directly(xp, out):
        return state.next().standard_gamma(host, result, precision, out)
    return deliver(xp, state.next().standard_gamma(host.astype(precision), result, precision), T, out)


def _batch_draw(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """``shape`` draws for each number in a tensor: the batch axis follows the drawn axes."""
    if not values[1].is_batched:
        return draw(b, op, values)
    length, own = op.inputs[0].spec.shape, rank_of(op.inputs[1])
    if length is None or length[0] is None or own is None:
        return None
    drawn, count = b.apply(op, [v.tensor for v in values])[0].tensor, length[0]
    return batched(transpose(drawn, [count, *range(count), *range(count + 1, count + own + 1)]))


def _gamma_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    alpha, drawn = op.inputs[1], op.outputs[0]
    wide = alpha.dtype if alpha.dtype.size >= 4 else dtypes.float32
    slope = cast(random_gamma_grad(cast(alpha, wide), cast(drawn, wide)), alpha.dtype)
    by_alpha = unbroadcast(multiply(dy, slope), alpha, drawn)
    return [None, by_alpha, *[None] * (len(op.inputs) - 2)]


random_gamma_op = define_draw(
    "RandomGamma",
    "shape: host S in INDEX, alpha: T in FLOATING -> T",
    shape=_repeated_shape,
    kernel=_gamma,
    samples=lambda rng: (  # the rule's derivative is not that of the sampler, which rejects some of its draws
        sample(np.array([2], np.int32), np.array([0.5, 3.0]), differentiable=False, seed=1),
        sample(np.zeros(0, np.int32), np.array(2.0, np.float16), differentiable=False),
    ),
    vjp=_gamma_vjp,
    batch=_batch_draw,
    doc="``shape`` values of the gamma distribution with shape parameter alpha and rate 1, for each alpha.",
)


def random_gamma(
    shape: ShapeTensorLike,
    alpha: NumericLike,
    beta: NumericLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape + broadcast(alpha, beta).shape`` from gamma distributions of shape ``alpha`` and rate
    ``beta``.

    Differentiable by both, once: by ``alpha`` implicitly, at a fixed share of the probability below each
    value; M. Figurnov et al., "Implicit reparameterization gradients", NeurIPS (2018).
    """
    dtype = as_dtype(dtype)
    with get_default_graph().name_scope(name or "random_gamma") as scope:
        rate = convert_to_tensor(1 if beta is None else beta, dtype, "beta")
        alphas = multiply(convert_to_tensor(alpha, dtype, "alpha"), ones_like(rate))
        drawn = random_gamma_op(shape, alphas, **seed_attrs(seed))
        # tiny alphas underflow to 0
        smallest = np.array(np.finfo(drawing_dtype(dtype)).tiny).astype(dtype.np)
        return maximum(smallest, realdiv(drawn, rate), name=scope)


def _poisson(xp: Any, shape: Any, rate: Any, dtype: DType, state: RandomStream, out: Any = None) -> Any:
    host = np.asarray(rate.get() if hasattr(rate, "get") else rate).astype(np.float64)
    return deliver(xp, state.next().poisson(host, tuple(shape) + host.shape), dtype, out)


random_poisson_op = define_draw(
    "RandomPoissonV2",
    "shape: host S in INDEX, rate: R in FLOATING - bfloat16 | INDEX -> dtype in FLOATING - bfloat16 | INDEX",
    attrs="dtype: type = int64",
    shape=_repeated_shape,
    kernel=_poisson,
    samples=lambda rng: (
        sample(np.array([2], np.int32), np.array([0.5, 30.0]), seed=1),
        sample(np.array([0], np.int32), np.array(2.0, np.float32), dtype=dtypes.float32),
    ),
    batch=_batch_draw,
    doc="``shape`` values of the Poisson distribution with mean rate, for each rate.",
)


def random_poisson(
    lam: NumericLike,
    shape: ShapeTensorLike,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape + lam.shape`` from Poisson distributions of mean ``lam`` (a float tensor)."""
    with get_default_graph().name_scope(name or "random_poisson"):
        rate = convert_to_tensor(lam, name="lam", preferred_dtype=dtypes.float32)
        return random_poisson_op(shape, rate, dtype=as_dtype(dtype), **seed_attrs(seed))
