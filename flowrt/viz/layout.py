"""Layered layout (Sugiyama) of the children of one box, with igraph (extra ``viz``).

    edges -> layers: the longest path, after igraph has broken the cycles
          -> columns: igraph orders each layer to avoid crossings and aligns connected boxes
          -> lanes: edges over many layers are routed around the boxes they pass

A layout gives order, not pixels: boxes grow when they are opened, and the page stacks them
(`page/arrange.js`). An edge over several layers reserves a column in each, so that it crosses no box; all
edges of one producer share theirs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, TypeAlias

from flowrt.errors import FailedPreconditionError

Edge: TypeAlias = tuple[int, int]

MAX_PASSED = 3
"""Maximum number of layers that an edge may pass between boxes. The long ones of a training step, from the
forward to the backward half, would push the chain of layers apart.
"""

LANE = 0.5
"""Columns between two lanes: a network has about as many edges in lanes as layers."""

GRID_WIDTH = 6
"""Minimum number of columns for children without edges."""

MOST_BESIDE = 3
"""Maximum number of devices in one row, if there are few: the width of a laptop's screen."""

SWEEPS = 24
"""Passes over the layers against crossings; more changed none of the graphs of the examples."""


class Layout(NamedTuple):
    """The layer of each child, from the top, and its column, one per child in width; for each edge over
    several layers, the columns reserved in those between.
    """

    layers: list[int]
    columns: list[float]
    routes: dict[Edge, list[float]]


def load_igraph() -> Any:
    """The module. Raises `FailedPreconditionError` where it is not installed."""
    try:
        import igraph
    except ImportError as error:
        raise FailedPreconditionError(
            f"html: expected igraph, which computes the layout; got {error}. Install it with: pip install"
            " 'flowrt[viz]'"
        ) from None
    return igraph


