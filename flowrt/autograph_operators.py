"""What Python's ``if``, ``while``, ``for``, ``and`` and so on become in converted code (see `flowrt.autograph`).

Over Python values each does what Python does. Over tensors it builds `cond` and `while_loop`. A converted block
is a function without arguments that changes the variables around it; ``get_state`` and ``set_state`` read and
write those that it changes and that matter outside, ``names`` are their names.

Rules of this file:
  1. A variable of a branch or loop has one structure and dtype, in whatever way the program goes. Numbers and
     arrays become tensors where it differs; what else differs is an error with the user's line.
  2. Where Python still knows a value in both branches, it stays a Python value. Inside a branch the predicate
     itself is known: so after ``if c: return x`` and ``return y`` there is no path without a return.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np

from flowrt import dtypes
from flowrt.control_flow import cond, while_loop
from flowrt.data.structure import flatten, map_structure, pack_as, same_structure
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.build import as_array, convert_to_tensor
from flowrt.graph.func_graph import FuncGraph
from flowrt.graph.graph import get_default_graph
from flowrt.graph.op_def import op_def
from flowrt.graph.operation import Tensor
from flowrt.graph.ops.assertions import Assert
from flowrt.graph.ops.script import print_ as print_tensors
from flowrt.graph.shapes import as_shape
from flowrt.graph.source import user_line
from flowrt.signatures import TensorSpec, with_flow

Block = Callable[[], Any]
State = tuple[Any, ...]
GetState = Callable[[], State]
SetState = Callable[[State], Any]


def is_symbolic(value: Any) -> bool:
    """Whether it has no value before the graph runs."""
    return isinstance(value, Tensor) or hasattr(value, "__flowrt_tensor__")


# --- variables without a value


@final
class Undefined:
    """The value of a variable that has none yet."""

    def __init__(self, name: str) -> None:
        self.name = name

    def read(self) -> NoReturn:
        raise UnboundLocalError(f"variable {self.name!r} is used before it has a value ({user_line()})")

    def __repr__(self) -> str:
        return "no value"


@final
class UndefinedReturnValue:
    """What a function returns as long as no ``return`` was met."""

    def __repr__(self) -> str:
        return "no value"


def ld(value: Any) -> Any:
    """``value``, which a variable has. Raises `UnboundLocalError` if it has none."""
    return value.read() if isinstance(value, Undefined) else value


def ldu(load: Block, name: str) -> Any:
    """What ``load`` reads: an attribute or item, which may not exist."""
    try:
        return load()
    except (KeyError, AttributeError, NameError):
        return Undefined(name)


@final
class FunctionScope:
    """Around the body of each converted function."""

    def __init__(self, name: str, scope_name: str, options: Any) -> None:
        self._name = name

    def __enter__(self) -> FunctionScope:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ret(self, value: Any, did_return: Any) -> Any:
        """What the function returns."""
        if is_symbolic(did_return):
            raise InvalidArgumentError(
                f"function {self._name!r}: expected a return on every path; there is one on some paths only,"
                " depending on a tensor. Add a return at the end",
                source=user_line(),
            )
        return None if isinstance(value, UndefinedReturnValue) else value


def with_function_scope(body: Callable[[FunctionScope], Any], scope_name: str, options: Any) -> Any:
    """The body of a converted lambda."""
    return body(FunctionScope("<lambda>", scope_name, options))


# --- branches


def if_stmt(
    pred: Any,
    body: Block,
    orelse: Block,
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    outputs: int,
) -> None:
    """``if pred: body`` ``else: orelse``. The first ``outputs`` of the variables are read afterwards."""
    if not is_symbolic(pred):
        if pred:
            body()
        else:
            orelse()
        return
    _If(convert_to_tensor(pred), get_state, set_state, names[:outputs]).run(body, orelse)


class _MissingReturn(Exception):
    """One branch returned a value like ``like``, the other none."""

    def __init__(self, position: int, like: Any) -> None:
        self.position, self.like = position, like


@final
class _If:
    """An ``if`` over a tensor."""

    def __init__(self, pred: Tensor, get_state: GetState, set_state: SetState, names: Sequence[str]) -> None:
        self._pred, self._get, self._set, self._names = pred, get_state, set_state, names
        self._before = get_state()
        self._found: list[State] = []
        """The variables after each branch."""
        self._blanks: dict[int, Any] = {}
        """Specs of the values that a branch without a return stands in for."""

    def run(self, body: Block, orelse: Block) -> None:
        try:
            outputs = self._cond(body, orelse)
        except _MissingReturn as missing:
            self._blanks[missing.position] = missing.like
            outputs = self._cond(body, orelse)
        first, second = self._found
        leaves = zip(flatten(first), flatten(second), outputs, strict=True)
        after = [a if _is_same(a, b) else with_flow(a, out) for a, b, out in leaves]
        self._set((*pack_as(first, after), *self._before[len(first) :]))

    def _cond(self, body: Block, orelse: Block) -> list[Any]:
        self._found = []
        outputs = cond(self._pred, self._traced(body, True), self._traced(orelse, False), strict=True, name="if")
        return list(outputs)

    def _traced(self, block: Block, holds: bool) -> Callable[[], list[Any]]:
        def branch() -> list[Any]:
            self._set(tuple(_given(value, self._pred, holds) for value in self._before))
            block()
            after = self._get()[: len(self._names)]
            self._found.append(tuple(self._blank(i, value) for i, value in enumerate(after)))
            if len(self._found) == 2:
                self._check(*self._found)
            return [leaf if _is_value(leaf) else False for leaf in flatten(self._found[-1])]

        return branch

    def _blank(self, position: int, value: Any) -> Any:
        if isinstance(value, UndefinedReturnValue) and position in self._blanks:
            return map_structure(_zeros, self._blanks[position])
        return value

    def _check(self, first: State, second: State) -> None:
        """Raises unless every variable is one thing after both branches."""
        for position, (name, a, b) in enumerate(zip(self._names, first, second, strict=True)):
            missing = [isinstance(value, UndefinedReturnValue) for value in (a, b)]
            if missing[0] != missing[1]:
                raise _MissingReturn(position, map_structure(_spec, b if missing[0] else a))
            if isinstance(a, Undefined) != isinstance(b, Undefined):
                raise InvalidArgumentError(
                    f"if: expected a value for variable {name!r} in both branches or before the if, as it is used"
                    f" afterwards; got {a!r:.60} and {b!r:.60}",
                    source=user_line(),
                )
            if not same_structure(a, b) or not all(map(_can_join, flatten(a), flatten(b))):
                raise InvalidArgumentError(
                    f"if: expected variable {name!r} to be like tensors after both branches; got {a!r:.60} and"
                    f" {b!r:.60}",
                    source=user_line(),
                )
            for x, y in zip(flatten(a), flatten(b), strict=True):
                if not _is_same(x, y) and _spec(x).dtype is not _spec(y).dtype:
                    raise DTypeError(
                        f"if: expected one dtype for variable {name!r} after both branches; got"
                        f" {_spec(x).dtype.name} and {_spec(y).dtype.name}. Use flowrt.cast()",
                        source=user_line(),
                    )


def _given(value: Any, pred: Tensor, holds: bool) -> Any:
    """``value`` where ``pred`` is known to hold, or not."""
    if value is pred:
        return holds
    if pred.op.type == "LogicalNot" and value is pred.op.inputs[0]:
        return not holds
    return value


def _is_value(leaf: Any) -> bool:
    """Whether it can become a tensor."""
    return is_symbolic(leaf) or hasattr(leaf, "_with_flow") or isinstance(leaf, _NUMBERS)


_NUMBERS = (bool, int, float, complex, np.ndarray, np.generic)


def _is_same(a: Any, b: Any) -> bool:
    """Whether both are one thing already, so that nothing has to choose."""
    if a is b:
        return not is_symbolic(a)
    if isinstance(a, (Undefined, UndefinedReturnValue)):
        return type(a) is type(b)
    return type(a) is type(b) and isinstance(a, (bool, int, float, str)) and a == b


def _can_join(a: Any, b: Any) -> bool:
    return _is_same(a, b) or (_is_value(a) and _is_value(b))


def _spec(leaf: Any) -> TensorSpec:
    if isinstance(leaf, TensorSpec):
        return leaf
    if is_symbolic(leaf) or hasattr(leaf, "_with_flow"):
        return TensorSpec.from_tensor(convert_to_tensor(leaf.flow if hasattr(leaf, "_with_flow") else leaf))
    array = as_array(leaf)
    return TensorSpec(array.shape, array.dtype)


def _zeros(spec: TensorSpec) -> Tensor:
    """Nobody reads them; unknown dimensions are 1."""
    shape = [1 if d is None else d for d in as_shape(spec.shape) or ()]
    return convert_to_tensor(np.zeros(shape, spec.dtype.np))


def if_exp(pred: Any, if_true: Block, if_false: Block, text: str) -> Any:
    """``if_true() if pred else if_false()``."""
    if is_symbolic(pred):
        return cond(convert_to_tensor(pred), if_true, if_false, strict=True, name="if")
    return if_true() if pred else if_false()


# --- loops


def while_stmt(
    test: Block, body: Block, get_state: GetState, set_state: SetState, names: Sequence[str], options: Any
) -> None:
    """``while test: body``. As long as Python knows the test's outcome, Python loops."""
    while True:
        holds = test()
        if is_symbolic(holds):
            _While(get_state, set_state, names).run(test, body)
            return
        if not holds:
            return
        body()


