"""The graph of a session at its client and its master: sent once, then extended incrementally.

    client   SentGraph.extension --ExtendSession--> SessionGraph.extended   master
             SentGraph.extended  <--GraphVersion---

A client sends the operations that its next callable needs and the master does not have; a callable
(`callable_of`, `SessionGraph.step`) then only names them. So a graph with 100 MB of constants is sent once,
however many callables use it, and unused parts are not sent.

Rules of this file:
  1. A `SessionGraph` is a value: an extension creates another one, with the next version.
  2. An extension applies to one version. Two of the same version cannot both be applied.
  3. Nodes are compared by identity: in a `Graph` they never change, they are only replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.distribute.cluster.graph_limits import DEFAULT_LIMITS, GraphLimits
from flowrt.distribute.wire.messages import Message, read_graph
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.construction.detached import attach_constants, detach_constants
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.messages.tensor_proto import decode_type
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.passes.prepare.prune import extract_nodes, feed_node
from flowrt.graph.shapes import Shape
from flowrt.protos import cluster_pb2 as pb


class Extension(NamedTuple):
    """The ``nodes`` that a master lacks, in topological order. They read each other, those that it has,
    ``known``, and outputs of ``fed``, which are replaced.
    """

    version: int
    nodes: Mapping[str, Node]
    positions: Sequence[int]
    fed: Sequence[Node]
    known: Mapping[str, Node]

    def message(self, session: str) -> Message:
        """The request for it."""
        graph, constants = detach_constants(Subgraph(self.nodes))
        body = pb.ExtendSession(session=session, version=self.version, positions=self.positions)
        for node in self.fed:
            body.fed.add(name=node.name, dtypes=[spec.dtype.number for spec in node.outputs])
        return Message(body, constants, graph, {**self.known, **{node.name: node for node in self.fed}})


@final
class SentGraph:
    """A client's view of its session's graph at the master. Not thread-safe."""

    def __init__(self) -> None:
        self._version = 0
        self._nodes: dict[str, Node] = {}

    def extension(self, graph: Graph, step: Subgraph, feeds: Iterable[Tensor]) -> Extension | None:
        """The part of ``graph`` that the master lacks for ``step``, extracted with ``feeds``; or None."""
        operations, replaced = dict(graph.operations), set(step.feeds)
        nodes = [operations[n].node for n in step.nodes if n in operations and n not in replaced]
        new = {node.name: node for node in nodes if self._nodes.get(node.name) is not node}
        if not new:
            return None
        fed = [tensor.op.node for tensor in feeds if tensor.op.name not in new]
        place = dict(zip(operations, count(), strict=False))
        return Extension(self._version, new, [place[name] for name in new], fed, self._nodes)

    def extended(self, extension: Extension, version: int) -> None:
        """The master has it, and calls the graph with it ``version``."""
        self._version = version
        self._nodes = {**self._nodes, **extension.nodes}


def callable_of(
    session: str,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Mapping[Tensor, Shape],
    done: Collection[str] = (),
) -> Message:
    """The request for a callable of a graph with operations that the master has: see
    `flowrt.graph.passes.prepare.prune.extract`.
    """
    body = pb.MakeCallable(
        session=session,
        fed=[named(tensor.ref) for tensor in feeds],
        fetches=[named(tensor.ref) for tensor in fetches],
        targets=[operation.name for operation in targets],
        done=sorted(done),
    )
    return Message(body, graph=feeds_graph([feed_node(tensor, shape) for tensor, shape in feeds.items()]))


def partial_run_of(
    session: str,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Sequence[Tensor],
    released: Collection[int] = (),
) -> Message:
    """The request for a step in several calls of a graph with operations that the master has."""
    body = pb.PartialRunSetup(
        session=session,
        fed=[named(tensor.ref) for tensor in feeds],
        fetches=[named(tensor.ref) for tensor in fetches],
        targets=[operation.name for operation in targets],
        released=released,
    )
    return Message(body, graph=feeds_graph([feed_node(tensor, tensor.spec.shape) for tensor in feeds]))


def feeds_graph(feeds: Sequence[Node]) -> Subgraph:
    """The feeds as a graph in a request."""
    return Subgraph({node.name: node for node in feeds}, tuple([node.name for node in feeds]))


@final
class SessionGraph:
    """A master's copy of a session's graph after ``version`` extensions: ``nodes`` in order of creation at
    the client, at ``positions`` of its graph.
    """

    def __init__(
        self,
        version: int = 0,
        nodes: Mapping[str, Node] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        self.version, self.nodes, self._positions = version, nodes or {}, positions or {}

    def extended(self, message: Message, limits: GraphLimits = DEFAULT_LIMITS) -> SessionGraph:
        """This graph with an `ExtendSession` applied. Raises `InvalidArgumentError` for an invalid one,
        `ResourceExhaustedError` over the limits of one graph.
        """
        known = {**self.nodes, **{fed.name: _unknown(fed) for fed in message.body.fed}}
        brought = attach_constants(read_graph(message, known), message.tensors)
        positions = message.body.positions
        if len(positions) != len(brought):
            got = f"{len(brought)} operations at {len(positions)} positions"
            raise InvalidArgumentError(f"extend_session: expected one position per operation; got {got}")
        nodes = {**self.nodes, **brought.nodes}
        if message.graph is None:  # of another process
            _check_size(nodes, limits)
        places = {**self._positions, **dict(zip(brought.nodes, positions, strict=True))}
        ordered = {name: nodes[name] for name in sorted(nodes, key=places.__getitem__)}
        return SessionGraph(self.version + 1, ordered, places)

    def step(self, message: Message) -> Subgraph:
        """The subgraph for a `MakeCallable`. Raises `InvalidArgumentError` for a name not in the graph."""
        body, given = message.body, read_graph(message)
        if len(body.fed) != len(given.feeds):
            got = f"{len(given.feeds)} for {len(body.fed)} tensors"
            raise InvalidArgumentError(f"make_callable: expected one feed per fed tensor; got {got}")
        fed = {ref_of(tensor): given.nodes[name] for tensor, name in zip(body.fed, given.feeds, strict=True)}
        try:
            return extract_nodes(
                self.nodes, [ref_of(t) for t in body.fetches], body.targets, fed, set(body.done)
            )
        except KeyError as error:
            raise InvalidArgumentError(
                f"make_callable: expected operations of the session's graph; got {error}. Extend it first"
            ) from None


def _check_size(nodes: Mapping[str, Node], limits: GraphLimits) -> None:
    if len(nodes) > limits.nodes:
        raise ResourceExhaustedError(
            f"session: expected at most {limits.nodes} nodes in its graph; got {len(nodes)}"
        )
    constants = [node.attrs["value"] for node in nodes.values() if node.op.name == "Const"]
    size = sum(value.nbytes for value in constants if isinstance(value, np.ndarray))
    if size > limits.constant_bytes:
        raise ResourceExhaustedError(
            f"session: expected at most {limits.constant_bytes} bytes of constants in its graph; got {size}"
        )


def _unknown(fed: Any) -> Node:
    """A node with only the dtypes of its outputs known."""
    outputs = tuple([TensorSpec(decode_type(number), None) for number in fed.dtypes])
    return Node(fed.name, feed_op, (), (), {}, "", None, outputs)


def named(ref: Ref) -> Any:
    """The reference as a `TensorName`."""
    return pb.TensorName(op=ref[0], output=ref[1])


def ref_of(named: Any) -> Ref:
    """The reference in a `TensorName`."""
    return named.op, named.output
