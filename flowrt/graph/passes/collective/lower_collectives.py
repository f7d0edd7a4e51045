"""Lowering of collectives: each becomes operations on the devices of its ranks, in one order per device.

Runs after placement and before partitioning by task or device. A rank is on the device of its input value; a
rank without one, on the device where its result was requested.

The algorithm is the one that the operation names, or the cheapest according to
`flowrt.graph.collectives.cost`. On every device collectives run in order of creation, all operations of one
before those of the next, by control edges: ranks that block (`_GroupRecv`, native collectives) therefore
cannot deadlock.

An all-reduce among CPUs of one task stays whole until the step is cut, unless it is in a function or names an
algorithm: each rank then has two operations, the same as all others
(`flowrt.executor.program.joint_reduction`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import final

import numpy as np

from flowrt.errors import OpError
from flowrt.graph.collectives.cost import DEFAULT_LINKS, Links
from flowrt.graph.collectives.ends import gets, gives
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, devices_in, owned_subgraphs, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.collective.collectives import COALESCED, COLLECTIVES, coalesced_all_gather_op
from flowrt.graph.ops.collective.group_transfer import tagged_send_op
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.collective.collective_call import (
    Asked,
    apart,
    asked,
    call_of,
    edge_of,
    is_joint,
    is_whole,
    places_of,
    tensors_of,
    values_of,
)
from flowrt.graph.passes.collective.expand_collective import Call, expand
from flowrt.graph.passes.collective.gather_together import gathered_here
from flowrt.graph.passes.collective.native_collective import rank_part
from flowrt.graph.passes.optimise.merge import merge_constants
from flowrt.graph.passes.prepare.lower import inline
from flowrt.graph.passes.prepare.prune import prune
from flowrt.graph.topology import reachable


def lower_collectives(subgraph: Subgraph, links: Links = DEFAULT_LINKS, is_step: bool = True) -> Subgraph:
    """``subgraph``, placed, without collectives, but for those that the cut divides, and without any in its
    functions; the same object if it has none. ``is_step``: it is a step, no function.

    Raises `InvalidArgumentError` for a lowering that the collective lacks, or an unknown shape in one between
    graphs.
    """
    if not _has_collectives(subgraph):
        return subgraph
    return _Lowering(_with_early_starts(subgraph), links, is_step).run()


def _with_early_starts(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` reordered so that collectives between graphs start as early as possible, and messages are
    sent: each directly after its dependencies and the earlier ones, before all else. Gradients are thus
    transferred while the device computes others. Consumers of the results follow in the order of the
    collectives: the last gradients are transferred while variables are updated with the first. Within one
    graph this has no benefit: its devices share the work.
    """
    may = {tagged_send_op, *COLLECTIVES}
    travelling = [n for n in subgraph if (n.op in may or n.op.effect is Effect.NESTED) and _travels(n)]
    if not travelling:
        return subgraph
    place = {name: position for position, name in enumerate(subgraph.nodes)}
    ordered: dict[str, Node] = {}
    for collective in travelling:
        needed = sorted(_needed(subgraph, collective.name, ordered), key=place.__getitem__)
        ordered.update({name: subgraph.nodes[name] for name in needed})
    awaited = _last_awaited(subgraph, {node.name: i for i, node in enumerate(travelling)})
    behind = sorted([node for node in subgraph if node.name not in ordered], key=lambda n: awaited[n.name])
    return subgraph.replace(nodes=ordered | {node.name: node for node in behind})


def _last_awaited(subgraph: Subgraph, number: Mapping[str, int]) -> dict[str, int]:
    """Map from each node to the highest ``number`` among its own and those of its ancestors; -1 if none."""
    awaited: dict[str, int] = {}
    for node in subgraph:
        needed = [awaited[name] for name in node.predecessors]
        awaited[node.name] = max([number.get(node.name, -1), *needed])
    return awaited


def _needed(subgraph: Subgraph, name: str, known: Collection[str]) -> set[str]:
    """``name`` and its ancestors, except those already ``known``."""

    def before(name: str) -> list[str]:
        return [n for n in subgraph.nodes[name].predecessors if n not in known]

    return set() if name in known else {*reachable([name], before)}


def _has_collectives(subgraph: Subgraph) -> bool:
    owners = [node for node in subgraph if node.op.effect is Effect.NESTED]
    return not COLLECTIVES.isdisjoint({node.op for node in subgraph}) or any(map(_owns_collectives, owners))


def _travels(node: Node) -> bool:
    """Whether ``node``, or one in its functions, is a collective between graphs, which all have in one order,
    or sends a message, for which another may wait before it comes to the next one.
    """
    if node.op.effect is Effect.NESTED:
        return any(_travels(inner) for function in owned_subgraphs(node.attrs) for inner in function)
    return node.op is tagged_send_op or (node.op in COLLECTIVES and not is_whole(node))


def _owns_collectives(node: Node) -> bool:
    """Whether a function of ``node``, which owns some, has collectives."""
    return any(map(_has_collectives, owned_subgraphs(node.attrs)))


