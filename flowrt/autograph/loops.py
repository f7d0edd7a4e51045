"""``while`` and ``for``.

A variable that a loop over tensors changes keeps its structure, dtype and shape from before the loop;
`flowrt.autograph.experimental.set_loop_options` may widen the shape. Other values must not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, final

import numpy as np

from flowrt import dtypes
from flowrt.autograph.branches import and_, if_stmt
from flowrt.autograph.outer_names import HINT, keeps_outside
from flowrt.autograph.variables import (
    Block,
    GetState,
    SetState,
    State,
    Undefined,
    UndefinedReturnValue,
    as_tensor,
    is_same,
    is_symbolic,
    is_value,
    spec_of,
    zeros,
)
from flowrt.base.structure import flatten, map_structure, same_structure
from flowrt.control_flow import while_loop
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.node import TensorSpec
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.array.slicing import strided_slice_op
from flowrt.graph.ops.base.shape_manipulation import shape_op
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.ops.elementwise.comparison import less
from flowrt.graph.shapes import as_shape, format_shape, relax
from flowrt.graph.source import user_line


def while_stmt(
    test: Block,
    body: Block,
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    """``while test: body``. A Python loop for as long as the test's outcome is known."""
    while True:
        holds = test()
        if is_symbolic(holds):
            blocks = (keeps_outside(WHAT, block, get_state) for block in (test, body))
            _While(get_state, set_state, names, options).run(*blocks)
            return
        if not holds:
            return
        body()


WHAT = "loop over tensors"


