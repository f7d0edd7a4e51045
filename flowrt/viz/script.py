"""Recording of the steps that a script's sessions run."""

from __future__ import annotations

import logging
import runpy
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.executor.session.request import Request
from flowrt.executor.session.session import ON_COMPILE, BaseSession
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import Shape
from flowrt.viz.compile_request import CompileRequest, needed_ops, title_of

LOGGER = logging.getLogger("flowrt")


class _Enough(BaseException):
    """Ends a script when the steps that are asked for are there."""


def requests_of_script(
    path: str, arguments: Sequence[str] = (), until: Callable[[CompileRequest], bool] = lambda step: False
) -> list[CompileRequest]:
    """The steps that the sessions of the script at ``path`` compile while it runs as the main program, with
    ``arguments``; the latest is last. The script runs to its end, until Ctrl-C, or until it compiles a step
    of which ``until`` is true: that one is not run. What it prints goes to standard error.

    Raises `NotFoundError` if there is no such file, and `InvalidArgumentError` if no session ran anything or
    the script raised: with the script's line and the error.
    """
    if not Path(path).is_file():
        raise NotFoundError(f"{path}: expected a Python file; there is none")
    heard: list[CompileRequest] = []

    def hear(session: BaseSession, request: Request, shapes: Sequence[Shape]) -> None:
        fetches = request.fetches
        feeds = dict(zip(request.feeds, shapes, strict=True))
        heard.append(
            CompileRequest(session.graph, fetches.tensors, fetches.targets, feeds, session.compile_options())
        )
        if until(heard[-1]):
            raise _Enough

    with _program([path, *arguments]), redirect_stdout(sys.stderr):
        ON_COMPILE.append(hear)
        ended_with: object = None
        try:
            runpy.run_path(path, run_name="__main__")
        except (_Enough, KeyboardInterrupt):
            pass  # use what has been recorded
        except SystemExit as end:
            ended_with = end.code
        except Exception as error:  # a script may raise anything
            LOGGER.debug("%s raised", path, exc_info=True)
            raise InvalidArgumentError(f"{_where(path, error)}: {_told(error)}") from None
        finally:
            ON_COMPILE.remove(hear)
    if not heard:
        why = f" and ended with {_line(ended_with)}" if ended_with else ""
        raise InvalidArgumentError(f"{path}: expected a script that runs a session; it ran none{why}")
    return heard


def _where(path: str, error: Exception) -> str:
    """The ``file:line`` in the script at which ``error`` originated."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}" if error.filename and error.lineno else path
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else path


def _told(error: Exception) -> str:
    """The first line of ``ValueError: message``."""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return ": ".join(filter(None, (type(error).__name__, _line(text))))


def _line(text: object) -> str:
    """The first line."""
    return str(text).partition("\n")[0]


@contextmanager
def _program(words: Sequence[str]) -> Iterator[None]:
    """The process as the script expects it: its arguments, its directory first in the path."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def main_request(asked: Sequence[CompileRequest], fetches: Sequence[str] = ()) -> CompileRequest:
    """The largest of a script's steps that compute ``fetches``, by the size of the graph needed; if any read
    variables, among those: so usually the training step, not the initializer.

    Raises `NotFoundError`, with all the steps, if none computes ``fetches``.
    """
    fitting = [one for one in asked if {*fetches} <= set(_names(one))]
    if not fitting:
        steps = "; ".join(dict.fromkeys(map(title_of, asked)))
        known = {name for one in asked for name in _names(one)}
        hints = "".join(nearest(name, known) for name in fetches if name not in known)
        raise NotFoundError(
            f"fetch: expected names that one step of the script fetches; got {', '.join(fetches)}. The script"
            f" runs {steps}.{hints}"
        )
    return max(fitting, key=_weight)


def only(asked: CompileRequest, fetches: Collection[str]) -> CompileRequest:
    """Return ``asked`` with only the fetches that ``fetches`` names, and the feeds that these need."""
    part = asked._replace(
        tensors=tuple([t for t in asked.tensors if t.name in fetches or t.op.name in fetches]),
        targets=tuple([op for op in asked.targets if op.name in fetches]),
    )
    ops = needed_ops(part.tensors, part.targets)
    return part._replace(feeds={fed: shape for fed, shape in part.feeds.items() if fed.op in ops})


def _names(asked: CompileRequest) -> Iterator[str]:
    """The accepted names of its fetches."""
    for tensor in asked.tensors:
        yield tensor.name
        yield tensor.op.name
    for op in asked.targets:
        yield op.name


def _weight(asked: CompileRequest) -> tuple[bool, int]:
    found = needed_ops(asked.tensors, asked.targets)
    return any(op.op_def.effect is Effect.READ for op in found), len(found)
