"""Tracebacks of the user's frames only, in scripts and in notebooks; ``FLOWRT_TRACEBACK=full`` shows all.

    Traceback (most recent call last):
      File "train.py", line 9, in <module>
        tf.matmul(a, b)
    flowrt.errors.InvalidArgumentError: MatMul 'MatMul' (train.py:9): ...

An error that is not flowrt's and was raised in flowrt is a bug in flowrt: its traceback stays whole, as does
that of an `InternalError`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from types import FrameType, TracebackType
from typing import Any

from flowrt.base.user_frames import is_generated, is_library, notebook_shell
from flowrt.errors import InternalError, InvalidArgumentError, OpError

SETTING = "FLOWRT_TRACEBACK"


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Have what Python, or a notebook, shows of an uncaught error pass through `shorten`. Programs that log
    errors themselves see the whole. Raises `InvalidArgumentError` for a wrong setting.
    """
    chosen = environ.get(SETTING, "")
    if chosen not in ("", "full"):
        raise InvalidArgumentError(f"{SETTING}: expected full; got {chosen!r}")
    if chosen:
        return
    shell = notebook_shell()
    if shell is None:
        sys.excepthook = _excepthook(sys.excepthook)
    elif not shell.custom_exceptions:
        shell.set_custom_exc((Exception,), _show_in_notebook)


def shorten(error: BaseException) -> None:
    """Leave the user's frames only in the tracebacks of ``error``, its causes, and what they replace.

    A cause that flowrt raised and caught keeps its message alone; ``error`` itself always has frames.
    """
    seen = set[int]()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found = _of_user(each)
        each.__traceback__ = found or (each.__traceback__ if each is error else None)
        pending += (each.__cause__, each.__context__)


def _of_user(error: BaseException) -> TracebackType | None:
    """The user's frames of ``error``'s traceback; all of it for a bug in flowrt."""
    entries = list(_entries(error.__traceback__))
    kept = [entry for entry in entries if not _is_library(entry.tb_frame)]
    is_raised_by_user = kept[-1:] == entries[-1:]
    is_ours = isinstance(error, OpError) or type(error).__module__.startswith("flowrt.")
    is_bug = isinstance(error, InternalError) or not (is_raised_by_user or is_ours)
    if is_bug:
        return error.__traceback__
    rest: TracebackType | None = None
    for entry in reversed(kept):
        rest = TracebackType(rest, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return rest


def _is_library(frame: FrameType) -> bool:
    return is_library(frame.f_code.co_filename) or is_generated(frame)


def _entries(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _excepthook(show: Any) -> Any:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        shorten(error)
        show(kind, error, error.__traceback__)

    return excepthook


def _show_in_notebook(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    """See ``InteractiveShell.set_custom_exc``."""
    shorten(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=0)
