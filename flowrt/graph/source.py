"""Source location in the user's program of an operation."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.node import Source

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"
_NUMPY = os.path.dirname(np.__file__) + "/"
_COMMANDS = os.path.dirname(sys.executable)
"""Directory in which installers place ``flowrt`` and similar commands."""


def user_source(depth: int = 0) -> Source | None:
    """The innermost caller's frame outside flowrt, starting ``depth`` levels up: the caller guarantees that
    the skipped frames belong to flowrt.
    """
    frame = sys._getframe(depth + 1)
    while _is_between(frame.f_code.co_filename) or _is_generated(frame):
        if frame.f_code is _CALLED_FOR:
            return frame.f_locals["source"]
        if frame.f_back is None:
            return None
        frame = frame.f_back
    key = (id(frame.f_code), frame.f_lasti)
    found = _sources.get(key)
    if found is None or found.code is not frame.f_code:
        found = _sources[key] = Source(frame.f_code, frame.f_lasti)
    return found


def user_source_at(depth: int) -> Source | None:
    """The frame ``depth`` above the caller's, if it is the user's."""
    frame = sys._getframe(depth + 1)
    return None if _is_between(frame.f_code.co_filename) else Source(frame.f_code, frame.f_lasti)


def called_for(source: Source | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, attributing the operations it creates to ``source``: for calls made on
    behalf of code in another thread.
    """
    return function(*args, **kwargs)


_CALLED_FOR = called_for.__code__


@cache
def _is_between(file: str) -> bool:
    """Whether ``file`` is between user code and the graph on the stack, or starts flowrt's own commands."""
    return (
        file.startswith((_PACKAGE, _NUMPY))  # np.stack of tensors asks each for an array
        or file == contextlib.__file__  # a user's ``with`` statement passes through it
        or file == "<frozen runpy>"  # python -m flowrt
        or os.path.dirname(file) == _COMMANDS
    )


def _is_generated(frame: FrameType) -> bool:
    """Whether ``frame`` is a constructor that `dataclasses` has made for flowrt."""
    return frame.f_code.co_filename == "<string>" and frame.f_globals["__name__"].startswith("flowrt.")


def user_line() -> str | None:
    """`user_source` as ``file:line``, for errors without an operation."""
    source = user_source()
    return None if source is None else str(source)


def misuse(message: str, error: type[OpError] = InvalidArgumentError) -> OpError:
    """The error to raise for a wrong call in the user's program: it names the user's line."""
    return error(message, source=user_line())


_sources: dict[tuple[int, int], Source] = {}
"""Interned sources: one object each, which the garbage collector visits once."""
