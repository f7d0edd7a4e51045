"""The training step of a script, recorded once and without layouts, for all strategies that are tried.

The script makes its model in the scope of a `RecordingStrategy`, which decides nothing. It notes what a
strategy needs to know later: which operation is the derivative of which, and where the gradient of each
variable is. The script is left when it compiles the first step that trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, final

from flowrt.distribute.strategies.layouts.layout_strategy import LayoutExtended, LayoutStrategy
from flowrt.distribute.strategies.layouts.pipeline import whole_graph
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Graph, Operation
from flowrt.graph.effects import touches
from flowrt.graph.layouts.attributes import FORWARD, FOUND, STAGE, UNIT, NodeLayouts
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.ops.state.iterators import iterator_get_next_op
from flowrt.graph.ops.state.variable_ops import resource_gather
from flowrt.graph.passes.layouts.stages.cut_stages import Room, Uncut
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, parse_pipeline, stages_before
from flowrt.graph.passes.prepare.prune import prune, redirect
from flowrt.graph.precision import Precision
from flowrt.plan.choice import Choice
from flowrt.plan.step.costs import nbytes_of
from flowrt.variables.variable import GraphKeys, Variable
from flowrt.viz.compile_request import CompileRequest
from flowrt.viz.script import requests_of_script

EXTRACT = parse_pipeline("extract")
OPTIMISE = parse_pipeline("extract, lower, order_effects, infer_shapes, optimise, infer_shapes")
NARROW = stages_before("lower_layouts")[len(OPTIMISE) :]
"""The stages of every strategy in front of its layouts. What is recorded gets a strategy's attributes between
the two, so that casts are where those of a script are.
"""


class RecordingStrategy(LayoutStrategy):
    """Gives no layouts, and a mark to each operation, variable and gradient."""

    choice: Choice | None = None
    """The choice for the model; None while a script is being planned, which chooses later."""

    def __init__(self, policy: Precision | None = None) -> None:
        super().__init__(Mesh([("recorded", 1)]), batch="recorded", policy=policy)

    def attributes_kept(self, variable: Variable, layouts: NodeLayouts) -> Mapping[str, str]:
        return {UNIT: variable.op.name}

    def _extended_over(self, mesh: Mesh, batch: Layout, rules: Mapping[str, Any]) -> LayoutExtended:
        return _Marking(self, mesh, batch, rules)


class _Marking(LayoutExtended):
    def attributes_of_new(self, op: Operation) -> Mapping[str, Any]:
        return {**super().attributes_of_new(op), STAGE: FOUND}


@final
class Recorded:
    """A step of a session that trains a model. ``policy`` is that which the script gives to its strategy."""

    def __init__(self, request: CompileRequest, policy: Precision | None = None) -> None:
        self._request, self.policy = request, policy
        self._extracted = compile_step(request.request, request.options, pipeline=EXTRACT)
        of_graph = {v.op.name: v for v in request.graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
        handles = [node for node in self._extracted if node.name in of_graph]
        self.variables = {n.name: of_graph[n.name] for n in handles if UNIT in n.attrs}
        """The variables of the model, by name, in the order of the step."""
        self.slots = _slots(self._extracted, self.variables)
        """The states of optimizers, by name, with the name of their variable."""

    @property
    def dense(self) -> frozenset[str]:
        """The names of the variables with gradients of all their elements, in their own dtype."""
        step = self._extracted
        consumers = step.consumers()
        updated = {variable for _, variable in gradients_of(step)} if self.policy is None else ()
        return frozenset(
            name for name in updated
            if all(step.nodes[reader].op is not resource_gather for reader in consumers[name])
        )  # fmt: skip

    @property
    def options(self) -> CompileOptions:
        return self._request.options

    @property
    def samples(self) -> int:
        """The samples of a step: the batch, or those of a constant batch, which is not divided."""
        arrays = [node.outputs[0] for node in self._extracted if node.op.name == "Const"]
        largest = max(arrays, key=nbytes_of, default=None)
        if self.batch == 1 and largest is not None and len(largest.shape or ()) > 1:
            return (largest.shape or ())[0] or 1
        return self.batch

    @property
    def batch(self) -> int:
        """The size of the batch that can be divided among devices: the first dimension of most feeds and
        elements of datasets, 1 without any.

        Raises `InvalidArgumentError` if elements of a dataset have an unknown one.
        """
        elements = [spec.shape for node in self._extracted if node.op is iterator_get_next_op
                    for spec in node.outputs]  # fmt: skip
        if any(shape is None or shape[:1] == (None,) for shape in elements):
            raise InvalidArgumentError(
                f"plan: expected batches of a known size; got elements of a dataset of shapes {elements}. "
                "Dataset.batch(..., drop_remainder=True) gives a size"
            )
        sizes = [shape[0] or 1 for shape in (*self._request.feeds.values(), *elements) if shape]
        return max(sizes, key=sizes.count) if sizes else 1

    @cache  # noqa: B019 (there is one in a program)
    def step(self, has_parts: bool = True) -> Subgraph:
        """`wide_step` without stages, in the precision of its variables."""
        return self._narrow(self.wide_step(has_parts=has_parts))

    @cache  # noqa: B019
    def wide_step(self, stages: int = 1, has_parts: bool = True, room: Room | None = None) -> Subgraph:
        """The step with static shapes, all of it in the dtypes of the script. With several ``stages`` each
        operation has the number of one, which fits in ``room``, and derivatives are marked; with
        ``has_parts`` each gradient has the node that brings it to the parts of its variable.
        """
        step = self._extracted if has_parts else self._without_parts
        step = self._numbered(step, stages, room) if stages > 1 else step.mapped(_unmarked)
        return compile_step(step, self.options, pipeline=OPTIMISE)

    def cut(self, stages: int, room: Room | None = None) -> Subgraph:
        """The step as it is cut into ``stages``, which fit in ``room``, for estimates: unlike in `wide_step`,
        stages have equal constants in common, so that the passes run once for all numbers of stages.
        Derivatives are marked.
        """
        return self._numbered(self._marked, stages, room) if stages > 1 else self._marked

    @cached_property
    def _marked(self) -> Subgraph:
        return self._narrow(compile_step(self._without_parts, self.options, pipeline=OPTIMISE))

    def _narrow(self, step: Subgraph) -> Subgraph:
        return compile_step(step, self.options, pipeline=NARROW)

    @cached_property
    def _without_parts(self) -> Subgraph:
        brought = {(node.name, 0): node.inputs[0] for node, _ in gradients_of(self._extracted)}
        return prune(redirect(self._extracted, brought))

    @cached_property
    def _uncut(self) -> Uncut:
        return Uncut(whole_graph(self._request.graph))

    def _numbered(self, step: Subgraph, stages: int, room: Room | None) -> Subgraph:
        found = self._uncut.cut(stages, room)
        return step.mapped(lambda node: _at_stage(node, found.get(node.name)))


def _slots(step: Subgraph, variables: Mapping[str, Variable]) -> dict[str, str]:
    found: dict[str, str] = {}
    for node in step:
        if node.op.effect is Effect.WRITE:
            names = [touch.handle[0] for touch in touches(node)]
            if names[0] in variables:
                of_model = [name for name in names[1:] if name not in variables]
                found.update(dict.fromkeys(of_model, names[0]))
    return found


def _at_stage(node: Node, number: int | None) -> Node:
    return node if number is None else node.replace(attrs={**node.attrs, STAGE: str(number)})


def _unmarked(node: Node) -> Node:
    """``node`` as it is outside pipelines, in which equal constants of several stages are one."""
    return node.replace(attrs={k: v for k, v in node.attrs.items() if k not in (STAGE, FORWARD)})


class Gradient(NamedTuple):
    """The node that brings the gradient of ``variable`` to where its update needs it."""

    node: Node
    variable: str


def gradients_of(step: Subgraph) -> list[Gradient]:
    """The gradients in a recorded ``step`` that are brought to parts of variables."""
    marked = [node for node in step if node.op is relayout_op and UNIT in node.attrs]
    return [Gradient(node, node.attrs[UNIT]) for node in marked]


def record(path: str, arguments: Sequence[str] = ()) -> Recorded:
    """The training step of the script at ``path``, which is run with ``arguments`` up to that step.

    Raises `InvalidArgumentError` if no session of the script trains anything that was made in the default
    graph, and as `requests_of_script`.
    """
    strategy = RecordingStrategy()
    with Graph().as_default() as graph, strategy.scope():
        heard = requests_of_script(path, arguments, until=_trains)
    if heard[-1].graph is not graph:
        raise InvalidArgumentError(
            f"{path}: expected a model in the default graph; the script makes a tf.Graph of its own. Leave "
            "that out to plan it"
        )
    if not _trains(heard[-1]):
        raise InvalidArgumentError(
            f"{path}: expected a session that runs a training step of a model in the default graph; none of "
            f"its {len(heard)} steps updates variables by their gradients"
        )
    return Recorded(heard[-1], strategy.policy)


def _trains(request: CompileRequest) -> bool:
    step = compile_step(request.request, request.options, pipeline=EXTRACT)
    return bool(gradients_of(step))
