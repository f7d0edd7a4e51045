"""TensorFlow's ``tf_inspect`` and ``function_utils``: arguments of functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from inspect import (
    FullArgSpec,
    Parameter,
    currentframe,
    getcallargs,
    getdoc,
    getfile,
    getfullargspec,
    getmembers,
    getmodule,
    getmro,
    getsource,
    isbuiltin,
    isclass,
    isfunction,
    isgenerator,
    ismethod,
    ismodule,
    isroutine,
    stack,
)
from typing import Any, NamedTuple

__all__ = [
    "ArgSpec", "FullArgSpec", "currentframe", "fn_args", "getargspec", "getcallargs", "getdoc", "getfile",
    "getfullargspec", "getmembers", "getmodule", "getmro", "getsource", "has_kwargs", "isbuiltin", "isclass",
    "isfunction", "isgenerator", "ismethod", "ismodule", "isroutine", "stack",
]  # fmt: skip


class ArgSpec(NamedTuple):
    """The result of Python 2's `inspect.getargspec`."""

    args: list[str]
    varargs: str | None
    keywords: str | None
    defaults: tuple[Any, ...] | None


def getargspec(obj: Callable[..., Any]) -> ArgSpec:
    """The arguments of ``obj``, those of keywords alone left out."""
    spec = getfullargspec(inspect.unwrap(obj))
    return ArgSpec(spec.args, spec.varargs, spec.varkw, spec.defaults)


def fn_args(fn: Callable[..., Any]) -> tuple[str, ...]:
    """The names of the arguments that a call may give ``fn``, without those that a `functools.partial` has
    given by name, and without ``*args`` and ``**kwargs``.
    """
    given = set(fn.keywords) if isinstance(fn, functools.partial) else set[str]()
    several = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    parameters = inspect.signature(fn).parameters.values()
    return tuple(p.name for p in parameters if p.kind not in several and p.name not in given)


def has_kwargs(fn: Callable[..., Any]) -> bool:
    """Whether ``fn`` takes ``**kwargs``."""
    return any(p.kind is Parameter.VAR_KEYWORD for p in inspect.signature(fn).parameters.values())
