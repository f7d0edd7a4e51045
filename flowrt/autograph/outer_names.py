"""Names outside a converted block that are rebound by functions called in it.

A graph contains the body of a loop once, and both branches: so a ``nonlocal`` or ``global`` name that is
rebound there is rebound once, however often the block runs. The conversion sees and carries the names that
the block itself rebinds; those of called functions show only when their code runs. Rule: a block over tensors
must not rebind names through the user's functions that it can reach, nested or at module level.
"""

from __future__ import annotations

import functools
import inspect
import sysconfig
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flowrt.autograph.lists import keeps_lists
from flowrt.autograph.source_lines import functions_in
from flowrt.autograph.variables import GetState, Undefined, is_same
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


def _global_names(function: Any) -> set[str]:
    """The names in the code of ``function`` that its module has; attributes with these names are harmless."""
    codes = [function.__code__, *functions_in(function.__code__)]
    return {name for code in codes for name in code.co_names if name in function.__globals__}
