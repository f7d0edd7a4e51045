"""Groups of operations that one loop over elements can compute, as data (`flowrt.graph.passes.fusion.fuse`
finds them), and the ops of the nodes that represent groups.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from flowrt.graph.evaluate import evaluate_node
from flowrt.graph.node import Node, Ref, TensorSpec, static_shape
from flowrt.graph.op_def import NONDIFFERENTIABLE, Attr, OpDef, define_op
from flowrt.graph.op_facets import Traits


class Level(Enum):
    """Role of a group's tensor in its domain."""

    ELEMENT = "element"
    """One value per element, or broadcast to it."""
    ROW = "row"
    """One value per row; the shape is the domain's with 1 as the last dimension."""
    DROPPED = "dropped"
    """The same, without the last dimension."""
    MATRIX = "matrix"
    """An outside matrix; members read rows of it by index."""
    COLUMN_SUM = "column_sum"
    """A sum over all dimensions but the last."""
    TOTAL = "total"
    """A sum over all dimensions."""


class Support(Enum):
    """Extent to which compiled loops support an operation."""

    NONE = "none"
    FULL = "full"
    CHECKED = "checked"
    """The loop may fail at run time: the operation's kernel is then run on the original inputs."""


class Group(NamedTuple):
    """``members``, in topological order, read ``inputs`` and each other, and embed small ``constants``."""

    domain: tuple[int, ...]
    members: tuple[Node, ...]
    constants: Mapping[Ref, Any]
    inputs: Mapping[Ref, TensorSpec]
    outputs: tuple[Ref, ...]
    levels: dict[Ref, Level]
    """Roles of the members' outputs."""
    is_checked: bool
    """Whether the members' kernels may run after the loop, so that it must not overwrite its inputs."""

    def __str__(self) -> str:
        return ", ".join(f"{member.op.name} {member.name}" for member in self.members)

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        specs = {(m.name, i): spec for m in self.members for i, spec in enumerate(m.outputs)}
        return tuple([specs[ref] for ref in self.outputs])

    @property
    def form(self) -> Hashable:
        """The computation without names and sizes: groups of one form share a compiled loop if their arrays
        have the same layout.
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

    @property
    def kind(self) -> Hashable:
        """All but names: groups of one kind have one program, and are bound alike."""
        outputs = [member.outputs for member in self.members]
        return self.form, self.domain, *self.inputs.values(), *outputs, self.is_checked

    def _is_spread(self, spec: TensorSpec) -> tuple[bool, ...]:
        """Broadcast flags of the tensor's dimensions, last first."""
        pairs = zip(reversed(static_shape(spec)), reversed(self.domain), strict=False)
        return tuple([size != whole for size, whole in pairs])


def _text(value: Any) -> str:
    return f"{value.dtype.str} {value.shape} {value.tobytes()!r}"


def plain_kernel(xp: Any, inputs: Sequence[Any], group: Group, out: Any = None) -> Sequence[Any]:
    """The members' kernels in sequence: the reference for compiled loops. A temporary value is freed after
    its last reader, and a result is computed in ``out`` if no input is there.
    """
    overlap = xp.may_share_memory
    targets = {
        ref: target
        for ref, target in zip(group.outputs, () if out is None else out, strict=False)
        if not any(overlap(target, value) for value in inputs)
    }
    values = {**group.constants, **dict(zip(group.inputs, inputs, strict=True))}
    for member, dead in zip(group.members, _last_reads(group), strict=True):
        target = targets.get((member.name, 0))
        results = evaluate_node(member, [values[ref] for ref in member.inputs], None, xp, target)
        values.update({(member.name, i): result for i, result in enumerate(results)})
        for ref in dead:
            del values[ref]
    found = [values[ref] for ref in group.outputs]
    if out is None:
        return found
    if len(found) > 1:  # the first that is stored may overwrite an input that another is a view of
        found = [xp.array(value) if any(overlap(value, i) for i in inputs) else value for value in found]
    for target, value in zip(out, found, strict=True):
        if value is not target:
            xp.copyto(target, value)
    return found


def _last_reads(group: Group) -> list[list[Ref]]:
    """The values of members that are dead after each of them."""
    last = {
        ref: position
        for position, member in enumerate(group.members)
        for ref in (*[(member.name, index) for index in range(len(member.outputs))], *member.inputs)
        if ref in group.levels
    }
    dead: list[list[Ref]] = [[] for _ in group.members]
    for ref, position in last.items():
        if ref not in group.outputs:
            dead[position].append(ref)
    return dead


def _define(name: str, elementwise: bool) -> OpDef:
    return define_op(
        name,
        "inputs: *Tin in ANY -> *Tout in ANY",
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
"""All members are elementwise, so a result may overwrite an input."""
fused_rows_op = _define("_FusedRows", elementwise=False)
