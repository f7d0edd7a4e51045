"""`variable_creator_scope`: functions that intercept the creation of variables by `Variable`.

A call passes through the thread's creators from the innermost scope to the outermost, each of which may
change the arguments, call the next one, call it several times, or return something else.
"""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

Creator: TypeAlias = Callable[..., Any]
"""``creator(next_creator, **arguments of Variable) -> variable``."""


class _Thread(threading.local):
    creators: tuple[Creator, ...] = ()


_thread = _Thread()


def variable_creators() -> tuple[Creator, ...]:
    """The thread's creators, the outermost first."""
    return _thread.creators


@contextlib.contextmanager
def variable_creators_set(creators: tuple[Creator, ...]) -> Iterator[None]:
    """A context in which the thread has exactly these creators."""
    outer, _thread.creators = _thread.creators, creators
    try:
        yield
    finally:
        _thread.creators = outer


@contextlib.contextmanager
def variable_creator_scope(variable_creator: Creator) -> Iterator[None]:
    """Create variables inside by ``variable_creator(next_creator, **arguments)``.

    ``arguments`` are all those of `Variable`, by name; ``next_creator(**arguments)`` calls the enclosing
    scope's, or finally creates the variable.
    """
    with variable_creators_set((*_thread.creators, variable_creator)):
        yield


class CreatedInScopes(type):
    """The type of `Variable`: calls of the class itself, not of subclasses, pass through the creators."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of a call of the class."""
        initializer = inspect.signature(cls.__init__)  # type: ignore[misc]
        return initializer.replace(parameters=list(initializer.parameters.values())[1:])

    if not TYPE_CHECKING:  # checkers and editors see a call of the class, which makes a `Variable`

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            make: Callable[..., Any] = partial(type.__call__, cls)
            if not _thread.creators or isinstance(cls.__base__, CreatedInScopes):
                return make(*args, **kwargs)
            bound = cls.__signature__.bind(*args, **kwargs)
            bound.apply_defaults()
            for creator in _thread.creators:
                make = partial(creator, make)
            return make(**bound.arguments)