@final
class _While:
    """A loop over tensors. ``options`` are those of `set_loop_options` and the library's additions."""

    def __init__(
        self, get_state: GetState, set_state: SetState, names: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        self._get, self._set, self._names = get_state, set_state, names
        self._before = list(get_state())
        self._wider = _pairs(options.get("shape_invariants"))
        self._options = {key: options[key] for key in _OPTIONS if options.get(key) is not None}

    def run(self, test: Block, body: Block) -> None:
        self._check_defined()
        trial = self._fill_in_return(body)
        carried = [k for k, value in enumerate(self._before) if all(map(is_value, flatten(value)))]

        def holds(*values: Any) -> Any:
            self._enter(carried, values)
            return convert_to_tensor(test())

        def iteration(*values: Any) -> Any:
            self._enter(carried, values)
            body()
            after = self._get()
            self._check(carried, values, after)
            return tuple(after[k] for k in carried) or (False,)

        initial = tuple(map_structure(as_tensor, self._before[k]) for k in carried) or (False,)
        results = while_loop(
            holds,
            iteration,
            initial,
            self._invariants(carried, trial),
            name="while",
            return_same_structure=True,
            **self._options,
        )
        self._enter(carried, results)

    def _invariants(self, carried: Sequence[int], trial: dict[int, Any]) -> tuple[Any, ...] | None:
        """The shapes of the variables, where not all keep those that they begin with."""
        shapes = {k: map_structure(_shape_of, like) for k, like in trial.items()}
        for value, shape in self._wider:
            found = [k for k in carried if self._before[k] is value]
            if not found:
                raise InvalidArgumentError(
                    f"{WHAT}: expected shape_invariants of variables that it changes; got {value!r:.60}",
                    source=user_line(),
                )
            shapes |= dict.fromkeys(found, shape)
        if not shapes:
            return None
        return tuple(shapes.get(k, map_structure(_shape_of, self._before[k])) for k in carried)

    def _enter(self, carried: Sequence[int], values: Iterable[Any]) -> None:
        state = list(self._before)
        for k, value in zip(carried, values, strict=False):
            state[k] = value
        self._set(tuple(state))

    def _check_defined(self) -> None:
        for name, value in zip(self._names, self._before, strict=True):
            if isinstance(value, Undefined):
                raise InvalidArgumentError(
                    f"{WHAT}: expected a value for variable {name!r} before the loop, as it is"
                    " used after it or in the next iteration; got none",
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
        found = {
            k: map_structure(spec_of, after[k])
            for k in missing
            if not isinstance(after[k], UndefinedReturnValue)
        }
        for k, like in found.items():
            self._before[k] = map_structure(zeros, like)
        return found

    def _check(self, carried: Sequence[int], before: Sequence[Any], after: State) -> None:
        """Raise unless every variable keeps its spec."""
        values = dict(zip(carried, before, strict=False))
        for k, name in enumerate(self._names):
            was, now = values.get(k, self._before[k]), after[k]
            if k not in values:
                if now is not was and not is_same(was, now):
                    self._misfit(name, was, now)
                continue
            if not same_structure(was, now) or not all(map(is_value, flatten(now))):
                self._misfit(name, was, now)
            for x, y in zip(flatten(was), flatten(now), strict=True):
                _check_spec(name, spec_of(x).spec, spec_of(y).spec, is_symbolic(y))

    def _misfit(self, name: str, was: Any, now: Any) -> NoReturn:
        hint = f". {HINT}" if isinstance(was, list) and isinstance(now, list) else ""
        raise InvalidArgumentError(
            f"{WHAT}: expected variable {name!r} to stay {was!r:.60}, or like it; got {now!r:.60}"
            f" after an iteration{hint}",
            source=user_line(),
        )


_OPTIONS = ("parallel_iterations", "swap_memory", "maximum_iterations")
"""The options that are passed to `while_loop` unchanged."""


def _pairs(shape_invariants: Any) -> list[tuple[Any, Any]]:
    """The variables' values and shapes. Raises `InvalidArgumentError`."""
    found = [] if shape_invariants is None else shape_invariants
    if not isinstance(found, (list, tuple)) or not all(
        isinstance(p, (list, tuple)) and len(p) == 2 for p in found
    ):
        raise InvalidArgumentError(
            f"set_loop_options: expected shape_invariants to be a list of pairs (variable, shape); got"
            f" {shape_invariants!r:.80}",
            source=user_line(),
        )
    return list(found)


def _check_spec(name: str, was: TensorSpec, now: TensorSpec, has_dtype: bool) -> None:
    """Raise unless a leaf of variable ``name`` keeps its spec; a Python number takes the dtype."""
    if has_dtype and now.dtype is not was.dtype:
        raise DTypeError(
            f"{WHAT}: expected variable {name!r} to stay {was.dtype.name}; got {now.dtype.name} after an"
            " iteration. Use flowrt.cast()",
            source=user_line(),
        )
    if was.dtype is not dtypes.variant and relax(now.shape, was.shape) != was.shape:
        raise InvalidArgumentError(
            f"{WHAT}: expected variable {name!r} to keep the shape {format_shape(was.shape)}; got"
            f" {format_shape(now.shape)} after an iteration. First in the loop, set a shape for all of them:"
            f" flowrt.autograph.experimental.set_loop_options(shape_invariants=[({name}, shape)])",
            source=user_line(),
        )


def _as_variable(value: Any) -> Any:
    """A value of the first iteration, about which no more is known than of later ones."""
    return map_structure(as_tensor, value) if all(map(is_value, flatten(value))) else value


def _shape_of(leaf: Any) -> Any:
    return as_shape(spec_of(leaf).shape)


@final
@dataclass(frozen=True)
class Items:
    """The items of a ``for``: ``count`` items, number i is ``item(i)``."""

    count: Tensor
    item: Callable[[Tensor], Any]


def items_of(iterable: Any) -> Items | None:
    """The items of a tensor (its rows), or of a value made of tensors; None if Python can iterate over it."""
    if isinstance(iterable, Items) or not is_symbolic(iterable):
        return iterable if isinstance(iterable, Items) else None
    rows = convert_to_tensor(iterable)
    if rows.spec.shape == ():
        raise InvalidArgumentError(f"for: expected a tensor with rows; got {rows!r}", source=user_line())
    return Items(length_of(rows), lambda i: gather_op(rows, i, 0))


def for_stmt(
    iterable: Any,
    extra_test: Block | None,
    body: Callable[[Any], Any],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
    options: Mapping[str, Any],
) -> None:
    """``for item in iterable: body(item)``, as long as ``extra_test`` holds."""
    items = items_of(iterable)
    if items is None:
        _python_for(iterable, extra_test or (lambda: True), body, get_state, set_state, names)
        return
    position: Any = np.int32(0)  # no variable of the user's is this object
    of_item = keeps_outside(WHAT, body, get_state)

    def get() -> State:
        return (position, *get_state())

    def put(values: State) -> None:
        nonlocal position
        position, *rest = values
        set_state(tuple(rest))

    def test() -> Any:
        inside = less(position, items.count)
        return inside if extra_test is None else and_(lambda: inside, extra_test)

    def iteration() -> None:
        nonlocal position
        number, position = position, add_v2(position, 1)
        of_item(items.item(number))

    _While(get, put, ("the position", *names), options).run(test, iteration)


def _python_for(
    iterable: Iterable[Any],
    extra_test: Block,
    body: Callable[[Any], Any],
    get_state: GetState,
    set_state: SetState,
    names: Sequence[str],
) -> None:
    """Iterate over Python's items; iterations that depend on a tensor are branches."""
    for item in iterable:
        holds = extra_test()
        if is_symbolic(holds):
            if_stmt(holds, lambda: body(item), lambda: None, get_state, set_state, names, len(names))  # noqa: B023
        elif holds:
            body(item)
        else:
            break


def length_of(value: Any) -> Any:
    shape = shape_op(value)
    return strided_slice_op(shape, [0], [1], [1], shrink_axis_mask=1)
