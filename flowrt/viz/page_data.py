"""The HTML page's data as compact JSON: every text, tensor and operation once, and stages as deltas.

    stages -> one tree for those without device boxes, one for those with
           -> items (the graph itself, groups, operations) with their positions
           -> records (an operation's data in a stage), edges; a stage removes some and adds others

Arrays hold one column of all rows, and texts are row indices: 20,000 operations in nine stages take 3 MB, and
0.4 MB compressed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, NamedTuple, TypeVar, final

from flowrt.viz.folding.series import split_clusters, with_series
from flowrt.viz.folding.siblings import lifted
from flowrt.viz.layout import lay_out, side_by_side
from flowrt.viz.op_facts import OpFacts
from flowrt.viz.view import (
    EdgeKind,
    EdgeView,
    GraphView,
    GroupKind,
    GroupView,
    Moved,
    NodeView,
    Role,
    TensorView,
)

ROOT = 0
"""The item that holds all others: the graph itself."""

COLUMN_STEPS = 4
"""Columns are written in quarters: igraph sets a box between four others."""

KINDS = (*GroupKind, "op")
EDGE_KINDS = tuple(EdgeKind)
_KIND_ROWS = {kind: row for row, kind in enumerate(EDGE_KINDS)}

T = TypeVar("T", bound=Hashable)


class PageStage(NamedTuple):
    """One stage of the compilation: ``note`` describes it in a sentence; ``is_pass``: an optimization;
    ``moves``: of a stage of layouts, all that moves, also where no edge is drawn.
    """

    name: str
    note: str
    is_pass: bool
    view: GraphView
    moves: Sequence[Moved] = ()


@final
class Table(Generic[T]):
    """Each value once, in order of its first use; `row` is its number."""

    def __init__(self, values: Iterable[T] = ()) -> None:
        self._rows: dict[T, int] = {value: i for i, value in enumerate(values)}

    def row(self, value: T) -> int:
        return self._rows.setdefault(value, len(self._rows))

    def __iter__(self) -> Any:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


NO_FACTS = OpFacts()


def page_data(
    title: str, stages: Sequence[PageStage], facts: OpFacts = NO_FACTS, opens_at: int = 0
) -> dict[str, Any]:
    """All of it, ready for `json.dumps`; the page shows stage ``opens_at`` first. Raises
    `FailedPreconditionError` without igraph.
    """
    return {**_Encoder().encode(title, stages, facts), "opensAt": opens_at}


@final
class _Encoder:
    def __init__(self) -> None:
        self.strings: Table[str] = Table([""])
        self._tensors: Table[TensorView] = Table()
        self._attrs: Table[tuple[tuple[str, str], ...]] = Table([()])

    def encode(self, title: str, stages: Sequence[PageStage], facts: OpFacts) -> dict[str, Any]:
        trees: list[_Tree] = []
        encoded: list[dict[str, Any]] = []
        for with_devices in (False, True):
            mine = [stage for stage in stages if _has_devices(stage.view) is with_devices]
            if mine:
                tree = _Tree(self, union([stage.view for stage in mine]))
                encoded += [tree.stage(stage, len(trees)) for stage in mine]
                trees.append(tree)
        order = {stage.name: i for i, stage in enumerate(stages)}
        encoded.sort(key=lambda stage: order[stage["name"]])
        tables = {
            "trees": [tree.encode() for tree in trees],
            "facts": {
                "seconds": self._by_name(facts.seconds),
                "secondsAre": facts.seconds_are,
                "code": self._by_name({k: [*map(self.strings.row, v)] for k, v in facts.code.items()}),
                "unplanned": facts.unplanned,
                "fused": self._by_name({k: self.strings.row(v) for k, v in facts.fused.items()}),
                "training": {
                    "losses": [*map(self.strings.row, facts.training.losses)],
                    "updates": [[*map(self.strings.row, update)] for update in facts.training.updates],
                    "derivatives": self._by_name(
                        {k: self.strings.row(v) for k, v in facts.training.derivatives.items()}
                    ),
                },
            },
            "attrs": [[self.strings.row(text) for pair in attrs for text in pair] for attrs in self._attrs],
            "tensors": [
                [self.strings.row(str(t)), -1 if t.nbytes is None else t.nbytes] for t in self._tensors
            ],
        }
        return {
            "title": title,
            "kinds": KINDS,
            "edgeKinds": EDGE_KINDS,
            "columnSteps": COLUMN_STEPS,
            "stages": encoded,
            **tables,
            "strings": list(self.strings),
        }

    def _by_name(self, values: Mapping[str, Any]) -> list[list[Any]]:
        return [[self.strings.row(name) for name in values], list(values.values())]

    def record(self, item: int, node: NodeView) -> tuple[Hashable, ...]:
        """The data of the operation ``item`` in a stage, as row indices."""
        return (
            item,
            self.strings.row(node.op),
            self.strings.row(node.device),
            self.strings.row(node.source),
            self._attrs.row(tuple(sorted(node.attrs.items()))),
            tuple([self._tensors.row(tensor) for tensor in node.outputs]),
        )


RECORD = ("item", "op", "device", "source", "attrs", "outputs")
EDGE = ("source", "target", "kind", "index", "transport")


@final
class _Tree:
    """The items of stages with the same boxes, and their positions."""

    def __init__(self, encoder: _Encoder, view: GraphView) -> None:
        self._encoder = encoder
        self._view = split_clusters(with_series(view))
        names = ["", *self._view.groups, *self._view.nodes]
        self._group_item = {name: i for i, name in enumerate(["", *self._view.groups])}
        first = len(self._group_item)
        self._op_item = {name: first + i for i, name in enumerate(self._view.nodes)}
        self._names = names
        self._parents = [ROOT, *(self._group_item[g.parent] for g in self._view.groups.values())]
        self._parents += [self._group_item[node.group] for node in self._view.nodes.values()]
        self._has_devices = _has_devices(view)
        self._records: Table[tuple[Hashable, ...]] = Table()
        self._edges: Table[tuple[int, int, int, int, int]] = Table()
        self._last: tuple[set[int], set[int]] = set(), set()
        self._moved: Table[Moved] = Table()
        self._moves: dict[int, list[int]] = {}
        """The rows of what moves on an edge, by the edge's row."""

    def stage(self, stage: PageStage, tree: int) -> dict[str, Any]:
        """Encode ``stage`` as removals from the previous one and additions."""
        items, record = self._op_item, self._encoder.record
        records = {self._records.row(record(items[name], node)) for name, node in stage.view.nodes.items()}
        edges = {self._edges.row(self._edge(edge)) for edge in stage.view.edges}
        for move in stage.moves:
            self._moved.row(move)
        for edge in stage.view.edges:
            if edge.moves:
                self._moves[self._edges.row(self._edge(edge))] = [*map(self._moved.row, edge.moves)]
        old_records, old_edges = self._last
        self._last = records, edges
        return {
            "name": stage.name,
            "note": stage.note,
            "isPass": stage.is_pass,
            "tree": tree,
            "records": [sorted(old_records - records), sorted(records - old_records)],
            "edges": [sorted(old_edges - edges), sorted(edges - old_edges)],
        }

    def _edge(self, edge: EdgeView) -> tuple[int, int, int, int, int]:
        source, target, kind, tensor, *_ = edge
        return (
            self._op_item[source],
            self._op_item[target],
            _KIND_ROWS[kind],
            _index_of(tensor) if tensor else -1,
            self._encoder.strings.row(edge.transport) if edge.transport else 0,
        )

    def encode(self) -> dict[str, Any]:
        row = self._encoder.strings.row
        groups, nodes = self._view.groups.values(), self._view.nodes.values()
        kinds = [KINDS.index(GroupKind.SCOPE), *(KINDS.index(group.kind) for group in groups)]
        layers, columns, routes = self._places()
        return {
            "items": {
                "name": [row(name) for name in self._names],
                "label": [row(""), *(row(group.label) for group in groups), *(row(n.label) for n in nodes)],
                "kind": kinds + [KINDS.index("op")] * len(nodes),
                "parent": self._parents,
                "layer": layers,
                "column": columns,
            },
            "routes": routes,
            "records": _columns(RECORD, self._records),
            "edges": {**_columns(EDGE, self._edges), **self._encoded_moves()},
        }

    def _encoded_moves(self) -> dict[str, Any]:
        """The moves between layouts, and the edges that they are on; nothing in trees without layouts."""
        row = self._encoder.strings.row
        moved = [
            [row(m.tensor), row(m.collective), row(m.axes), m.nbytes, row(m.becomes)] for m in self._moved
        ]
        return {"moved": moved, "moves": self._moves} if moved else {}

    def _apart(self, members: Sequence[int]) -> tuple[list[int], list[int]]:
        """``members`` of one group without those that the page puts in a column beside it, and these."""
        ranks = {}
        for item in members:
            group = self._view.groups.get(self._names[item])
            if group is not None and group.kind is GroupKind.ROLE:
                ranks[item] = _RANKS.index(Role(group.label.lower()))
        return [item for item in members if item not in ranks], sorted(ranks, key=ranks.__getitem__)

    def _places(self) -> tuple[list[int], list[int], list[list[int]]]:
        """Layer and column of each item, and the routes: ``[from, to, column, column, ...]``."""
        layers, columns = [0] * len(self._parents), [0] * len(self._parents)
        routes: list[list[int]] = []
        children: dict[int, list[int]] = {}
        for item, parent in enumerate(self._parents[1:], 1):
            children.setdefault(parent, []).append(item)
        links = lifted((edge[:2] for edge in self._edges), self._parents)
        for parent, members in children.items():
            members, aside = self._apart(members)
            for rank, item in enumerate(aside):
                layers[item], columns[item] = rank, ASIDE
            number = {item: i for i, item in enumerate(members)}
            edges = {(number[a], number[b]) for a, b in links.get(parent, ()) if a in number and b in number}
            if parent == ROOT and self._has_devices:
                found = side_by_side(len(members))
            else:
                found = lay_out(len(members), sorted(edges))
            for item, layer, column in zip(members, found.layers, found.columns, strict=True):
                layers[item], columns[item] = layer, _steps(column)
            routes += [
                [members[a], members[b], *map(_steps, route)] for (a, b), route in found.routes.items()
            ]
        return layers, columns, routes


