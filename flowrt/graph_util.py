"""``flowrt.graph_util``: GraphDefs cut down to what outputs need, and frozen so that they need no
variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from flowrt import protos
from flowrt.errors import NotFoundError
from flowrt.graph.op_def import nearest
from flowrt.graph.tensor_proto import encode_tensor

GraphDef = Any  # the message of flowrt.protos.graph_pb2, which is not imported before it is needed
NodeDef = Any


def extract_sub_graph(graph_def: GraphDef, dest_nodes: Iterable[str]) -> GraphDef:
    """The nodes that ``dest_nodes`` need, in their order. Raises `NotFoundError` for an unknown name."""
    nodes = {node.name: node for node in graph_def.node}
    waiting, needed = list(dest_nodes), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in nodes:
            raise NotFoundError(f"node {name!r}: the graph has no such node.{nearest(name, nodes)}")
        if name not in needed:
            needed.add(name)
            waiting += [_producer(text) for text in nodes[name].input]
    found = protos.graph_pb2.GraphDef()
    found.node.extend([node for node in graph_def.node if node.name in needed])
    found.versions.CopyFrom(graph_def.versions)
    found.library.CopyFrom(graph_def.library)
    return found


def _producer(text: str) -> str:
    """The name of the node in the input "name", "name:1" or "^name"."""
    return text.removeprefix("^").partition(":")[0]


def convert_variables_to_constants(
    sess: Any,
    input_graph_def: GraphDef,
    output_node_names: Iterable[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> GraphDef:
    """What ``output_node_names`` need, with the variables' values in ``sess`` in place of the variables.

    A whitelist or a blacklist restricts which ones. Raises `NotFoundError` for an unknown name, and as
    ``sess.run`` for a variable without a value.
    """
    cut = extract_sub_graph(input_graph_def, output_node_names)
    names = [
        node.name
        for node in cut.node
        if node.op == "VarHandleOp"
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    values = sess.run({name: f"{name}/Read/ReadVariableOp:0" for name in names})
    frozen = protos.graph_pb2.GraphDef()
    for node in cut.node:
        for made in _frozen(node, values):
            frozen.node.add().CopyFrom(made)
    frozen.versions.CopyFrom(cut.versions)
    frozen.library.CopyFrom(cut.library)
    return frozen


def _frozen(node: NodeDef, values: Mapping[str, Any]) -> list[NodeDef]:
    """What stands for ``node`` when the variables ``values`` are constants."""
    if node.name in values:
        return [_constant(node.name, np.asarray(values[node.name]), node.attr["dtype"], node.device)]
    if node.op not in ("ReadVariableOp", "ResourceGather") or _producer(node.input[0]) not in values:
        return [node]
    made = protos.graph_pb2.NodeDef(name=node.name, device=node.device, input=node.input)
    if node.op == "ReadVariableOp":
        made.op = "Identity"
        made.attr["T"].CopyFrom(node.attr["dtype"])
        return [made]
    axis_type = protos.graph_pb2.AttrValue(type=protos.graph_pb2.DT_INT32)
    axis = _constant(f"{node.name}/axis", np.int32(0), axis_type, node.device)
    made.op = "GatherV2"
    made.input.insert(2, axis.name)
    made.attr["Tparams"].CopyFrom(node.attr["dtype"])
    made.attr["Tindices"].CopyFrom(node.attr["Tindices"])
    made.attr["Taxis"].CopyFrom(axis_type)
    made.attr["batch_dims"].CopyFrom(node.attr["batch_dims"])
    return [axis, made]


def _constant(name: str, value: Any, dtype: Any, device: str) -> NodeDef:
    made = protos.graph_pb2.NodeDef(name=name, op="Const", device=device)
    made.attr["dtype"].CopyFrom(dtype)
    encode_tensor(made.attr["value"].tensor, np.asarray(value))
    return made
