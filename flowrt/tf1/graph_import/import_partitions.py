"""Reassembly of the parts of a partitioned graph during import.

A cut edge is a _Send and a _Recv with the same attributes, so the output of the _Recv equals the input of the
_Send: the receive becomes an Identity on its device, and the send is removed. The _Contribute of all ranks
are one all-reduce, and their receives Identities of its results. Partitioning the result creates these again.
"""

from __future__ import annotations

from collections.abc import Mapping

from flowrt.errors import InvalidArgumentError
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.collective.collectives import all_reduce_op
from flowrt.graph.ops.collective.transfer import SENDS, contribute_op, recv_op, send_op
from flowrt.graph.passes.collective.collective_call import LOCAL

_ENDS = ("tensor_name", "send_device", "recv_device")


def join_parts(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, without _Send, _Contribute and _Recv; the same object if there
    are none.

    Raises `InvalidArgumentError`, with the node's name, for a _Recv without its _Send, and for a collective
    without one of its ranks.
    """
    sends = [node for node in nodes.values() if node.op in SENDS]
    sent = {_ends(node): _sent(node) for node in sends if node.op is send_op}
    collectives: dict[str, dict[int, Node]] = {}
    for node in sends:
        if node.op is contribute_op:
            collectives.setdefault(node.attrs["tensor_name"], {})[node.attrs["rank"]] = node
    whole = [_collective(name, ranks) for name, ranks in collectives.items()]
    for node in whole:
        for rank, device in enumerate(collectives[node.name][0].attrs["devices"]):
            sent[f"{node.name}:{rank}", device, device] = node.name, rank
    receives = {node.name for node in nodes.values() if node.op is recv_op}
    if not sends and not receives:
        return nodes
    gone = {node.name for node in sends}
    joined = {node.name: node for node in whole}
    for node in nodes.values():
        if node.name in receives:
            node = _identity(node, sent)
        if node.name not in gone:
            controls = tuple([name for name in node.controls if name not in gone])
            joined[node.name] = node if controls == node.controls else node.replace(controls=controls)
    return joined


def _ends(node: Node) -> tuple[str, ...]:
    return tuple([node.attrs[key] for key in _ENDS])


def _collective(name: str, ranks: Mapping[int, Node]) -> Node:
    """The all-reduce ``name``, to which ``ranks`` contribute."""
    one = next(iter(ranks.values()))
    size = len(one.attrs["devices"])
    if ranks.keys() != {*range(size)}:
        message = f"expected contributions of ranks 0 to {size - 1} to {name!r}; got {sorted(ranks)}"
        raise located(one, InvalidArgumentError(message))
    given = {
        **{key: attr.default for key, attr in all_reduce_op.attrs.items() if not attr.required},
        **{key: one.attrs[key] for key in ("T", "reduction")},
        "N": size, "group_key": LOCAL, "group_size": size, "ranks": tuple(range(size)), "instance_key": name,
    }  # fmt: skip
    inputs = tuple([_sent(ranks[rank]) for rank in range(size)])
    return Node(name, all_reduce_op, inputs, (), given, one.device, one.source, ())


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
