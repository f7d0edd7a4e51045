"""Reassembly of the parts of a partitioned graph during import.

A cut edge is a _Send and a _Recv with the same attributes, so the output of the _Recv equals the input of the
_Send: the receive becomes an Identity on its device, and the send is removed. Partitioning the result creates
the pair again.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.collective.transfer import recv_op, send_op

_ENDS = ("tensor_name", "send_device", "recv_device")


def join_parts(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, without _Send and _Recv; the same object if there are none.

    Raises `InvalidArgumentError`, with the node's name, for a _Recv without its _Send.
    """
    sends = [node for node in nodes.values() if node.op is send_op]
    sent = {_ends(node): _sent(node) for node in sends}
    receives = {node.name for node in nodes.values() if node.op is recv_op}
    if not sends and not receives:
        return nodes
    gone = {node.name for node in sends}
    joined = {}
    for node in nodes.values():
        if node.name in receives:
            node = _identity(node, sent)
        if node.name not in gone:
            controls = tuple([name for name in node.controls if name not in gone])
            joined[node.name] = node if controls == node.controls else node.replace(controls=controls)
    return joined


def _ends(node: Node) -> tuple[str, ...]:
    return tuple([node.attrs[key] for key in _ENDS])


def _sent(send: Node) -> Ref:
    if len(send.inputs) != 1:
        raise located(send, InvalidArgumentError(f"expected 1 input; got {len(send.inputs)}"))
    return send.inputs[0]


def _identity(receive: Node, sent: Mapping[tuple[str, ...], Ref]) -> Node:
    tensor, sender, receiver = ends = _ends(receive)
    if ends not in sent:
        message = f"expected the _Send of {tensor!r} from {sender} to {receiver} in the same graph; got none"
        raise located(receive, InvalidArgumentError(message))
    attrs = {key: value for key, value in receive.attrs.items() if key.startswith("_")}
    attrs["T"] = receive.attrs["tensor_type"]
    return receive.replace(op=identity, inputs=(sent[ends],), attrs=attrs)
