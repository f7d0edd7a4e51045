"""Lowering of collectives: each becomes operations on the devices of its ranks, in one order a device.

Comes when operations have their devices, and before the cut by task or device. A rank is where the value that
it gives is; one that gives none, where its result is asked for.

The algorithm is the one that the operation names, or the one that takes least by
`flowrt.graph.collectives.cost`. On every device collectives come in the order of creation, all operations of
one before those of the next, by control edges: ranks that block (`_GroupRecv`, native collectives) then never
wait for each other in a circle.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, final

from flowrt.errors import OpError
from flowrt.graph.collectives.algorithms import Group
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links, cheapest, schedule_of
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs, with_functions
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.ops.collectives import COLLECTIVES
from flowrt.graph.passes.expand_collective import Call, expand
from flowrt.graph.passes.lower import inline
from flowrt.graph.passes.partition import task_of
from flowrt.graph.passes.prune import prune
from flowrt.graph.shapes import merge, normalize_axis, num_elements

_UNEVEN = ("AllGather", "Gather", "AllToAll")
"""Kinds whose ranks have chunks of their own: their values may differ along the axis."""


def lower_collectives(subgraph: Subgraph, links: Links = DEFAULT_LINKS) -> Subgraph:
    """``subgraph``, placed, without collectives, in its functions too; the same object if it has none.

    Raises `InvalidArgumentError` for a lowering that the collective has not, and one between graphs whose
    shape is not known.
    """
    if not _has_collectives(subgraph):
        return subgraph
    return _Lowering(subgraph, links).run()


def _has_collectives(subgraph: Subgraph) -> bool:
    return any(node.op in COLLECTIVES or _owns_collectives(node) for node in subgraph)


def _owns_collectives(node: Node) -> bool:
    if node.op.effect is not Effect.NESTED:
        return False
    return any(map(_has_collectives, owned_subgraphs(node.attrs)))


@final
class _Lowering:
    def __init__(self, subgraph: Subgraph, links: Links) -> None:
        self._subgraph, self._links = subgraph, links
        self._made: dict[str, Node] = {}
        self._targets: dict[str, None] = dict.fromkeys(subgraph.targets)
        self._results: dict[Ref, Ref] = {}
        """What takes the place of the collectives' results."""
        self._ends: dict[str, tuple[str, ...]] = {}
        """For whom one waits who waits for a collective."""
        self._last: dict[str, tuple[str, ...]] = {}
        """On each device, what the next collective comes after."""

    def run(self) -> Subgraph:
        for node in self._subgraph:
            node = self._redirected(node)
            if node.op in COLLECTIVES:
                self._lower(node)
            elif _owns_collectives(node):
                self._lower_functions(node)
            else:
                self._add(node)
        fetches = tuple([self._results.get(ref, ref) for ref in self._subgraph.fetches])
        lowered = self._subgraph.replace(nodes=self._made)
        return prune(lowered.replace(fetches=fetches, targets=tuple(self._targets)))

    def _add(self, node: Node) -> None:
        self._made[node.name] = node

    def _redirected(self, node: Node) -> Node:
        inputs = tuple([self._results.get(ref, ref) for ref in node.inputs])
        controls = tuple(dict.fromkeys([e for name in node.controls for e in self._ends.get(name, (name,))]))
        if inputs == node.inputs and controls == node.controls:
            return node
        return node.replace(inputs=inputs, controls=controls)

    def _lower_functions(self, node: Node) -> None:
        """A loop or branch with collectives comes after all those before it, and before those behind it."""
        before = [name for names in self._last.values() for name in names]
        controls = tuple(dict.fromkeys([*node.controls, *before]))
        lower = partial(lower_collectives, links=self._links)
        self._add(with_functions(node.replace(controls=controls), lower))
        self._last = dict.fromkeys([*self._last, node.device], (node.name,))

    def _lower(self, node: Node) -> None:
        devices = tuple([self._made[name].device for name, _ in _places_of(node)])
        try:
            call, name = self._call(node, devices)
            function, first, last = expand(call)
        except OpError as error:
            raise located(node, error) from None
        prefix = f"{node.name}/_{name}/"
        nodes, results = inline(function, _values_of(node), prefix, ())
        entries = {prefix + entry for entry in first}
        for added in nodes:
            controls = added.controls
            if added.name in entries:
                controls = tuple(dict.fromkeys([*node.controls, *self._last.get(added.device, ())]))
            self._add(added.replace(controls=controls, source=node.source))
        self._results |= {(node.name, index): ref for index, ref in enumerate(results)}
        self._targets |= dict.fromkeys([prefix + target for target in function.targets])
        self._end(node, devices, [tuple([prefix + end for end in ends]) for ends in last])

    def _end(self, node: Node, devices: Sequence[str], last: Sequence[tuple[str, ...]]) -> None:
        """Note what comes after ``node``, whose ranks on ``devices`` have the operations ``last``."""
        ends = self._ends[node.name] = tuple([name for names in last for name in names])
        of_devices: dict[str, tuple[str, ...]] = {}
        for device, names in zip(devices, last, strict=True):
            of_devices[device] = of_devices.get(device, ()) + names
        self._last |= {device: names for device, names in of_devices.items() if names}
        if node.name in self._subgraph.targets:
            self._add(Node(node.name, op_def("NoOp"), (), ends, {}, devices[0], node.source, ()))

    def _call(self, node: Node, devices: tuple[str, ...]) -> tuple[Call, str]:
        """What ``node`` asks for, and the name of its algorithm."""
        attrs, kind = node.attrs, node.op.name
        specs = tuple([self._made[name].outputs[index] for name, index in _values_of(node)])
        payload = _payload(node, specs)
        group = Group(_tasks(node, devices), attrs.get("root", 0))
        name = attrs["lowering"]
        if name == "auto":
            name = cheapest(kind, group, _payload_bytes(kind, payload, group.size), self._links)
        call = Call(
            kind,
            schedule_of(kind, name, group),
            attrs["ranks"],
            devices,
            specs,
            payload,
            attrs.get("reduction", "sum" if kind != "Barrier" else "max"),
            group.root,
            _axis(attrs, payload),
        )
        if len(attrs["ranks"]) < group.size:
            call = call._replace(group_key=attrs["group_key"], edge=_edge(node, call, name))
        return call, name


