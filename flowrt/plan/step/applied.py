"""`applied`: a recorded step with the attributes that a strategy would have given it, as if the script had
been written for it.
"""

from __future__ import annotations

from typing import final

from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutExtended, LayoutStrategy, Wanted
from flowrt.graph.layouts.attributes import (
    ATTRIBUTES,
    FORWARD,
    LAST,
    MESH,
    STAGE,
    UNIT,
    as_stored,
    attributes_of_gradient,
)
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.passes.layouts.stages.assign_stages import assign_stages
from flowrt.graph.passes.pipeline import compile_step
from flowrt.graph.passes.prepare.prune import prune, redirect
from flowrt.plan.choice import Choice
from flowrt.plan.step.recorded import NARROW, Recorded, gradients_of
from flowrt.plan.step.stage_room import room_of
from flowrt.variables.distribution_context import unopened_strategies

MADE = "_gradients_made"
"""The node that waits for all gradients, behind which those come that are to be reduced last."""

KEPT = (STAGE, FORWARD)
"""The attributes that are the recorded step's own."""


def devices_of(count: int) -> list[DeviceSpec]:
    """The devices of ``count`` processes with one each, none of which has to exist."""
    return [parse_device(f"/job:worker/replica:0/task:{task}/device:CPU:0") for task in range(count)]


def applied(recorded: Recorded, choice: Choice) -> Subgraph:
    """The step of ``recorded`` under ``choice``, in front of the lowering of layouts."""
    names = [device.to_string() for device in devices_of(choice.devices)]
    strategy = choice.strategy(names, recorded.policy)
    unopened_strategies.discard(strategy)
    step = recorded.wide_step(choice.stages, choice.sharding > 0, room_of(recorded, choice))
    marked = with_attributes(recorded, step, strategy, choice.stages)
    return compile_step(marked, recorded.options, pipeline=NARROW)


def with_attributes(recorded: Recorded, step: Subgraph, strategy: LayoutStrategy, stages: int) -> Subgraph:
    """``step`` as ``strategy`` marks it."""
    marks = Marks(recorded, step, strategy, stages, (MADE,))
    marked = prune(redirect(step, marks.whole)).mapped(marks)
    nodes: dict[str, Node] = {}
    for node in marked:
        if MADE in node.controls and MADE not in nodes:
            nodes[MADE] = node.beside(MADE, no_op, controls=marks.producers)
        nodes[node.name] = node
    return marked.replace(nodes=nodes)


@final
class Marks:
    """The attributes that ``strategy`` gives to the nodes of ``step``, which is recorded. Gradients that are
    to be reduced last wait for ``made``, or else for all `producers` of gradients.
    """

    def __init__(
        self,
        recorded: Recorded,
        step: Subgraph,
        strategy: LayoutStrategy,
        stages: int,
        made: tuple[str, ...] | None = None,
    ) -> None:
        assert isinstance(strategy.extended, LayoutExtended)
        self._extended, self._slots = strategy.extended, recorded.slots
        self._variables = {
            name: self._extended.attributes(variable, Wanted(None, None))
            for name, variable in recorded.variables.items()
        }
        self._numbers = assign_stages(step) if stages > 1 else {}
        gradients = gradients_of(step)
        in_parts = [each for each in gradients if UNIT in self._variables[each.variable]]
        self.whole = {(node.name, 0): node.inputs[0] for node, name in gradients
                      if UNIT not in self._variables[name]}  # fmt: skip
        """The nodes that bring gradients to parts of variables without any, with the gradients themselves."""
        self._of_gradient = {node.name: self._variables[name] for node, name in in_parts}
        self.producers = tuple(dict.fromkeys(node.inputs[0][0] for node, _ in in_parts))
        self._made = self.producers if made is None else made

    def __call__(self, node: Node) -> Node:
        attrs = {key: value for key, value in node.attrs.items() if key not in ATTRIBUTES or key in KEPT}
        controls = node.controls
        if node.name in self._variables:
            attrs |= self._variables[node.name]
        elif node.name in self._slots and MESH in node.attrs:
            attrs |= as_stored(self._variables[self._slots[node.name]])
        elif node.name in self._of_gradient:
            variable = self._of_gradient[node.name]
            attrs |= attributes_of_gradient(variable)
            controls = (*controls, *self._made) if LAST in variable else controls
        elif MESH in node.attrs:
            attrs |= self._extended.attributes_of_input()
        if node.op.effect is Effect.HANDLE and node.name in self._numbers:
            attrs[STAGE] = str(self._numbers[node.name])
        return node.replace(attrs=attrs, controls=controls)
