"""`GraphHomes`: a graph with shards that move between servers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import final

from flowrt.distribute.parameter_server.homes import Home
from flowrt.distribute.strategies.parameter_server.parameter_server_step import Shard
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph, with_functions


@final
class GraphHomes:
    """The operations of ``graph`` that are on the servers ``devices``, where each shard is on the server of
    its number and its replica's operations on the next: as the graph was built.
    """

    def __init__(self, graph: Graph, shards: Sequence[Shard], devices: Sequence[str]) -> None:
        self._graph, self._devices = graph, devices
        self._first = {op.name: op.node for op in graph.get_operations()}
        self._of_replica = {name: shard.server for shard in shards for name in shard.replica_operations}

    def move(self, homes: Mapping[int, Home]) -> None:
        """Put each shard, by number, and its replica where its home is. Earlier sessions do not see it."""
        primaries = {self._devices[server]: self._devices[home.primary] for server, home in homes.items()}
        replicas = {server: self._devices[home.replica] for server, home in homes.items()}
        was_finalized = self._graph.finalized
        self._graph.unfinalize()
        try:
            for name, node in self._first.items():
                server = self._of_replica.get(name)
                moved = _moved(node, primaries) if server is None else node.replace(device=replicas[server])
                op = self._graph.operations[name]
                if moved is not node or op.device != moved.device:
                    op.mutate(device=moved.device, attrs=moved.attrs)
        finally:
            if was_finalized:
                self._graph.finalize()


def _moved(node: Node, primaries: Mapping[str, str]) -> Node:
    """``node`` and those in its functions, on the devices that replace theirs; itself if nothing changes."""
    node = with_functions(node, functools.partial(_moved_body, primaries=primaries))
    device = primaries.get(node.device, node.device)
    return node if device == node.device else node.replace(device=device)


def _moved_body(function: Subgraph, primaries: Mapping[str, str]) -> Subgraph:
    nodes = [_moved(node, primaries) for node in function]
    changed = any(new is not old for new, old in zip(nodes, function, strict=True))
    return function.with_nodes(nodes) if changed else function
