"""Comparison, logic and selection, and common parts of elementwise ops with several inputs.

Rule of this file: inputs have one dtype and broadcast as in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.batching_rules import (
    BatchBuilder,
    Value,
    batched,
    broadcasting,
    leading,
    rank_of,
)
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.composites import elementwise_of_composites, takes_composites
from flowrt.graph.construction.constant import constant
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Node
from flowrt.graph.op_def import (
    LINEAR,
    OpDef,
    Sample,
    Samples,
    ShapeContext,
    SimplifyContext,
    Ufunc,
    define_op,
    op_def,
    sample,
    undoes_itself,
)
from flowrt.graph.op_facets import Loop, Traits, instruction
from flowrt.graph.ops.base.axes import input_rank
from flowrt.graph.ops.base.filling import unbroadcast, zeros_like_op
from flowrt.graph.ops.base.identities import unchanged
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import Shape, broadcast, merge
from flowrt.graph.typing import TensorLike

__all__ = [
    "equal", "greater", "greater_equal", "less", "less_equal", "logical_and", "logical_not", "logical_or",
    "logical_xor", "not_equal", "where", "where_v2",
]  # fmt: skip

# --- what binary ops share


def broadcast_shape(s: ShapeContext) -> Sequence[Shape]:
    """The shape rule of elementwise ops: all inputs broadcast together."""
    shape: Shape = ()
    for other in s.shapes:
        shape = broadcast(shape, other)
    return [shape]


def elementwise_op(
    name: str,
    signature: str,
    *,
    commutative: bool = False,
    linear_in: tuple[int, ...] = (),
    narrows: bool | None = None,
    **rules: Any,
) -> OpDef[Tensor]:
    """An op with output elements i that depend only on elements i of the (broadcast) inputs."""
    has_one_input = "," not in signature.partition("->")[0]
    return define_op(
        name,
        signature,
        traits=Traits(elementwise=True, commutative=commutative, linear_in=linear_in, narrows=narrows),
        **{"shape": unchanged if has_one_input else broadcast_shape, **rules},
    )


def pairs(low: float = -3, high: float = 3, *, gap: float = 0.0, dtype: Any = np.int32) -> Samples:
    """Samples for a binary op: numbers in [low, high], moved ``gap`` away from 0; shapes that broadcast."""

    def samples(rng: np.random.Generator) -> Iterable[Sample]:
        def draw(*shape: int) -> Any:
            x = rng.uniform(low, high, shape)
            return np.asarray(x + np.copysign(gap, x))

        yield sample(draw(2, 3), draw(2, 3))
        yield sample(draw(2, 1), draw(3))
        yield sample(draw(), draw(2))
        yield sample(draw(3, 1).astype(np.float32), draw(1, 2).astype(np.float32))
        yield sample(draw(3).astype(dtypes.bfloat16.np), draw(3).astype(dtypes.bfloat16.np))
        yield sample(draw(3).astype(np.float16), draw().astype(np.float16))
        yield sample(draw(0, 3), draw(3))
        if dtype is not None:
            yield sample(np.array([[7], [8]], dtype), np.array([1, 2, 3], dtype))

    return samples


def zero_of(dtype: DType) -> Tensor:
    return constant(np.zeros((), dtype.np))


# --- comparison


def _comparison(name: str, ufunc: str, loop: str, types: str, **rules: Any) -> OpDef[Tensor]:
    return elementwise_op(
        name,
        f"x: T in {types}, y: T -> z: bool",
        kernel=Ufunc(ufunc),
        samples=pairs(),
        loop=instruction(loop),
        **rules,
    )


_EQUALITY: dict[str, Any] = {
    "types": "NUMERIC | bool | string",
    # Shapes that do not fit are an error either way; TensorFlow gives one False then, if this is false.
    "attrs": "incompatible_shape_error: bool = True",
    "commutative": True,
    "batch": broadcasting,
}


less = _comparison(
    "Less",
    "less",
    "lt",
    "REAL",
    doc="""x < y.

Args:
    x: A tensor of real numbers.
    y: A tensor of the same dtype; the shapes broadcast.

Returns:
    A tensor of bool, of the common shape.

Example:
    >>> tf.less([1, 5], 3).eval()
    array([ True, False])
""",
)


less_equal = _comparison(
    "LessEqual",
    "less_equal",
    "le",
    "REAL",
    doc="""x <= y.

Example:
    >>> tf.less_equal([3, 5], 3).eval()
    array([ True, False])
""",
)


greater = _comparison(
    "Greater",
    "greater",
    "gt",
    "REAL",
    doc="""x > y.

Args:
    x: A tensor of real numbers.
    y: A tensor of the same dtype; the shapes broadcast.

Returns:
    A tensor of bool, of the common shape.

Example:
    >>> tf.greater([1, 5], 3).eval()
    array([False,  True])
""",
)


greater_equal = _comparison(
    "GreaterEqual",
    "greater_equal",
    "ge",
    "REAL",
    doc="""x >= y.

