"""The stage of each operation of a pipeline, in the global graph.

What the script says comes first (`STAGE`). Of the rest, an operation on a variable is where the variable is;
a derivative where the operation is of which it is the derivative (`FORWARD`); any other at the latest stage
of its inputs, or the earliest if it is of the backward pass; and what has no input with a stage, such as a
feed or a constant, at the earliest of its readers. So a skip connection or a tied weight is an edge like
others. Gradients of a tensor are added up before anything else where all of them are made: one is sent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import final

from flowrt.dtypes import resource, variant
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.graph.construction.constant import const
from flowrt.graph.effects import touches
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import FORWARD, LAYOUT, STAGE
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.elementwise.arithmetic import add_n_op


def assign_stages(subgraph: Subgraph) -> dict[str, int]:
    """The number of the stage of each node of ``subgraph``."""
    return _Stages(subgraph).found()


def stage_of(attrs: Mapping[str, object]) -> int | None:
    """The stage that ``attrs`` name; None if it is to be found."""
    text = str(attrs.get(STAGE, ""))
    return int(text) if text.isdecimal() else None


def backward_nodes(subgraph: Subgraph) -> set[str]:
    """The nodes of the backward pass: derivatives, and what reads them or waits for them."""
    found: set[str] = set()
    for node in subgraph:
        if FORWARD in node.attrs or not found.isdisjoint(node.predecessors):
            found.add(node.name)
    return found


def awaited_before(subgraph: Subgraph, backward: Collection[str], stages: Mapping[str, int]) -> set[str]:
    """The nodes of ``backward`` that the backward passes of earlier stages wait for."""
    consumers = subgraph.consumers()
    found: set[str] = set()
    for node in reversed(list(subgraph)):
        if node.name in backward:
            readers = [name for name in consumers[node.name] if name in backward]
            if any(stages[name] < stages[node.name] or name in found for name in readers):
                found.add(node.name)
    return found


def nodes_of_batch(subgraph: Subgraph) -> set[str]:
    """The nodes that depend on a feed, an iterator or a draw: others are computed once for all turns."""
    found: set[str] = set()
    for node in subgraph:
        if _begins_batch(node) or not found.isdisjoint(n for n, _ in node.inputs):
            found.add(node.name)
    return found


def _begins_batch(node: Node) -> bool:
    """Whether ``node`` is an input of the step, which has a layout, or a draw."""
    if node.op is const or node.op.effect is Effect.HANDLE:
        return False
    return not node.inputs or LAYOUT in node.attrs or node.op.effect is Effect.RANDOM


def check_order(subgraph: Subgraph, stages: Mapping[str, int]) -> None:
    """Raise `InvalidArgumentError` for a forward operation that reads what a later stage makes of the batch,
    unless it is where its variable is, as a look-up; and for one that needs a list of tensors, or a variable
    inside a loop or branch, of another stage.
    """
    of_batch = nodes_of_batch(subgraph) - backward_nodes(subgraph)
    for node in subgraph:
        for ref in node.inputs:
            here, there, dtype = stages[node.name], stages[ref[0]], subgraph.spec(ref).dtype
            is_inside = dtype is resource and node.op.effect is Effect.NESTED
            if here != there and (is_inside or dtype is variant):
                what = "variables" if is_inside else "lists"
                raise _misplaced(node, f"expected {what} of this stage", ref, stages)
            is_forward = of_batch.issuperset((node.name, ref[0]))
            if there > here and is_forward and node.op.effect not in (Effect.READ, Effect.WRITE):
                raise _misplaced(node, "expected inputs of this stage or earlier ones", ref, stages)


def _misplaced(node: Node, expected: str, ref: Ref, stages: Mapping[str, int]) -> OpError:
    message = f"stage {stages[node.name]}: {expected}; got {ref[0]!r} of stage {stages[ref[0]]}"
    return located(node, InvalidArgumentError(message))


def _is_of_variable(node: Node) -> bool:
    return node.op.effect in (Effect.HANDLE, Effect.READ, Effect.WRITE)


def _is_gradient_sum(node: Node) -> bool:
    """Whether ``node`` sums the gradients of a tensor with several readers."""
    return node.op is add_n_op and FORWARD in node.attrs


def _written(node: Node) -> list[list[str]]:
    """The variables of each write that ``node`` is, or that it has in its functions; an update has that of
    the model first, then the states of an optimizer.
    """
    if node.op.effect is Effect.WRITE:
        found = [touch.handle[0] for touch in touches(node)]
        return [found] if found else []
    result: list[list[str]] = []
    for function in owned_subgraphs(node.attrs) if node.op.effect is Effect.NESTED else ():
        arguments = node.inputs[len(node.inputs) - len(function.feeds) :]  # behind a predicate or an index
        outside = {name: ref[0] for name, ref in zip(function.feeds, arguments, strict=True)}
        for inner in function:
            result += [[outside[name] for name in names if name in outside] for names in _written(inner)]
    return [names for names in result if names]


@final
class _Stages:
    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph = subgraph
        self._backward = backward_nodes(subgraph)
        self._found: dict[str, int] = {}

    def found(self) -> dict[str, int]:
        nodes, consumers = list(self._subgraph), self._subgraph.consumers()
        for node in nodes:
            self._set(node, self._by_inputs(node))
        for node in reversed(nodes):
            if node.name not in self._found:
                readers = consumers[node.name]
                if node.op.effect is Effect.HANDLE:  # a write, as the initial one, goes where it is
                    reads = [name for name in readers if self._effect(name) is not Effect.WRITE]
                    readers = reads or readers  # an iterator has none
                self._set(node, min(self._of(readers), default=None))
        for node in nodes:
            if node.name not in self._found:
                self._set(node, self._by_inputs(node) or 0)
        for node in nodes:
            for variable, *states in _written(node):
                self._bring_to_variable(variable, states)
            if node.op.effect is Effect.WRITE:
                for touch in touches(node)[:1]:
                    self._found[node.name] = self._found[touch.handle[0]]
        return self._found

    def _bring_to_variable(self, variable: str, states: Iterable[str]) -> None:
        """Put ``states``, which an optimizer writes with ``variable``, where that is: the gradient may come
        from another stage, as one that is clipped by the norm of all.
        """
        for name in states:
            if stage_of(self._subgraph.nodes[name].attrs) is None:
                self._found[name] = self._found[variable]

    def _set(self, node: Node, stage: int | None) -> None:
        if stage is not None:
            self._found[node.name] = stage

    def _effect(self, name: str) -> Effect:
        return self._subgraph.nodes[name].op.effect

    def _by_inputs(self, node: Node) -> int | None:
        if node.op.effect is not Effect.HANDLE:
            touched = self._of([name for (name, _) in (touch.handle for touch in touches(node))])
            if touched and node.op.effect in (Effect.READ, Effect.WRITE):
                return touched[0]
        summands = {self._found.get(name) for name, _ in node.inputs} if _is_gradient_sum(node) else set()
        if len(summands) == 1:
            return summands.pop()
        given = stage_of(node.attrs)
        if given is not None:
            return given
        forward = self._found.get(str(node.attrs.get(FORWARD)))
        if forward is not None:
            return forward
        values = [name for name, _ in node.inputs if not _is_of_variable(self._subgraph.nodes[name])]
        inputs = self._of(values) or self._of(name for name, _ in node.inputs)
        if not inputs:
            return None
        return min(inputs) if node.name in self._backward else max(inputs)

    def _of(self, names: Iterable[str]) -> list[int]:
        return [self._found[name] for name in names if name in self._found]
