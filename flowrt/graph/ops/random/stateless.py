"""Random numbers that follow from a seed alone: pure ops, with TensorFlow's numbers.

TensorFlow 1 gives the two integers of a seed to each op; TensorFlow 2 (``...V2``) scrambles them by an op of
its own and gives key and counter. Draws are made in host memory. See `flowrt.graph.ops.random.philox`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.ops.base.identities import result_shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.random.philox import (
    PER_BLOCK,
    Position,
    integers,
    normal,
    position_of,
    truncated_normal,
    uniform,
)
from flowrt.graph.ops.random.random_ops import deliver
from flowrt.graph.shapes import Shape, format_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike, ShapeTensorLike

__all__ = [
    "stateless_categorical", "stateless_multinomial", "stateless_random_normal", "stateless_random_uniform",
    "stateless_truncated_normal",
]  # fmt: skip

Draws: TypeAlias = Callable[..., Any]
"""``draws(position, groups, dtype, *bounds)`` gives a row of numbers for each group."""

_AT_ONCE = 2**14
"""Groups that are drawn together: their words fit in the cache."""

_SHAPES = [np.array(dims, np.int32) for dims in ((3, 3), (), (0, 2))]


def _of_blocks(numbers: Callable[[Any, DType], Any]) -> Draws:
    return lambda position, groups, dtype: numbers(position.blocks(groups), dtype)


def _between(position: Position, groups: Any, dtype: DType, minval: Any, maxval: Any) -> Any:
    low, high = int(minval), int(maxval)
    if low >= high:
        raise InvalidArgumentError(f"expected minval < maxval; got minval {low}, maxval {high}")
    unsigned = dtypes.uint64 if dtype.size == 8 else dtypes.uint32
    drawn = integers(position.blocks(groups), unsigned) % unsigned.np.type(high - low)
    return (drawn + unsigned.np.type(low % 2 ** (8 * dtype.size))).view(dtype.np)


def _fill(
    xp: Any, position: Position, shape: Any, dtype: DType, draws: Draws, bounds: Sequence[Any], out: Any
) -> Any:
    size, width = math.prod(shape), PER_BLOCK.get(dtype, 4)
    groups = np.arange(-(-size // width), dtype=np.uint64)
    rows = np.empty((len(groups), width), dtype.np)
    for start in range(0, len(groups), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        rows[some] = draws(position, groups[some], dtype, *bounds)
    return deliver(xp, rows.reshape(-1)[:size].reshape(shape), dtype, out)


def _scrambled(seed: Any) -> Position:
    if np.shape(seed) != (2,):
        raise InvalidArgumentError(f"seed: expected two integers; got shape {format_shape(np.shape(seed))}")
    return position_of(seed)


_PHILOX, _AUTOMATIC = 1, 3


def _given(key: Any, counter: Any, alg: int) -> Position:
    if alg not in (_PHILOX, _AUTOMATIC):
        raise InvalidArgumentError(f"alg: expected 1 (Philox) or 3 (automatic); got {alg}")
    if np.shape(key) != (1,) or np.shape(counter) != (2,):
        got = f"{format_shape(np.shape(key))} and {format_shape(np.shape(counter))}"
        raise InvalidArgumentError(f"expected a key [1] and a counter [2]; got shapes {got}")
    return Position(key[0], *counter)


def _define(
    name: str, kinds: str, draws: Draws, samples: Sequence[Sample], doc: str, *, bounds: str = ""
) -> Any:
    """Define an op of TensorFlow 1, and its form in TensorFlow 2. ``bounds`` is the signature of inputs of
    the dtype of the result, which is an attribute if there are none. The samples lack the seed.
    """

    def kernel(xp: Any, shape: Any, seed: Any, *bounds: Any, dtype: DType, out: Any = None) -> Any:
        return _fill(xp, _scrambled(seed), shape, dtype, draws, bounds, out)

    def kernel_v2(
        xp: Any, shape: Any, key: Any, counter: Any, alg: Any, *bounds: Any, dtype: DType, out: Any = None
    ) -> Any:
        return _fill(xp, _given(key, counter, alg), shape, dtype, draws, bounds, out)

    def define(name: str, inputs: str, kernel: Any, *values: Any) -> OpDef[Tensor]:
        return define_op(
            name,
            f"shape: host shape {inputs}{bounds} -> dtype in {kinds}",
            attrs="" if bounds else f"dtype: type = {'float32' if kinds == 'FLOATING' else 'uint64'}",
            shape=lambda s: [result_shape(s)],
            kernel=kernel,
            vjp=NONDIFFERENTIABLE,
            samples=lambda rng: [sample(s.inputs[0], *values, *s.inputs[1:], **s.attrs) for s in samples],
            doc=doc,
        )

    define(
        f"{name}V2",
        "Tshape in INDEX, key: host uint64, counter: host uint64, alg: host int32",
        kernel_v2,
        np.array([7], np.uint64),
        np.array([2**64 - 1, 3], np.uint64),
        np.array(1, np.int32),
    )
    return define(name, "T in INDEX, seed: host Tseed in INDEX", kernel, np.array([3, -4]))


_INTEGERS = "int32 | int64 | uint32 | uint64"


def _in_each(kinds: str) -> list[Sample]:
    each = sorted(dtypes.domain(kinds), key=str)
    return [sample(_SHAPES[i % len(_SHAPES)], dtype=dtype) for i, dtype in enumerate(each)]


stateless_random_uniform_op = _define(
    "StatelessRandomUniform", "FLOATING", _of_blocks(uniform), _in_each("FLOATING"), "Uniform in [0, 1)."
)
stateless_random_normal_op = _define(
    "StatelessRandomNormal",
    "FLOATING",
    _of_blocks(normal),
    _in_each("FLOATING"),
    "Normal with mean 0 and standard deviation 1.",
)
stateless_truncated_normal_op = _define(
    "StatelessTruncatedNormal",
    "FLOATING",
    truncated_normal,
    _in_each("FLOATING"),
    "Normal with mean 0 and standard deviation 1, drawn again if beyond 2.",
)
stateless_random_uniform_full_int = _define(
    "StatelessRandomUniformFullInt",
    _INTEGERS,
    _of_blocks(integers),
    _in_each(_INTEGERS),
    "All integers of the dtype, equally likely.",
)
stateless_random_uniform_int = _define(
    "StatelessRandomUniformInt",
    _INTEGERS,
    _between,
    [
        sample(_SHAPES[0], np.array(-4, np.int32), np.array(5, np.int32)),
        sample(_SHAPES[1], np.array(-(2**62)), np.array(2**62 + 1)),
        sample(_SHAPES[2], np.array(0, np.uint32), np.array(2**32 - 1, np.uint32)),
    ],
    "Integers from minval up to, but not including, maxval.",
    bounds=f", minval: host dtype in {_INTEGERS}, maxval: host dtype",
)


def _words(xp: Any, seed: Any, out: Any = None) -> Any:
    position = _scrambled(seed)
    results = np.array([position.key], np.uint64), np.array([position.low, position.high], np.uint64)
    return [deliver(xp, *each) for each in zip(results, [dtypes.uint64] * 2, out or [None] * 2, strict=True)]


define_op(
    "StatelessRandomGetKeyCounter",
    "seed: host Tseed in INDEX -> key: uint64, counter: uint64",
    shape=lambda s: [(1,), (2,)],
    kernel=_words,
    samples=lambda rng: [sample(np.array([3, -4]))],
    doc="A seed, scrambled: the key and the counter of TensorFlow 2's stateless random ops.",
)
define_op(
    "StatelessRandomGetAlg",
    "-> alg: int32",
    shape=lambda s: [()],
    kernel=lambda xp, out=None: deliver(xp, _PHILOX, dtypes.int32, out),
    samples=lambda rng: [sample()],
    doc="The number of the generator of TensorFlow 2's stateless random ops.",
)


def _choose(xp: Any, logits: Any, num_samples: int, seed: Any, output_dtype: DType, out: Any = None) -> Any:
    """Inverts the cumulative distribution of each row: float64 sums as TensorFlow makes them, one by one."""
    rows, classes = logits.shape
    if num_samples < 0 or (classes == 0 and rows * num_samples > 0):
        raise InvalidArgumentError(
            f"expected num_samples >= 0 and a class; got {num_samples}, logits {logits.shape}"
        )
    host = logits.get() if hasattr(logits, "get") else logits
    weights = host.astype(np.float64)
    is_finite = np.isfinite(weights)
    largest = np.max(weights, 1, keepdims=True, initial=-np.inf, where=is_finite)
    edges = np.cumsum(np.where(is_finite, np.exp(weights - largest), 0), axis=1)
    blocks = _scrambled(seed).blocks(np.arange(-(-rows * num_samples // 2)))
    drawn = uniform(blocks, dtypes.float64).reshape(-1)[: rows * num_samples].reshape(rows, num_samples)
    chosen = np.empty((rows, num_samples), np.int64)
    for row in range(rows):
        chosen[row] = np.searchsorted(edges[row], drawn[row] * edges[row, -1], side="right")
    return deliver(xp, chosen, output_dtype, out)


def _choose_shape(s: ShapeContext) -> Sequence[Shape]:
    logits = s.shapes[0]
    if logits is not None and len(logits) != 2:
        raise InvalidArgumentError(f"logits: expected shape [batch, classes]; got {format_shape(logits)}")
    return [(None if logits is None else logits[0], s.value(1))]


stateless_multinomial_op = define_op(
    "StatelessMultinomial",
    "logits: T in REAL, num_samples: host int32, seed: host Tseed in INDEX -> output_dtype in INDEX",
    attrs="output_dtype: type = int64",
    shape=_choose_shape,
    kernel=_choose,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: [
        sample(rng.standard_normal((3, 4)), np.array(5, np.int32), np.array([1, 2])),
        sample(np.zeros((2, 4), np.float32), np.array(0, np.int32), np.array([1, 2], np.int32)),
    ],
    doc="Indices of classes for each row of unnormalised log-probabilities, drawn by a seed.",
)


def stateless_random_uniform(
    shape: ShapeTensorLike,
    seed: NumericLike,
    minval: NumericLike | None = 0,
    maxval: NumericLike | None = None,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Values drawn uniformly from ``[minval, maxval)``: the same in every step, and as TensorFlow draws them.

    Args:
        shape: The shape of the result, a list or an integer vector.
        seed: Two integers.
        minval: The least value.
        maxval: The bound above, exclusive; 1 for floats, and required for integers. If both are None, all
            integers are equally likely.
        dtype: A dtype of floats, or of integers of 32 or 64 bits.

    Raises:
        InvalidArgumentError: Integers have one bound; at run time, unless ``minval < maxval`` for integers,
            or the seed has another shape than [2].

    Example:
        >>> tf.random.stateless_uniform([2], seed=[1, 2]).eval()
        array([0.8440604 , 0.19204533], dtype=float32)
    """
    dtype = as_dtype(dtype)
    with get_default_graph().name_scope(name or "stateless_random_uniform") as scope:
        if not dtype.is_integer:
            drawn = stateless_random_uniform_op(shape, seed, dtype=dtype)
            low = convert_to_tensor(0 if minval is None else minval, dtype, "min")
            high = convert_to_tensor(1 if maxval is None else maxval, dtype, "max")
            return add_v2(multiply(drawn, subtract(high, low)), low, name=scope)
        if minval is None and maxval is None:
            return stateless_random_uniform_full_int(shape, seed, dtype=dtype, name=scope)
        if minval is None or maxval is None:
            missing = "minval" if minval is None else "maxval"
            raise misuse(f"stateless_uniform: expected {missing}, as dtype is {dtype.name}; got None")
        low, high = convert_to_tensor(minval, dtype, "min"), convert_to_tensor(maxval, dtype, "max")
        return stateless_random_uniform_int(shape, seed, low, high, name=scope)


