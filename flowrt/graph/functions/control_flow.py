"""Structured control flow: operations that own functions.

If, Case, While and PartitionedCall have TensorFlow's names and form, and are the ops of a graph. The compiler
lowers them to `_Case` and `_Loop` (`flowrt.graph.passes.prepare.lower`): calls are inlined, and the condition
of a loop is duplicated before it and at the end of its body, so that a loop has one function.

A function is a `Subgraph`: its feeds are the parameters, its fetches the results. All functions of an
operation take the same arguments: the inputs after the predicate or the index.
"""

from __future__ import annotations

from functools import partial

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.functions.branch_gradients import branches_jvp, branches_vjp
from flowrt.graph.functions.loop_gradients import while_jvp, while_vjp
from flowrt.graph.node import SET_SHAPE, Subgraph
from flowrt.graph.op_def import BY_EXECUTOR, NONDIFFERENTIABLE, Effect, Effects, OpDef, define_op
from flowrt.graph.shapes import Shape, relax

_SHAPES = "output_shapes: list(shape) = ()"

_define = partial[OpDef[list[Tensor]]](
    define_op, kernel=BY_EXECUTOR, samples=lambda rng: (), effects=Effects(Effect.NESTED)
)
"""Defines an op of a graph."""

_define_form = partial(_define, vjp=NONDIFFERENTIABLE, jvp=NONDIFFERENTIABLE)
"""Defines an op that the compiler makes."""


def _common_shapes(branches: tuple[Subgraph, ...]) -> list[Shape]:
    """The shapes that match the results of all branches."""
    shapes = [branches[0].spec(ref).shape for ref in branches[0].fetches]
    for branch in branches[1:]:
        shapes = [relax(a, branch.spec(ref).shape) for a, ref in zip(shapes, branch.fetches, strict=True)]
    return shapes


def _carried_shapes(body: Subgraph, number: int) -> list[Shape]:
    """The shapes of the first ``number`` parameters of a loop's ``body``. One that the body itself has set
    holds where the body reads the parameter: of a loop without iterations it says nothing.
    """
    parameters = [body.nodes[name] for name in body.feeds[:number]]
    return [p.attrs["shape"] if SET_SHAPE in p.attrs else p.outputs[0].shape for p in parameters]


if_op: OpDef[list[Tensor]] = _define(
    "If",
    "cond: Tcond in bool, input: *Tin in ANY -> *Tout in ANY",
    attrs=f"Tout: list(type), then_branch: func, else_branch: func, {_SHAPES}",
    shape=lambda s: _common_shapes((s.attrs["then_branch"], s.attrs["else_branch"])),
    vjp=branches_vjp,
    jvp=branches_jvp,
    doc="The results of then_branch(input) or else_branch(input): only that one runs.",
)

case_op: OpDef[list[Tensor]] = _define(
    "Case",
    "branch_index: int32, input: *Tin in ANY -> *Tout in ANY",
    attrs=f"Tout: list(type), branches: list(func), {_SHAPES}",
    shape=lambda s: _common_shapes(s.attrs["branches"]),
    vjp=branches_vjp,
    jvp=branches_jvp,
    doc="The results of branches[branch_index](input), which alone runs; of the last for an index beyond.",
)


call_op: OpDef[list[Tensor]] = _define(
    "PartitionedCall",
    "args: *Tin in ANY -> *Tout in ANY",
    attrs="Tout: list(type), f: func",
    shape=lambda s: _common_shapes((s.attrs["f"],)),
    vjp=branches_vjp,
    jvp=branches_jvp,
    batch=lambda b, op, values: b.call(op.get_attr("f"), values),
    doc="The results of f(args). The compiler puts the function's operations in its place.",
)

while_op: OpDef[list[Tensor]] = _define(
    "While",
    "input: *T in ANY -> *T",
    attrs=f"cond: func, body: func, {_SHAPES}, parallel_iterations: int = 10",
    shape=lambda s: _carried_shapes(s.attrs["body"], len(s.attrs["T"])),
    vjp=while_vjp,
    jvp=while_jvp,
    doc="The inputs, replaced by body(inputs) as long as cond(inputs).",
)

case_form: OpDef[list[Tensor]] = _define_form(
    "_Case",
    "index: Tindex in bool | int32, input: *Tin in ANY -> *Tout in ANY",
    attrs="Tout: list(type), branches: list(func)",
    shape=lambda s: _common_shapes(s.attrs["branches"]),
    doc="Case as it is compiled; a bool counts as 0 or 1. Made by the compiler only.",
)

loop_form: OpDef[list[Tensor]] = _define_form(
    "_Loop",
    "pred: bool, carried: *T in ANY, invariant: *C in ANY -> *T",
    attrs="body: func",
    shape=lambda s: _carried_shapes(s.attrs["body"], len(s.attrs["T"])),
    doc="While pred: (pred, carried) = body(carried, invariant). Made by the compiler only.",
)