@final
class _While:
    """A loop over tensors."""

    def __init__(self, get_state: GetState, set_state: SetState, names: Sequence[str]) -> None:
        self._get, self._set, self._names = get_state, set_state, names
        self._before = list(get_state())

    def run(self, test: Block, body: Block) -> None:
        self._check_defined()
        shapes = self._fill_in_return(body)
        carried = [k for k, value in enumerate(self._before) if all(map(_is_value, flatten(value)))]

        def holds(*values: Any) -> Any:
            self._enter(carried, values)
            return convert_to_tensor(test())

        def iteration(*values: Any) -> Any:
            self._enter(carried, values)
            body()
            after = self._get()
            self._check(carried, values, after)
            return tuple(after[k] for k in carried) or (False,)

        initial = tuple(map_structure(_as_tensor, self._before[k]) for k in carried) or (False,)
        invariants = None
        if shapes:
            invariants = tuple(map_structure(_shape_of, shapes.get(k, self._before[k])) for k in carried)
        results = while_loop(holds, iteration, initial, invariants, name="while", return_same_structure=True)
        self._enter(carried, results)

    def _enter(self, carried: Sequence[int], values: Iterable[Any]) -> None:
        state = list(self._before)
        for k, value in zip(carried, values, strict=False):
            state[k] = value
        self._set(tuple(state))

    def _check_defined(self) -> None:
        for name, value in zip(self._names, self._before, strict=True):
            if isinstance(value, Undefined):
                raise InvalidArgumentError(
                    f"loop over tensors: expected a value for variable {name!r} before the loop, as it is used"
                    " after it or in the next iteration; got none",
                    source=user_line(),
                )

    def _fill_in_return(self, body: Block) -> dict[int, Any]:
        """Zeros for a value that the loop may return, of the shape and dtype that one iteration on trial has.
        Its spec, by position.
        """
        missing = [k for k, value in enumerate(self._before) if isinstance(value, UndefinedReturnValue)]
        if not missing:
            return {}
        with FuncGraph(get_default_graph(), "a trial of the loop's body"):
            self._set(tuple(_as_variable(value) for value in self._before))
            body()
            after = self._get()
        self._set(tuple(self._before))
        found = {k: map_structure(_spec, after[k]) for k in missing if not isinstance(after[k], UndefinedReturnValue)}
        for k, like in found.items():
            self._before[k] = map_structure(_zeros, like)
        return found

    def _check(self, carried: Sequence[int], before: Sequence[Any], after: State) -> None:
        """Raises unless every variable is what it was."""
        values = dict(zip(carried, before, strict=False))
        for k, name in enumerate(self._names):
            was, now = values.get(k, self._before[k]), after[k]
            if k not in values:
                if now is not was and not _is_same(was, now):
                    self._misfit(name, was, now)
                continue
            if not same_structure(was, now) or not all(map(_is_value, flatten(now))):
                self._misfit(name, was, now)
            for x, y in zip(flatten(was), flatten(now), strict=True):
                if is_symbolic(y) and _spec(y).dtype is not _spec(x).dtype:
                    raise DTypeError(
                        f"loop over tensors: expected variable {name!r} to stay {_spec(x).dtype.name}; got"
                        f" {_spec(y).dtype.name} after an iteration. Use flowrt.cast()",
                        source=user_line(),
                    )

    def _misfit(self, name: str, was: Any, now: Any) -> NoReturn:
        raise InvalidArgumentError(
            f"loop over tensors: expected variable {name!r} to stay {was!r:.60}, or like it; got {now!r:.60} after"
            " an iteration",
            source=user_line(),
        )