Example:
    >>> tf.greater_equal([1, 3], 3).eval()
    array([False,  True])
""",
)


equal = _comparison(
    "Equal",
    "equal",
    "eq",
    doc="""x == y.

Args:
    x: A tensor.
    y: A tensor of the same dtype; the shapes broadcast.
    incompatible_shape_error: Accepted: shapes that do not broadcast are an error either way.

Returns:
    A tensor of bool, of the common shape.

Example:
    >>> tf.equal([1, 2, 3], [1, 0, 3]).eval()
    array([ True, False,  True])
""",
    **_EQUALITY,
)


not_equal = _comparison(
    "NotEqual",
    "not_equal",
    "ne",
    doc="""x != y.

Args:
    x: A tensor.
    y: A tensor of the same dtype; the shapes broadcast.
    incompatible_shape_error: Accepted: shapes that do not broadcast are an error either way.

Returns:
    A tensor of bool, of the common shape.

Example:
    >>> tf.not_equal([1, 2], [1, 0]).eval()
    array([False,  True])
""",
    **_EQUALITY,
)


approximate_equal: OpDef[Tensor] = define_op(
    "ApproximateEqual",
    "x: T in NUMERIC, y: T -> z: bool",
    attrs="tolerance: float = 1e-5",
    shape=lambda s: [merge(s.shapes[0], s.shapes[1])],
    kernel=lambda xp, x, y, tolerance, out=None: xp.less(xp.abs(x - y), tolerance, out),
    samples=lambda rng: (
        sample(np.array([1.0, 2.0]), np.array([1.000001, 2.1])),
        sample(np.array(1 + 1j), np.array(1 + 1j), tolerance=0.5),
    ),
    batch=leading,
    axes="..a, ..a -> ..a",
    doc="True where ``abs(x - y) < tolerance``, elementwise, for tensors of one shape.",
)


# --- logic


def _truth_pairs(rng: np.random.Generator) -> Iterable[Sample]:
    yield sample(np.array([[True], [False]]), np.array([True, False]))
    yield sample(np.array(True), np.zeros(0, bool))


def _logical(name: str, ufunc: str, loop: str, doc: str) -> OpDef[Tensor]:
    return elementwise_op(
        name,
        "x: bool, y: bool -> z: bool",
        kernel=Ufunc(ufunc),
        samples=_truth_pairs,
        commutative=True,
        loop=instruction(loop),
        doc=doc,
    )


logical_and = _logical(
    "LogicalAnd",
    "logical_and",
    "and",
    """x and y.

Example:
    >>> tf.logical_and([True, True], [True, False]).eval()
    array([ True, False])
""",
)


logical_or = _logical(
    "LogicalOr",
    "logical_or",
    "or",
    """x or y.

Example:
    >>> tf.logical_or([True, False], [False, False]).eval()
    array([ True, False])
