"""Random ops, and the seeds that make a graph's draws repeatable.

Rules of this file: every op has the effect RANDOM and draws from its own `RandomStream`, keyed by its
attributes ``seed`` and ``seed2``; draws are made in host memory, so that every device gets the same ones;
low-precision uniforms are drawn as multiples of their own epsilon, because rounding a finer one could give
the excluded upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.build import convert_to_tensor
from flowrt.graph.graph import Tensor, get_default_graph
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    ShapeContext,
    attr_int,
    attr_type,
    define_op,
    op_def,
    sample,
)
from flowrt.graph.ops.arithmetic import (
    add_v2,
    floormod,
    less,
    maximum,
    multiply,
    realdiv,
    select_v2,
    subtract,
)
from flowrt.graph.ops.shaping import ones_like, shape, unchanged
from flowrt.graph.random_stream import RandomStream
from flowrt.graph.shapes import Shape, concat, format_shape

DEFAULT_GRAPH_SEED = 87654321
"""Stands for the graph's seed when only the op has one (TensorFlow's number)."""

_SEEDS = {"seed": attr_int(0), "seed2": attr_int(0)}
_MAX_SEED = 2**31 - 1


def set_random_seed(seed: int) -> None:
    """Seed the default graph: random ops made from here on repeat their draws in every session."""
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The two seeds of a new random op: the graph's and its own, or (None, None) when neither is given.

    A graph with a seed gives an op without one its position in the graph, so that equal scripts draw the
    same.
    """
    graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    first = DEFAULT_GRAPH_SEED if graph.seed is None else graph.seed
    second = graph.version if op_seed is None else op_seed
    seeds = first % _MAX_SEED, second % _MAX_SEED
    return (0, _MAX_SEED) if seeds == (0, 0) else seeds  # (0, 0) would mean: not seeded


def _seeds(seed: int | None) -> dict[str, Any]:
    first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def _drawn_shape(s: ShapeContext, position: int = 0) -> Shape:
    """The shape that host input ``position`` asks for, as far as it is known."""
    vector, dims = s.shapes[position], s.value(position)
    if vector is not None and len(vector) != 1:
        raise InvalidArgumentError(f"shape: expected a vector; got shape {format_shape(vector)}")
    if dims is None:
        return None if vector is None or vector[0] is None else (None,) * vector[0]
    if any(d is not None and d < 0 for d in dims):
        raise InvalidArgumentError(f"shape: expected dimensions of at least 0; got {list(dims)}")
    known: Shape = dims
    return known


def _one_drawn_shape(s: ShapeContext) -> Sequence[Shape]:
    return [_drawn_shape(s)]


def _repeated_shape(s: ShapeContext) -> Sequence[Shape]:
    """Of ops that draw ``shape`` values for each element of input 1."""
    return [concat([_drawn_shape(s), s.shapes[1]])]


def _deliver(xp: Any, values: Any, dtype: DType, out: Any) -> Any:
    """Values drawn on the host as an array of ``xp`` and ``dtype``, in ``out`` if there is one."""
    values = np.asarray(values)
    if out is None:
        return xp.asarray(values.astype(dtype.np, copy=False))
    out[...] = xp.asarray(values)
    return out


def _fills_directly(xp: Any, out: Any) -> bool:
    return out is not None and xp is np and out.dtype in (np.float32, np.float64) and out.flags.c_contiguous


_MANTISSA_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8}  # with the implicit one


def _uniform(xp: Any, shape: Any, dtype: DType, state: RandomStream, out: Any = None) -> Any:
    rng = state.next()
    if _fills_directly(xp, out):
        return rng.random(out=out, dtype=dtype.np.type)
    if (bits := _MANTISSA_BITS.get(dtype)) is not None:
        return _deliver(xp, rng.integers(0, 2**bits, shape, np.uint16) * np.float32(2.0**-bits), dtype, out)
    return _deliver(xp, rng.random(shape, dtype.np.type), dtype, out)


def _drawing_dtype(dtype: DType) -> Any:
    return np.float64 if dtype is dtypes.float64 else np.float32