def _moved(drawn: Tensor, mean: NumericLike, stddev: NumericLike, scope: str) -> Tensor:
    return add_v2(multiply(drawn, stddev), mean, name=scope)


def stateless_random_normal(
    shape: ShapeTensorLike,
    seed: NumericLike,
    mean: NumericLike = 0.0,
    stddev: NumericLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Values drawn from the normal distribution by ``seed``, two integers, as TensorFlow draws them.

    Example:
        >>> tf.random.stateless_normal([2], seed=[1, 2]).eval().round(4)
        array([0.5441, 0.2074], dtype=float32)
    """
    with get_default_graph().name_scope(name or "stateless_random_normal") as scope:
        return _moved(stateless_random_normal_op(shape, seed, dtype=as_dtype(dtype)), mean, stddev, scope)


def stateless_truncated_normal(
    shape: ShapeTensorLike,
    seed: NumericLike,
    mean: NumericLike = 0.0,
    stddev: NumericLike = 1.0,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Like `stateless_random_normal`, but values more than two ``stddev`` from ``mean`` are drawn again."""
    with get_default_graph().name_scope(name or "stateless_truncated_normal") as scope:
        return _moved(stateless_truncated_normal_op(shape, seed, dtype=as_dtype(dtype)), mean, stddev, scope)


def stateless_multinomial(
    logits: NumericLike,
    num_samples: NumericLike,
    seed: NumericLike,
    output_dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """Class numbers of shape ``[batch, num_samples]``, drawn by ``seed``, two integers, with the
    probabilities ``softmax(logits)`` of each row. Raises `InvalidArgumentError` for a seed of another shape.

    TensorFlow draws other numbers where it shares a large batch between threads.
    """
    with get_default_graph().name_scope(name or "stateless_multinomial"):
        return stateless_multinomial_op(logits, num_samples, seed, output_dtype=as_dtype(output_dtype))


def stateless_categorical(
    logits: NumericLike,
    num_samples: NumericLike,
    seed: NumericLike,
    dtype: DTypeLike = dtypes.int64,
    name: str | None = None,
) -> Tensor:
    """`stateless_multinomial` under its newer name."""
    return stateless_multinomial(logits, num_samples, seed, dtype, name or "stateless_categorical")
