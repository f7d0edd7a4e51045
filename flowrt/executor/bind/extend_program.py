"""Incremental compilation: new instructions are appended to a bound program, on the same memory.

A plan often has most of an earlier one's nodes: an operation was added, or another tensor is fetched. Then an
instance of the earlier plan is extended. The added nodes are planned and bound as a function with the tensors
that they read as parameters; the new program is the old one's instructions followed by the new ones. The two
share an arena, so only one runs at a time (`flowrt.executor.plan.instance`).

    program + Bound, Extension --> Spills --> a Layer of added nodes, segments --> program + Bound

Rules of this file:

  1. The added nodes are pure, so they may run after everything else.
  2. A tensor that they read, or that is now fetched, may not be live at the end of the earlier program: its
     buffer is reused, its variable is written, its register is cleared. Then it is spilled: an instruction
     after its node stores it, or a copy of it, in a separate register.
  3. Unneeded nodes are removed. The memory of the others is unchanged.
  4. If one of these is not possible, the program is not extended: the caller binds the whole.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, count
from typing import Any, NamedTuple

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.executor.analysis.streams import one_stream
from flowrt.executor.bind.bind import Binder, Outer, Partition
from flowrt.executor.bind.bind_fetches import bind_fetch, copied
from flowrt.executor.bind.bind_transfer import Ends
from flowrt.executor.buffers.buffer_assignment import (
    SMALL_BYTES,
    Enclosing,
    Storage,
    assign_buffers,
    nbytes_of,
)
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.control_flow import PAUSE
from flowrt.executor.program.instruction import Instruction, Move, Register
from flowrt.executor.program.program import MAX_BLOCK_LENGTH, Line, Program, Segment
from flowrt.executor.verify.memory_contents import register
from flowrt.executor.verify.node_accesses import Layer
from flowrt.executor.verify.verify_program import is_checking, verify_program
from flowrt.graph.construction.graph_extension import Extension, addition
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import is_static

MAX_GROWTH = 0.5
"""Fraction of a program that may be appended or removed: its memory plan is not updated for either."""


class Bound(NamedTuple):
    """Inputs of the binding of a program on the host."""

    device: Device
    resource: Callable[[Node], Any]
    ends: Ends
    has_loops: bool
    layers: tuple[Layer, ...]
    layer_of: Mapping[str, Layer]
    """Layers of nodes, except those in the first."""
    in_groups: Mapping[Ref, Ref]
    """The outputs of groups: from the member's tensor to the one of the group's node."""
    kept: Mapping[Ref, Operand]
    """Rule 2."""
    num_dropped: int

    def layer(self, name: str) -> Layer:
        return self.layer_of.get(name, self.layers[0])

    def bound_ref(self, ref: Ref, spec: TensorSpec) -> Ref | None:
        """The tensor's name in the program, where a group has the name of its last member. None if it does
        not exist: it is internal to a group, or only partly computed.
        """
        found = self.in_groups.get(ref, ref)
        subgraph = self.layer(found[0]).subgraph
        node = subgraph.nodes.get(found[0])
        if node is None or ("group" in node.attrs and ref not in self.in_groups):
            return None
        return found if subgraph.spec(found) == spec else None

    def operand(self, ref: Ref) -> Operand | None:
        """Location of a tensor of the program; None if it has none."""
        if ref in self.kept:
            return self.kept[ref]
        return self.layer(ref[0]).tensors.get(ref)


def bound_from(part: Partition, resource: Callable[[Node], Any], ends: Ends, layer: Layer) -> Bound | None:
    """State from which a program of ``part`` can be extended; None on an asynchronous device, a device that
    does not compute, or one that may spread the result over several streams.
    """
    device = part.device
    if device.is_asynchronous or not device.executor.computes or device.num_streams > 1:
        return None
    groups = [node for node in part.subgraph if "group" in node.attrs]
    in_groups = {ref: (node.name, i) for node in groups for i, ref in enumerate(node.attrs["group"].outputs)}
    return Bound(part.device, resource, ends, part.has_loops, (layer,), {}, in_groups, {}, 0)


class Spill(NamedTuple):
    """A spill (rule 2): after its node, the tensor is stored in a separate register."""

    node: Node
    operand: Operand
    source: Operand
    instruction: Instruction


def extend_program(
    program: Program, bound: Bound, placed: Subgraph, grown: Extension
) -> tuple[Program, Bound] | None:
    """The program of ``placed``, which differs from the subgraph of ``program`` by ``grown``. None by rule 4.
    Raises errors of binding. ``program`` remains valid, on the same memory: switching between the two
    requires a reset.
    """
    if not _may_grow(bound, grown):
        return None
    bound = _without(bound, grown.dropped)
    inner, arguments = addition(grown.added, placed)
    inner = inner.replace(fetches=tuple([ref for ref in placed.fetches if ref[0] in inner.nodes]))
    outside = [*arguments.values(), *[ref for ref in placed.fetches if ref[0] not in inner.nodes]]
    bound_refs: dict[Ref, Ref] = {}
    keeps: dict[Ref, Spill] = {}
    for wanted in dict.fromkeys(outside):
        spec = placed.spec(wanted)
        ref = bound.bound_ref(wanted, spec)
        if ref is None or bound.operand(ref) is None or spec.dtype in (dtypes.variant, dtypes.resource):
            return None
        bound_refs[wanted] = ref
        if not _is_lasting(bound, ref):
            keep = _keep(bound, ref)
            if keep is None:
                return None
            keeps[ref] = keep
    bound = bound._replace(kept={**bound.kept, **{ref: keep.operand for ref, keep in keeps.items()}})
    parameters = {name: bound_refs[ref] for name, ref in arguments.items()}
    layer, segments, lines = _bind_layer(bound, inner, parameters)
    bound = bound._replace(
        layers=(*bound.layers, layer),
        layer_of={**bound.layer_of, **{node.name: layer for node in grown.added}},
    )
    fetched = [bound_refs.get(ref, ref) for ref in placed.fetches]
    fetches = _bind_fetches(bound, fetched)
    if fetches is None:
        return None
    left = [_without_nodes(s, grown.dropped) for s in program.segments] if grown.dropped else program.segments
    before = _with_kept(left, keeps.values(), bound.layers[:-1])
    known = [line for line in program.lines if line.node.name not in grown.dropped]
    joint = _joined(before, segments)
    if is_checking():
        layers = [_verified(bound, layer, placed) for layer in bound.layers]
        registers = layers[0].tensors.registers
        kept_at = {ref: register(registers, o.slot) for ref, o in bound.kept.items() if o.slot is not None}
        verify_program(layers, fetched, [joint], kept_at)
    kept = [
        Line(keep.node, [keep.source._replace(text=f"copy of {keep.source.text}")], [keep.operand])
        for keep in keeps.values()
    ]
    tensors = bound.layers[0].tensors
    feeds = program.feeds
    program = Program(
        bound.device, 0, joint, tensors.registers, feeds, fetches, program.take,
        [*known, *kept, *lines],
    )  # fmt: skip
    return program, bound


def _may_grow(bound: Bound, grown: Extension) -> bool:
    """Whether rule 1 holds, the added nodes are for the same device, and removed nodes have separate
    instructions, unlike those in loops and groups.
    """
    changed = len(bound.layer_of) + bound.num_dropped + len(grown.added) + len(grown.dropped)
    if changed > MAX_GROWTH * len(bound.layers[0].subgraph):
        return False
    here = bound.device.name
    if any(node.op.effect is not Effect.PURE or node.device != here for node in grown.added):
        return False
    dropped = [bound.layer(name).subgraph.nodes.get(name) for name in grown.dropped]
    return not (bound.has_loops and dropped) and all(n and n.op.effect is not Effect.NESTED for n in dropped)


def _without(bound: Bound, dropped: Collection[str]) -> Bound:
    if not dropped:
        return bound
    return bound._replace(
        layer_of={name: layer for name, layer in bound.layer_of.items() if name not in dropped},
        kept={ref: operand for ref, operand in bound.kept.items() if ref[0] not in dropped},
        num_dropped=bound.num_dropped + len(dropped),
    )


def _verified(bound: Bound, layer: Layer, placed: Subgraph) -> Layer:
    nodes = layer.subgraph.nodes
    dropped = {name for name in nodes if name not in placed.nodes or bound.layer(name) is not layer}
    return layer._replace(dropped=dropped)


# --- live-out tensors


def _is_lasting(bound: Bound, ref: Ref) -> bool:
    """Whether the tensor is there, unchanged, when the program ends."""
    layer, operand = bound.layer(ref[0]), bound.operand(ref)
    assert operand is not None
    if ref in bound.kept or layer.tensors.lifetimes.lasts(ref):
        return True
    root = layer.tensors.lifetimes.root(ref)
    source = layer.subgraph.nodes[root[0]]
    is_read = source.op.reads_variable
    is_still = (
        source.op.name == "Const"
        or root[0] in layer.parameters
        or (is_read and not layer.tensors.lifetimes.is_written(source.inputs[0]))
    )
    if operand.slot is None:
        return is_still
    spec = layer.subgraph.spec(ref)
    is_cleared = not is_static(spec.shape) or nbytes_of(spec) > SMALL_BYTES
    return not is_cleared and (is_still or (root == ref and not is_read))


def _keep(bound: Bound, ref: Ref) -> Spill | None:
    """Spill that makes the tensor available at the end. Compiled loops merge instructions of several nodes,
    and a dead register is cleared at once: then there is no point after the node.
    """
    layer, operand = bound.layer(ref[0]), bound.operand(ref)
    assert operand is not None
    position = list(layer.subgraph.nodes).index(ref[0])
    is_alone = layer.tensors.lifetimes.is_read_last_at(ref, position)
    if bound.has_loops or (operand.slot is not None and is_alone):
        return None
    root = layer.tensors.lifetimes.root(ref)
    source = layer.subgraph.nodes[root[0]]
    is_read = source.op.reads_variable
    target = Register(layer.tensors.registers, layer.tensors.new_slot())
    lock = layer.tensors[source.inputs[0]].value.lock if is_read else nullcontext()
    is_own = operand.slot is not None and root == ref and not is_read
    place = operand.value if operand.slot is None else Register(target.registers, operand.slot)
    move = Move(target, place, None if is_own else functools.partial(_copy, lock))
    node = layer.subgraph.nodes[ref[0]]
    return Spill(node, Operand(None, target.slot, f"r{target.slot}"), operand, Instruction(node, move))


def _copy(lock: Any, value: Any) -> Any:
    with lock:
        return np.array(value)


# --- added nodes


def _bind_layer(
    bound: Bound, inner: Subgraph, parameters: Mapping[str, Ref]
) -> tuple[Layer, Sequence[Segment], Sequence[Line]]:
    """``inner`` planned in a separate arena, and bound."""
    arguments = [operand for ref in parameters.values() if (operand := bound.operand(ref)) is not None]
    storage = {
        name: Storage.VIEW if operand.slot is None else Storage.REGISTER
        for name, operand in zip(parameters, arguments, strict=True)
    }
    there = {(n, 0): o.value for n, o in zip(parameters, arguments, strict=True) if o.slot is None}
    enclosing = Enclosing(storage, there, {})
    places = assign_buffers(inner, one_stream(inner), bound.resource, bound.device, enclosing)
    tensors = bound.layers[0].tensors.of_addition(places, arguments)
    partition = Partition.of(bound.device, places, has_loops=False)
    binder = Binder(partition, bound.resource, bound.ends, Outer(tensors, 0, None))
    builder = binder.bind_function()
    builder.cut(None, 0)
    return binder.layer._replace(parameters=parameters), builder.segments, builder.lines


def _bind_fetches(bound: Bound, refs: Sequence[Ref]) -> list[Callable[[], Any]] | None:
    """Functions that return each fetch; None for a layer's view of a variable: its lock is unknown."""
    counts = Counter(refs)
    fetches: list[Callable[[], Any]] = []
    registers = bound.layers[0].tensors.registers
    for ref in refs:
        layer = bound.layer(ref[0])
        if ref in bound.kept:
            fetches.append(functools.partial(_fetch_kept, registers, bound.kept[ref].slot))
        elif _is_of_variable(bound, ref):
            return None
        else:
            fetches.append(bind_fetch(layer.tensors, ref, counts[ref] == 1))
    return fetches


