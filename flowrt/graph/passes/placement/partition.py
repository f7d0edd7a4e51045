"""Partitioning: one subgraph per device or task, with a _Send/_Recv pair on every cut edge.

A cluster's graph is cut twice with the same code: by task (``part_of=task_of``), then each task's part by
device. One pair serves all readers of a tensor in one part. A control edge between devices becomes a pair
too: it carries a constant of shape [0] that waits for its producer, and the reader waits for the receive.
Small constants are duplicated instead of sent: a copy costs nothing at run time, a pair about a microsecond.

Every node must have a full device name. Each partition keeps the order of the whole, so that running the
partitions in turn, each until it needs a tensor that has not been sent, always makes progress. A tensor is
sent as soon as it is there, and received where it is read first. The parts of
one loop on several devices (`flowrt.graph.passes.placement.split`) wait for each other: the inputs of all of
them are sent before the first. A collective that is whole until here gets a _Contribute and a _Recv in the
part of each of its ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeAlias

import numpy as np

from flowrt.graph.construction.constant import const_beside
from flowrt.graph.node import LENT, SITE, Node, Ref, Subgraph, static_shape
from flowrt.graph.ops.collective.collectives import COLLECTIVES
from flowrt.graph.ops.collective.transfer import contribute_op, recv_op, send_op
from flowrt.graph.passes.placement.exchange_order import ExchangeOrder, names_in_groups
from flowrt.graph.passes.placement.lent_reads import lent_reads

MAX_COPIED_BYTES = 1024


PartOf: TypeAlias = Callable[[str], str]
"""The part of a cut that a device belongs to."""


def device_of(device: str) -> str:
    """The cut by device: each is a part."""
    return device


def task_of(device: str) -> str:
    """The cut by task: ``/job:a/replica:0/task:1`` of a full device name."""
    return device[: device.index("/device:")]


def partition(subgraph: Subgraph, part_of: PartOf = device_of) -> dict[str, Subgraph]:
    """``{part: its subgraph}``; fetches, feeds and targets are in the part of the node that they name."""
    return Partitioner(subgraph, part_of).run()


class Partitioner:
    """Cuts ``whole`` into ``parts``, the nodes of each part by name."""

    def __init__(
        self, subgraph: Subgraph, part_of: PartOf = device_of, everywhere: Collection[str] = ()
    ) -> None:
        """``everywhere``: nodes that are in each part with a reader."""
        self.whole, self.part_of = subgraph, part_of
        self._spread = set(everywhere)
        """Nodes that are in several parts: those, and collectives that are cut."""
        parts = {device: part_of(device) for device in {node.device for node in subgraph}}
        self._part_of = {node.name: parts[node.device] for node in subgraph}
        self._in_group = names_in_groups(subgraph)
        self.parts: dict[str, dict[str, Node]] = {}
        self._received: dict[tuple[Ref, str], Ref] = {}
        self._waited: dict[tuple[str, str], str] = {}
        self._sending: set[str] = set()
        """Sends, and the signals of control edges."""
        self._cut: dict[str, _Ranks] = {}
        """The collectives with ranks in several parts."""
        self._sites: dict[str | None, list[Node]] = {}
        """The parts of each loop on several devices, collected until the first is added."""
        for node in subgraph:
            if SITE in node.attrs:
                self._sites.setdefault(node.attrs[SITE], []).append(node)

    @cached_property
    def _lent(self) -> frozenset[str]:
        return lent_reads(self.whole, self._part_of)

    @cached_property
    def _order(self) -> ExchangeOrder:
        return ExchangeOrder(self.whole, self._in_group)

    def run(self) -> dict[str, Subgraph]:
        whole, part = self.whole, self._part_of
        names = set(part.values())
        if len(names) == 1:
            return {names.pop(): whole}
        for node in whole:
            self.add(node)
        for name, ranks in self._cut.items():
            for rank in range(len(ranks.devices)):
                self._receive_result(name, rank)
        return {
            name: Subgraph(
                _sent_at_once(nodes, self._sending),
                tuple(f for f in whole.feeds if part[f] == name),
                tuple(f for f in whole.fetches if part[f[0]] == name),
                tuple(t for t in whole.targets if part[t] == name),
            )
            for name, nodes in self.parts.items()
        }

    def add(self, node: Node) -> None:
        """Put ``node`` into its part, with its inputs."""
        site = node.attrs.get(SITE)
        for part in self._sites.pop(site, ()):
            self._bring(part)
        if node.op in COLLECTIVES and self._is_between_parts(node):
            self._add_ranks(node)
            return
        if self._is_alone(node):
            self.parts.setdefault(self._part_of[node.name], {})[node.name] = node
            return
        inputs, controls = self._bring(node)
        if inputs != node.inputs or controls != node.controls:
            node = node.replace(inputs=inputs, controls=controls)
        self._put(node)

    def _is_alone(self, node: Node) -> bool:
        """Whether all that ``node`` waits for is in its part, and in no other."""
        part, spread, own = self._part_of, self._spread, self._part_of[node.name]
        for name, _ in node.inputs:
            if part[name] != own or name in spread:
                return False
        for name in node.controls:
            if part[name] != own or name in spread:
                return False
        return node.name not in self._in_group

    def _put(self, node: Node) -> None:
        self.parts.setdefault(self.part_of(node.device), {})[node.name] = node

    def _is_there(self, producer: Node, device: str) -> bool:
        return self.part_of(producer.device) == self.part_of(device)

    def _bring(self, node: Node) -> tuple[tuple[Ref, ...], tuple[str, ...]]:
        """Inputs and control inputs of ``node`` in its part."""
        device = node.device
        inputs = tuple([self.local(ref, device) for ref in node.inputs])
        controls = [self._local_control(name, device) for name in node.controls]
        if node.name in self._in_group:
            controls += self._before(node.name, device)
        return inputs, tuple(dict.fromkeys(controls))

    def local(self, ref: Ref, device: str) -> Ref:
        """The tensor that represents ``ref`` on ``device``."""
        producer = origin = self.whole.nodes[ref[0]]
        if ref[0] in self._cut:
            producer = self._receive_result(*ref)
            ref = (producer.name, 0)
        if producer.device == device or self._is_there(producer, device):
            return ref
        key = (ref, self.part_of(device))
        if key not in self._received:
            is_copied = _is_small_constant(producer)
            self._received[key] = (
                self._copy(producer, device) if is_copied else self._send(producer, ref[1], device, origin)
            )
        return self._received[key]

    def _local_control(self, name: str, device: str) -> str:
        producer = origin = self.whole.nodes[name]
        if name in self._cut:
            ranks = self._cut[name]
            rank = ranks.devices.index(device) if device in ranks.devices else 0
            producer = self._receive_result(name, ranks.node.attrs["ranks"].index(rank))
        if producer.device == device or self._is_there(producer, device):
            return producer.name
        key = (name, self.part_of(device))
        if key not in self._waited:
            empty = np.empty(0, np.float32)
            signal = const_beside(producer, f"{name}/_control/{tag(device)}", empty, (producer.name,))
            self._put(signal)
            self._sending.add(signal.name)
            self._waited[key] = self._send(signal, 0, device, origin)[0]
        return self._waited[key]

    def _copy(self, constant: Node, device: str) -> Ref:
        name = f"{constant.name}/_copy/{tag(device)}"
        self._put(constant.replace(name=name, device=device, controls=()))
        return (name, 0)

    def _send(self, producer: Node, index: int, device: str, origin: Node) -> Ref:
        """A pair for an output of ``producer``, which is or waits for ``origin``, a node of the whole."""
        spec = producer.outputs[index]
        ends = {
            "tensor_name": f"{producer.name}:{index}",
            "send_device": producer.device,
            "recv_device": device,
            "send_device_incarnation": 0,
        }
        name, sent = f"{producer.name}/_send_{index}/{tag(device)}", ((producer.name, index),)
        lent = {LENT: True} if producer.name in self._lent else {}
        self._put(producer.beside(name, send_op, sent, (), {**ends, "T": spec.dtype, **lent}))
        self._sending.add(name)
        name = f"{producer.name}/_recv_{index}/{tag(device)}"
        attrs = {**ends, "tensor_type": spec.dtype, "shape": spec.shape}
        controls = self._before(origin.name, device)
        self._put(Node(name, recv_op, (), controls, attrs, device, producer.source, (spec,)))
        return (name, 0)

    def _before(self, name: str, device: str) -> tuple[str, ...]:
        """`ExchangeOrder.before`; of a collective that is cut, its contribution on the device."""
        return tuple([
            _contribution(other, self._cut[other].devices.index(device)) if other in self._cut else other
            for other in self._order.before(name, device)
        ])  # fmt: skip

    # --- collectives

    def _is_between_parts(self, node: Node) -> bool:
        devices = [self.whole.nodes[name].device for name, _ in node.inputs]
        return len({self.part_of(device) for device in devices}) > 1

    def _add_ranks(self, node: Node) -> None:
        """Contributions to the collective ``node`` by all of its ranks."""
        given = dict(zip(node.attrs["ranks"], node.inputs, strict=True))
        devices = tuple([self.whole.nodes[given[rank][0]].device for rank in range(len(given))])
        self._cut[node.name] = _Ranks(node, devices, {})
        self._spread.add(node.name)
        value = self.whole.spec(node.inputs[0])
        joint = {"reduction": node.attrs["reduction"], "shape": static_shape(value), "T": value.dtype}
        for rank, device in enumerate(devices):
            value = given[rank]
            lent = {LENT: True} if value[0] in self._lent else {}
            attrs = {"tensor_name": node.name, "devices": devices, "rank": rank, **joint, **lent}
            controls = tuple(dict.fromkeys([self._local_control(name, device) for name in node.controls]))
            name = _contribution(node.name, rank)
            inputs = (self.local(value, device),)
            self._put(Node(name, contribute_op, inputs, controls, attrs, device, node.source, ()))
            self._sending.add(name)

    def _receive_result(self, name: str, index: int) -> Node:
        """The receive of output ``index`` of the collective ``name``."""
        ranks = self._cut[name]
        node = ranks.node
        rank = node.attrs["ranks"][index]
        if rank not in ranks.received:
            device, spec = ranks.devices[rank], node.outputs[index]
            ends = {"tensor_name": f"{name}:{rank}", "send_device": device, "recv_device": device}
            attrs = {**ends, "send_device_incarnation": 0, "tensor_type": spec.dtype, "shape": spec.shape}
            controls = (_contribution(name, rank), *self._before(name, device))
            receive = Node(f"{name}/_recv_{rank}", recv_op, (), controls, attrs, device, node.source, (spec,))
            ranks.received[rank] = receive
            self._put(receive)
        return ranks.received[rank]


class _Ranks(NamedTuple):
    """The ranks of the collective ``node``: their devices, and their receives so far."""

    node: Node
    devices: tuple[str, ...]
    received: dict[int, Node]


def _contribution(collective: str, rank: int) -> str:
    """The name of what ``rank`` contributes."""
    return f"{collective}/_contribute_{rank}"


def _sent_at_once(nodes: Mapping[str, Node], sending: Collection[str]) -> dict[str, Node]:
    """``nodes`` with those that are ``sending`` something directly behind what they send."""
    behind: dict[str, list[Node]] = {}
    for node in nodes.values():
        if node.name in sending:
            behind.setdefault(node.predecessors[0], []).append(node)
    ordered: dict[str, Node] = {}

    def add(node: Node) -> None:
        ordered[node.name] = node
        for other in behind.get(node.name, ()):
            add(other)

    for name, node in nodes.items():
        if name in behind and name not in sending:
            add(node)
        elif name not in sending:
            ordered[name] = node
    return ordered


def _is_small_constant(node: Node) -> bool:
    return node.op.name == "Const" and not node.controls and node.attrs["value"].nbytes <= MAX_COPIED_BYTES


@lru_cache(maxsize=1024)
def tag(device: str) -> str:
    """A device's name as a part of an operation's name: ``/job:a/task:0/device:CPU:1`` -> ``a_0_CPU_1``."""
    words = device.replace("/device:", "/:").split("/")
    return "_".join(word.partition(":")[2].replace(":", "_") for word in words if word)
