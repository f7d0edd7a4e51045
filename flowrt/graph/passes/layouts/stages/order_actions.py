"""The order of a step with turns: each device runs the actions of its schedule one after the other.

An *action* is what one stage computes of one micro-batch in one direction (`flowrt.graph.pipeline`). Without
an axis of stages each turn is one action, so that what a turn keeps is free before the next one begins: this
is gradient accumulation.

    computed in turns    their stage and turn, which `lower_layouts` notes
    helpers              slices, sums, messages: with their inputs at the same position, else their readers
    what runs once       reads of variables, updates: as soon as its inputs are there
    what is ahead        of feeds alone, for what all turns need, as the number of words that count in a loss

Nodes are sorted by the start of their action in a replay of the schedule. Within an action, what other stages
wait for comes first: gradients of weights come after the gradients that are sent back. So the stage before
begins its backward pass earlier, and while a message travels both are at work.

For passes that reorder a step (several streams, early starts of collectives, compiled loops), the first
nodes of an action also wait for the last ones of the action before, through a NoOp on each device.
Constants are there, and do not wait: so equal ones are merged. Outside pipelines what is computed from
feeds alone does not wait, either: each process has its own. Sends never block and receives are by key, so a
step that can be sorted cannot deadlock.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias, final

from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.collective.collectives import COLLECTIVES
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.layouts.stages.assign_stages import awaited_before, backward_nodes
from flowrt.graph.passes.layouts.step_layouts import Layouts
from flowrt.graph.passes.placement.partition import tag
from flowrt.graph.passes.prepare.fed_nodes import fed_nodes
from flowrt.graph.pipeline.actions import Action, Kind, Schedule
from flowrt.graph.pipeline.mesh_schedule import turns_of
from flowrt.graph.pipeline.replay import replay
from flowrt.graph.topology import cycle_in, in_order

Actions: TypeAlias = Mapping[str, Action | None]
"""The action of each node that the global graph has; None if it runs once for all turns."""

TURNS = "turns"
"""The name of the schedule of a mesh without stages."""


class Part(NamedTuple):
    """A node of the global graph on coordinates of one ``turn``; None: of all."""

    node: str
    turn: int | None


def has_turns(mesh: Mesh) -> bool:
    """Whether devices of ``mesh`` take turns, so that there is an order."""
    return any(axis.is_time for axis in mesh.axes)


def actions_of(layouts: Layouts, parts: Mapping[str, Part]) -> dict[str, Action | None]:
    """The actions of lowered nodes, by the ``parts`` of the global graph that they are."""
    once = {part.node for part in parts.values() if part.turn is None}
    kinds, ahead = _kinds(layouts, once), _ahead(layouts, once)
    return {
        name: None
        if part.turn is None or part.node in ahead
        else Action(kinds.get(part.node, "F"), layouts.stages.get(part.node, 0), part.turn)
        for name, part in parts.items()
    }


def _ahead(layouts: Layouts, once: Collection[str]) -> set[str]:
    """The nodes of turns that feeds alone lead to, and that lead to what turns read of all turns: a loss may
    be divided by the sum of its weights, so the first backward pass needs those of the whole batch.
    """
    step = layouts.subgraph
    consumers = step.consumers()
    needed: set[str] = set()
    for node in reversed(list(step)):
        readers = consumers[node.name]
        of_turns = [name for name in readers if name not in once]
        is_whole = node.name in once or any(_joins_turns(layouts, node.name, name) for name in of_turns)
        if (of_turns and is_whole) or not needed.isdisjoint(readers):
            needed.add(node.name)
    return needed.intersection(fed_nodes(step, step.feeds)).difference(once)


def _joins_turns(layouts: Layouts, source: str, reader: str) -> bool:
    """Whether ``reader`` gets what turns of ``source`` compute from all of them."""
    times = [i for i, axis in enumerate(layouts.mesh.axes) if axis.is_time]
    refs = layouts.subgraph.nodes[reader].inputs
    return any(
        layouts.outputs[ref].placements[i] != wanted.placements[i]
        for ref, wanted in zip(refs, layouts.inputs[reader], strict=True)
        if ref[0] == source
        for i in times
    )


def _kinds(layouts: Layouts, once: set[str]) -> dict[str, Kind]:
    """The kinds of the nodes of a pipeline, but for those that run ``once``. Of a backward pass that is
    split, what an earlier stage waits for is I, and the rest W.
    """
    schedule, step, stages = layouts.schedule, layouts.subgraph, layouts.stages
    if schedule is None:
        return {}
    backward = backward_nodes(step) - once
    if not schedule.split:
        return dict.fromkeys(backward, "B")
    wanted = awaited_before(step, backward, stages)
    return {name: "I" if name in wanted else "W" for name in backward}


def turns_in_order(mesh: Mesh) -> Schedule:
    """The schedule of a mesh without stages: one turn after the other."""
    count = turns_of(mesh)
    return Schedule(TURNS, count, 1, False, False, (tuple(Action("F", 0, turn) for turn in range(count)),))


def with_helpers(
    step: Subgraph, actions: Actions, positions: Mapping[str, int], schedule: Schedule
) -> dict[str, Action | None]:
    """``actions`` with those of the other nodes of ``step``; ``positions`` are those of devices."""
    return _Helpers(step, actions, positions, _starts(schedule)).found()


def order_actions(
    step: Subgraph, actions: Actions, positions: Mapping[str, int], schedule: Schedule
) -> Subgraph:
    """``step``, of operations on devices at ``positions``, in the order of ``schedule``. Turns without stages
    of which one needs a later one, as for statistics of a whole batch, do not wait for each other, and are in
    order as far as they can be.

    Raises `InvalidArgumentError` if a pipeline has no such order, as of statistics of a whole batch: the
    error names the actions that wait for each other.
    """
    return _Ordering(step, actions, positions, schedule).ordered()


@functools.lru_cache(64)
def _starts(schedule: Schedule) -> Mapping[Action, int]:
    """The place of each action's start among all in a replay: equal ones have one place."""
    start = replay(schedule).start
    place = {time: i for i, time in enumerate(sorted(set(start.values())))}
    return {action: place[time] for action, time in start.items()}


