"""JSON: a view unchanged, for user programs.

    {"format": "flowrt-graph", "version": 1, "title": ..., "nodes": [...], "edges": [...], "groups": [...]}

Nodes, edges and groups have the fields of `flowrt.viz.view`; an unknown dimension, or rank, is null.
"""

from __future__ import annotations

import json

from flowrt.viz.formats.picture import Picture

VERSION = 1


def encode_json(picture: Picture) -> bytes:
    """``picture.view`` in UTF-8, one line per node, edge or group."""
    view = picture.view
    head = {"format": "flowrt-graph", "version": VERSION, "title": picture.title}
    lists = {
        "nodes": [
            {**node._asdict(), "outputs": [tensor._asdict() for tensor in node.outputs]}
            for node in view.nodes.values()
        ],
        "edges": [{**edge._asdict(), "facts": edge.facts and edge.facts._asdict()} for edge in view.edges],
        "groups": [group._asdict() for group in view.groups.values()],
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, rows in lists.items():
        lines = ",\n".join([json.dumps(row) for row in rows])
        parts.append(f"{json.dumps(key)}: [\n{lines}\n]")
    return ("{" + ",\n".join(parts) + "}\n").encode()
