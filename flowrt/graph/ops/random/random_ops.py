"""Random ops, and the seeds that make a graph's draws repeatable.

Rules of this file: every op has the effect RANDOM and draws from its own `RandomStream`, keyed by its
attributes ``seed`` and ``seed2``; draws are made in host memory, so that every device gets the same ones;
low-precision uniforms are drawn as multiples of their own epsilon, because rounding a finer one could produce
the excluded upper bound.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.batching_rules import draw
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    Rule,
    Sample,
    Samples,
    define_op,
    sample,
)
from flowrt.graph.op_facets import BatchRule, Kernel, Vjp
from flowrt.graph.ops.base.identities import result_shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import equal, less, select_v2
from flowrt.graph.resources.parts_of_draws import Fill, Part, by_generator, fill_chunks, fill_equal
from flowrt.graph.resources.random_stream import Position, RandomStream
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike

__all__ = ["get_seed", "random_normal", "random_uniform", "set_random_seed", "truncated_normal"]

PARTS: set[str] = set()
"""The names of the ops of which parts can be drawn."""

PART = "of: list(int) = (), begin: list(int) = ()"
"""The shape of a larger draw, and where this one begins in it; by default it is a draw itself."""

DEFAULT_GRAPH_SEED = 87654321
"""Stands for the graph's seed when only the op has one (TensorFlow's number)."""

SEEDS = "seed: int = 0, seed2: int = 0"
_MAX_SEED = 2**31 - 1


def set_random_seed(seed: int | None) -> None:
    """Seed the default graph: random ops added from here on repeat their draws in every session.

    Args:
        seed: An integer; None for no seed.

    Raises:
        DTypeError: The seed is anything else.

    Example:
        >>> tf.set_random_seed(3)
        >>> draw = tf.random_uniform([])
    """
    is_whole = isinstance(seed, numbers.Integral)
    if not is_whole and seed is not None:
        raise DTypeError(f"set_random_seed: expected an integer; got {seed!r}")
    get_default_graph().seed = seed


def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The two seeds of a new random op: the graph's and its own, or (None, None) when neither is given.

    In a graph with a seed, an op without one uses its position in the graph, so that equal scripts draw the
    same numbers.
    """
    graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    first = DEFAULT_GRAPH_SEED if graph.seed is None else graph.seed
    second = graph.seed_position if op_seed is None else op_seed
    seeds = first % _MAX_SEED, second % _MAX_SEED
    return (0, _MAX_SEED) if seeds == (0, 0) else seeds  # (0, 0) would mean: not seeded


def seed_attrs(seed: int | None) -> dict[str, Any]:
    """The attributes of a new random op that the user gave ``seed``."""
    first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def deliver(xp: Any, values: Any, dtype: DType, out: Any) -> Any:
    """Values drawn on the host as an array of ``xp`` and ``dtype``, in ``out`` if there is one."""
    values = np.asarray(values)
    if out is None:
        return xp.asarray(values.astype(dtype.np, copy=False))
    out[...] = xp.asarray(values)
    return out


def fills_directly(xp: Any, out: Any) -> bool:
    """Whether NumPy's generator can draw into ``out`` itself."""
    return out is not None and xp is np and out.dtype in (np.float32, np.float64) and out.flags.c_contiguous


_MANTISSA_BITS = {dtypes.float16: 11, dtypes.bfloat16: 8}  # with the implicit one


def _uniform(
    xp: Any,
    shape: Any,
    dtype: DType,
    state: RandomStream,
    out: Any = None,
    of: Sequence[int] = (),
    begin: Sequence[int] = (),
) -> Any:
    draw = state.draw()
    if (bits := _MANTISSA_BITS.get(dtype)) is not None:
        whole = np.empty(shape, np.uint16)
        fill = by_generator(functools.partial(_integers, 0, 2**bits))
        fill_equal(draw, whole, Part(of, begin), 16, fill)
        return deliver(xp, whole * np.float32(2.0**-bits), dtype, out)
    is_direct = fills_directly(xp, out)
    values = out if is_direct else np.empty(shape, dtype.np)
    per_block = 32 // dtype.np.itemsize
    fill = by_generator(lambda rng, v: rng.random(out=v, dtype=dtype.np.type))
    fill_equal(draw, values, Part(of, begin), per_block, fill)
    return out if is_direct else deliver(xp, values, dtype, out)


def _integers(low: int, high: int, rng: np.random.Generator, values: Any) -> None:
    values[:] = rng.integers(low, high, values.size, values.dtype.type)


random_position = define_op(
    "RandomPosition",
    "-> uint64",
    attrs=SEEDS,
    shape=lambda s: [(3,)],
    kernel=lambda xp, state, out=None: deliver(xp, state.skip(), dtypes.uint64, out),
    samples=lambda rng: [sample(seed=1)],
    effects=Effects(Effect.RANDOM, state=RandomStream),
    doc="The position of the next draw in the stream of these seeds: key and number. The draw is skipped.",
)


