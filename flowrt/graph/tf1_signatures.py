"""Generated argument lists: for arguments that TensorFlow 1 has by two names, and arguments that many
functions share.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, Protocol, TypeVar

from flowrt.errors import InvalidArgumentError

P = ParamSpec("P")
R = TypeVar("R")


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function).parameters.values())


def required(name: str, annotation: str = "Any") -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation)


def optional(name: str, default: Any = None, annotation: str = "Any") -> inspect.Parameter:
    """A parameter that need not be given."""
    return required(name, annotation).replace(default=default)


def with_parameters(
    like: Callable[..., R], parameters: Iterable[inspect.Parameter], call: Callable[[dict[str, Any]], R]
) -> Callable[..., R]:
    """A function of ``parameters``, documented as ``like``, that is ``call`` of the arguments by name."""
    returned = inspect.signature(like).return_annotation
    signature = inspect.Signature(list(parameters), return_annotation=returned)
    others = [p.name for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]

    @functools.wraps(like)
    def function(*args: Any, **kwargs: Any) -> R:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            is_constructor = function.__name__ == "__init__" and args
            called = type(args[0]).__name__ if is_constructor else function.__name__
            raise TypeError(f"{called}() {error}") from None
        for name in others:
            given |= given.pop(name, {})
        return call(given)

    function.__signature__ = signature  # type: ignore[attr-defined]
    return function


def without_parameters(function: Callable[..., R], *names: str) -> Callable[..., R]:
    """``function`` without those of its parameters, which have defaults."""
    kept = [parameter for parameter in parameters_of(function) if parameter.name not in names]
    return with_parameters(function, kept, lambda given: function(**given))


def passing_on(other: Callable[..., Any], **defaults: Any) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """A decorator for a function with the arguments of ``other`` as ``**options``: its signature names them,
    behind its own parameters, with the defaults of ``other`` but for ``defaults``.
    """

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        own = [p for p in parameters_of(function) if p.kind is not p.VAR_KEYWORD]
        names = {p.name for p in own}
        more = [p.replace(default=defaults.get(p.name, p.default)) for p in parameters_of(other)]
        parameters = [*own, *(p for p in more if p.name not in names)]
        return with_parameters(function, parameters, lambda given: function(**{**defaults, **given}))

    return decorate


def or_none(annotation: str) -> str:
    return annotation if annotation == "Any" or annotation.endswith("None") else f"{annotation} | None"


class Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def tf1_names(before: str | None = None, /, **old_names: str) -> Decorator:
    """A decorator for a function with arguments that have a new name and an old one: ``new="old"``.

    The function has a parameter for one of the two; the decorator adds the other as the last one, or ahead of
    the parameter ``before``, with the default None. A call with both raises `InvalidArgumentError`.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        parameters = parameters_of(function)
        own = [parameter.name for parameter in parameters]
        place = len(own) if before is None else own.index(before)
        added = {old if new in own else new: (new, old) for new, old in old_names.items()}
        types = {p.name: str(p.annotation) for p in parameters}
        parameters[place:place] = [
            optional(name, annotation=or_none(types[new if name == old else old]))
            for name, (new, old) in added.items()
        ]

        def call(given: dict[str, Any]) -> R:
            for name, (new, old) in added.items():
                value = given.pop(name, None)
                if value is None:
                    continue
                known = new if name == old else old
                if given.get(known) is not None:
                    both = f"{new!r} and its old spelling {old!r}"
                    raise InvalidArgumentError(f"expected one of {both}; got both")
                given[known] = value
            return plain(**given)

        plain: Callable[..., R] = function
        with_both_names = with_parameters(function, parameters, call)

        @functools.wraps(with_both_names)
        def shortcut(*args: P.args, **kwargs: P.kwargs) -> R:
            """Most calls need no look at the names."""
            if len(args) <= place and kwargs.keys().isdisjoint(added):
                return function(*args, **kwargs)
            return with_both_names(*args, **kwargs)

        return shortcut

    return decorate
