"""Calls with composite tensors, such as ragged ones, which have their own form of some functions.

A composite's class has ``own_functions``, what public functions do with it, by their names, and
``own_elementwise``, what functions of single elements do with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.source import misuse

P = ParamSpec("P")
R = TypeVar("R")


def composite_among(values: Iterable[Any]) -> Any:
    """The first composite of ``values``, or of lists among them; None without any."""
    for value in values:
        kind = type(value)
        if kind is Tensor:  # nearly all are, and a name that an object lacks is looked up slowly
            continue
        if kind is list or kind is tuple:
            if (found := composite_among(value)) is not None:
                return found
        elif hasattr(value, "own_functions"):
            return value
    return None


def takes_composites(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, or for composite arguments their class's own function of this name.

    A call raises `UnimplementedError` if the class has none.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        composite = composite_among((*args, *kwargs.values()))
        if composite is None:
            return function(*args, **kwargs)
        own = composite.own_functions.get(function.__name__)
        if own is None:
            raise misuse(f"{function.__name__}: got {composite!r}", UnimplementedError)
        return own(*args, **kwargs)

    return call


def elementwise_of_composites(function: Callable[P, R]) -> Callable[P, R]:
    """``function``, of single elements, which for composite arguments is that of their elements."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        composite = composite_among(args)
        if composite is None:
            return function(*args, **kwargs)
        return composite.own_elementwise(function, args, kwargs)

    return call
