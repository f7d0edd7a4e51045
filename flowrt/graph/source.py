"""Where in the user's program an operation was made."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from flowrt.graph.node import Source

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"

_BETWEEN = contextlib.__file__
"""Its frames stand between a ``with`` of the user's and a context manager of flowrt's."""


def user_source() -> Source | None:
    """The innermost frame of the caller's that does not belong to flowrt."""
    frame = sys._getframe(1)
    while (file := frame.f_code.co_filename).startswith(_PACKAGE) or file == _BETWEEN:
        if frame.f_back is None:
            return None
        frame = frame.f_back
    key = (id(frame.f_code), frame.f_lasti)
    found = _sources.get(key)
    if found is None or found.code is not frame.f_code:
        found = _sources[key] = Source(frame.f_code, frame.f_lasti)
    return found


def user_line() -> str | None:
    """`user_source` as ``file:line``, for errors that no operation stands behind."""
    source = user_source()
    return None if source is None else str(source)


_sources: dict[tuple[int, int], Source] = {}
"""Equal sources are one object, which the garbage collector then visits once."""
