"""Sources of operations: the user's line, and the calls that led to it.

A `Source` is one frame of the user's program, linked to the frame that called it. Most operations are made by
the same calls as the one before them at their line: then the stack is only compared with that one's, frame by
frame, in 0.1 us each. Lines and texts are computed on demand.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import lru_cache
from traceback import FrameSummary, StackSummary
from types import FrameType
from typing import Any, NamedTuple

from flowrt.base.user_frames import is_between, is_generated, is_library, shown_file, starts_programs
from flowrt.errors import InvalidArgumentError, OpError


class Source(NamedTuple):
    """A call in the user's program: code object, instruction, and the frame that called the code, if it is
    known. Frames of libraries between two of the user's are linked, too (see `traceback_of`).
    """

    code: Any
    instruction: int
    caller: Source | None = None

    @property
    def line(self) -> int:
        return _line(self.code, self.code.co_linetable, self.instruction)

    def __str__(self) -> str:
        return f"{shown_file(self.code.co_filename)}:{self.line}"


@lru_cache(maxsize=1024)
def _line(code: Any, table: bytes, instruction: int) -> int:
    """The line of an instruction: the nodes of one call on several devices ask for the same one. ``table``
    tells code objects apart that are equal but for their lines.
    """
    del table
    line: int = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= instruction < end:
            line = number
    return line


def traceback_of(source: Source | None) -> StackSummary:
    """The user's frames that led to ``source``, outermost first, which ends with it."""
    frames = list[FrameSummary]()
    while source is not None:
        file = source.code.co_filename
        if not is_library(file):
            text = linecache.getline(file, source.line)
            frames.append(FrameSummary(shown_file(file), source.line, source.code.co_name, line=text))
        source = source.caller
    return StackSummary.from_list(frames[::-1])


def user_source(depth: int = 0) -> Source | None:
    """The innermost caller's frame outside flowrt, starting ``depth`` levels up: the caller guarantees that
    the skipped frames belong to flowrt.
    """
    frame: FrameType | None = sys._getframe(depth + 1)
    while frame is not None:
        code = frame.f_code
        key = (id(code), frame.f_lasti)
        latest = link = _latest.get(key)
        if link is not None:
            at, link = frame.f_back, link.caller
            while link is not None and at is not None:
                code, instruction, caller = link
                if at.f_code is not code or at.f_lasti != instruction:
                    break
                at, link = at.f_back, caller
            if link is None:
                return latest
        elif code is _CALLED_FOR:
            return frame.f_locals["source"]
        if latest is not None or not (is_between(code.co_filename) or is_generated(frame)):
            found = _latest[key] = _interned(frame)
            return found
        frame = frame.f_back
    return None


def _interned(frame: FrameType) -> Source:
    """The source of ``frame``, linked to its callers as far as the program goes."""
    frames = [frame]
    source: Source | None = None
    while not _is_outermost(frames[-1]) and (caller := frames[-1].f_back) is not None:
        if caller.f_code is _CALLED_FOR:
            source = caller.f_locals["source"]
            break
        frames.append(caller)
    for each in reversed(frames):
        key = (id(each.f_code), each.f_lasti, id(source))
        source = _sources.get(key) or _sources.setdefault(key, Source(each.f_code, each.f_lasti, source))
    assert source is not None
    return source


def _is_outermost(frame: FrameType) -> bool:
    """Whether what called ``frame`` is of no interest: it is a script, or starts programs itself."""
    is_script = frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") == "__main__"
    return is_script or starts_programs(frame.f_code.co_filename)


def user_source_at(depth: int) -> Source | None:
    """The frame ``depth`` above the caller's, if it is the user's."""
    frame = sys._getframe(depth + 1)
    return None if is_between(frame.f_code.co_filename) else Source(frame.f_code, frame.f_lasti)


def called_for(source: Source | None, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``function(*args, **kwargs)``, attributing the operations it creates to ``source``: for calls made on
    behalf of code in another thread.
    """
    return function(*args, **kwargs)


_CALLED_FOR = called_for.__code__


def user_line() -> str | None:
    """`user_source` as ``file:line``, for errors without an operation."""
    source = user_source()
    return None if source is None else str(source)


def misuse(message: str, error: type[OpError] = InvalidArgumentError) -> OpError:
    """The error to raise for a wrong call in the user's program: it names the user's line."""
    return error(message, source=user_line())


_sources: dict[tuple[int, int, int], Source] = {}
"""Interned sources, by code, instruction and caller: one object each, which the garbage collector visits
once. They keep their code, so that no identity is used twice.
"""

_latest: dict[tuple[int, int], Source] = {}
"""The source that was found last, by code and instruction."""
