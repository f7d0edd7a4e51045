"""Rollback of graph additions after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flowrt.graph.construction.graph import Graph


@contextmanager
def rollback_on_error(graph: Graph) -> Iterator[None]:
    """See `Graph.rollback_on_error`; holds the graph's lock."""
    with graph._lock:
        count, names = len(graph._operations), graph._names.snapshot()
        collections = {k: list(v) for k, v in graph._collections.items()}
        try:
            yield
        except BaseException:
            for name in list(graph._operations)[count:]:
                del graph._operations[name]
                graph.derivatives.pop(name, None)
            graph._names.restore(names)
            graph._collections.clear()  # the same object: a function shares it with the graph around it
            graph._collections.update(collections)
            raise