ASIDE = -1
"""The column of groups of roles, which the page places itself."""

_RANKS = [Role.GRADIENT, Role.OPTIMIZER, Role.SUMMARY, Role.CHECKPOINT, Role.INITIALIZER]
"""Roles from the top, as their edges go."""


def union(views: Sequence[GraphView]) -> GraphView:
    """The union of ``views``. An operation's deepest position counts: a scope of its name may come later."""
    nodes: dict[str, NodeView] = {}
    groups: dict[str, GroupView] = {}
    edges: dict[tuple[str, str], EdgeView] = {}
    for view in views:
        groups.update(view.groups)
        edges.update({(edge.source, edge.target): edge for edge in view.edges})
        for name, node in view.nodes.items():
            known = nodes.get(name)
            if known is None or len(known.group) < len(node.group):
                nodes[name] = node
    return GraphView(nodes, [*edges.values()], groups)


@lru_cache(maxsize=65536)
def _index_of(tensor: str) -> int:
    """The output that ``tensor``, "node:0", is; -1 if its name does not say."""
    index = tensor.rpartition(":")[2]
    return int(index) if index.isdigit() else -1


def _has_devices(view: GraphView) -> bool:
    return any(group.kind is GroupKind.DEVICE for group in view.groups.values())


def _steps(column: float) -> int:
    return round(COLUMN_STEPS * column)


def _columns(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> dict[str, list[Any]]:
    columns = list(zip(*rows, strict=True)) or [()] * len(names)
    return {name: list(column) for name, column in zip(names, columns, strict=True)}
