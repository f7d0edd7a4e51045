"""A thread's stacks of default graphs and default sessions."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowrt.graph.construction.graph import Graph


class _Defaults(threading.local):
    """A thread's stacks of default graphs and sessions."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self.sessions: list[Any] = []


_defaults = _Defaults()


def default_graphs() -> list[Graph]:
    """The thread's stack of default graphs, innermost last."""
    return _defaults.graphs


def default_sessions() -> list[Any]:
    """The thread's stack of default sessions, for `Session` to push to."""
    return _defaults.sessions


def leave_default_graph(graph: Graph) -> None:
    """Remove the thread's innermost entry of ``graph``: interactive scopes may end in any order."""
    stack = _defaults.graphs
    if graph in stack:
        del stack[len(stack) - 1 - stack[::-1].index(graph)]
