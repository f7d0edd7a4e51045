"""Collections that a training function fills and reads, separate per replica.

``losses.get_total_loss()`` in a replica is the loss of that replica, without those of the others.
Regularization losses are the first replica's alone, since gradients are summed over the replicas: so they
count once, as in a program without a strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, final

from flowrt.graph.construction.graph import Graph
from flowrt.variables.variable import GraphKeys

_KEYS = (GraphKeys.LOSSES, GraphKeys.UPDATE_OPS, GraphKeys.REGULARIZATION_LOSSES)


@final
class ReplicaCollections:
    """Collections of ``count`` replicas, during one call for each of them."""

    def __init__(self, graph: Graph, count: int) -> None:
        self._collections = [_Collection(graph, key, count) for key in _KEYS]

    @contextlib.contextmanager
    def of_replica(self, number: int) -> Iterator[None]:
        """Inside, the graph's collections are those of replica ``number``; outside they are whole."""
        for collection in self._collections:
            collection.show(number)
        try:
            yield
        finally:
            for collection in self._collections:
                collection.show_all(number)


@final
class _Collection:
    """``shared`` are the previous contents and additions of merges, ``own[i]`` additions of replica i."""

    def __init__(self, graph: Graph, key: str, count: int) -> None:
        self._graph, self._key = graph, key
        self._is_of_first = key == GraphKeys.REGULARIZATION_LOSSES
        self._shared: list[Any] = []
        self._own: list[list[Any]] = [[] for _ in range(count)]

    def show(self, number: int) -> None:
        shown = self._graph.get_collection_ref(self._key)
        self._shared += shown[len(self._whole()) :]
        shown[:] = self._visible(number)

    def show_all(self, number: int) -> None:
        shown = self._graph.get_collection_ref(self._key)
        self._own[number] += shown[len(self._visible(number)) :]
        shown[:] = self._whole()

    def _visible(self, number: int) -> list[Any]:
        shared = [] if self._is_of_first and number > 0 else self._shared
        return [*shared, *self._own[number]]

    def _whole(self) -> list[Any]:
        return [*self._shared, *(item for own in self._own for item in own)]
