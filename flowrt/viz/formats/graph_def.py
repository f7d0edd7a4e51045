"""GraphDef, alone or in an event file, for viewing in TensorBoard, Netron and TensorFlow's own tools.

Every node has its device, its shapes ("_output_shapes") and its line ("_source"). In a partitioned graph
names begin with the device, which makes it a box, and a _Recv has a control input from its _Send, which draws
an edge. All operations are public ones (`flowrt.viz.formats.public_ops`), so the file can be imported again.
TensorBoard reads directories: an event file's name must contain "tfevents", which `flowrt export` ensures.
A large constant becomes a Placeholder: `flowrt.train.write_graph` writes graphs with all values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from flowrt.graph.messages.graph_def import nodes_to_graph_def
from flowrt.graph.node import COLOCATION, Node
from flowrt.graph.passes.placement.partition import tag
from flowrt.protos.event_pb2 import Event
from flowrt.summary.event_file import FILE_VERSION, encode_record
from flowrt.viz.formats.picture import Picture
from flowrt.viz.formats.public_ops import public_step
from flowrt.viz.from_parts import PAIR, Parts

if TYPE_CHECKING:
    from flowrt.protos.graph_pb2 import GraphDef


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
        for node in public_step(part):
            waits = [sends[_pair(node)]] if node.op.name == "_Recv" and _pair(node) in sends else []
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
        attrs={key: value for key, value in node.attrs.items() if key != COLOCATION},
    )


def encode_event_file(picture: Picture) -> bytes:
    """A whole event file: its version, and ``picture.parts`` as a GraphDef."""
    now = time.time()
    graph = graph_def_of(picture.parts).SerializeToString(deterministic=True)
    events = [Event(wall_time=now, file_version=FILE_VERSION), Event(wall_time=now, graph_def=graph)]
    return b"".join([encode_record(event.SerializeToString()) for event in events])