def define_draw(
    name: str,
    signature: str,
    *,
    kernel: Kernel,
    samples: Samples,
    vjp: Vjp | Rule = NONDIFFERENTIABLE,
    batch: BatchRule | None = None,
    may_be_part: bool = False,
    **parts: Any,
) -> OpDef[Tensor]:
    """Define an op that draws from its own stream, passed to its kernel as ``state``. Also defines the pure
    op ``{name}At``, with the position of the draw as an extra last input, for recomputation in gradients;
    with ``may_be_part`` it can draw a part of a larger draw, which the kernel gets as ``of`` and ``begin``.
    ``vjp`` is the rule of both.
    """

    @functools.wraps(kernel)
    def there(xp: Any, *inputs: Any, **options: Any) -> Any:
        return kernel(xp, *inputs[:-1], state=Position(inputs[-1]), **options)

    inputs, arrow, outputs = signature.partition(" -> ")
    position = np.array([1, 2, 3], np.uint64)
    parts["vjp"] = vjp
    PARTS.update([name] if may_be_part else [])
    attrs = {"attrs": ", ".join(filter(None, [parts.get("attrs"), PART]))} if may_be_part else {}
    define_op(
        f"{name}At",
        f"{inputs}, position: host uint64{arrow}{outputs}",
        kernel=there,
        samples=lambda rng: [_sample_at(position, s) for s in samples(rng)],
        **{**parts, **attrs},
    )
    return define_op(
        name,
        signature,
        attrs=f"{SEEDS}, {parts.pop('attrs')}" if "attrs" in parts else SEEDS,
        kernel=kernel,
        samples=samples,
        batch=batch,
        effects=Effects(Effect.RANDOM, state=RandomStream),
        **parts,
    )


def _sample_at(position: np.ndarray[Any, Any], drawn: Sample) -> Sample:
    attrs = {key: value for key, value in drawn.attrs.items() if key not in ("seed", "seed2")}
    return Sample((*drawn.inputs, position), attrs, drawn.differentiable)


def drawing_dtype(dtype: DType) -> Any:
    return np.float64 if dtype is dtypes.float64 else np.float32


def _in_chunks(fill: Fill) -> Kernel:
    """The kernel that draws floats by ``fill``."""

    def kernel(
        xp: Any,
        shape: Any,
        dtype: DType,
        state: RandomStream,
        out: Any = None,
        of: Sequence[int] = (),
        begin: Sequence[int] = (),
    ) -> Any:
        is_direct = fills_directly(xp, out)
        values = out if is_direct else np.empty(shape, drawing_dtype(dtype))
        fill_chunks(state.draw(), values, Part(of, begin), fill)
        return out if is_direct else deliver(xp, values, dtype, out)

    return kernel


def _fill_normal(rng: np.random.Generator, values: Any) -> None:
    rng.standard_normal(out=values, dtype=values.dtype.type)


def _fill_truncated(rng: np.random.Generator, values: Any) -> None:
    _fill_normal(rng, values)
    outside = np.flatnonzero(np.abs(values) > 2)
    while outside.size:  # 4.6 % of the draws
        values[outside] = rng.standard_normal(outside.size, values.dtype.type)
        outside = outside[np.abs(values[outside]) > 2]


def _define_float_draw(name: str, kernel: Kernel, doc: str) -> Any:
    return define_draw(
        name,
        "shape: host shape T in INDEX -> dtype in FLOATING",
        attrs="dtype: type = float32",
        shape=lambda s: [result_shape(s)],
        kernel=kernel,
        samples=lambda rng: (
            *(sample(np.array([2, 3], np.int32), dtype=d, seed=1) for d in sorted(dtypes.FLOATING, key=str)),
            sample(np.zeros(0, np.int64)),
            sample(np.array([0, 2], np.int32)),
        ),
        batch=draw,
        may_be_part=True,
        doc=doc,
    )


random_uniform_op = _define_float_draw("RandomUniform", _uniform, "Uniform in [0, 1).")
random_standard_normal = _define_float_draw(
    "RandomStandardNormal", _in_chunks(_fill_normal), "Normal with mean 0 and standard deviation 1."
)
truncated_normal_op = _define_float_draw(
    "TruncatedNormal",
    _in_chunks(_fill_truncated),
    "Normal with mean 0 and standard deviation 1, redrawn if beyond 2.",
)


def _uniform_int(
    xp: Any, shape: Any, minval: Any, maxval: Any, Tout: DType, state: RandomStream, out: Any = None,
    of: Sequence[int] = (), begin: Sequence[int] = (),
) -> Any:  # fmt: skip
    low, high = int(minval), int(maxval)
    if low >= high:
        raise InvalidArgumentError(f"expected minval < maxval; got minval {low}, maxval {high}")
    values, count = np.empty(shape, Tout.np), high - low
    fill = functools.partial(_integers, low, high)
    if count & (count - 1):  # numbers are drawn again where they would not be equally likely
        fill_chunks(state.draw(), values, Part(of, begin), fill)
    else:
        fill_equal(state.draw(), values, Part(of, begin), 8 if count <= 2**32 else 4, by_generator(fill))
    return deliver(xp, values, Tout, out)


