"""Convolutions together with their epilogues, the elementwise operations that follow, as one operation.

    y = Relu(AddV2(FusedBatchNormV3(Conv2D(x, filter), ...), h))     ->     y = _FusedConv(x, filter, ..., h)

A library applies the epilogue to results that are in registers; otherwise each step is a pass over memory.
Steps are a bias, batch normalization by given statistics, the addition of an array of the same shape or of
a vector of channels, relu, and the functions in `result_functions`. Nothing else reads what is between them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import NONDIFFERENTIABLE, Attr, OpDef, define_op
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.ops.elementwise.arithmetic import add_v1, add_v2, multiply
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.ops.nn.batch_norm import batch_norm_op
from flowrt.graph.ops.nn.bias import bias_add_op
from flowrt.graph.ops.nn.conv import conv2d_op, conv3d_op
from flowrt.graph.ops.nn.depthwise_conv import depthwise_conv2d_op
from flowrt.graph.ops.nn.windows import channels_first
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler
from flowrt.graph.passes.fusion.result_functions import ResultFunction, clipped, gated, linear
from flowrt.graph.passes.prepare.prune import drop_unread

CONVOLUTIONS = frozenset({conv2d_op, conv3d_op, depthwise_conv2d_op})
SUMS = frozenset({add_v1, add_v2})


class Step(NamedTuple):
    """One operation of an epilogue: ``node``, with the result so far as input number ``at``; or a
    ``function`` of the result alone, which is of ``node`` together with the nodes ``between``.
    """

    node: Node
    at: int
    function: ResultFunction | None = None
    between: tuple[Node, ...] = ()

    @property
    def members(self) -> tuple[Node, ...]:
        return *self.between, self.node

    def others(self) -> tuple[Ref, ...]:
        """The inputs beside the result so far."""
        if self.function is not None:
            return ()
        return *self.node.inputs[: self.at], *self.node.inputs[self.at + 1 :]

    def apply(self, xp: Any, result: Any, others: Sequence[Any]) -> Any:
        """The step by its own kernel."""
        if self.function is not None:
            with np.errstate(all="ignore"):
                return self.function(result)
        inputs = [*others[: self.at], result, *others[self.at :]]
        return evaluate_node(self.node, inputs, None, xp)[0]


class Epilogue(NamedTuple):
    """A convolution and the steps that follow it."""

    conv: Node
    steps: tuple[Step, ...]

    @property
    def members(self) -> list[Node]:
        return [self.conv, *[member for step in self.steps for member in step.members]]

    def __str__(self) -> str:
        return ", ".join(f"{member.op.name} {member.name}" for member in self.members)

    def operands(self) -> tuple[Ref, ...]:
        """All inputs: those of the convolution, and the others of each step."""
        return (*self.conv.inputs, *[ref for step in self.steps for ref in step.others()])

    def split(self, others: Sequence[Any]) -> Iterator[tuple[Step, Sequence[Any]]]:
        """Each step with its own of the ``others``."""
        begin = 0
        for step in self.steps:
            end = begin + len(step.others())
            yield step, others[begin:end]
            begin = end

    def apply(self, xp: Any, result: Any, others: Sequence[Any]) -> Any:
        """The steps by their own kernels, to the convolution's ``result``."""
        for step, values in self.split(others):
            result = step.apply(xp, result, values)
        return result


def _kernel(xp: Any, inputs: Sequence[Any], epilogue: Epilogue, out: Any = None) -> Any:
    x, filter, *others = inputs
    (result,) = evaluate_node(epilogue.conv, [x, filter], None, xp)
    return delivered(xp, epilogue.apply(xp, result, others), result.dtype, out)


fused_conv_op: OpDef[Any] = define_op(
    "_FusedConv",
    "inputs: *Tin in ANY -> y: T in FLOATING",
    attrs={"epilogue": Attr("func")},
    shape=lambda s: [s.attrs["epilogue"].steps[-1].node.outputs[0].shape],
    kernel=_kernel,
    vjp=NONDIFFERENTIABLE,
    jvp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    cost=conv2d_op.cost,
    doc="A convolution and the elementwise operations that follow it; made by the fusion pass only.",
)


def fuse_epilogues(subgraph: Subgraph, compiler: LoopCompiler) -> Subgraph:
    """``subgraph`` with the above done to it; the same object if there is nothing of the kind."""
    if not any(node.op in CONVOLUTIONS for node in subgraph) or not compiler.has_epilogues():
        return subgraph
    found = _Finder(subgraph).run()
    if not found:
        return subgraph
    inner = {member.name for epilogue in found.values() for member in epilogue.members[:-1]}
    kept = [node for node in subgraph if node.name not in inner]
    fused = subgraph.with_nodes(
        [_fused(node, found[node.name]) if node.name in found else node for node in kept]
    )
    return drop_unread(fused)