def _number_of_values(node: Node) -> int:
    return node.attrs["M"] if "places" in [argument.name for argument in node.op.inputs] else len(node.inputs)


def _values_of(node: Node) -> tuple[Ref, ...]:
    """What the ranks of this graph give."""
    return node.inputs[: _number_of_values(node)]


def _places_of(node: Node) -> tuple[Ref, ...]:
    """One tensor a rank of this graph that is where the rank is."""
    return node.inputs[_number_of_values(node) :] or node.inputs


def _tasks(node: Node, devices: Sequence[str]) -> tuple[int, ...]:
    """A number a rank, alike for those in one task. Where other graphs have ranks, all must say the same:
    what the group was made with.
    """
    attrs = node.attrs
    if len(attrs["ranks"]) < attrs["group_size"]:
        return tuple(attrs["tasks"]) or tuple(range(attrs["group_size"]))
    numbers: dict[str, int] = {}
    found = {
        rank: numbers.setdefault(task_of(device), len(numbers))
        for rank, device in zip(attrs["ranks"], devices, strict=True)
    }
    return tuple([found[rank] for rank in range(attrs["group_size"])])


def _payload(node: Node, specs: Sequence[TensorSpec]) -> TensorSpec:
    """Of one rank's whole value; where they may differ, of the first there is."""
    if not specs:
        return TensorSpec(node.attrs["T"], node.attrs["shape"])
    if node.op.name in _UNEVEN:
        return specs[0]
    return TensorSpec(specs[0].dtype, functools.reduce(merge, [spec.shape for spec in specs]))


def _payload_bytes(kind: str, payload: TensorSpec, size: int) -> int | None:
    """Of what the schedule's chunks are together."""
    count = num_elements(payload.shape)
    if count is None:
        return None
    parts = size if kind in _UNEVEN else 1
    return count * int(payload.dtype.np.itemsize) * parts


def _axis(attrs: Mapping[str, Any], payload: TensorSpec) -> int:
    axis: int = attrs.get("axis", 0)
    return axis if payload.shape is None or not payload.shape else normalize_axis(axis, len(payload.shape))


def _edge(node: Node, call: Call, algorithm: str) -> str:
    """What the ranks must agree on: it begins the name of each message between graphs."""
    what = [f"{node.op.name} {node.name!r} of {call.payload}"]
    what += [f"{key}={node.attrs[key]}" for key in ("reduction", "root", "axis") if key in node.attrs]
    return f"{call.group_key};{node.attrs['instance_key']};{' '.join([*what, algorithm])}"