def _fetch_kept(registers: list[Any], slot: Any) -> Any:
    return copied(registers[slot])


def _is_of_variable(bound: Bound, ref: Ref) -> bool:
    """Whether it is a later layer's view of a variable's memory."""
    layer = bound.layer(ref[0])
    root = layer.tensors.lifetimes.root(ref)
    if root[0] not in layer.parameters:
        return False
    while root[0] in layer.parameters:
        outer = layer.parameters[root[0]]
        if outer in bound.kept:
            return False
        layer = bound.layer(outer[0])
        root = layer.tensors.lifetimes.root(outer)
    return layer.subgraph.nodes[root[0]].op.reads_variable


# --- segments


def _without_nodes(segment: Segment, dropped: Collection[str]) -> Segment:
    """Rule 3."""
    left = [instruction for instruction in segment.instructions if instruction.node.name not in dropped]
    return segment if len(left) == len(segment.instructions) else segment.with_instructions(left)


def _with_kept(
    segments: Sequence[Segment], keeps: Collection[Spill], layers: Sequence[Layer]
) -> Sequence[Segment]:
    """Insert each of ``keeps`` after all instructions of its node and of those before it."""
    if not keeps:
        return segments
    position = dict(zip(chain.from_iterable([layer.subgraph.nodes for layer in layers]), count()))
    changed = list(segments)
    for keep in keeps:
        place = position[keep.node.name]
        index = next(
            (i for i, s in enumerate(changed) if _last_position(s, position) > place), len(changed) - 1
        )
        segment = changed[index]
        instructions = list(segment.instructions)
        behind = bisect_right(instructions, place, key=lambda instruction: position[instruction.node.name])
        instructions.insert(behind, keep.instruction)
        changed[index] = segment.with_instructions(instructions)
    return changed


def _last_position(segment: Segment, position: Mapping[str, int]) -> int:
    return position[segment.instructions[-1].node.name] if segment.instructions else -1


def _joined(before: Sequence[Segment], after: Sequence[Segment]) -> Sequence[Segment]:
    """``before``, which must end without a wait, followed by ``after``; merged into one basic block unless
    that is too long between pauses.
    """
    *earlier, last = before
    first, *later = after
    if len(last.instructions) + len(first.instructions) > MAX_BLOCK_LENGTH:
        return [*earlier, replace(last, key=PAUSE), first, *later]
    joint = first.with_instructions([*last.instructions, *first.instructions])
    return [*earlier, joint, *later]