def _as_tensor(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "_with_flow") else convert_to_tensor(leaf)


def _as_variable(value: Any) -> Any:
    """A value of the first iteration, about which no more is known than of later ones."""
    return map_structure(_as_tensor, value) if all(map(_is_value, flatten(value))) else value


def _shape_of(leaf: Any) -> Any:
    return as_shape(_spec(leaf).shape)


@final
@dataclass(frozen=True)
class Items:
    """What a ``for`` goes through: ``count`` items, number i is ``item(i)``."""

    count: Tensor
    item: Callable[[Tensor], Any]


def _items(iterable: Any) -> Items | None:
    """The items of a tensor (its rows), or of what was made of tensors; None: Python can go through it."""
    if isinstance(iterable, Items) or not is_symbolic(iterable):
        return iterable if isinstance(iterable, Items) else None
    rows = convert_to_tensor(iterable)
    if rows.spec.shape == ():
        raise InvalidArgumentError(f"for: expected a tensor with rows; got {rows!r}", source=user_line())
    return Items(_length(rows), lambda i: op_def("GatherV2")(rows, i, 0))


def for_stmt(
    iterable: Any,
    extra_test: Block | None,
    body: Callable[[Any], Any],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: Any,
) -> None:
    """``for item in iterable: body(item)``, as long as ``extra_test`` holds."""
    items = _items(iterable)
    if items is None:
        _python_for(iterable, extra_test or (lambda: True), body, get_state, set_state, names)
        return
    position: Any = 0

    def get() -> State:
        return (position, *get_state())

    def put(values: State) -> None:
        nonlocal position
        position, *rest = values
        set_state(tuple(rest))

    def test() -> Any:
        inside = op_def("Less")(position, items.count)
        return inside if extra_test is None else and_(lambda: inside, extra_test)

    def iteration() -> None:
        nonlocal position
        number, position = position, op_def("AddV2")(position, 1)
        body(items.item(number))

    _While(get, put, ("the position", *names)).run(test, iteration)


