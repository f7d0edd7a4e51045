"""Splitting: an operation whose functions run on several devices becomes one operation on each of them.

Every device runs its own copy of a loop or branch, with its part of each function (R. Yu et al., "Dynamic
control flow in large-scale machine learning", 2018, do so for TensorFlow's graphs). What decides, the index
or the predicate, goes to all of them: the predicate of each iteration by a _Send/_Recv pair inside the body.
A loop variable lives on one device, where its next value is made; who else reads it receives it in each
iteration. An argument that stays the same is passed to every device that reads it.

The pass comes behind `place`; after it each function is on one device, and `partition` cuts the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any

from flowrt.graph.func_graph import owned_subgraphs, with_functions
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect, op_def
from flowrt.graph.passes.partition import Partitioner, tag
from flowrt.graph.passes.prune import redirect

_THERE = ("_Feed", "Const", "NoOp")
"""Where these are decides nothing."""


def split(subgraph: Subgraph) -> Subgraph:
    """``subgraph``, placed, with every function on one device."""
    if not any(node.op.effect is Effect.NESTED for node in subgraph):
        return subgraph
    nodes: list[Node] = []
    replaced: dict[Ref, Ref] = {}
    for node in subgraph:
        if node.op.effect is not Effect.NESTED:
            nodes.append(node)
            continue
        node = with_functions(node, split)
        devices = _devices(node)
        if len(devices) < 2:
            device = next(iter(devices), node.device)
            nodes.append(_moved(node, device))
            continue
        node = with_functions(node, partial(_gathered, devices))
        parts, outputs = (_split_loop if node.op.name == "_Loop" else _split_case)(node, devices)
        nodes += parts
        names = tuple([part.name for part in parts])
        nodes.append(Node(node.name, op_def("NoOp"), (), names, {}, node.device, node.source, ()))
        replaced.update(((node.name, i), ref) for i, ref in enumerate(outputs))
    return redirect(subgraph, replaced, nodes)


def _gathered(devices: Sequence[str], function: Subgraph) -> Subgraph:
    """``function`` with what is on none of ``devices``, and does nothing, on the first of them."""
    if all(inner.device in devices for inner in function):
        return function
    return function.with_nodes(
        [inner if inner.device in devices else _moved(inner, devices[0]) for inner in function]
    )


def _devices(node: Node) -> list[str]:
    """The devices that do something in the functions of ``node``, in order of appearance."""
    found: dict[str, None] = {}
    for function in owned_subgraphs(node.attrs):
        for inner in function:
            if inner.op.name not in _THERE:
                found[inner.device] = None
    return list(found)


def _moved(node: Node, device: str) -> Node:
    """``node``, and all that is in its functions, on ``device``."""

    def move(function: Subgraph) -> Subgraph:
        if all(inner.device == device for inner in function):
            return function
        return function.with_nodes([_moved(inner, device) for inner in function])

    node = with_functions(node, move)
    return node if node.device == device else node.replace(device=device)


class _FunctionCut(Partitioner):
    """Cuts one function. The parameters in ``replicated`` are there on every device that reads them."""

    def __init__(self, function: Subgraph, replicated: Collection[str]) -> None:
        super().__init__(function)
        self._replicated = frozenset(replicated)

    def cut(self) -> None:
        for node in self.whole:
            if node.name not in self._replicated:
                self.add(node)

    def local(self, ref: Ref, device: str) -> Ref:
        if ref[0] not in self._replicated:
            return super().local(ref, device)
        part = self.parts.setdefault(device, {})
        if ref[0] not in part:
            part[ref[0]] = self.whole.nodes[ref[0]].replace(device=device)
        return ref

    def reads(self, device: str) -> frozenset[str]:
        """The replicated parameters that ``device`` reads."""
        return self._replicated & self.parts.get(device, {}).keys()

    def part(self, device: str, feeds: Sequence[str], fetches: Sequence[Ref]) -> Subgraph:
        """What ``device`` does of the function; a parameter that it does not read is there nevertheless."""
        nodes = self.parts.get(device, {})
        unread = {name: self.whole.nodes[name].replace(device=device) for name in feeds if name not in nodes}
        targets = tuple(t for t in self.whole.targets if t in nodes)
        return Subgraph({**unread, **nodes}, tuple(feeds), tuple(fetches), targets)


def _split_loop(node: Node, devices: Sequence[str]) -> tuple[list[Node], list[Ref]]:
    body: Subgraph = node.attrs["body"]
    count = len(node.attrs["T"])
    carried, invariant = body.feeds[:count], body.feeds[count:]
    pred, *results = body.fetches
    homes = [_home(body, ref, devices) for ref in results]
    placed = {name: body.nodes[name].replace(device=home) for name, home in zip(carried, homes, strict=True)}
    cut = _FunctionCut(body.replace(nodes={**body.nodes, **placed}), invariant)
    cut.cut()
    preds = {device: cut.local(pred, device) for device in devices}
    kept = [cut.local(ref, home) for ref, home in zip(results, homes, strict=True)]
    parts: list[Node] = []
    outputs: list[Ref] = [("", 0)] * count
    for device in devices:
        own = [k for k in range(count) if homes[k] == device]
        read = [i for i, name in enumerate(invariant) if name in cut.reads(device)]
        feeds = [carried[k] for k in own] + [invariant[i] for i in read]
        function = cut.part(device, feeds, [preds[device], *[kept[k] for k in own]])
        attrs = {
            **_common(node),
            "body": function,
            "T": tuple(node.attrs["T"][k] for k in own),
            "C": tuple(node.attrs["C"][i] for i in read),
        }
        inputs = [node.inputs[0], *[node.inputs[1 + k] for k in own]]
        inputs += [node.inputs[1 + count + i] for i in read]
        parts.append(_part(node, device, inputs, attrs, [node.outputs[k] for k in own]))
        for number, k in enumerate(own):
            outputs[k] = (parts[-1].name, number)
    return parts, outputs


def _split_case(node: Node, devices: Sequence[str]) -> tuple[list[Node], list[Ref]]:
    branches: tuple[Subgraph, ...] = node.attrs["branches"]
    homes = [_home(branches[0], ref, devices) for ref in branches[0].fetches]
    cuts = [_FunctionCut(branch, branch.feeds) for branch in branches]
    results = []
    for cut, branch in zip(cuts, branches, strict=True):
        cut.cut()
        results.append([cut.local(ref, home) for ref, home in zip(branch.fetches, homes, strict=True)])
    parts: list[Node] = []
    outputs: list[Ref] = [("", 0)] * len(homes)
    for device in devices:
        own = [k for k, home in enumerate(homes) if home == device]
        read = [
            i
            for i in range(len(node.inputs) - 1)
            if any(branch.feeds[i] in cut.reads(device) for cut, branch in zip(cuts, branches, strict=True))
        ]
        functions = tuple(
            cut.part(device, [branch.feeds[i] for i in read], [found[k] for k in own])
            for cut, branch, found in zip(cuts, branches, results, strict=True)
        )
        attrs = {
            **_common(node),
            "branches": functions,
            "Tindex": node.attrs["Tindex"],
            "Tin": tuple(node.attrs["Tin"][i] for i in read),
            "Tout": tuple(node.attrs["Tout"][k] for k in own),
        }
        inputs = [node.inputs[0], *[node.inputs[1 + i] for i in read]]
        parts.append(_part(node, device, inputs, attrs, [node.outputs[k] for k in own]))
        for number, k in enumerate(own):
            outputs[k] = (parts[-1].name, number)
    return parts, outputs


def _home(function: Subgraph, result: Ref, devices: Sequence[str]) -> str:
    """The device on which a result lives: where it is made."""
    device = function.nodes[result[0]].device
    return device if device in devices else devices[0]


def _common(node: Node) -> dict[str, Any]:
    """What all parts have of the attributes. ``_site`` names the loop, alike on all devices."""
    return {"_site": node.attrs.get("_site", node.name)}


def _part(
    node: Node, device: str, inputs: Iterable[Ref], attrs: dict[str, Any], outputs: Iterable[Any]
) -> Node:
    name = f"{node.name}/{tag(device)}"
    return node.replace(name=name, device=device, inputs=tuple(inputs), attrs=attrs, outputs=tuple(outputs))
