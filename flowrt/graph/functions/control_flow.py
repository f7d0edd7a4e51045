"""Structured control flow: operations that own functions.

If, Case, While and PartitionedCall have TensorFlow's names and form, and are the ops of a graph. The compiler
lowers them to `_Case` and `_Loop` (`flowrt.graph.passes.prepare.lower`): calls are inlined, and the condition
of a loop is duplicated before it and at the end of its body, so that a loop has one function.

A function is a `Subgraph`: its feeds are the parameters, its fetches the results. All functions of an
operation take the same arguments: the inputs after the predicate or the index.
"""

from __future__ import annotations

from collections.abc import Sequence

from flowrt import dtypes
from flowrt.graph.construction.batching_rules import BatchBuilder, Value
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.construction.operation import Operation
from flowrt.graph.functions.branch_gradients import branches_jvp, branches_vjp
from flowrt.graph.functions.loop_gradients import while_jvp, while_vjp
from flowrt.graph.node import Subgraph
from flowrt.graph.op_def import (
    BY_EXECUTOR,
    NONDIFFERENTIABLE,
    Effect,
    Effects,
    OpDef,
    ShapeContext,
    define_op,
)
from flowrt.graph.shapes import Shape, relax

_SHAPES = "output_shapes: list(shape) = ()"


def _common_shapes(branches: tuple[Subgraph, ...]) -> list[Shape]:
    """The shapes that match the results of all branches."""
    shapes = [branches[0].spec(ref).shape for ref in branches[0].fetches]
    for branch in branches[1:]:
        shapes = [relax(a, branch.spec(ref).shape) for a, ref in zip(shapes, branch.fetches, strict=True)]
    return shapes


def _if_shapes(s: ShapeContext) -> list[Shape]:
    return _common_shapes((s.attrs["then_branch"], s.attrs["else_branch"]))


if_op: OpDef[list[Tensor]] = define_op(
    "If",
    "cond: Tcond, input: *Tin -> *Tout",
    types={"Tcond": (dtypes.bool_,), "Tin": dtypes.ANY, "Tout": dtypes.ANY},
    attrs=f"Tout: list(type), then_branch: func, else_branch: func, {_SHAPES}",
    shape=_if_shapes,
    kernel=BY_EXECUTOR,
    vjp=branches_vjp,
    jvp=branches_jvp,
    effects=Effects(Effect.NESTED),
    doc="The results of then_branch(input) or else_branch(input): only that one runs.",
)

case_op: OpDef[list[Tensor]] = define_op(
    "Case",
    "branch_index: int32, input: *Tin -> *Tout",
    types={"Tin": dtypes.ANY, "Tout": dtypes.ANY},
    attrs=f"Tout: list(type), branches: list(func), {_SHAPES}",
    shape=lambda s: _common_shapes(s.attrs["branches"]),
    kernel=BY_EXECUTOR,
    vjp=branches_vjp,
    jvp=branches_jvp,
    effects=Effects(Effect.NESTED),
    doc="The results of branches[branch_index](input), which alone runs; of the last for an index beyond.",
)


def _batch_call(b: BatchBuilder, op: Operation, values: Sequence[Value]) -> list[Value]:
    return b.call(op.get_attr("f"), values)


call_op: OpDef[list[Tensor]] = define_op(
    "PartitionedCall",
    "args: *Tin -> *Tout",
    types={"Tin": dtypes.ANY, "Tout": dtypes.ANY},
    attrs="Tout: list(type), f: func",
    shape=lambda s: _common_shapes((s.attrs["f"],)),
    kernel=BY_EXECUTOR,
    vjp=branches_vjp,
    jvp=branches_jvp,
    effects=Effects(Effect.NESTED),
    batch=_batch_call,
    doc="The results of f(args). The compiler puts the function's operations in its place.",
)

while_op: OpDef[list[Tensor]] = define_op(
    "While",
    "input: *T -> *T",
    types={"T": dtypes.ANY},
    attrs=f"cond: func, body: func, {_SHAPES}, parallel_iterations: int = 10",
    shape=lambda s: [s.attrs["body"].nodes[name].outputs[0].shape for name in s.attrs["body"].feeds],
    kernel=BY_EXECUTOR,
    vjp=while_vjp,
    jvp=while_jvp,
    effects=Effects(Effect.NESTED),
    doc="The inputs, replaced by body(inputs) as long as cond(inputs).",
)

case_form: OpDef[list[Tensor]] = define_op(
    "_Case",
    "index: Tindex, input: *Tin -> *Tout",
    types={"Tindex": (dtypes.bool_, dtypes.int32), "Tin": dtypes.ANY, "Tout": dtypes.ANY},
    attrs="Tout: list(type), branches: list(func)",
    shape=lambda s: _common_shapes(s.attrs["branches"]),
    kernel=BY_EXECUTOR,
    vjp=NONDIFFERENTIABLE,
    effects=Effects(Effect.NESTED),
    doc="Case as it is compiled; a bool counts as 0 or 1. Made by the compiler only.",
)

loop_form: OpDef[list[Tensor]] = define_op(
    "_Loop",
    "pred: bool, carried: *T, invariant: *C -> *T",
    types={"T": dtypes.ANY, "C": dtypes.ANY},
    attrs="body: func",
    shape=lambda s: [
        s.attrs["body"].nodes[name].outputs[0].shape for name in s.attrs["body"].feeds[: len(s.attrs["T"])]
    ],
    kernel=BY_EXECUTOR,
    vjp=NONDIFFERENTIABLE,
    effects=Effects(Effect.NESTED),
    doc="While pred: (pred, carried) = body(carried, invariant). Made by the compiler only.",
)
