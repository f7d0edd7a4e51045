"""``tensorflow.python.util.deprecation``: decorators that warn of deprecated functions and arguments.

The warnings are Python's ``DeprecationWarning``, so the filters of the ``warnings`` module apply.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from typing import Any

from flowrt.errors import InvalidArgumentError

__all__ = ["deprecated", "deprecated_args", "deprecated_argument_lookup"]

_Function = Callable[..., Any]


def deprecated(
    date: str | None, instructions: str, warn_once: bool = True
) -> Callable[[_Function], _Function]:
    """A decorator: a call of the function warns that it will be removed after ``date``."""

    def decorate(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            _warn(function.__qualname__, date, instructions)
            return function(*args, **kwargs)

        return call

    return decorate


def deprecated_args(
    date: str | None, instructions: str, *deprecated_arg_names: Any, **kwargs: Any
) -> Callable[[_Function], _Function]:
    """A decorator: a call that passes one of the arguments warns.

    A pair (name, value) in ``deprecated_arg_names`` does not warn for that value.
    """
    allowed: dict[str, Any] = dict(
        item if isinstance(item, tuple) else (item, None) for item in deprecated_arg_names
    )
    return functools.partial(_warn_about_arguments, date, instructions, allowed)


def _warn_about_arguments(
    date: str | None, instructions: str, allowed: dict[str, Any], function: _Function
) -> _Function:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            if name in allowed and value is not allowed[name]:
                _warn(f"the argument {name} of {function.__qualname__}", date, instructions)
        return function(*args, **kwargs)

    return call


def deprecated_argument_lookup(new_name: str, new_value: Any, old_name: str, old_value: Any) -> Any:
    """The value of an argument that was renamed. Raises `InvalidArgumentError` when both are given."""
    if old_value is None:
        return new_value
    if new_value is not None:
        raise InvalidArgumentError(
            f"arguments: expected {new_name} or its deprecated name {old_name}; got both"
        )
    return old_value


def _warn(what: str, date: str | None, instructions: str) -> None:
    when = f"after {date}" if date else "in a future version"
    text = f"{what} is deprecated and will be removed {when}. {instructions}"
    warnings.warn(text, DeprecationWarning, stacklevel=3)
