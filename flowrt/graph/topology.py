"""Topological order: nodes with their producers first, and the error that shows a cycle."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import Any, TypeVar

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node

T = TypeVar("T", bound=Hashable)

MAX_SHOWN = 12
"""Nodes of a cycle that its error names."""


def reachable(roots: Iterable[T], before: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """``roots``, and all that ``before`` leads to from them, each once."""
    found: dict[T, None] = {}
    stack = list(roots)
    while stack:
        item = stack.pop()
        if item not in found:
            found[item] = None
            stack += before(item)
    return found


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
    ordered = in_order(nodes, {name: i for i, name in enumerate(nodes)})
    if len(ordered) < len(nodes):
        _raise_cycle(nodes, ordered)
    return ordered


def in_order(nodes: Mapping[str, Node], keys: Mapping[str, Any]) -> dict[str, Node]:
    """``nodes`` with producers first: among those that are ready, the one with the least of the different
    ``keys`` comes next. Nodes on a cycle, and what waits for them, are left out.
    """
    waiting: dict[str, int] = {}
    readers: dict[str, list[str]] = {name: [] for name in nodes}
    for name, node in nodes.items():
        producers = set(node.predecessors)
        waiting[name] = len(producers)
        for producer in producers:
            readers[producer].append(name)
    ready = [(keys[name], name) for name, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    ordered: dict[str, Node] = {}
    while ready:
        _, name = heapq.heappop(ready)
        ordered[name] = nodes[name]
        for reader in readers[name]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, (keys[reader], reader))
    return ordered


def cycle_in(nodes: Mapping[str, Node], ordered: Collection[str]) -> list[str]:
    """Nodes that `in_order` left out, each of which waits for the next one, and the last for the first."""
    name = next(name for name in nodes if name not in ordered)
    seen: dict[str, None] = {}
    while name not in seen:
        seen[name] = None
        name = next(other for other in nodes[name].predecessors if other not in ordered)
    path = list(seen)
    return path[path.index(name) :]


def _raise_cycle(nodes: Mapping[str, Node], ordered: Collection[str]) -> None:
    path = cycle_in(nodes, ordered)
    name, cycle = path[0], [*path, path[0]]
    if len(cycle) > MAX_SHOWN:
        cycle = [*cycle[: MAX_SHOWN - 1], f"... ({len(cycle) - MAX_SHOWN} more)", name]
    raise located(
        nodes[name], InvalidArgumentError(f"expected a graph without cycles; got {' <- '.join(cycle)}")
    )
