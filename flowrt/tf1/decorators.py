"""Tools of ``tensorflow.python.util`` for decorators and contexts, as copies of ``arg_scope`` use them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

__all__ = ["contextmanager", "make_decorator", "unwrap"]


def make_decorator(
    target: Callable[..., Any],
    decorator_func: Callable[..., Any],
    decorator_name: str | None = None,
    decorator_doc: str = "",
    decorator_argspec: Any = None,
) -> Callable[..., Any]:
    """``decorator_func`` with the name, the module and the docstring of ``target``, which it wraps. The other
    arguments are for TensorFlow's own documentation.
    """
    return functools.update_wrapper(decorator_func, target)


def unwrap(maybe_tf_decorator: Callable[..., Any]) -> tuple[list[Any], Callable[..., Any]]:
    """The decorators around a function, of which none is kept here, and the function within them."""
    return [], inspect.unwrap(maybe_tf_decorator)
