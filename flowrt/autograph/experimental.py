"""Options of the conversion of a program's source, under TensorFlow's names."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

LEFT_ALONE = WeakSet[Any]()
"""Functions that the conversion leaves as they are: those of `do_not_convert`, and inner ones it has made."""


def set_loop_options(
    parallel_iterations: int | None = None,
    swap_memory: bool | None = None,
    maximum_iterations: Any = None,
    shape_invariants: Any = None,
) -> None:
    """Set options of the enclosing loop's `while_loop`; must be the first statement of the loop's body.

    ``shape_invariants`` is a list of pairs ``(variable, shape)``: the shape, with None for unknown
    dimensions, that the variable has in all iterations. The other options are those of `while_loop`. They do
    not apply to a loop that stays Python's; in code that is not converted, a call does nothing.

    The conversion removes the call. The loop raises `InvalidArgumentError` for invariants that are not such a
    list, and for a variable that it does not change.
    """


def do_not_convert(func: Any = None, **options: Any) -> Any:
    """Decorate ``func``: it, and what it calls, runs as it is written. ``options`` are accepted."""
    if func is None:
        return do_not_convert
    LEFT_ALONE.add(getattr(func, "__func__", func))
    return func