def side_by_side(count: int) -> Layout:
    """Rows of ``count`` children, about twice as wide as high: devices, with edges in all directions."""
    width = max(MOST_BESIDE, math.ceil(math.sqrt(2 * count)))
    return Layout([i // width for i in range(count)], [float(i % width) for i in range(count)], {})


def lay_out(count: int, edges: Collection[Edge]) -> Layout:
    """The layout of ``count`` children with ``edges`` between their indices.

    Children without an edge follow in rows below. Raises `FailedPreconditionError` without igraph.
    """
    linked = sorted({end for edge in edges for end in edge if edge[0] != edge[1]})
    number = {child: i for i, child in enumerate(linked)}
    inner = [(number[a], number[b]) for a, b in edges if a != b]
    layers, columns, routes = _linked_layout(len(linked), inner) if inner else Layout([], [], {})
    found = Layout([0] * count, [0.0] * count, {})
    for child, layer, column in zip(linked, layers, columns, strict=True):
        found.layers[child], found.columns[child] = layer, column
    found.routes.update({(linked[a], linked[b]): route for (a, b), route in routes.items()})
    alone = [child for child in range(count) if child not in number]
    _stand_in_rows(alone, found, 1 + max(layers, default=-1), columns)
    return found


def _stand_in_rows(alone: Sequence[int], layout: Layout, top: int, above: Sequence[float]) -> None:
    width = max(GRID_WIDTH, math.ceil(math.sqrt(2 * len(alone))), int(max(above, default=0.0)))
    for i, child in enumerate(alone):
        layout.layers[child], layout.columns[child] = top + i // width, float(i % width)


def _linked_layout(count: int, edges: Sequence[Edge]) -> Layout:
    layers = _layers(count, edges)
    forward = [edge for edge in edges if layers[edge[0]] < layers[edge[1]]]
    short = [edge for edge in forward if _passed(layers, edge) <= MAX_PASSED]
    short_ones = set(short)
    pieces, numbers = _pieces(count, layers, short)
    levels = layers + [layers[source] + step for source, step in numbers]
    # Each piece ends at the next layer: if igraph 1.0 has to cut edges itself, it writes out of bounds for a
    # graph with several components.
    graph = load_igraph().Graph(len(levels), pieces, directed=True)
    found = graph.layout_sugiyama(layers=levels, maxiter=SWEEPS).coords
    columns = _apart(levels, [x for x, *_ in found[: len(levels)]])
    lanes = _lanes(layers, levels, columns, [edge for edge in forward if edge not in short_ones])
    left = min([*columns, *lanes.values()])
    routes = {
        (a, b): [columns[numbers[a, step]] - left for step in range(1, layers[b] - layers[a])]
        for a, b in short
        if layers[b] - layers[a] > 1
    }
    routes.update({edge: [lane - left] * _passed(layers, edge) for edge, lane in lanes.items()})
    return Layout(layers, [column - left for column in columns[:count]], routes)


def _apart(levels: Sequence[int], columns: Sequence[float]) -> list[float]:
    """``columns``, each at least one right of that before it in its layer: if cycles were broken, igraph 1.0
    may put two of a layer in one column (1 of 4,000 random graphs).
    """
    apart = list(columns)
    last: dict[int, float] = {}
    for i in sorted(range(len(columns)), key=lambda i: columns[i]):
        apart[i] = max(columns[i], last.get(levels[i], -math.inf) + 1)
        last[levels[i]] = apart[i]
    return apart


def _passed(layers: Sequence[int], edge: Edge) -> int:
    """The number of layers between its ends."""
    return layers[edge[1]] - layers[edge[0]] - 1


def _lanes(
    layers: Sequence[int], levels: Sequence[int], columns: Sequence[float], long: Sequence[Edge]
) -> dict[Edge, float]:
    """The column of each long edge: outside all boxes of the layers that it passes, on the nearer side, the
    shorter ones further in.
    """
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    for level, column in zip(levels, columns, strict=True):
        first[level] = min(column, first.get(level, column))
        last[level] = max(column, last.get(level, column))
    ends: dict[int, list[int]] = {}
    for source, target in long:
        ends.setdefault(source, []).append(target)
    below = {source: max(layers[target] for target in targets) for source, targets in ends.items()}
    lanes: dict[Edge, float] = {}
    for source in sorted(ends, key=lambda source: below[source] - layers[source]):
        passed = range(layers[source] + 1, below[source])
        left = min(first[level] for level in passed) - LANE
        right = max(last[level] for level in passed) + LANE
        middle = sum(columns[end] for end in [source, *ends[source]]) / (1 + len(ends[source]))
        lane, border = (left, first) if middle - left < right - middle else (right, last)
        border.update(dict.fromkeys(passed, lane))
        lanes.update({(source, target): lane for target in ends[source]})
    return lanes


def _layers(count: int, edges: Sequence[Edge]) -> list[int]:
    """The longest path to each child, ignoring the edges that close cycles; a child without input is placed
    right above its first reader.
    """
    graph = load_igraph().Graph(count, edges, directed=True)
    graph.delete_edges(graph.feedback_arc_set(method="eades"))
    layers = [0] * count
    for child in graph.topological_sorting():
        layers[child] = max((layers[above] + 1 for above in graph.predecessors(child)), default=0)
    for child in range(count):
        readers = graph.successors(child)
        if readers and not graph.predecessors(child):
            layers[child] = min(layers[reader] for reader in readers) - 1
    return layers


def _pieces(count: int, layers: Sequence[int], short: Sequence[Edge]) -> tuple[list[Edge], dict[Edge, int]]:
    """The edges cut into pieces from layer to layer, and the indices of the points between, by producer and
    steps below it.
    """
    numbers: dict[Edge, int] = {}
    pieces: dict[Edge, None] = {}
    for source, target in short:
        above = source
        for step in range(1, _passed(layers, (source, target)) + 1):
            place = numbers.setdefault((source, step), count + len(numbers))
            pieces[above, place] = None
            above = place
        pieces[above, target] = None
    return list(pieces), numbers