@final
class _Helpers:
    """Gives helpers the actions of their inputs, or else of their readers, at their position: none if a
    reader has none.
    """

    def __init__(
        self, step: Subgraph, actions: Actions, positions: Mapping[str, int], start: Mapping[Action, int]
    ) -> None:
        self._step, self._start = step, start
        self._found = dict(actions)
        self.positions: dict[str, int] = {}
        """The position of each node."""
        for node in step:
            is_collective = node.op in COLLECTIVES
            self.positions[node.name] = (
                self.positions[node.inputs[0][0]] if is_collective else positions.get(node.device, 0)
            )

    def found(self) -> dict[str, Action | None]:
        step, consumers = self._step, self._step.consumers()
        for node in step:
            near = self._near(node.name, [name for name, _ in node.inputs])
            if near and node.name not in self._found:
                self._found[node.name] = max(near, key=self._start.__getitem__)
        for node in reversed(list(step)):
            readers = consumers[node.name]
            near = self._near(node.name, readers)
            has_ahead = any(name in self._found and self._found[name] is None for name in readers)
            if near and node.name not in self._found and not has_ahead:
                self._found[node.name] = min(near, key=self._start.__getitem__)
        return self._found

    def _near(self, name: str, others: Iterable[str]) -> list[Action]:
        position = self.positions[name]
        found = [self._found.get(other) for other in others if self.positions[other] == position]
        return [action for action in found if action is not None]