random_uniform_int = define_draw(
    "RandomUniformInt",
    "shape: host shape T in INDEX, minval: Tout in INDEX, maxval: Tout -> Tout",
    shape=lambda s: [result_shape(s)],
    kernel=_uniform_int,
    samples=lambda rng: (
        sample(np.array([2, 3], np.int32), np.array(-4, np.int32), np.array(5, np.int32), seed=1),
        sample(np.array([0], np.int64), np.array(0, np.int64), np.array(2**40, np.int64)),
    ),
    batch=draw,
    may_be_part=True,
    doc="Integers from minval up to, but not including, maxval: all equally likely.",
)


def random_uniform(
    shape: ShapeTensorLike,
    minval: NumericLike = 0,
    maxval: NumericLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values drawn uniformly from ``[minval, maxval)``.

    Args:
        shape: The shape of the result, a list or an integer vector.
        minval: The least value.
        maxval: The bound above, exclusive; 1 for floats, and required for integers. Floats may also be drawn
            from a ``minval`` down to a lower ``maxval``.
        dtype: A dtype of floats, int32 or int64.
        seed: The operation's seed; with it, or with `set_random_seed`, draws repeat in every session.

    Returns:
        A tensor of ``shape``, drawn anew in every step.

    Raises:
        InvalidArgumentError: Integers have no ``maxval``; at run time, unless ``minval < maxval`` for
            integers.

    Example:
        >>> x = tf.random_uniform([100], 1, 3, seed=1).eval()
        >>> bool(x.min() >= 1 and x.max() < 3)
        True
    """
    dtype = as_dtype(dtype)
    if dtype.is_integer and maxval is None:
        raise misuse(f"random_uniform: expected maxval, as dtype is {dtype.name}; got None")
    maxval = 1 if maxval is None else maxval
    with get_default_graph().name_scope(name or "random_uniform") as scope:
        if dtype.is_integer:
            return random_uniform_int(shape, minval, maxval, Tout=dtype, name=scope, **seed_attrs(seed))
        if _is_number(minval, 0):
            return _affine(random_uniform_op, shape, dtype, seed, maxval, 0, scope)
        low, high = convert_to_tensor(minval, dtype, "min"), convert_to_tensor(maxval, dtype, "max")
        drawn = _affine(random_uniform_op, shape, dtype, seed, subtract(high, low), low, "add")
        is_inside = less(drawn, high)  # the sum can round up to maxval, which is not to be drawn
        if not _ascend(minval, maxval):
            is_inside = equal(is_inside, less(low, high))
        return select_v2(is_inside, drawn, low, name=scope)


def _ascend(low: Any, high: Any) -> bool:
    """Whether both are numbers, the first the smaller one."""
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high


def _is_number(value: Any, number: int) -> bool:
    return isinstance(value, (int, float)) and value == number


def _affine(
    op: Any, shape: Any, dtype: DType, seed: int | None, scale: Any, offset: Any, name: str
) -> Tensor:
    """``op``'s draw times ``scale`` plus ``offset``, without the steps that would change nothing."""
    scaled, moved = not _is_number(scale, 1), not _is_number(offset, 0)
    values: Tensor = op(shape, dtype=dtype, name=None if scaled or moved else name, **seed_attrs(seed))
    if scaled:
        values = multiply(values, scale, name="mul" if moved else name)
    if moved:
        values = add_v2(values, offset, name=name)
    return values


def random_normal(
    shape: ShapeTensorLike,
    mean: NumericLike = 0.0,
    stddev: NumericLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Values drawn from the normal distribution.

    Args:
        shape: The shape of the result, a list or an integer vector.
        mean: The mean; it broadcasts against ``shape``.
        stddev: The standard deviation; it broadcasts against ``shape``.
        dtype: A dtype of floats.
        seed: The operation's seed; with it, or with `set_random_seed`, draws repeat in every session.

    Returns:
        A tensor of ``shape``, drawn anew in every step.

    Example:
        >>> x = tf.random_normal([1000], mean=5.0, seed=1).eval()
        >>> x.shape, round(float(x.mean()))
        ((1000,), 5)
    """
    with get_default_graph().name_scope(name or "random_normal") as scope:
        return _affine(random_standard_normal, shape, as_dtype(dtype), seed, stddev, mean, scope)


def truncated_normal(
    shape: ShapeTensorLike,
    mean: NumericLike = 0.0,
    stddev: NumericLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Like `random_normal`, but values more than two ``stddev`` from ``mean`` are drawn again.

    Example:
        >>> x = tf.truncated_normal([1000], seed=1).eval()
        >>> bool(abs(x).max() <= 2)
        True
    """
    with get_default_graph().name_scope(name or "truncated_normal") as scope:
        return _affine(truncated_normal_op, shape, as_dtype(dtype), seed, stddev, mean, scope)
