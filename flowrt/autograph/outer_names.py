"""Names and lists outside a converted block that it, or a function called in it, changes.

A graph contains the body of a loop once, and both branches: so a ``nonlocal`` or ``global`` name that is
rebound there is rebound once, however often the block runs, and a list gets a single inner tensor, which is
not readable outside. The conversion sees and carries the names that
the block itself rebinds; those of called functions show only when their code runs. Rule: a block over tensors
must not rebind names through the user's functions that it can reach, nested or at module level, nor change
the length of lists from outside.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flowrt.autograph.variables import GetState, Undefined, is_same, is_symbolic
from flowrt.base.structure import flatten
from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import user_line

_NOT_THE_USERS = (
    "<",
    str(Path(__file__).resolve().parent.parent),
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")),
)


def is_users_code(code: types.CodeType) -> bool:
    """Whether it is not flowrt's, the standard library's or an installed package's."""
    return not code.co_filename.startswith(_NOT_THE_USERS)


def keeps_outside(what: str, block: Callable[..., Any], get_state: GetState) -> Callable[..., Any]:
    """``block``, which leaves lists and names outside as they are, or raises `InvalidArgumentError`."""
    return keeps_lists(what, keeps_names(what, block, get_state))


def keeps_names(what: str, block: Callable[..., Any], get_state: GetState) -> Callable[..., Any]:
    """Wrap ``block``, a part of ``what``, to raise `InvalidArgumentError` if a function that it calls has
    rebound a name from outside; the name is then restored. Those of ``get_state`` may change.
    """

    @functools.wraps(block)
    def kept(*args: Any) -> Any:
        before = _Names(block, get_state)
        result = block(*args)
        rebound = before.restore()
        if rebound:
            name, was, now = rebound[0]
            raise InvalidArgumentError(
                f"{what}: expected name {name!r}, which a function called in it rebinds, to stay {was!r:.60},"
                f" because this block is traced once, no matter how often it runs; got {now!r:.60}. Have the"
                f" function return the value: {name} = f({name})",
                source=user_line(),
            )
        return result

    return kept


class _Names:
    """The values of the names of the functions that a block can reach."""

    def __init__(self, block: Callable[..., Any], get_state: GetState) -> None:
        carried = _global_names(get_state)
        own = {id(cell) for cell in _closure(get_state).values()}
        self._cells: dict[int, tuple[str, types.CellType, Any]] = {}
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], Any]] = {}
        for function in _reachable(block):
            for name, cell in _closure(function).items():
                if id(cell) not in own:
                    self._cells[id(cell)] = name, cell, _contents(cell)
            for name in _global_names(function) - carried:
                space = function.__globals__
                self._globals[id(space), name] = space, space[name]

    def restore(self) -> list[tuple[str, Any, Any]]:
        """Undo the rebinding. Returns the names, with their old and their new values."""
        rebound = []
        for name, cell, was in self._cells.values():
            now = _contents(cell)
            if _differ(was, now):
                _put(cell, was)
                rebound.append((name, was, now))
        for (_, name), (space, was) in self._globals.items():
            now = space.get(name)
            if _differ(was, now):
                space[name] = was
                rebound.append((name, was, now))
        return rebound


def _differ(was: Any, now: Any) -> bool:
    return was is not now and not is_same(was, now)


def _reachable(block: Callable[..., Any]) -> Iterator[types.FunctionType]:
    """``block`` and the user's functions that it names, that these name, and so on."""
    waiting: list[Any] = [block]
    seen = set[int]()
    while waiting:
        found = waiting.pop()
        function = getattr(found, "__func__", found)
        if id(function) in seen or not (function is block or _is_the_users(function)):
            continue
        seen.add(id(function))
        yield function
        waiting += [_contents(cell) for cell in _closure(function).values()]
        waiting += [function.__globals__[name] for name in _global_names(function)]


def _is_the_users(value: Any) -> bool:
    return inspect.isfunction(value) and is_users_code(value.__code__)


def _closure(function: Any) -> dict[str, types.CellType]:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # no value yet
        return Undefined("")


def _put(cell: types.CellType, value: Any) -> None:
    if isinstance(value, Undefined):
        del cell.cell_contents
    else:
        cell.cell_contents = value


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """All code inside ``code``."""
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from functions_in(inner)


def _global_names(function: Any) -> set[str]:
    """The names in the code of ``function`` that its module has; attributes with these names are harmless."""
    codes = [function.__code__, *functions_in(function.__code__)]
    return {name for code in codes for name in code.co_names if name in function.__globals__}


HINT = "Use flowrt.TensorArray: array = array.write(i, value)"


def keeps_lists(what: str, block: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``block``, a part of ``what``, to raise `InvalidArgumentError` if it has appended tensors to a
    list from outside; the list is then restored.
    """

    @functools.wraps(block)
    def kept(*args: Any) -> Any:
        outside = {name: _contents(cell) for name, cell in _closure(inspect.unwrap(block)).items()}
        before = [(name, found, len(found)) for name, found in outside.items() if isinstance(found, list)]
        result = block(*args)
        for name, found, count in before:
            added = found[count:]
            if any(map(is_symbolic, flatten(added))):
                del found[count:]
                raise InvalidArgumentError(
                    f"{what}: expected list {name!r} to keep its length {count}, because this block is traced"
                    f" once, no matter how often it runs; got {count + len(added)}. {HINT}",
                    source=user_line(),
                )
        return result

    return kept
