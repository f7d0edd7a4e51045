"""GraphDef, to be looked at: TensorBoard, Netron and TensorFlow's own tools open it.

Every node has its device, its shapes ("_output_shapes") and its line ("_source"). In a partitioned graph
names begin with the device's, so that it is a box, and a _Recv waits for its _Send, so that an edge is drawn.
The value of a large constant is left out as TensorBoard does: its attribute is named in "_too_large_attrs".
So such a file cannot be taken for a graph that runs; `flowrt.train.write_graph` writes those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import text_format

from flowrt.graph.graph_def import nodes_to_graph_def
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.partition import tag
from flowrt.viz.formats.picture import Picture
from flowrt.viz.from_parts import PAIR, Parts
from flowrt.viz.view import MAX_EMBEDDED

if TYPE_CHECKING:
    from flowrt.protos.graph_pb2 import GraphDef

TOO_LARGE = "_too_large_attrs"


def encode_pb(picture: Picture) -> bytes:
    """``picture.parts`` as a binary GraphDef."""
    return graph_def_of(picture.parts).SerializeToString(deterministic=True)


def encode_pbtxt(picture: Picture) -> bytes:
    """``picture.parts`` as a GraphDef in protobuf's text form."""
    return text_format.MessageToString(graph_def_of(picture.parts)).encode()


def graph_def_of(parts: Parts) -> GraphDef:
    """All nodes of ``parts`` in one message."""
    return nodes_to_graph_def(_nodes(parts), add_shapes=True, with_sources=True)


def _nodes(parts: Parts) -> Iterator[Node]:
    scope = {device: f"{tag(device)}/" if device else "" for device in parts}
    sends = {
        _pair(node): f"{scope[device]}{node.name}"
        for device, part in parts.items()
        for node in part
        if node.op.name == "_Send"
    }
    for device, part in parts.items():
        for node in part:
            waits = [sends[_pair(node)]] if node.op.name == "_Recv" and _pair(node) in sends else []
            node = without_large_constants(node)
            if device:
                node = _within(scope[device], node)
            yield node.replace(controls=(*node.controls, *waits)) if waits else node


def _pair(node: Node) -> tuple[Any, ...]:
    return tuple([node.attrs[key] for key in PAIR])


def _within(scope: str, node: Node) -> Node:
    """``node`` in the scope of its device, with all that it refers to."""
    return node.replace(
        name=scope + node.name,
        inputs=tuple([(scope + name, index) for name, index in node.inputs]),
        controls=tuple([scope + name for name in node.controls]),
        attrs={key: value for key, value in node.attrs.items() if key != "_class"},
    )


def without_large_constants(node: Node) -> Node:
    """``node``, and the functions that it owns, without arrays above `MAX_EMBEDDED` bytes."""
    if node.op.effect is Effect.NESTED:
        node = with_functions(node, _stripped)
    large = [key for key, value in node.attrs.items() if isinstance(value, np.ndarray) and _is_large(value)]
    if not large:
        return node
    kept = {key: value for key, value in node.attrs.items() if key not in large}
    return node.replace(attrs={**kept, TOO_LARGE: tuple(large)})


def _stripped(function: Subgraph) -> Subgraph:
    return function.with_nodes([without_large_constants(node) for node in function])


def _is_large(value: np.ndarray[Any, Any]) -> bool:
    nbytes = sum([len(item) for item in value.flat]) if value.dtype == object else value.nbytes
    return nbytes > MAX_EMBEDDED