def _python_for(
    iterable: Iterable[Any],
    extra_test: Block,
    body: Callable[[Any], Any],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
) -> None:
    """Over Python's items: iterations that a tensor decides about are branches."""
    for item in iterable:
        holds = extra_test()
        if is_symbolic(holds):
            if_stmt(holds, lambda: body(item), lambda: None, get_state, set_state, names, len(names))  # noqa: B023
        elif holds:
            body(item)
        else:
            break


# --- expressions


def and_(a: Block, b: Block) -> Any:
    """``a() and b()``, where b runs only if a holds."""
    left = a()
    return cond(left, _truth(b), lambda: False, name="and") if is_symbolic(left) else left and b()


def or_(a: Block, b: Block) -> Any:
    """``a() or b()``, where b runs only if a does not hold."""
    left = a()
    return cond(left, lambda: True, _truth(b), name="or") if is_symbolic(left) else left or b()


def _truth(value: Block) -> Block:
    return lambda: convert_to_tensor(value(), dtypes.bool_)


def not_(a: Any) -> Any:
    return op_def("LogicalNot")(a) if is_symbolic(a) else not a


def eq(a: Any, b: Any) -> Any:
    """``a == b``: of tensors by value."""
    return op_def("Equal")(a, b) if is_symbolic(a) or is_symbolic(b) else a == b


