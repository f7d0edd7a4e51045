"""Splitting: an operation that owns functions on several devices becomes one operation per device.

Every device runs its own copy of a loop or branch, with its part of each function (R. Yu et al., "Dynamic
control flow in large-scale machine learning", 2018, do so for TensorFlow's graphs). The index or the
predicate is sent to all of them: the predicate of each iteration by a _Send/_Recv pair inside the body. A
loop variable resides on one device, where its next value is computed; other readers receive it in each
iteration. An invariant argument is passed to every device that reads it.

The pass runs after `place`; after it each function is on one device, and `partition` cuts the rest. A
cluster's graph is split by task first, then each task's part by device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeAlias

from flowrt.graph.node import SITE, Node, Ref, Subgraph, owned_subgraphs, site_of, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.placement.partition import Partitioner, PartOf, device_of, tag
from flowrt.graph.passes.prepare.prune import redirect

_THERE = ("_Feed", "Const", "NoOp")
"""Ops that do not put a part on a device."""


def split(subgraph: Subgraph, part_of: PartOf = device_of) -> Subgraph:
    """``subgraph``, placed, with each function in a single part: on one device, or in one task."""
    if Effect.NESTED not in [node.op.effect for node in subgraph]:
        return subgraph
    nodes: list[Node] = []
    replaced: dict[Ref, Ref] = {}
    for node in subgraph:
        if node.op.effect is not Effect.NESTED:
            nodes.append(node)
            continue
        node = with_functions(node, partial(split, part_of=part_of))
        devices = _devices(node, part_of)
        if len(devices) < 2:
            nodes.append(_moved(node, next(iter(devices.values()), node.device), devices, part_of))
            continue
        node = with_functions(node, partial(_gathered, devices, part_of))
        parts, outputs = (_split_loop if node.op.name == "_Loop" else _split_case)(node, devices, part_of)
        nodes += parts
        nodes.append(node.beside(node.name, no_op, controls=tuple([part.name for part in parts])))
        replaced.update(((node.name, i), ref) for i, ref in enumerate(outputs))
    return redirect(subgraph, replaced, nodes)


Parts: TypeAlias = dict[str, str]
"""The active parts of a function, each with its first active device."""


def _devices(node: Node, part_of: PartOf) -> Parts:
    """Parts of the functions of ``node``, in order of appearance."""
    found: Parts = {}
    for function in owned_subgraphs(node.attrs):
        for inner in function:
            if inner.op.name not in _THERE:
                found.setdefault(part_of(inner.device), inner.device)
    return found


def _gathered(devices: Parts, part_of: PartOf, function: Subgraph) -> Subgraph:
    """``function`` with inactive nodes outside all parts moved to the first part."""
    first = next(iter(devices.values()))
    return function.mapped(lambda inner: _moved(inner, first, devices, part_of))


def _moved(node: Node, device: str, devices: Parts, part_of: PartOf) -> Node:
    """``node`` and the nodes of its functions; those outside all parts are moved to ``device``."""
    node = with_functions(
        node, lambda function: function.mapped(lambda inner: _moved(inner, device, devices, part_of))
    )
    return node if part_of(node.device) in devices else node.replace(device=device)


class _FunctionCut(Partitioner):
    """Partitions one function. The parameters ``replicated`` are available on each device that reads them."""

    def __init__(self, function: Subgraph, replicated: Collection[str], part_of: PartOf) -> None:
        super().__init__(function, part_of, replicated)
        self._replicated = frozenset(replicated)

    def cut(self) -> None:
        for node in self.whole:
            if node.name not in self._replicated:
                self.add(node)

    def local(self, ref: Ref, device: str) -> Ref:
        if ref[0] not in self._replicated:
            return super().local(ref, device)
        part = self.parts.setdefault(self.part_of(device), {})
        if ref[0] not in part:
            part[ref[0]] = self.whole.nodes[ref[0]].replace(device=device)
        return ref

    def reads(self, device: str) -> frozenset[str]:
        """The replicated parameters that the part of ``device`` reads."""
        return self._replicated & self.parts.get(self.part_of(device), {}).keys()

    def part(self, device: str, feeds: Sequence[str], fetches: Sequence[Ref]) -> Subgraph:
        """The part of ``device``, including parameters that it does not read."""
        nodes = self.parts.get(self.part_of(device), {})
        unread = {name: self.whole.nodes[name].replace(device=device) for name in feeds if name not in nodes}
        targets = tuple(t for t in self.whole.targets if t in nodes)
        return Subgraph({**unread, **nodes}, tuple(feeds), tuple(fetches), targets)


def _split_loop(node: Node, devices: Parts, part_of: PartOf) -> tuple[list[Node], list[Ref]]:
    body: Subgraph = node.attrs["body"]
    count = len(node.attrs["T"])
    carried, invariant = body.feeds[:count], body.feeds[count:]
    pred, *results = body.fetches
    homes = [_home(body, ref, devices, part_of) for ref in results]
    placed = {name: body.nodes[name].replace(device=home) for name, home in zip(carried, homes, strict=True)}
    cut = _FunctionCut(body.replace(nodes={**body.nodes, **placed}), invariant, part_of)
    cut.cut()
    preds = {device: cut.local(pred, device) for device in devices.values()}
    kept = [cut.local(ref, home) for ref, home in zip(results, homes, strict=True)]

    def part(device: str, own: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
        read = [i for i, name in enumerate(invariant) if name in cut.reads(device)]
        feeds = [carried[k] for k in own] + [invariant[i] for i in read]
        attrs = {
            "body": cut.part(device, feeds, [preds[device], *[kept[k] for k in own]]),
            "T": tuple(node.attrs["T"][k] for k in own),
            "C": tuple(node.attrs["C"][i] for i in read),
        }
        return [*own, *[count + i for i in read]], attrs

    return _parts(node, devices, part_of, homes, part)


def _split_case(node: Node, devices: Parts, part_of: PartOf) -> tuple[list[Node], list[Ref]]:
    branches: tuple[Subgraph, ...] = node.attrs["branches"]
    homes = [_home(branches[0], ref, devices, part_of) for ref in branches[0].fetches]
    cuts = [_FunctionCut(branch, branch.feeds, part_of) for branch in branches]
    results = []
    for cut, branch in zip(cuts, branches, strict=True):
        cut.cut()
        results.append([cut.local(ref, home) for ref, home in zip(branch.fetches, homes, strict=True)])

    def part(device: str, own: Sequence[int]) -> tuple[list[int], dict[str, Any]]:
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
            "branches": functions,
            "Tindex": node.attrs["Tindex"],
            "Tin": tuple(node.attrs["Tin"][i] for i in read),
            "Tout": tuple(node.attrs["Tout"][k] for k in own),
        }
        return read, attrs

    return _parts(node, devices, part_of, homes, part)


def _parts(
    node: Node,
    devices: Parts,
    part_of: PartOf,
    homes: Sequence[str],
    part: Callable[[str, Sequence[int]], tuple[list[int], dict[str, Any]]],
) -> tuple[list[Node], list[Ref]]:
    """One node a device, and the replacements of the outputs of ``node``, which are at ``homes``.
    ``part(device, own)``: which arguments it takes if it computes the outputs ``own``, and its attrs.
    """
    parts: list[Node] = []
    outputs: list[Ref] = [("", 0)] * len(homes)
    for name, device in devices.items():
        own = [k for k, home in enumerate(homes) if part_of(home) == name]
        arguments, attrs = part(device, own)
        parts.append(node.replace(
            name=f"{node.name}/{tag(device)}",
            device=device,
            inputs=(node.inputs[0], *[node.inputs[1 + i] for i in arguments]),
            attrs={SITE: site_of(node), **attrs},
            outputs=tuple([node.outputs[k] for k in own]),
        ))  # fmt: skip
        for number, k in enumerate(own):
            outputs[k] = (parts[-1].name, number)
    return parts, outputs


def _home(function: Subgraph, result: Ref, devices: Parts, part_of: PartOf) -> str:
    """The device on which a result resides: that of its producer."""
    device = function.nodes[result[0]].device
    return device if part_of(device) in devices else next(iter(devices.values()))