@final
class _Lowering:
    def __init__(self, subgraph: Subgraph, links: Links, is_step: bool) -> None:
        self._subgraph, self._links, self._is_step = subgraph, links, is_step
        self._made: dict[str, Node] = {}
        self._passed_on = {ref for node in subgraph if node.op in COLLECTIVES for ref in node.inputs}
        """Results that are fetched, and values of collectives."""
        self._passed_on.update(subgraph.fetches)
        self._targets: dict[str, None] = dict.fromkeys(subgraph.targets)
        self._results: dict[Ref, Ref] = {}
        """Replacements of the collectives' results."""
        self._ends: dict[str, tuple[str, ...]] = {}
        """Last nodes of each lowered collective: its control dependents wait for these."""
        self._last: dict[str, tuple[str, ...]] = {}
        """Nodes after which the next collective starts, per device."""
        self._planned: set[tuple[str, int]] = set()
        """The ranks, by group, that already have the step's plan for the group."""
        self._waiting: dict[str, Node] = {}
        """Deferred nodes: waits for native collectives and empty results, added when first read."""

    def run(self) -> Subgraph:
        for node in self._subgraph:
            if self._results or self._ends:
                node = self._redirected(node)
            if node.op in COLLECTIVES:
                self._lower(node)
            elif node.op.effect is Effect.NESTED and _owns_collectives(node):
                self._lower_functions(node)
            else:
                self._made[node.name] = node
        for name in list(self._waiting):
            self._add_wait(name)
        for name in [name for name in self._subgraph.targets if name in self._ends]:
            self._add_end(self._subgraph.nodes[name])
        fetches = tuple([self._results.get(ref, ref) for ref in self._subgraph.fetches])
        lowered = self._subgraph.replace(nodes=self._made)
        return prune(merge_constants(lowered.replace(fetches=fetches, targets=tuple(self._targets))))

    def _add(self, node: Node) -> None:
        self._made[node.name] = node

    def _redirected(self, node: Node) -> Node:
        redirected = node.redirected(self._results, self._ends)
        if redirected is not node:
            for name in redirected.predecessors:
                self._add_wait(name)
        return redirected

    def _add_end(self, node: Node) -> None:
        """Add a node with the name of a collective that was a target; it waits for all its parts."""
        ends = self._ends[node.name]
        self._add(Node(node.name, no_op, (), ends, {}, self._made[ends[0]].device, node.source, ()))

    def _add_wait(self, name: str) -> None:
        """Add the deferred node ``name``, if it is one, since it is now needed."""
        if name in self._waiting:
            node = self._waiting.pop(name)
            for control in node.controls:
                self._add_wait(control)
            self._add(node)

    def _lower_functions(self, node: Node) -> None:
        """A loop or branch with collectives runs after all earlier ones and before all later ones."""
        before = [name for names in self._last.values() for name in names]
        controls = tuple(dict.fromkeys([*node.controls, *before]))
        lower = partial(lower_collectives, links=self._links, is_step=False)
        self._add(with_functions(node.replace(controls=controls), lower))
        self._last = dict.fromkeys([*self._last, *sorted(devices_in(node))], (node.name,))

    def _lower_coalesced(self, node: Node) -> None:
        """Add it as one, if it is native or a gather within a task, else each of its collectives apart."""
        nodes = apart(node)
        found = [self._asked(each, self._made)[2] for each in nodes]
        if all(what.lowering == "native" for what in found):
            self._note_last(found[0].devices, self._lower_native(node, found[0]))
            return
        if node.op is coalesced_all_gather_op and is_whole(node) and len(set(found[0].group.tasks)) == 1:
            self._note_last(found[0].devices, self._gather_here(node, found[0]))
            return
        for each in nodes:
            self._lower(each)
        count = len(nodes)
        for index in range(len(node.outputs)):
            rank, number = divmod(index, count)
            self._results[node.name, index] = self._results[nodes[number].name, rank]
        self._ends[node.name] = tuple(name for each in nodes for name in self._ends[each.name])

    def _gather_here(self, node: Node, what: Asked) -> list[tuple[str, ...]]:
        """Add what gathers all tensors of ``node`` on each device, all of one task."""
        gathers, count = list[tuple[str, ...]](), tensors_of(node)
        for rank, device in enumerate(what.devices):
            results = node.outputs[rank * count : (rank + 1) * count]
            memory, views = gathered_here(node, rank, results, device, self._before(node, device))
            self._add(memory)
            self._add(views)
            self._results |= {(node.name, rank * count + i): (views.name, i) for i in range(count)}
            gathers.append((memory.name,))
        self._ends[node.name] = tuple([name for names in gathers for name in names])
        return gathers

    def _lower(self, node: Node) -> None:
        if node.op in COALESCED:
            self._lower_coalesced(node)
            return
        devices, specs, what = self._asked(node, self._made)
        if self._is_step and is_joint(node, what) and node.name not in self._subgraph.targets:
            self._keep(node, what)
            return
        try:
            if what.lowering == "native":
                last = self._lower_native(node, what)
            else:
                last = self._expand(node, what, call_of(node, specs, what))
        except OpError as error:
            raise located(node, error) from None
        if node.outputs and (node.name, 0) not in self._results:
            self._put_off_nothing(node, devices[0])
        self._note_last(devices, last)

    def _keep(self, node: Node, what: Asked) -> None:
        """Add ``node`` as it is. An operation on its rank's device passes a result on that is fetched or the
        value of another collective.
        """
        self._add(node.replace(device=what.devices[0]))
        for index in [i for i in range(len(node.outputs)) if (node.name, i) in self._passed_on]:
            name, spec, device = f"{node.name}/_result_{index}", node.outputs[index], what.devices[index]
            attrs = {"T": spec.dtype}
            self._add(Node(name, identity, ((node.name, index),), (), attrs, device, node.source, (spec,)))
            self._results[node.name, index] = (name, 0)

    def _put_off_nothing(self, node: Node, device: str) -> None:
        """Defer the empty result of a graph without the root until its part of the collective is done."""
        (spec,) = node.outputs
        attrs = {"value": np.empty(0, spec.dtype.np), "dtype": spec.dtype}
        name, controls = f"{node.name}/_nothing", self._ends[node.name]
        self._waiting[name] = Node(name, const, (), controls, attrs, device, node.source, (spec,))
        self._results[node.name, 0] = (name, 0)

    def _expand(self, node: Node, what: Asked, call: Call) -> list[tuple[str, ...]]:
        """Add the expansion. Returns the last nodes of each rank."""
        function, first, last = expand(call)
        prefix = f"{node.name}/_{what.lowering}/"
        nodes, results = inline(function, values_of(node), prefix, ())
        entries = {prefix + entry for entry in first}
        for added in nodes:
            controls = added.controls
            if added.name in entries:
                controls = self._before(node, added.device)
            name, attrs, device = added.name, added.attrs, added.device
            self._add(Node(name, added.op, added.inputs, controls, attrs, device, node.source, added.outputs))
        self._results |= {(node.name, index): ref for index, ref in enumerate(results)}
        self._targets |= dict.fromkeys([prefix + target for target in function.targets])
        lasts = [tuple([prefix + end for end in ends]) for ends in last]
        self._ends[node.name] = tuple([name for names in lasts for name in names])
        return lasts

    def _lower_native(self, node: Node, what: Asked) -> list[tuple[str, ...]]:
        """Add the starts of the ranks' parts, and defer the waits until their results are needed."""
        starts, waits = list[tuple[str, ...]](), list[str]()
        given, outputs, count = iter(values_of(node)), iter(enumerate(node.outputs)), tensors_of(node)
        for rank, device in zip(node.attrs["ranks"], what.devices, strict=True):
            gives_one, gets_one = (each(node.op.name, rank, what.group.root) for each in (gives, gets))
            values = [*islice(given, count)] if gives_one else []
            results = [*islice(outputs, count)] if gets_one else []
            specs, plan = [spec for _, spec in results], self._plan(node, rank)
            part = rank_part(node, rank, what, values, specs, self._before(node, device), plan)
            self._add(part.start)
            self._waiting |= {part.wait.name: part.wait, part.result.name: part.result}
            for number, (index, _) in enumerate(results):
                self._results[node.name, index] = (part.result.name, number)
            starts.append((part.start.name,))
            waits.append(part.wait.name)
        self._targets |= dict.fromkeys(waits)
        self._ends[node.name] = tuple(waits)
        return starts

    def _plan(self, node: Node, rank: int) -> str:
        """Edges between graphs of the group of ``node``, in order; attached to the first one of a rank."""
        place = node.attrs["group_key"], rank
        if is_whole(node) or place in self._planned:
            return ""
        self._planned.add(place)
        all_travelling = [n for n in self._subgraph if n.op in COLLECTIVES and not is_whole(n)]
        edges = [n for n in all_travelling if n.attrs["group_key"] == place[0]]
        return "\n".join([edge_of(n, self._asked(_first(n), self._subgraph.nodes)[2]) for n in edges])

    def _asked(
        self, node: Node, nodes: Mapping[str, Node]
    ) -> tuple[tuple[str, ...], list[TensorSpec], Asked]:
        """The devices of the ranks, the specs of their values, and the parameters of ``node``."""
        devices = tuple([nodes[name].device for name, _ in places_of(node)])
        specs = [nodes[name].outputs[index] for name, index in values_of(node)]
        try:
            return devices, specs, asked(node, specs, devices, self._links)
        except OpError as error:
            raise located(node, error) from None

    def _before(self, node: Node, device: str) -> tuple[str, ...]:
        """Control inputs of the operations of ``node`` on ``device``."""
        return tuple(dict.fromkeys([*node.controls, *self._last.get(device, ())]))

    def _note_last(self, devices: Sequence[str], last: Sequence[tuple[str, ...]]) -> None:
        """Record ``last``, per rank on ``devices``, as operations that the next collective must follow."""
        found: dict[str, tuple[str, ...]] = {}
        for device, names in zip(devices, last, strict=True):
            found[device] = found.get(device, ()) + names
        self._last |= {device: names for device, names in found.items() if names}


def _first(node: Node) -> Node:
    """The first collective that a coalesced ``node`` is of; another one as it is."""
    return apart(node)[0] if node.op in COALESCED else node
