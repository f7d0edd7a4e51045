"""JSON: a view unchanged, for user programs.

    {"format": "flowrt-graph", "version": 1, "title": ..., "nodes": [...], "edges": [...], "groups": [...]}

Nodes, edges and groups have the fields of `flowrt.viz.view`; an unknown dimension, or rank, is null.
"""

from __future__ import annotations

import json
from typing import Any

from flowrt.viz.formats.picture import Picture
from flowrt.viz.view import EdgeView, NodeView, TensorView

VERSION = 1


def encode_json(picture: Picture) -> bytes:
    """``picture.view`` in UTF-8, one line per node, edge or group."""
    view = picture.view
    head = {"format": "flowrt-graph", "version": VERSION, "title": picture.title}
    lists = {
        "nodes": [_node(node) for node in view.nodes.values()],
        "edges": [_edge(edge) for edge in view.edges],
        "groups": [group._asdict() for group in view.groups.values()],
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts += [f"{json.dumps(key)}: [\n{_rows(rows)}\n]" for key, rows in lists.items()]
    return ("{" + ",\n".join(parts) + "}\n").encode()


def _rows(rows: list[dict[str, Any]]) -> str:
    return ",\n".join([json.dumps(row) for row in rows])


def _node(node: NodeView) -> dict[str, Any]:
    return {**node._asdict(), "outputs": [_tensor(tensor) for tensor in node.outputs]}


def _edge(edge: EdgeView) -> dict[str, Any]:
    return {**edge._asdict(), "facts": None if edge.facts is None else _tensor(edge.facts)}


def _tensor(tensor: TensorView) -> dict[str, Any]:
    return tensor._asdict()