""",
)


logical_not = elementwise_op(
    "LogicalNot",
    "x: bool -> y: bool",
    kernel=Ufunc("logical_not"),
    samples=lambda rng: [sample(np.array([True, False]))],
    simplify=undoes_itself,
    loop=instruction("not"),
    doc="""not x.

    Example:
        >>> tf.logical_not([True, False]).eval()
        array([False,  True])
    """,
)


@elementwise_of_composites
def logical_xor(x: TensorLike, y: TensorLike, name: str = "LogicalXor") -> Tensor:
    """Either x or y, but not both."""
    return not_equal(convert_to_tensor(x, dtypes.bool_), convert_to_tensor(y, dtypes.bool_), name=name)


# --- choice

WORDS = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}
"""Integer types by element size in bytes."""

MIN_WORDS = 4096
"""Elements from which `_choose` works on whole words: 100,000 floats chosen by chance take 45 us so, 374 by
`where`, which branches; 1,000 take 2.0 and 1.4. Or else 0, they take half as long.
"""


def _choose(xp: Any, condition: Any, t: Any, e: Any, out: Any = None) -> Any:
    """t where the condition holds, else e; ``out`` may be any of them."""
    if xp is np and condition.size >= MIN_WORDS and t.dtype.kind != "O" and t.dtype.itemsize in WORDS:
        word = WORDS[t.dtype.itemsize]
        other = e.view(word)
        if not other.ndim and not other:  # dropout
            mask = np.negative(condition.view(np.int8))
            chosen = np.bitwise_and(t.view(word), mask, None if out is None else out.view(word))
            return chosen.view(t.dtype) if out is None else out
        change = np.multiply(t.view(word) ^ other, condition, dtype=word)
        if out is None:
            return np.bitwise_xor(other, change).view(t.dtype)
        np.bitwise_xor(other, change, out.view(word))
        return out
    return delivered(xp, xp.where(condition, t, e), t.dtype, out)


def _select_shape(s: ShapeContext) -> Sequence[Shape]:
    condition = s.shapes[0]
    shape = merge(s.shapes[1], s.shapes[2])
    if condition is None or condition == () or shape is None:
        return [shape]
    if len(condition) == 1 and len(shape) > 0:
        merge(condition, shape[:1])
        return [shape]
    return [merge(shape, condition)]


def _select(xp: Any, condition: Any, t: Any, e: Any, out: Any = None) -> Any:
    if condition.ndim == 1 and t.ndim > 1:
        condition = condition.reshape((-1,) + (1,) * (t.ndim - 1))
    if out is None:
        return xp.where(condition, t, e)
    xp.copyto(out, e)
    xp.copyto(out, t, where=condition)
    return out


def _select_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    condition, zeros = op.inputs[0], zeros_like_op(dy)
    return [None, select(condition, dy, zeros), select(condition, zeros, dy)]


def _select_v2_vjp(op: Operation, dy: Tensor) -> list[Tensor | None]:
    condition, t, e = op.inputs
    zero = zero_of(dy.dtype)
    return [
        None,
        unbroadcast(where_v2(condition, dy, zero), t),
        unbroadcast(where_v2(condition, zero, dy), e),
    ]


def _select_simplify(c: SimplifyContext) -> Node | None:
    """`SelectV2`, which is elementwise, unless the condition is a vector that chooses rows."""
    condition, t, _ = (c.spec(ref).shape for ref in c.node.inputs)
    if condition is None or t is None or len(condition) not in (0, len(t)):
        return None
    return c.node.replace(op=select_v2)


def _choices(rng: np.random.Generator) -> Iterable[Sample]:
    condition = np.array([True, False])
    yield sample(condition, rng.standard_normal(2), rng.standard_normal(2))
    yield sample(condition, rng.integers(0, 9, (2, 2), np.int8), rng.integers(0, 9, (2, 2), np.int8))
    yield sample(np.array(True), *(rng.standard_normal((2, 2, 3))))
    yield sample(np.zeros(0, bool), np.zeros(0, np.complex64), np.zeros(0, np.complex64))


def _batch_select(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value] | None:
    """A condition of lower rank selects whole rows: its axes are the first ones."""
    condition, t, e = values
    ranks = [rank_of(x) for x in op.inputs]
    if ranks[0] is None or ranks[1] is None:
        return None
    return batched(select_v2(b.with_last_axes(condition.tensor, ranks[1] - ranks[0]), t.tensor, e.tensor))


def _select_axes(s: ShapeContext) -> str:
    """The condition has the shape of the values, or one element per row, or one."""
    if input_rank(s) == input_rank(s, 1):
        return "..a, ..a, ..a -> ..a"
    return "n, n ..a, n ..a -> n ..a" if input_rank(s) else ", ..a, ..a -> ..a"


select: OpDef[Tensor] = define_op(
    "Select",
    "condition: bool, t: T in ANY, e: T -> T",
    shape=_select_shape,
    kernel=_select,
    vjp=_select_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        *_choices(rng),
        sample(np.array([True, False, True]), rng.standard_normal((3, 2)), rng.standard_normal((3, 2))),
    ),
    simplify=_select_simplify,
    batch=_batch_select,
    axes=_select_axes,
    traits=Traits(narrows=True),
    doc="t where the condition holds, else e; a vector condition chooses rows.",
)


select_v2: OpDef[Tensor] = elementwise_op(
    "SelectV2",
    "condition: bool, t: T in STORED, e: T -> T",
    kernel=_choose,
    vjp=_select_v2_vjp,
    jvp=LINEAR,
    samples=lambda rng: (
        *_choices(rng),
        sample(np.array([[True], [False]]), rng.standard_normal(3), rng.standard_normal((2, 1))),
    ),
    loop=Loop(lambda b, condition, t, e: b.select(condition, t, e)),
    doc="t where the condition holds, else e; all three broadcast.",
)


@takes_composites
def where(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """x where ``condition`` holds, else y; without x and y the coordinates of the true elements.

    Args:
        condition: A tensor of bool, of the shape of x, or a vector over its rows.
        x: A tensor.
        y: A tensor of the shape and dtype of x.

    Returns:
        A tensor like x; without x and y, int64 of shape ``[n, rank]``.

    Example:
        >>> tf.where([True, False], [1, 2], [10, 20]).eval()
        array([ 1, 20], dtype=int32)
        >>> tf.where([False, True, True]).eval()
        array([[1],
               [2]])
    """
    if x is None and y is None:
        return op_def("Where")(convert_to_tensor(condition, preferred_dtype=dtypes.bool_), name=name)
    if x is None or y is None:
        raise InvalidArgumentError("where: expected both x and y, or neither; got one")
    return select(condition, x, y, name=name)


@takes_composites
def where_v2(
    condition: TensorLike, x: TensorLike | None = None, y: TensorLike | None = None, name: str | None = None
) -> Tensor:
    """x where ``condition`` holds, else y; all three broadcast. Without x and y as `where`."""
    if x is None or y is None:
        return where(condition, x, y, name)
    return select_v2(condition, x, y, name=name)
