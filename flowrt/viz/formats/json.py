"""JSON: a view unchanged, for user programs.

    {"format": "flowrt-graph", "version": 1, "title": ..., "nodes": [...], "edges": [...], "groups": [...]}

Nodes, edges and groups have the fields of `flowrt.viz.view`; an unknown dimension, or rank, is null. Only in
a view of layouts have tensors a "layout" and edges "moves".
"""

from __future__ import annotations

import json
from typing import Any

from flowrt.viz.formats.picture import Picture
from flowrt.viz.view import EdgeView, TensorView

VERSION = 1


def encode_json(picture: Picture) -> bytes:
    """``picture.view`` in UTF-8, one line per node, edge or group."""
    view = picture.view
    head = {"format": "flowrt-graph", "version": VERSION, "title": picture.title}
    lists = {
        "nodes": [
            {**node._asdict(), "outputs": [_tensor(tensor) for tensor in node.outputs]}
            for node in view.nodes.values()
        ],
        "edges": [_edge(edge) for edge in view.edges],
        "groups": [group._asdict() for group in view.groups.values()],
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in lists.items():
        lines = ",\n".join([json.dumps(row) for row in rows])
        parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
    return ("{" + ",\n".join(parts) + "}\n").encode()


def _tensor(tensor: TensorView) -> dict[str, Any]:
    fields = tensor._asdict()
    return fields if tensor.layout else {key: fields[key] for key in fields if key != "layout"}


def _edge(edge: EdgeView) -> dict[str, Any]:
    fields = {**edge._asdict(), "facts": edge.facts and _tensor(edge.facts)}
    moves = fields.pop("moves")
    return {**fields, "moves": [move._asdict() for move in moves]} if moves else fields
