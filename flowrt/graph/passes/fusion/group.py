"""A group: operations that one loop over their elements can compute, which `flowrt.graph.passes.fusion.fuse`
finds,
as data; and the ops of the nodes that stand for groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from flowrt import dtypes
from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, TensorSpec, static_shape
from flowrt.graph.op_def import NONDIFFERENTIABLE, Attr, OpDef, define_op
from flowrt.graph.op_facets import Traits


class Level(Enum):
    """How a tensor of a group lies in its domain."""

    ELEMENT = "element"
    """It has a value for each element, or one that is broadcast to it."""
    ROW = "row"
    """It has one value a row; its shape is the domain's with 1 as the last dimension."""
    DROPPED = "dropped"
    """The same, without the last dimension."""
    MATRIX = "matrix"
    """It comes from outside, and members read rows of it by number."""
    COLUMN_SUM = "column_sum"
    """It is a sum over everything but the last dimension."""
    TOTAL = "total"
    """It is a sum over everything."""


class Support(Enum):
    """What loops can do with an operation."""

    NONE = "none"
    FULL = "full"
    CHECKED = "checked"
    """The loop may find that it cannot: then the operation's own kernel needs the inputs as they were."""


class Group(NamedTuple):
    """``members`` in topological order, which read ``inputs`` and each other; ``constants`` are small ones
    that they have copies of.
    """

    domain: tuple[int, ...]
    members: tuple[Node, ...]
    constants: Mapping[Ref, Any]
    inputs: Mapping[Ref, TensorSpec]
    outputs: tuple[Ref, ...]
    levels: dict[Ref, Level]
    """Of what members make."""
    is_checked: bool
    """Whether the members' own kernels may be needed after the loop: it may not write over its inputs."""

    def __str__(self) -> str:
        return ", ".join(f"{member.op.name} {member.name}" for member in self.members)

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        specs = {(m.name, i): spec for m in self.members for i, spec in enumerate(m.outputs)}
        return tuple([specs[ref] for ref in self.outputs])

    @property
    def form(self) -> Hashable:
        """What the group computes, without names and sizes: groups of one form have one compiled loop, where
        their arrays lie alike.
        """
        numbers = {ref: number for number, ref in enumerate([*self.inputs, *self.levels])}
        members = [
            (
                member.op.name,
                tuple([str(member.attrs[key]) for key in member.op.loop_attrs]),
                tuple(
                    [numbers[ref] if ref in numbers else _text(self.constants[ref]) for ref in member.inputs]
                ),
            )
            for member in self.members
        ]
        return (
            len(self.domain),
            tuple([(spec.dtype, self._is_spread(spec)) for spec in self.inputs.values()]),
            tuple(members),
            tuple(self.levels.values()),
            tuple([numbers[ref] for ref in self.outputs]),
        )

    def _is_spread(self, spec: TensorSpec) -> tuple[bool, ...]:
        """For each dimension, the last first, whether the domain has more of it."""
        pairs = zip(reversed(static_shape(spec)), reversed(self.domain), strict=False)
        return tuple([size != whole for size, whole in pairs])


def _text(value: Any) -> str:
    return f"{value.dtype} {value.shape} {value.tobytes()!r}"


def plain_kernel(xp: Any, inputs: Sequence[Any], group: Group, out: Any = None) -> tuple[Any, ...]:
    """The members' own kernels, one after the other: what a compiled loop is compared with."""
    values = {**group.constants, **dict(zip(group.inputs, inputs, strict=True))}
    for member in group.members:
        results = evaluate_node(member, [values[ref] for ref in member.inputs], None, xp)
        values.update({(member.name, i): result for i, result in enumerate(results)})
    found = tuple([values[ref] for ref in group.outputs])
    if out is not None:
        for target, value in zip(out, found, strict=True):
            xp.copyto(target, value)
    return found


def _define(name: str, elementwise: bool) -> OpDef:
    return define_op(
        name,
        "inputs: *Tin -> *Tout",
        types={"Tin": dtypes.ANY, "Tout": dtypes.ANY},
        attrs={"group": Attr("func")},
        shape=lambda s: [spec.shape for spec in s.attrs["group"].output_specs],
        kernel=plain_kernel,
        vjp=NONDIFFERENTIABLE,
        jvp=NONDIFFERENTIABLE,
        samples=lambda rng: (),
        traits=Traits(elementwise=elementwise),
        doc="A group of operations that one loop computes; made by the fusion pass only.",
    )


fused_op = _define("_Fused", elementwise=True)
"""All members are elementwise, so a result may take the place of an input."""
fused_rows_op = _define("_FusedRows", elementwise=False)
