"""_GroupSend and _GroupRecv: the two ends of an edge between ranks of a group that are in different graphs.

Made by the lowering of collectives only. The graphs are run by different sessions, so a step's rendezvous
does not reach from one to the other: tensors go through the group (`flowrt.graph.groups`). A receive blocks
the program of its device, and nobody else; the lowering puts what a rank sends in a step of the algorithm in
front of what it receives in it.
"""

from __future__ import annotations

from typing import Any

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.groups import member_of
from flowrt.graph.node import Node
from flowrt.graph.op_def import (
    NONDIFFERENTIABLE,
    Effect,
    attr_int,
    attr_shape,
    attr_string,
    attr_type,
    define_op,
)
from flowrt.graph.shapes import Shape, format_shape

_EDGE = {
    "group_key": attr_string(),
    "rank": attr_int(),  # of this graph
    "peer": attr_int(),  # of the other
    "edge": attr_string(),  # names the collective and the step, alike at both ends
}


def _member(node: Node) -> Any:
    return member_of(node.attrs["group_key"], node.attrs["rank"])


def _receive(xp: Any, state: Any, peer: int, edge: str, dtype: Any, shape: Shape) -> Any:
    array = state.receive(peer, edge)
    if array.dtype != dtype.np or array.shape != shape:
        raise InvalidArgumentError(
            f"{edge}: expected {dtype.name}{format_shape(shape)} of rank {peer}; got "
            f"{array.dtype}{format_shape(array.shape)}"
        )
    return xp.asarray(array)


group_send_op = define_op(
    "_GroupSend",
    "tensor: T ->",
    types={"T": dtypes.NUMERIC},
    attrs=_EDGE,
    shape=lambda s: [],
    kernel=lambda xp, tensor, state, peer, edge: state.send(peer, edge, tensor),
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effect=Effect.STATEFUL,
    state=_member,
    doc="Gives its input to a rank of the group in another graph.",
)

group_recv_op = define_op(
    "_GroupRecv",
    "-> dtype",
    types={"dtype": dtypes.NUMERIC},
    attrs={**_EDGE, "dtype": attr_type(), "shape": attr_shape()},
    shape=lambda s: [s.attrs["shape"]],
    kernel=_receive,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effect=Effect.STATEFUL,
    state=_member,
    doc="Takes what a rank of the group in another graph gives.",
)