@final
class _Finder:
    """Finds the epilogues of a subgraph's convolutions."""

    def __init__(self, subgraph: Subgraph) -> None:
        self._subgraph, self._consumers = subgraph, subgraph.consumers()
        self._read = {*[name for name, _ in subgraph.fetches], *subgraph.targets}

    def run(self) -> Mapping[str, Epilogue]:
        """The epilogues by the name of their last node."""
        all_epilogues = [self._of(node) for node in self._subgraph if node.op in CONVOLUTIONS]
        return {e.steps[-1].node.name: e for e in all_epilogues if e.steps}

    def _of(self, conv: Node) -> Epilogue:
        steps: list[Step] = []
        last, (spec,) = conv, conv.outputs
        if spec.dtype is dtypes.float32:
            while (step := self._next(conv, last)) is not None:
                steps.append(step)
                last = step.node
        return Epilogue(conv, tuple(steps))

    def _next(self, conv: Node, last: Node) -> Step | None:
        """The step after ``last``, which nothing else reads."""
        if last.name in self._read:
            return None
        readers = [self._subgraph.nodes[name] for name in self._consumers[last.name]]
        step = None
        if len(readers) == 1:
            step = self._clipped(last, readers[0]) or self._alone(last, readers[0])
        elif len(readers) == 2:
            step = self._gated(last, readers)
        return step if step is not None and self._is_step(conv, step) else None

    def _alone(self, last: Node, node: Node) -> Step | None:
        at = _place(last, node)
        return None if at is None else Step(node, at, linear(self._subgraph, node, at))

    def _clipped(self, last: Node, node: Node) -> Step | None:
        """A clip of ``last`` that begins with ``node``."""
        following = self._consumers[node.name]
        for end in (node, *[self._subgraph.nodes[name] for name in following if len(following) == 1]):
            chain = self._chain(last, node, end)
            at = _place(chain[-1][0] if chain else last, end)
            function = None if at is None else clipped(self._subgraph, [*chain, (end, at)])
            if at is not None and function is not None:
                return Step(end, at, function, tuple([each for each, _ in chain]))
        return None

    def _gated(self, last: Node, readers: Sequence[Node]) -> Step | None:
        """The product of ``last`` and of a function of it; None if the ``readers`` are for anything else."""
        for product, first in permutations(readers):
            chain = self._chain(last, first, product)
            function, at = gated(self._subgraph, chain), _place(last, product)
            if product.op is multiply and at is not None and function is not None:
                return Step(product, at, function, tuple([node for node, _ in chain]))
        return None

    def _chain(self, last: Node, node: Node, end: Node) -> list[tuple[Node, int]]:
        """The nodes from ``node``, which reads ``last``, to the one before ``end``, each with the position of
        the one before it among its inputs; none if other nodes read one of them.
        """
        chain = []
        while node is not end:
            at, following = _place(last, node), self._consumers[node.name]
            if at is None or node.name in self._read or len(following) != 1:
                return []
            chain.append((node, at))
            last, node = node, self._subgraph.nodes[following[0]]
        return chain

    def _is_step(self, conv: Node, step: Step) -> bool:
        node, at = step.node, step.at
        shape = conv.outputs[0].shape
        if shape is None or any(m.outputs[:1] != (TensorSpec(dtypes.float32, shape),) for m in step.members):
            return False
        if step.function is not None:
            return True
        first = channels_first(conv.attrs["data_format"])
        if node.op is relu:
            return True
        if node.op is bias_add_op:
            return at == 0 and channels_first(node.attrs["data_format"]) == first
        if node.op is batch_norm_op:
            is_alike = channels_first(node.attrs["data_format"]) == first
            return at == 0 and is_alike and not node.attrs["is_training"] and self._reads_result_only(node)
        if node.op in SUMS:
            other = self._subgraph.spec(node.inputs[1 - at]).shape
            is_vector = not first and other is not None and len(other) == 1 and other == shape[-1:]
            return is_vector or other == shape
        return False

    def _reads_result_only(self, node: Node) -> bool:
        """Whether no output of ``node`` but the first is read."""
        readers = [self._subgraph.nodes[name] for name in self._consumers[node.name]]
        refs = [*self._subgraph.fetches, *[ref for reader in readers for ref in reader.inputs]]
        return all(index == 0 for name, index in refs if name == node.name)


def _place(before: Node, node: Node) -> int | None:
    """The position of the first output of ``before`` among the inputs of ``node``, if it is there once and
    ``node`` waits for nothing else of it.
    """
    places = [i for i, (name, _) in enumerate(node.inputs) if name == before.name]
    is_plain = len(places) == 1 and before.name not in node.controls and node.inputs[places[0]][1] == 0
    return places[0] if is_plain else None


def _fused(last: Node, epilogue: Epilogue) -> Node:
    """``epilogue`` as one node, in the place of its ``last``."""
    members = epilogue.members
    names = {member.name for member in members}
    controls = dict.fromkeys(name for member in members for name in member.controls if name not in names)
    inputs = epilogue.operands()
    attrs = {"epilogue": epilogue, "Tin": [dtypes.float32] * len(inputs), "T": dtypes.float32}
    return last.beside(last.name, fused_conv_op, inputs, tuple(controls), attrs, last.outputs[:1])
