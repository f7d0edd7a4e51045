"""The functions that import operations, by domain, name and version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Handler = Callable[..., Any]
H = TypeVar("H", bound=Handler)

_handlers: dict[tuple[str, str], list[tuple[int, Handler]]] = {}


def handles(*names: str, since: int = 1, domain: str = "") -> Callable[[H], H]:
    """A decorator: the function imports the operations ``names`` from opset ``since`` on, until another.

    It is called with the `Node` and a value for each input, and returns a value, or a tuple of several.
    """

    def register(handler: H) -> H:
        for name in names:
            found = _handlers.setdefault((domain, name), [])
            found.append((since, handler))
            found.sort(key=lambda each: -each[0])
        return handler

    return register


def handler_of(domain: str, name: str, version: int) -> Handler | None:
    """The function for an operation of this opset, None if there is none."""
    found = _handlers.get((domain, name), ())
    return next((handler for since, handler in found if since <= version), None)
