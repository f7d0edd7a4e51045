"""Defaults: the graph of a new session, and the session of ``tensor.eval()``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.construction.graph import Graph, default_sessions, get_default_graph
from flowrt.graph.source import user_line


def graph_to_run(graph: Graph | None) -> Graph:
    """``graph``, or the default one. Raises `DTypeError` for something else, and `InvalidArgumentError` while
    that graph is a function's or a body's.
    """
    if not isinstance(graph, Graph | None):
        raise DTypeError(f"Session: expected a Graph; got {graph!r}")
    chosen = graph if graph is not None else get_default_graph()
    if isinstance(chosen, FuncGraph):
        raise InvalidArgumentError(
            f"Session: expected a graph that can run; {chosen.what} is being built, and its tensors have no "
            "values yet. Return them, and run the result of the call",
            source=user_line(),
        )
    return chosen


def get_default_session() -> Any:
    """The innermost default session of the thread.

    Returns:
        A `Session`, or None.

    Example:
        >>> with tf.Session() as own:
        ...     found = tf.get_default_session()
        >>> found is own
        True
    """
    sessions = default_sessions()
    return sessions[-1] if sessions else None


def leave(session: Any) -> None:
    """Take the innermost ``session`` off the thread's stack of default sessions."""
    stack = default_sessions()
    del stack[len(stack) - 1 - stack[::-1].index(session)]


@contextmanager
def as_default(session: Any) -> Iterator[Any]:
    """A context in which ``session`` is the default one."""
    stack = default_sessions()
    stack.append(session)
    try:
        yield session
    finally:
        leave(session)
