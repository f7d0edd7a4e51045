"""GraphDef, alone or in an event file, for viewing in TensorBoard, Netron and TensorFlow's own tools.

Every node has its device, its shapes ("_output_shapes") and its line ("_source"). In a partitioned graph
names begin with the device, which makes it a box, and a _Recv has a control input from its _Send, which draws
an edge. The compiler's own operations are converted to public ones that every GraphDef reader supports, so
TensorFlow, Netron and flowrt can open an exported graph at any stage of compilation:

    _Feed             Placeholder
    _Case             If, or Case
    _Loop             While; its first variable is the predicate of the next iteration
    a large constant  Placeholder: its value is not in the file and must be fed
    _Send, _Recv      as in TensorFlow's partitions
    OneShotIterator   IteratorV2: its dataset is in the script
    w@dp0tp1          w.dp0tp1: GraphDefs have no @ in names

TensorBoard reads directories: an event file's name must contain "tfevents", which `flowrt export` ensures.
`flowrt.train.write_graph` writes graphs with all values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf import text_format

from flowrt import dtypes
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.functions.control_flow import case_op, if_op, while_op
from flowrt.graph.messages.graph_def import nodes_to_graph_def
from flowrt.graph.node import COLOCATION, Node, Ref, Subgraph, TensorSpec, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.state.iterators import iterator_op
from flowrt.graph.passes.placement.partition import tag
from flowrt.protos.event_pb2 import Event
from flowrt.storage.records import encode_record
from flowrt.summary.event_file import FILE_VERSION
from flowrt.viz.formats.picture import Picture
from flowrt.viz.from_parts import PAIR, Parts
from flowrt.viz.sources import placeholder_for
from flowrt.viz.view import MAX_EMBEDDED

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
        _pair(node): _plain(f"{scope[device]}{node.name}")
        for device, part in parts.items()
        for node in part
        if node.op.name == "_Send"
    }
    for device, part in parts.items():
        for node in _without_at(public_step(part)):
            waits = [sends[_pair(node)]] if node.op.name == "_Recv" and _pair(node) in sends else []
            if device:
                node = _within(scope[device], node)
            yield node.replace(controls=(*node.controls, *waits)) if waits else node


def _pair(node: Node) -> tuple[Any, ...]:
    return tuple([_plain(node.attrs[key]) for key in PAIR])


def _plain(name: str) -> str:
    return name.replace("@", ".")


def _without_at(part: Subgraph) -> Subgraph:
    """``part`` with other names for what a mesh's devices have of operations, also in functions."""
    if not any("@" in name for name in part.nodes):
        return part
    nodes = [_with_plain_names(node) for node in part]
    return Subgraph(
        {node.name: node for node in nodes},
        tuple(map(_plain, part.feeds)),
        tuple([(_plain(name), index) for name, index in part.fetches]),
        tuple(map(_plain, part.targets)),
    )


def _with_plain_names(node: Node) -> Node:
    attrs = with_functions(node, _without_at).attrs
    if "tensor_name" in attrs:
        attrs = {**attrs, "tensor_name": _plain(attrs["tensor_name"])}
    return node.replace(
        name=_plain(node.name),
        inputs=tuple([(_plain(name), index) for name, index in node.inputs]),
        controls=tuple(map(_plain, node.controls)),
        attrs=attrs,
    )


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


TOO_LARGE = "_too_large_attrs"
"""Names the attributes that are left out: TensorBoard's mark."""


def public_form(part: Subgraph) -> Subgraph:
    """``part`` with public operations in place of the compiler's; names are kept."""
    loops = {node.name for node in part if node.op.name == "_Loop"}

    def moved(ref: Ref) -> Ref:
        """The reference shifted by the predicate, among a loop's outputs."""
        return (ref[0], ref[1] + 1) if ref[0] in loops else ref

    nodes = []
    for node in part:
        made = with_functions(node, public_form) if node.op.effect is Effect.NESTED else node
        made = made.replace(inputs=tuple(map(moved, node.inputs))) if loops else made
        is_parameter = node.op.name == "_Feed" and node.name in part.feeds
        nodes.append(made if is_parameter else _public(made))
    return part.with_nodes(nodes).replace(fetches=tuple(map(moved, part.fetches)))


def public_step(part: Subgraph) -> Subgraph:
    """`public_form` of a graph that is not a function: its feeds are placeholders."""
    return public_form(part.replace(feeds=()))


def _public(node: Node) -> Node:
    form = _FORMS.get(node.op.name)
    return node if form is None else form(node)


def _constant(node: Node) -> Node:
    if not _is_large(node.attrs["value"]):
        return node
    return placeholder_for(node.replace(attrs={**node.attrs, TOO_LARGE: ("value",)}))


def _is_large(value: np.ndarray[Any, Any]) -> bool:
    nbytes = sum([len(item) for item in value.flat]) if value.dtype == object else value.nbytes
    return nbytes > MAX_EMBEDDED


def _receive(node: Node) -> Node:
    """A receive without the shape attribute, which TensorFlow's does not have."""
    return node.replace(attrs={key: value for key, value in node.attrs.items() if key != "shape"})


def _iterator(node: Node) -> Node:
    attrs = {key: value for key, value in node.attrs.items() if key != "token"}
    return node.replace(op=iterator_op, attrs=attrs)


def _branches(node: Node) -> Node:
    attrs = dict(node.attrs)
    branches, index = attrs.pop("branches"), attrs.pop("Tindex")
    if index is dtypes.bool_:
        otherwise, then = branches
        attrs |= {"Tcond": index, "then_branch": then, "else_branch": otherwise}
        return node.replace(op=if_op, attrs=attrs)
    return node.replace(op=case_op, attrs={**attrs, "branches": branches})


def _loop(node: Node) -> Node:
    """A loop in rotated form: the first output of its body is the predicate."""
    attrs = dict(node.attrs)
    body, carried, invariant = attrs.pop("body"), attrs.pop("T"), attrs.pop("C")
    invariant_specs = [body.nodes[name].outputs[0] for name in body.feeds[len(carried) :]]
    outputs = (TensorSpec(dtypes.bool_, ()), *node.outputs, *invariant_specs)
    attrs |= {"T": (dtypes.bool_, *carried, *invariant), **_loop_functions(node.name, body, len(carried))}
    return node.replace(op=while_op, attrs=attrs, outputs=outputs)


def _loop_functions(name: str, body: Subgraph, num_carried: int) -> dict[str, Subgraph]:
    predicate = _parameter(f"{name}/predicate", body)
    feeds = (predicate.name, *body.feeds)
    kept = [(feed, 0) for feed in body.feeds[num_carried:]]
    nodes = {predicate.name: predicate, **body.nodes}
    parameters = {feed: nodes[feed] for feed in feeds}
    return {
        "cond": Subgraph(parameters, feeds, ((predicate.name, 0),)),
        "body": Subgraph(nodes, feeds, (*body.fetches, *kept), body.targets),
    }


def _parameter(name: str, function: Subgraph) -> Node:
    """A parameter for a predicate, with a name that is new in ``function``."""
    while name in function.nodes:
        name += "_"
    attrs = {"dtype": dtypes.bool_, "shape": ()}
    return Node(name, feed_op, (), (), attrs, "", None, (TensorSpec(dtypes.bool_, ()),))


_FORMS = {
    "_Feed": placeholder_for,
    "Const": _constant,
    "_Recv": _receive,
    "_Case": _branches,
    "_Loop": _loop,
    "OneShotIterator": _iterator,
}