def _normal(xp: Any, shape: Any, dtype: DType, state: RandomStream, out: Any = None) -> Any:
    rng = state.next()
    if _fills_directly(xp, out):
        return rng.standard_normal(out=out, dtype=dtype.np.type)
    return _deliver(xp, rng.standard_normal(shape, _drawing_dtype(dtype)), dtype, out)


def _truncated_normal(xp: Any, shape: Any, dtype: DType, state: RandomStream, out: Any = None) -> Any:
    rng, precision = state.next(), _drawing_dtype(dtype)
    flat = np.asarray(rng.standard_normal(shape, precision)).reshape(-1)
    outside = np.flatnonzero(np.abs(flat) > 2)
    while outside.size:  # 4.6 % of what is drawn
        flat[outside] = rng.standard_normal(outside.size, precision)
        outside = outside[np.abs(flat[outside]) > 2]
    return _deliver(xp, flat.reshape(shape), dtype, out)


def _define_float_draw(name: str, kernel: Callable[..., Any], doc: str) -> Any:
    return define_op(
        name,
        "shape: host T -> dtype",
        types={"T": dtypes.INDEX, "dtype": dtypes.FLOATING},
        attrs={**_SEEDS, "dtype": attr_type(dtypes.float32)},
        shape=_one_drawn_shape,
        kernel=kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=NONDIFFERENTIABLE,
        samples=lambda rng: (
            *(sample(np.array([2, 3], np.int32), dtype=d, seed=1) for d in dtypes.FLOATING),
            sample(np.zeros(0, np.int64)),
            sample(np.array([0, 2], np.int32)),
        ),
        effect=Effect.RANDOM,
        state=RandomStream,
        doc=doc,
    )


random_uniform_op = _define_float_draw("RandomUniform", _uniform, "Uniform in [0, 1).")
random_standard_normal = _define_float_draw(
    "RandomStandardNormal", _normal, "Normal with mean 0 and deviation 1."
)
truncated_normal_op = _define_float_draw(
    "TruncatedNormal", _truncated_normal, "Normal with mean 0 and deviation 1, drawn again where beyond 2."
)


def _uniform_int(xp: Any, shape: Any, minval: Any, maxval: Any, Tout: DType, state: RandomStream) -> Any:
    low, high = int(minval), int(maxval)
    if low >= high:
        raise InvalidArgumentError(f"expected minval < maxval; got minval {low}, maxval {high}")
    return _deliver(xp, state.next().integers(low, high, shape, Tout.np.type), Tout, None)


random_uniform_int = define_op(
    "RandomUniformInt",
    "shape: host T, minval: Tout, maxval: Tout -> Tout",
    types={"T": dtypes.INDEX, "Tout": dtypes.INDEX},
    attrs=_SEEDS,
    shape=_one_drawn_shape,
    kernel=_uniform_int,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.array([2, 3], np.int32), np.array(-4, np.int32), np.array(5, np.int32), seed=1),
        sample(np.array([0], np.int64), np.array(0, np.int64), np.array(2**40, np.int64)),
    ),
    effect=Effect.RANDOM,
    state=RandomStream,
    doc="Integers from minval up to, but not including, maxval: all equally likely.",
)


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape`` drawn uniformly from ``[minval, maxval)``; ``maxval`` is 1 for floats and required
    for ints.

    Raises `InvalidArgumentError` for integers without ``maxval``, and at run time unless ``minval < maxval``
    for integers.
    """
    dtype = as_dtype(dtype)
    if dtype.is_integer and maxval is None:
        raise InvalidArgumentError(f"random_uniform: expected maxval, as dtype is {dtype.name}; got None")
    maxval = 1 if maxval is None else maxval
    with get_default_graph().name_scope(name or "random_uniform") as scope:
        if dtype.is_integer:
            integers: Tensor = random_uniform_int(
                shape, minval, maxval, Tout=dtype, name=scope, **_seeds(seed)
            )
            return integers
        if _is_number(minval, 0):
            return _affine(random_uniform_op, shape, dtype, seed, maxval, 0, scope)
        low, high = convert_to_tensor(minval, dtype, "min"), convert_to_tensor(maxval, dtype, "max")
        drawn = _affine(random_uniform_op, shape, dtype, seed, subtract(high, low), low, "add")
        # the sum can round up to maxval, which is not to be drawn
        kept: Tensor = select_v2(less(drawn, high), drawn, low, name=scope)
        return kept


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def _affine(
    op: Any, shape: Any, dtype: DType, seed: int | None, scale: Any, offset: Any, name: str
) -> Tensor:
    """``op``'s draw times ``scale`` plus ``offset``, without the steps that would change nothing."""
    scaled, moved = not _is_number(scale, 1), not _is_number(offset, 0)
    values: Tensor = op(shape, dtype=dtype, name=None if scaled or moved else name, **_seeds(seed))
    if scaled:
        values = multiply(values, scale, name="mul" if moved else name)
    if moved:
        values = add_v2(values, offset, name=name)
    return values


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape`` drawn from the normal distribution; ``mean`` and ``stddev`` broadcast against
    ``shape``.
    """
    with get_default_graph().name_scope(name or "random_normal") as scope:
        return _affine(random_standard_normal, shape, as_dtype(dtype), seed, stddev, mean, scope)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Like `random_normal`, but values more than two ``stddev`` from ``mean`` are drawn again."""
    with get_default_graph().name_scope(name or "truncated_normal") as scope:
        return _affine(truncated_normal_op, shape, as_dtype(dtype), seed, stddev, mean, scope)


