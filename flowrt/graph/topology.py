"""Topological order: nodes with their producers first, and the error that shows a cycle."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node

MAX_SHOWN = 12
"""Nodes of a cycle that its error names."""


def sort_topologically(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes`` with producers first, otherwise in the given order; the same object if already sorted.

    Raises `InvalidArgumentError`, which shows the cycle, if there is one.
    """
    seen: set[str] = set()
    for name, node in nodes.items():
        for producer, _ in node.inputs:
            if producer not in seen:
                return _sorted(nodes)
        if not seen.issuperset(node.controls):
            return _sorted(nodes)
        seen.add(name)
    return nodes


def _sorted(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    position = {name: i for i, name in enumerate(nodes)}
    names = list(nodes)
    waiting: dict[str, int] = {}
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        producers = {ref[0] for ref in node.inputs} | set(node.controls)
        waiting[name] = len(producers)
        for producer in producers:
            readers[producer].append(name)
    ready = [position[name] for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: dict[str, Node] = {}
    while ready:
        name = names[heapq.heappop(ready)]
        ordered[name] = nodes[name]
        for reader in readers[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, position[reader])
    if len(ordered) < len(nodes):
        _raise_cycle(nodes, ordered)
    return ordered


def _raise_cycle(nodes: Mapping[str, Node], ordered: Collection[str]) -> None:
    name = next(n for n in nodes if n not in ordered)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        node = nodes[name]
        name = next(p for p in [ref[0] for ref in node.inputs] + list(node.controls) if p not in ordered)
    path = list(seen)
    cycle = path[path.index(name) :] + [name]
    if len(cycle) > MAX_SHOWN:
        cycle = [*cycle[: MAX_SHOWN - 1], f"... ({len(cycle) - MAX_SHOWN} more)", name]
    raise located(
        nodes[name], InvalidArgumentError(f"expected a graph without cycles; got {' <- '.join(cycle)}")
    )