@final
class _Ordering:
    def __init__(
        self, step: Subgraph, actions: Actions, positions: Mapping[str, int], schedule: Schedule
    ) -> None:
        self._step, self._schedule = step, schedule
        self._start = _starts(schedule)
        helpers = _Helpers(step, actions, positions, self._start)
        self._positions = helpers.positions
        self._action = {name: action for name, action in helpers.found().items() if action is not None}

    def ordered(self) -> Subgraph:
        nodes: Mapping[str, Node] = self._with_barriers()
        ordered = self._sorted(nodes)
        if len(ordered) < len(nodes) and self._schedule.name == TURNS:
            nodes = self._step.nodes
            ordered = self._sorted(nodes)
        if len(ordered) < len(nodes):
            raise self._cycle(nodes, ordered)
        return self._step.replace(nodes=ordered)

    # --- barriers

    def _with_barriers(self) -> dict[str, Node]:
        nodes = dict(self._step.nodes)
        on_devices: dict[str, dict[Action, list[str]]] = defaultdict(lambda: defaultdict(list))
        there = self._there()
        for node in self._step:
            if node.name in self._action and node.name not in there and node.op not in COLLECTIVES:
                on_devices[node.device][self._action[node.name]].append(node.name)
        consumers = self._step.consumers()
        for device, by_action in on_devices.items():
            line = sorted(by_action, key=self._start.__getitem__)
            for before, after in itertools.pairwise(line):
                members = set(by_action[before])
                last = [name for name in by_action[before] if members.isdisjoint(consumers[name])]
                barrier = f"_after/{before.kind}_{before.stage}_{before.micro_batch}/{tag(device)}"
                origin = nodes[last[0]]
                nodes[barrier] = Node(barrier, no_op, (), tuple(last), {}, device, origin.source, ())
                members = set(by_action[after])
                for name in by_action[after]:
                    node = nodes[name]
                    if members.isdisjoint(node.predecessors):
                        nodes[name] = node.replace(controls=(*node.controls, barrier))
        return nodes

    def _there(self) -> Collection[str]:
        """The nodes that wait for no action."""
        if self._schedule.name == TURNS:
            return fed_nodes(self._step, self._step.feeds)
        return {node.name for node in self._step if node.op is const}

    # --- order

    def _sorted(self, nodes: Mapping[str, Node]) -> dict[str, Node]:
        """``nodes`` in order; those on a cycle, and behind it, are left out."""
        when = self._times(nodes)
        awaited = self._awaited(when)
        keys = {name: (when[name], name not in awaited, place) for place, name in enumerate(nodes)}
        return in_order(nodes, keys)

    def _awaited(self, when: Mapping[str, int]) -> set[str]:
        """The nodes of actions that lead, before the time of their action is over, to what an action at
        another position reads. What runs once, as an update, has time.
        """
        consumers, at = self._step.consumers(), self._positions
        found: set[str] = set()
        for name in reversed(list(self._step.nodes)):
            for reader in consumers[name]:
                is_sent = at[reader] != at[name] and reader in self._action
                if is_sent or (reader in found and when[reader] == when[name]):
                    found.add(name)
        return found

    def _times(self, nodes: Mapping[str, Node]) -> dict[str, int]:
        """The time at which each node is due: without an action, as soon as its inputs are there."""
        before = -1
        found: dict[str, int] = {}
        for name, node in self._step.nodes.items():
            action = self._action.get(name)
            found[name] = (
                max([found[other] for other in node.predecessors], default=before)
                if action is None
                else self._start[action]
            )
        for name in nodes.keys() - found.keys():
            found[name] = max(found[other] for other in nodes[name].controls)
        return found

    def _cycle(self, nodes: Mapping[str, Node], ordered: Mapping[str, Node]) -> OpError:
        """The error that names the actions which wait for each other."""
        path = cycle_in(nodes, ordered)
        actions = [action for action in map(self._action.get, path) if action is not None]
        changes = [a for a, b in zip(actions, (*actions[1:], actions[0]), strict=True) if a != b]
        told = " after ".join(map(str, (*changes, changes[0])))
        whole = self._whole(path)
        if whole is None:
            node, found = nodes[path[0]], f"expected an order in which no pass waits for itself; got {told}"
        else:
            name, _, _ = whole.partition("@")  # of a coordinate
            node = nodes[whole]
            found = (
                f"{name!r} needs a whole batch, of which the micro-batches are computed one after the other: "
                f"{told}. Compute it of each micro-batch, as vectorized_map does in the place of map_fn, "
                "with shapes that do not depend on what is fed, or use one micro-batch"
            )
        return located(node, InvalidArgumentError(f"schedule {self._schedule.name}: {found}"))

    def _whole(self, path: Sequence[str]) -> str | None:
        """The node on the cycle ``path`` that is of all micro-batches, behind one of a micro-batch: the last
        of several, which the others read. Otherwise, one of another micro-batch.
        """
        edges = [*zip(path, (*path[1:], path[0]), strict=True)]
        joins = [source for reader, source in edges if self._joins_turns(reader, source)]
        first = next((source for source in joins if source not in self._action), None)
        if first is None:
            return next(iter(joins), None)
        start = path.index(first)
        around = [*path[start:], *path[:start]]
        return [*itertools.takewhile(lambda name: name not in self._action, around)][-1]

    def _joins_turns(self, reader: str, source: str) -> bool:
        """Whether ``source``, which ``reader`` reads, is of all micro-batches, or of another one."""
        if reader not in self._action or source not in self._step.nodes:
            return False
        action = self._action.get(source)
        return action is None or action.micro_batch != self._action[reader].micro_batch