def not_eq(a: Any, b: Any) -> Any:
    return op_def("NotEqual")(a, b) if is_symbolic(a) or is_symbolic(b) else a != b


def assert_stmt(holds: Any, message: Block) -> None:
    """``assert holds, message``; of a tensor at run time."""
    if is_symbolic(holds):
        Assert(holds, [message() or "assertion failed"])
    elif not holds:
        raise AssertionError(message())


# --- functions of Python


def _length(value: Any) -> Any:
    shape = op_def("Shape")(value)
    return op_def("StridedSlice")(shape, [0], [1], [1], shrink_axis_mask=1)


def _range(*args: Any) -> Any:
    if not any(map(is_symbolic, args)):
        return builtins.range(*args)
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (*args, 1)[:3]
    count = op_def("Size")(op_def("Range")(start, stop, step))
    return Items(count, lambda i: op_def("AddV2")(op_def("Mul")(i, step), start))


def _len(value: Any) -> Any:
    if not is_symbolic(value):
        return builtins.len(value)
    shape = convert_to_tensor(value).spec.shape
    return shape[0] if shape and shape[0] is not None else _length(value)


def _enumerate(iterable: Any, start: Any = 0) -> Any:
    items = _items(iterable)
    if items is None:
        return builtins.enumerate(iterable, start)
    return Items(items.count, lambda i: (op_def("AddV2")(i, start), items.item(i)))


def _zip(*iterables: Any, strict: bool = False) -> Any:
    found = [_items(iterable) for iterable in iterables]
    if not any(found):
        return builtins.zip(*iterables, strict=strict)
    columns = [items or _rows(iterable) for items, iterable in builtins.zip(found, iterables, strict=True)]
    count = columns[0].count
    for column in columns[1:]:
        count = op_def("Minimum")(count, column.count)
    return Items(count, lambda i: tuple(column.item(i) for column in columns))


def _rows(iterable: Any) -> Items:
    """Python's items as those of a tensor."""
    rows = convert_to_tensor(list(iterable))
    return Items(_length(rows), lambda i: op_def("GatherV2")(rows, i, 0))


def _cast(to: Any, dtype: Any) -> Callable[..., Any]:
    return lambda *args: op_def("Cast")(args[0], DstT=dtype) if any(map(is_symbolic, args)) else to(*args)


def _print(*values: Any, **options: Any) -> Any:
    if any(is_symbolic(leaf) for leaf in flatten(values)):
        return print_tensors(*values)
    return builtins.print(*values, **options)  # noqa: T201 (the user's own)


OVERLOADS: dict[Any, Callable[..., Any]] = {
    builtins.range: _range,
    builtins.len: _len,
    builtins.enumerate: _enumerate,
    builtins.zip: _zip,
    builtins.int: _cast(int, dtypes.int32),
    builtins.float: _cast(float, dtypes.float32),
    builtins.bool: _cast(bool, dtypes.bool_),
    builtins.print: _print,
}
"""What Python's functions are in converted code."""
