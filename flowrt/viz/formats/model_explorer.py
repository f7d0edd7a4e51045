"""Model Explorer's graph JSON: nested expandable layers, for graphs of 10,000 operations and more.

The schema: Model Explorer's ``graph_builder`` (a label, a namespace of parts between "/", attributes as
texts, edges at their target node).
"""

from __future__ import annotations

import json
from typing import Any

from flowrt.profiler.text_table import size_text
from flowrt.viz.formats.dot import device_colors
from flowrt.viz.formats.picture import Picture
from flowrt.viz.view import EdgeKind, EdgeView, GraphView, GroupKind, NodeView, TensorView, around


def encode_model_explorer(picture: Picture) -> bytes:
    """``picture.view`` as a collection of one graph, in UTF-8."""
    graph = _graph(picture.title, picture.view)
    return json.dumps({"label": picture.title, "graphs": [graph]}).encode()


def _graph(title: str, view: GraphView) -> dict[str, Any]:
    incoming: dict[str, list[EdgeView]] = {}
    for edge in view.edges:
        incoming.setdefault(edge.target, []).append(edge)
    spaces = {"": ""} | {name: _namespace(view, name) for name in view.groups}
    colors = device_colors(view)
    nodes = []
    for node in view.nodes.values():
        edges = incoming.get(node.name, [])
        nodes.append(_node(node, spaces[node.group], edges, colors.get(node.device, "")))
    return {"id": title, "nodes": nodes}


def _namespace(view: GraphView, name: str) -> str:
    """The labels around a node: in a device's, "." replaces "/", which would create levels."""
    return "/".join(
        [
            group.label.strip("/").replace("/", ".") if group.kind is GroupKind.DEVICE else group.label
            for group in reversed([*around(view.groups, name)])
        ]
    )


def _node(node: NodeView, namespace: str, edges: list[EdgeView], color: str) -> dict[str, Any]:
    facts = {"op": node.op, "device": node.device, "source": node.source, **node.attrs}
    facts |= {f"{edge.kind} from": edge.source for edge in edges if edge.kind is not EdgeKind.DATA}
    facts |= {f"moves {edge.tensor}": "; ".join(map(str, edge.moves)) for edge in edges if edge.moves}
    known = {
        "id": node.name,
        "label": node.op or f"{node.label} ({node.num_ops})",
        "namespace": namespace,
        "attrs": [{"key": key, "value": value} for key, value in facts.items() if value],
        "incomingEdges": [_edge(edge, i) for i, edge in enumerate(edges)],
        "outputsMetadata": [_output(i, tensor) for i, tensor in enumerate(node.outputs)],
    }
    return {**known, "style": {"backgroundColor": color}} if color else known


def _edge(edge: EdgeView, position: int) -> dict[str, str]:
    output = edge.tensor.rpartition(":")[2] if edge.kind is EdgeKind.DATA and edge.tensor else "0"
    return {"sourceNodeId": edge.source, "sourceNodeOutputId": output, "targetNodeInputId": str(position)}


def _output(index: int, tensor: TensorView) -> dict[str, Any]:
    facts = {"tensor_shape": str(tensor), "bytes": "" if tensor.nbytes is None else size_text(tensor.nbytes)}
    return {
        "id": str(index),
        "attrs": [{"key": key, "value": value} for key, value in facts.items() if value],
    }
