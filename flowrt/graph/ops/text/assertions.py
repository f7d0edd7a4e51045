"""Run-time assertions on values, and build-time assertions on shapes and dtypes.

Rules of this file: a check with an outcome known at build time fails there; every other one becomes an Assert
operation, which the caller makes other operations wait for with ``control_dependencies``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import DType, DTypeLike, as_dtype
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.batching_rules import BatchBuilder, Value, leading
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.op_def import Effect, Effects, OpDef, define_op, sample
from flowrt.graph.ops.array.reductions import reduce_all
from flowrt.graph.ops.base.identities import static_value, unchanged
from flowrt.graph.ops.base.shape_manipulation import rank as rank_of
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import (
    equal,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_or,
    not_equal,
)
from flowrt.graph.ops.elementwise.complex_parts import abs
from flowrt.graph.ops.text.formatting import summarize_value
from flowrt.graph.ops.text.python_calls import group, no_op
from flowrt.graph.shapes import format_shape
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import optional, parameters_of, with_parameters
from flowrt.graph.typing import TensorLike

__all__ = [
    "Assert", "assert_equal", "assert_greater", "assert_greater_equal", "assert_integer", "assert_less",
    "assert_less_equal", "assert_near", "assert_negative", "assert_non_negative", "assert_non_positive",
    "assert_none_equal", "assert_positive", "assert_rank", "assert_rank_at_least", "assert_rank_in",
    "assert_same_float_dtype", "assert_scalar", "assert_type", "check_numerics", "is_numeric_tensor",
]  # fmt: skip


def _assert(xp: Any, condition: Any, data: Any, summarize: int) -> tuple[()]:
    if not condition:
        values = " ".join(f"[{summarize_value(x, summarize)}]" for x in data)
        raise InvalidArgumentError(f"assertion failed: {values}")
    return ()


def _batch_assert(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    b.copy(op, [reduce_all(values[0].tensor), *[v.tensor for v in values[1:]]])
    return []


assert_op: OpDef[Operation] = define_op(
    "Assert",
    "condition: bool, data: *T in ANY ->",
    attrs="summarize: int = 3",
    kernel=_assert,
    samples=lambda rng: [sample(np.array(True), (np.arange(3),))],
    effects=Effects(Effect.STATEFUL),
    batch=_batch_assert,
    doc="Fails with the first values of ``data`` unless ``condition``.",
)


def Assert(
    condition: TensorLike, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Operation:
    """An operation that raises `InvalidArgumentError` with the values of ``data`` unless ``condition`` (a
    scalar bool).

    ``summarize`` elements of each tensor are shown: 3 if None, all if -1. It only runs if placed in
    ``control_dependencies`` or run directly.
    """
    limit = 3 if summarize is None else summarize
    with get_default_graph().name_scope(name or "Assert"):
        return assert_op(condition, list(data), summarize=limit, name="Assert")


def _nothing_left() -> Operation:
    """No-op in place of a check made at build time."""
    return no_op(name="static_checks_determined_all_ok")


class _Report(NamedTuple):
    """Values to show when a check fails, and the name of the check."""

    data: Sequence[Any] | None
    summarize: int | None
    message: str | None
    name: str

    def about(self, text: str) -> str:
        return f"{self.message} {text}" if self.message else text

    def check(self, condition: Any, text: str, *values: Any) -> Operation:
        """An operation that shows ``text`` and ``values``, or ``data`` in place of them."""
        shown = [self.about(text), *values] if self.data is None else self.data
        return Assert(condition, shown, self.summarize)


def _reporting(check: Callable[..., Operation], name: str | None = None) -> Callable[..., Operation]:
    """``check`` with ``data``, ``summarize``, ``message`` and ``name`` in place of its last, ``report``."""
    parameters = [*parameters_of(check)[:-1], *map(optional, _Report._fields[:-1]), optional("name", name)]

    def call(given: dict[str, Any]) -> Operation:
        data, summarize, message, scope = (given.pop(p.name, None) for p in parameters[-4:])
        return check(**given, report=_Report(data, summarize, message, scope or check.__name__))

    return with_parameters(check, parameters, call)


# --- comparisons of values


def _array_of(x: Tensor) -> Any:
    """The value of a constant, or None."""
    return x.op.get_attr("value") if x.op.type == "Const" else None


def _bound(given: Any, y: Tensor) -> tuple[str, str]:
    """The name of ``y`` in an error, and which tensor that is: a number that is given speaks for itself."""
    is_number = isinstance(given, int | float | np.generic | np.ndarray) and np.ndim(given) == 0
    return (str(given), "") if is_number else ("y", f", y is {y.name}")


def _comparison(
    name: str, sign: str, compare: Any, holds: Callable[[Any, Any], Any]
) -> Callable[..., Operation]:
    """The function ``name(x, y, ...)``, an operation that fails unless ``x sign y`` for all elements."""

    def check(x: Any, y: Any, report: _Report) -> Operation:
        with get_default_graph().name_scope(report.name):
            x = convert_to_tensor(x, name="x")
            given, y = y, convert_to_tensor(y, x.dtype, name="y")
            bound, named = _bound(given, y)
            a, b = _array_of(x), _array_of(y)
            text = f"expected x {sign} {bound} for all elements; x is {x.name}{named}"
            if a is not None and b is not None:
                if not np.all(holds(a, b)):
                    values = f"x {a.tolist()}, y {b.tolist()}" if named else a.tolist()
                    raise misuse(f"{report.about(text)}; got {values}")
                return _nothing_left()
            return report.check(reduce_all(compare(x, y)), text, "x:", x, *(["y:", y] if named else []))

    check.__name__ = check.__qualname__ = name
    check.__doc__ = (
        f"An operation that raises `InvalidArgumentError` unless ``x {sign} y`` everywhere.\n\n"
        "With constants it raises at once. ``data`` replaces what the error shows, ``message`` precedes it."
    )
    return _reporting(check, name)


assert_equal = _comparison("assert_equal", "==", equal, np.equal)
assert_none_equal = _comparison("assert_none_equal", "!=", not_equal, np.not_equal)
assert_less = _comparison("assert_less", "<", less, np.less)
assert_less_equal = _comparison("assert_less_equal", "<=", less_equal, np.less_equal)
assert_greater = _comparison("assert_greater", ">", greater, np.greater)
assert_greater_equal = _comparison("assert_greater_equal", ">=", greater_equal, np.greater_equal)


def _sign(name: str, check: Callable[..., Operation]) -> Callable[..., Operation]:
    """The function ``name(x, ...)``, which compares ``x`` with 0."""

    def check_sign(x: Any, report: _Report) -> Operation:
        x = convert_to_tensor(x, name="x")
        return check(x, np.zeros((), x.dtype.np), *report)

    check_sign.__name__ = check_sign.__qualname__ = name
    check_sign.__doc__ = f"`{check.__name__}` of ``x`` and 0."
    return _reporting(check_sign, name)


assert_positive = _sign("assert_positive", assert_greater)
assert_negative = _sign("assert_negative", assert_less)
assert_non_negative = _sign("assert_non_negative", assert_greater_equal)
assert_non_positive = _sign("assert_non_positive", assert_less_equal)


@_reporting
def assert_near(
    x: TensorLike, y: TensorLike, rtol: float | None = None, atol: float | None = None, *, report: _Report
) -> Operation:
    """An operation that raises `InvalidArgumentError` unless ``|x - y| <= atol + rtol * |y|`` for all
    elements.

    Both tolerances are 10 epsilons of the dtype by default.
    """
    with get_default_graph().name_scope(report.name):
        x = convert_to_tensor(x, name="x")
        given, y = y, convert_to_tensor(y, x.dtype, name="y")
        bound, named = _bound(given, y)
        default = 10 * float(np.spacing(np.ones((), x.dtype.real_dtype.np)))
        relative = multiply(abs(y), default if rtol is None else rtol)
        allowed = add_v2(relative, default if atol is None else atol)
        text = f"expected x close to {bound} for all elements; x is {x.name}{named}"
        shown = ["y:", y] if named else []
        return report.check(reduce_all(less_equal(abs(subtract(x, y)), allowed)), text, "x:", x, *shown)


# --- ranks


def _check_rank(
    x: Any, text: str, holds: Callable[[int], bool], test: Callable[[Tensor], Any], report: _Report
) -> Operation:
    with get_default_graph().name_scope(report.name):
        x = convert_to_tensor(x, name="x")
        dims = x.spec.shape
        if dims is None:
            return report.check(test(rank_of(x)), text, "shape:", shape(x))
        if not holds(len(dims)):
            raise InvalidArgumentError(f"{report.about(text)}; got {x.name} of shape {format_shape(dims)}")
        return _nothing_left()


def _static_ranks(*ranks: Any) -> list[int]:
    found = [static_value(convert_to_tensor(rank, dtypes.int32)) for rank in ranks]
    if not all(isinstance(rank, int) for rank in found):
        raise InvalidArgumentError(f"expected ranks that are constant scalars; got {list(ranks)}")
    return found


@_reporting
def assert_rank(x: TensorLike, rank: Any, report: _Report) -> Operation:
    """An operation that checks that ``x`` has this rank; raises at build time if it is known."""
    (wanted,) = _static_ranks(rank)
    return _check_rank(
        x, f"expected rank {wanted}", lambda r: r == wanted, lambda r: equal(r, wanted), report
    )


@_reporting
def assert_rank_at_least(x: TensorLike, rank: Any, report: _Report) -> Operation:
    """An operation that checks that ``x`` has at least this rank; raises at build time if it is known."""
    (wanted,) = _static_ranks(rank)
    text = f"expected rank {wanted} or higher"
    return _check_rank(x, text, lambda r: r >= wanted, lambda r: greater_equal(r, wanted), report)


@_reporting
def assert_rank_in(x: TensorLike, ranks: Iterable[Any], report: _Report) -> Operation:
    """An operation that checks that the rank of ``x`` is one of ``ranks``; raises at build time if it is
    known.
    """
    wanted = _static_ranks(*ranks)

    def among(rank: Tensor) -> Any:
        found = equal(rank, wanted[0])
        for other in wanted[1:]:
            found = logical_or(found, equal(rank, other))
        return found

    return _check_rank(x, f"expected a rank among {wanted}", lambda r: r in wanted, among, report)


def assert_scalar(tensor: TensorLike, name: str | None = None, message: str | None = None) -> Tensor:
    """``tensor`` as it is. Raises `InvalidArgumentError` if its static shape is not that of a scalar."""
    scalar = convert_to_tensor(tensor, name=name)
    if scalar.spec.shape != ():
        raise InvalidArgumentError(f"{message or ''} expected a scalar; got {scalar!r}".strip())
    return scalar


# --- dtypes


def assert_type(
    tensor: TensorLike, tf_type: Any, message: str | None = None, name: str | None = None
) -> Operation:
    """Raises `DTypeError` unless ``tensor`` is of dtype ``tf_type``; returns an operation that does
    nothing.
    """
    tensor, wanted = convert_to_tensor(tensor), as_dtype(tf_type)
    if tensor.dtype is not wanted:
        raise DTypeError(f"{message or ''} expected dtype {wanted.name}; got {tensor!r}".strip())
    return no_op(name=name or "assert_type")


def assert_integer(x: TensorLike, message: str | None = None, name: str | None = None) -> Operation:
    """Raises `DTypeError` unless ``x`` is of an integer dtype; returns an operation that does nothing."""
    x = convert_to_tensor(x)
    if not x.dtype.is_integer:
        raise DTypeError(f"{message or ''} expected an integer dtype; got {x!r}".strip())
    return no_op(name=name or "assert_integer")


def assert_same_float_dtype(tensors: Sequence[Any] | None = None, dtype: DTypeLike | None = None) -> DType:
    """The one floating dtype of ``tensors`` (None entries are left out) and ``dtype``; float32 when none is
    given.

    Raises `DTypeError` when they differ or are not floating.
    """
    found = {t.dtype for t in tensors or () if t is not None}
    found |= set() if dtype is None else {as_dtype(dtype)}
    if len(found) > 1 or not all(d.is_floating for d in found):
        raise DTypeError(f"expected tensors of the same floating dtype; got {sorted(d.name for d in found)}")
    return next(iter(found), dtypes.float32)


def is_numeric_tensor(tensor: TensorLike) -> bool:
    """Whether ``tensor`` is a tensor of numbers."""
    return isinstance(tensor, Tensor) and tensor.dtype.is_numeric


# --- NaN and infinity


def _check_numerics(xp: Any, tensor: Any, message: str) -> Any:
    if not xp.isfinite(tensor).all():
        found = [name for name, test in (("Inf", xp.isinf), ("NaN", xp.isnan)) if test(tensor).any()]
        raise InvalidArgumentError(f"{message}: expected finite values; got {' and '.join(found)} values")
    return tensor


check_numerics: OpDef[Tensor] = define_op(
    "CheckNumerics",
    "tensor: T in FLOATING -> T",
    attrs="message: string",
    shape=unchanged,
    kernel=_check_numerics,
    vjp=lambda op, dy: [check_numerics(dy, message=f"gradient of: {op.get_attr('message')}")],
    jvp=lambda op, dx: [dx],
    samples=lambda rng: (
        sample(rng.standard_normal((2, 3)), message="here"),
        sample(np.zeros((0,), np.float16), message="here"),
    ),
    effects=Effects(Effect.STATEFUL),
    alias=True,
    batch=leading,
    doc="""``tensor`` as it is. Raises `InvalidArgumentError` with ``message``, when run, if it or its
    gradient is not finite.
    """,
)


def add_check_numerics_ops() -> Operation:
    """An operation that checks every floating tensor of the default graph for NaN and infinity; run it
    together with a step.
    """
    checks = [
        check_numerics(tensor, message=tensor.name)
        for operation in get_default_graph().get_operations()
        for tensor in operation.outputs
        if tensor.dtype.is_floating
    ]
    return group(*checks, name="check_numerics")
