"""Rollback of graph additions after a failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from flowrt.graph.construction.graph import Graph


@final
class Rollback:
    """Context of `Graph.rollback_on_error`; holds the graph's lock."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph

    def __enter__(self) -> None:
        graph = self._graph
        graph._lock.acquire()
        self._count = len(graph._operations)
        self._names = graph._names.snapshot()
        self._collections = {k: list(v) for k, v in graph._collections.items()}

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        graph = self._graph
        if kind is not None:
            for name in list(graph._operations)[self._count :]:
                del graph._operations[name]
            graph._names.restore(self._names)
            graph._collections.clear()  # the same object: a function shares it with the graph around it
            graph._collections.update(self._collections)
        graph._lock.release()