# --- choosing and ordering


def _shuffle(xp: Any, value: Any, state: RandomStream) -> Any:
    order = state.next().permutation(value.shape[0]) if value.ndim else None
    return value if order is None else xp.take(value, xp.asarray(order), axis=0)


random_shuffle_op = define_op(
    "RandomShuffle",
    "value: T -> T",
    types={"T": dtypes.ANY},
    attrs=_SEEDS,
    shape=unchanged,
    kernel=_shuffle,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.arange(12.0).reshape(4, 3), seed=1),
        sample(np.array(3, np.int32)),
        sample(np.zeros((0, 2), np.float32)),
    ),
    effect=Effect.RANDOM,
    state=RandomStream,
    doc="The rows of the input in random order.",
)


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """``value`` with its entries along the first dimension in random order."""
    shuffled: Tensor = random_shuffle_op(value, name=name, **_seeds(seed))
    return shuffled


def _multinomial(xp: Any, logits: Any, num_samples: int, output_dtype: DType, state: RandomStream) -> Any:
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
    return _deliver(xp, chosen, output_dtype, None)


def _multinomial_shape(s: ShapeContext) -> Sequence[Shape]:
    logits = s.shapes[0]
    if logits is not None and len(logits) != 2:
        raise InvalidArgumentError(f"logits: expected shape [batch, classes]; got {format_shape(logits)}")
    return [(None if logits is None else logits[0], s.value(1))]


multinomial_op = define_op(
    "Multinomial",
    "logits: T, num_samples: host int32 -> output_dtype",
    types={"T": dtypes.REAL, "output_dtype": dtypes.INDEX},
    attrs={**_SEEDS, "output_dtype": attr_type(dtypes.int64)},
    shape=_multinomial_shape,
    kernel=_multinomial,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(rng.standard_normal((3, 4)), np.array(5, np.int32), seed=1),
        sample(
            rng.standard_normal((2, 4)).astype(np.float32), np.array(0, np.int32), output_dtype=dtypes.int32
        ),
        sample(np.zeros((0, 4), np.float16), np.array(2, np.int32)),
    ),
    effect=Effect.RANDOM,
    state=RandomStream,
    doc="For each row of unnormalised log-probabilities the numbers of randomly drawn classes.",
)


def multinomial(
    logits: Any, num_samples: Any, seed: int | None = None, name: str | None = None, output_dtype: Any = None
) -> Tensor:
    """Class numbers of shape ``[batch, num_samples]``, drawn with the probabilities ``softmax(logits)`` of
    each row.
    """
    dtype = dtypes.int64 if output_dtype is None else as_dtype(output_dtype)
    with get_default_graph().name_scope(name or "multinomial"):
        drawn: Tensor = multinomial_op(logits, num_samples, output_dtype=dtype, **_seeds(seed))
        return drawn


