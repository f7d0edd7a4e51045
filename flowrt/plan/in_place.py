"""`InPlaceStrategy`: plans the model that is made in its scope when the scope ends, and becomes the plan.

The scope records, as ``flowrt plan`` does: operations get marks instead of layouts. At its end the graph has
the whole step, so all choices are tried for it, and the graph's operations get the attributes of the best
one, as if its strategy had been there from the start.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Sequence
from typing import final

from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutExtended, LayoutStrategy
from flowrt.distribute.strategies.layouts.pipeline import whole_graph
from flowrt.errors import FailedPreconditionError
from flowrt.graph.collectives.cost import LINKS_VARIABLE, format_links, links_of
from flowrt.graph.construction.graph import Graph, Operation, get_default_graph
from flowrt.graph.layouts.attributes import FORWARD, MESH, STAGE
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.stages.cut_stages import cut_stages
from flowrt.graph.passes.prepare.prune import redirect
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import this_host
from flowrt.plan.explain import mesh_text, seconds_text
from flowrt.plan.machine import CORE
from flowrt.plan.step.applied import Marks
from flowrt.plan.step.recorded import Recorded, RecordingStrategy, gradients_of
from flowrt.plan.step.stage_room import room_of
from flowrt.plan.task import Task, costs_of
from flowrt.variables.distribution_context import layout_strategy, unopened_strategies
from flowrt.viz.compile_request import compile_request, needed_ops

_log = logging.getLogger("flowrt")

TRIED = 5
"""Choices that are lowered and played: a script waits for them."""


@final
class InPlaceStrategy(RecordingStrategy):
    """A strategy for ``count`` devices of this process, named ``devices`` or all of a session, that is found
    for the model in its scope, by rates. ``batch_size`` is that of placeholders of an unknown one.

    The scope ends with `InvalidArgumentError` if a batch has no known size or the model fits nowhere, and
    with `FailedPreconditionError` if no optimizer updates variables in it, or a session of the graph has run.
    """

    def __init__(
        self,
        count: int,
        devices: Sequence[str] | None = None,
        policy: Precision | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(policy)
        self._count, self._devices, self._batch_size = count, devices, batch_size

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[Strategy]:
        if self.choice is not None:
            raise misuse(
                "AutoStrategy: expected one scope, with the whole model; it has been planned, as its scope "
                "has ended",
                FailedPreconditionError,
            )
        if layout_strategy() is self:
            yield self
            return
        graph = get_default_graph()
        with super()._opened(what):
            yield self
        self.choice = self._planned(graph)

    def _planned(self, graph: Graph) -> Choice:
        """The best choice for the step in ``graph``, which has its attributes then."""
        take_in_inputs(graph, self)
        recorded = self._recorded(graph)
        inside = format_links({"between": links_of(os.environ).inside})  # of one process
        cluster = this_host(self._count, CORE, {LINKS_VARIABLE: inside})
        planned = Task(recorded, cluster, costs_of(recorded, cluster)).planned(TRIED)
        best = planned.best
        _log.info("AutoStrategy: %s: %s a step", mesh_text(best.choice), seconds_text(best.seconds))
        strategy = best.choice.strategy(self._devices, self.policy)
        unopened_strategies.discard(strategy)
        carry_out(graph, recorded, strategy, best.choice)
        self.mesh = strategy.mesh
        return best.choice

    def _recorded(self, graph: Graph) -> Recorded:
        updates = _updates(graph)
        if not updates:
            raise misuse(
                "AutoStrategy: expected a model and the minimize() of an optimizer in the scope; got no "
                "update of a variable by its gradient",
                FailedPreconditionError,
            )
        request = compile_request(graph, updates)
        feeds = {}
        for tensor, shape in request.feeds.items():
            if shape and shape[0] is None:
                if self._batch_size is None:
                    raise misuse(
                        "AutoStrategy: expected batches of a known size; got the placeholder "
                        f"{tensor.op.name!r} of shape {list(shape)}. Give it a size, or "
                        "AutoStrategy(..., batch_size=N)"
                    )
                shape = (self._batch_size, *shape[1:])
            feeds[tensor] = shape
        return Recorded(request._replace(feeds=feeds), self.policy)


def _updates(graph: Graph) -> list[Operation]:
    """The operations that update variables by gradients."""
    step = whole_graph(graph)
    found = {node.name for node, _ in gradients_of(step)}
    updates = []
    for op in graph.get_operations():
        if not found.isdisjoint(op.node.predecessors):
            found.add(op.name)
            updates += [op] if op.node.op.effect is Effect.WRITE else []
    return updates


def take_in_inputs(graph: Graph, strategy: LayoutStrategy) -> None:
    """Divide the batch of inputs that were made outside of the scope of ``strategy``, and that its model
    reads: a plan counts on it.
    """
    extended = strategy.extended
    assert isinstance(extended, LayoutExtended)
    of_model = set(extended.names)
    for op in graph.get_operations():
        if not of_model.isdisjoint(op.node.predecessors):
            of_model.add(op.name)
    for op in needed_ops((), [graph.operations[name] for name in of_model]):
        attrs = extended.attributes_of_new(op)
        if MESH in attrs and MESH not in op.node.attrs:
            op.mutate(attrs={**op.node.attrs, **attrs})


def carry_out(graph: Graph, recorded: Recorded, strategy: LayoutStrategy, choice: Choice) -> None:
    """Give the operations of ``graph``, which was recorded, the attributes of ``strategy``, that of
    ``choice``.
    """
    step, stages = whole_graph(graph), choice.stages
    numbers = cut_stages(step, stages, room_of(recorded, choice)) if stages > 1 else {}

    def staged(attrs: dict[str, object], name: str) -> dict[str, object]:
        if stages > 1:
            return {**attrs, STAGE: str(numbers[name])} if name in numbers else attrs
        return {key: value for key, value in attrs.items() if key not in (STAGE, FORWARD)}

    step = step.mapped(lambda node: node.replace(attrs=staged(dict(node.attrs), node.name)))
    marks = Marks(recorded, step, strategy, stages)
    for node in redirect(step, marks.whole):
        marked = marks(node)
        if marked != graph.operations[node.name].node:
            graph.operations[node.name].mutate(
                inputs=marked.inputs, attrs=marked.attrs, controls=marked.controls
            )