def categorical(
    logits: Any, num_samples: Any, dtype: Any = None, seed: int | None = None, name: str | None = None
) -> Tensor:
    """`multinomial` under its newer name (``random.categorical``)."""
    return multinomial(logits, num_samples, seed, name or "categorical", dtype)


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """A slice of ``value`` of shape ``size`` at a random place, each equally likely (up to 2**-31 of
    them).
    """
    with get_default_graph().name_scope(name or "random_crop") as scope:
        value, size = convert_to_tensor(value, name="value"), convert_to_tensor(size, dtypes.int32, "size")
        places = add_v2(subtract(shape(value), size), 1)
        drawn = random_uniform(shape(places), maxval=dtypes.int32.max, dtype=dtypes.int32, seed=seed)
        crop: Tensor = op_def("Slice")(value, floormod(drawn, places), size, name=scope)
        return crop


# --- other distributions


def _gamma(xp: Any, shape: Any, alpha: Any, T: DType, state: RandomStream) -> Any:
    host = np.asarray(alpha.get() if hasattr(alpha, "get") else alpha)
    precision = _drawing_dtype(T)
    drawn = state.next().standard_gamma(host.astype(precision), tuple(shape) + host.shape, precision)
    return _deliver(xp, drawn, T, None)


random_gamma_op = define_op(
    "RandomGamma",
    "shape: host S, alpha: T -> T",
    types={"S": dtypes.INDEX, "T": dtypes.FLOATING},
    attrs=_SEEDS,
    shape=_repeated_shape,
    kernel=_gamma,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.array([2], np.int32), np.array([0.5, 3.0]), seed=1),
        sample(np.zeros(0, np.int32), np.array(2.0, np.float16)),
    ),
    effect=Effect.RANDOM,
    state=RandomStream,
    doc="For each alpha ``shape`` values of the gamma distribution with that shape parameter and rate 1.",
)


def random_gamma(
    shape: Any,
    alpha: Any,
    beta: Any = None,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape + broadcast(alpha, beta).shape`` from gamma distributions of shape ``alpha`` and rate
    ``beta``.

    No gradient flows to ``alpha``; the one to ``beta`` does.
    """
    dtype = as_dtype(dtype)
    with get_default_graph().name_scope(name or "random_gamma") as scope:
        rate = convert_to_tensor(1 if beta is None else beta, dtype, "beta")
        alphas = multiply(convert_to_tensor(alpha, dtype, "alpha"), ones_like(rate))
        drawn = random_gamma_op(shape, alphas, **_seeds(seed))
        smallest = np.array(np.finfo(_drawing_dtype(dtype)).tiny).astype(
            dtype.np
        )  # tiny alphas underflow to 0
        positive: Tensor = maximum(smallest, realdiv(drawn, rate), name=scope)
        return positive


def _poisson(xp: Any, shape: Any, rate: Any, dtype: DType, state: RandomStream) -> Any:
    host = np.asarray(rate.get() if hasattr(rate, "get") else rate).astype(np.float64)
    return _deliver(xp, state.next().poisson(host, tuple(shape) + host.shape), dtype, None)


_COUNTS = (dtypes.FLOATING - {dtypes.bfloat16}) | dtypes.INDEX

random_poisson_op = define_op(
    "RandomPoissonV2",
    "shape: host S, rate: R -> dtype",
    types={"S": dtypes.INDEX, "R": _COUNTS, "dtype": _COUNTS},
    attrs={**_SEEDS, "dtype": attr_type(dtypes.int64)},
    shape=_repeated_shape,
    kernel=_poisson,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (
        sample(np.array([2], np.int32), np.array([0.5, 30.0]), seed=1),
        sample(np.array([0], np.int32), np.array(2.0, np.float32), dtype=dtypes.float32),
    ),
    effect=Effect.RANDOM,
    state=RandomStream,
    doc="For each rate ``shape`` values of the Poisson distribution with that mean.",
)


def random_poisson(
    lam: Any,
    shape: Any,
    dtype: Any = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values of ``shape + lam.shape`` from Poisson distributions of mean ``lam`` (a float tensor)."""
    with get_default_graph().name_scope(name or "random_poisson"):
        rate = convert_to_tensor(lam, name="lam", preferred_dtype=dtypes.float32)
        drawn: Tensor = random_poisson_op(shape, rate, dtype=as_dtype(dtype), **_seeds(seed))
        return drawn
