"""Accesses of a program's nodes: the bytes that each reads and writes, and the write that a read must find.

    output                                  a write of its node
    view                                    what it is a view of
    variable                                its last update before the read, in the order of the graph
    feed, constant, parameter of a function     what was there before the program

They follow from the graph and from the places of its tensors. See `flowrt.executor.bind.verify_program`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from flowrt import dtypes
from flowrt.errors import InternalError
from flowrt.executor.bind.memory_contents import (
    Range,
    Write,
    are_same_array,
    bounds,
    contains,
    is_register,
    overlap,
    register,
)
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.program.instruction import Spilled
from flowrt.executor.program.program import Segment
from flowrt.executor.program.updates import nodes_of
from flowrt.graph.effects import touches
from flowrt.graph.evaluate import located
from flowrt.graph.node import LENT, Node, Ref, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.transfer import send_op
from flowrt.graph.resources.variables import VariableResource


class Layer(NamedTuple):
    """Nodes that were bound together, in the order of the graph, and where their tensors are. ``parameters``
    are the tensors of earlier layers that feeds stand for. Nodes of ``dropped`` need not run.
    """

    subgraph: Subgraph
    tensors: BoundTensors
    parameters: Mapping[str, Ref] = {}
    dropped: Collection[str] = ()


class Part(NamedTuple):
    """Bytes, and the write that must be there; None for what was there before the program."""

    where: Range
    write: Write | None


class Stored(NamedTuple):
    """A tensor of ``node``, or a variable, as its readers must find it."""

    node: Node
    text: str
    parts: Sequence[Part]


class Access(NamedTuple):
    """The reads of a node, and its writes, which come after them."""

    reads: Sequence[Stored]
    writes: Sequence[Part]


@final
class NodeAccesses:
    """The accesses of all nodes of ``layers`` that run in ``segments``. Raises `InternalError` if another
    should run, or if one would write over what it reads.
    """

    def __init__(self, layers: Sequence[Layer], segments: Sequence[Segment]) -> None:
        self.sent: list[Stored] = []
        """Tensors that other devices may read until the program ends, by the nodes that send them."""
        self.parameters: list[Stored] = []
        self._of_node: dict[int, Access] = {}
        """Accesses by the node's ``id``: nodes of two layers may have one name."""
        self._stored: list[dict[Ref, Stored]] = []
        """The tensors of each layer."""
        self._layer_of: dict[int, dict[Ref, Stored]] = {}
        self._updates: dict[int, Write] = {}
        """The last update of each variable, by the ``id`` of its resource."""
        instructions = [instruction for segment in segments for instruction in segment.instructions]
        self._executed = {id(node) for instruction in instructions for node in nodes_of(instruction)}
        self._executed |= {id(segment.control.node) for segment in segments if segment.control is not None}
        self._executed |= {id(segment.receive) for segment in segments}
        spills = [(node, action) for node, action in instructions if isinstance(action, Spilled)]
        self._spills = {
            register(action.registers, action.slot): Write(node, f"the copy of {_name(action.ref)}")
            for node, action in spills
        }
        """Copies that outlast their tensors, by the place of the register."""
        for layer in layers:
            self._stored.append({})
            for node in layer.subgraph:
                self._layer_of[id(node)] = self._stored[-1]
                if node.name in layer.subgraph.feeds:
                    self._begin(layer, node)
                else:
                    self._visit(layer, node)

    def of(self, node: Node) -> Access:
        return self._of_node[id(node)]

    def of_spill(self, node: Node, spilled: Spilled) -> Access:
        where = register(spilled.registers, spilled.slot)
        return Access([self._layer_of[id(node)][spilled.ref]], [Part(where, self._spills[where])])

    def stored(self, refs: Iterable[Ref], kept: Mapping[Ref, Range] = {}) -> list[Stored]:
        """The tensors, without lists and resources, which are not followed; ``kept`` in their registers."""
        found = [(ref, stored) for ref in refs if (stored := self._find(ref)) is not None]
        return [self._spilled(stored, kept[ref]) if ref in kept else stored for ref, stored in found]

    def _spilled(self, stored: Stored, where: Range) -> Stored:
        """The tensor as it must be in the register at ``where``."""
        write = self._spills.get(where) or Write(stored.node, "a copy of it")
        return stored._replace(text=f"{stored.text}, spilled", parts=[Part(where, write)])

    def _find(self, ref: Ref) -> Stored | None:
        return next((layer[ref] for layer in reversed(self._stored) if ref in layer), None)

    # --- one node

    def _begin(self, layer: Layer, feed: Node) -> None:
        """A feed, filled before the program begins, or a parameter."""
        ref = (feed.name, 0)
        where, outer = _place(layer.tensors, ref), layer.parameters.get(feed.name)
        if where is None:
            return
        if outer is None:
            self._stored[-1][ref] = stored = _stored(layer, feed, 0, [Part(where, None)])
            self.parameters.append(stored)
        elif (found := self._find(outer)) is not None:  # otherwise its node was dropped
            is_there = any(part.where == where for part in found.parts)
            self._stored[-1][ref] = found if is_there else self._spilled(found, where)

    def _visit(self, layer: Layer, node: Node) -> None:
        tensors, known = layer.tensors, self._stored[-1]
        reads = [read for ref in node.inputs if (read := self._read(layer, ref)) is not None]
        made = {(node.name, i): self._parts(layer, node, i) for i in range(len(node.outputs))}
        writes = [part for parts in made.values() for part in parts if part.write and part.write.node is node]
        updates = dict[int, Write]()
        for handle, is_written in touches(node):
            variable = _variable(tensors, handle)
            if variable is not None:
                where, before = bounds(variable.array), self._updates.get(id(variable))
                reads.append(Stored(node, f"variable {variable.name!r}", [Part(where, before)]))
                if is_written:
                    updates[id(variable)] = Write(node, f"the update by {node.name!r}")
                    writes.append(Part(where, updates[id(variable)]))
        scratch = tensors.scratch(node) if node.op.effect is Effect.NESTED else None
        if scratch is not None:
            writes.append(Part(bounds(scratch), Write(node, f"the functions of {node.name!r}")))
        if writes and id(node) not in self._executed:
            check_dropped(layer, node)
            return
        if writes:
            check_inputs(tensors, node, writes)
        self._of_node[id(node)] = Access(reads, writes)
        known.update({ref: _stored(layer, node, ref[1], parts) for ref, parts in made.items() if parts})
        self._updates.update(updates)
        is_kept = node.op is send_op and LENT not in node.attrs
        if is_kept and node.inputs[0] in known:  # the value of a register is passed on
            sent = known[node.inputs[0]]
            parts = [part for part in sent.parts if not is_register(part.where)]
            self.sent.append(Stored(node, f"{sent.text} for the receiver", parts))

    def _read(self, layer: Layer, ref: Ref) -> Stored | None:
        """The tensor. If its node does not run, it expects a write that does not come."""
        stored, where = self._stored[-1].get(ref), _place(layer.tensors, ref)
        if stored is not None or where is None:
            return stored
        node = layer.subgraph.nodes[ref[0]]
        return _stored(layer, node, ref[1], [Part(where, _output(node, ref[1]))])

    def _parts(self, layer: Layer, node: Node, index: int) -> list[Part]:
        """The parts of an output: new bytes, or those of another tensor or a variable."""
        tensors, op, ref = layer.tensors, node.op, (node.name, index)
        where = _place(tensors, ref)
        if where is None:
            return []
        if op.name == "Const":
            return [Part(where, None)]
        new = Part(where, _output(node, index))
        if not op.alias or not node.inputs:
            return [new]
        source = node.inputs[op.aliased]
        if op.reads_variable:
            variable = _variable(tensors, source)
            is_view = variable is not None and contains(bounds(variable.array), where)
            return [Part(where, self._updates.get(id(variable)))] if is_view else [new]
        viewed = self._stored[-1][source].parts if source in self._stored[-1] else []
        if is_register(where):  # it may be a view
            return [new, *viewed]
        return [Part(where, part.write) for part in viewed if contains(part.where, where)] or [new]


def check_dropped(layer: Layer, node: Node) -> None:
    """Raise if a node without an instruction should run."""
    if node.name not in layer.dropped:
        raise located(node, InternalError("program: expected an instruction; got none"))


def check_inputs(tensors: BoundTensors, node: Node, writes: Sequence[Part]) -> None:
    """Raise if the node would overwrite an input before it has read it: an elementwise one may write each
    element where it read it.
    """
    places = [tensors.get((node.name, index)) for index in range(len(node.outputs))]
    arrays = [place.value for place in places if place is not None and place.slot is None]
    outputs = {bounds(array): array for array in arrays if getattr(array, "size", 0)}
    for ref in node.inputs:
        where = _place(tensors, ref)
        if where is None or is_register(where):
            continue
        for written, _ in writes:
            is_same = written in outputs and are_same_array(tensors[ref].value, outputs[written])
            if overlap(where, written) and not (node.op.elementwise and is_same):
                message = f"program: writes over its input {_name(ref)} before it has read it"
                raise located(node, InternalError(message))


def _place(tensors: BoundTensors, ref: Ref) -> Range | None:
    """The bytes of a tensor; None for lists, resources, empty tensors and those internal to a group."""
    operand = tensors.get(ref)
    if operand is None or tensors.subgraph.spec(ref).dtype in (dtypes.variant, dtypes.resource):
        return None
    if operand.slot is not None:
        return register(tensors.registers, operand.slot)
    return bounds(operand.value) if operand.value.size else None


def _variable(tensors: BoundTensors, handle: Ref) -> VariableResource | None:
    """The variable with this handle, if it has memory of its own that is not empty."""
    operand = tensors.get(handle)
    value = None if operand is None else operand.value
    return value if isinstance(value, VariableResource) and value.is_pinned and value.array.size else None


def _stored(layer: Layer, node: Node, index: int, parts: Sequence[Part]) -> Stored:
    ref = (node.name, index)
    return Stored(node, f"{_name(ref)} at {layer.tensors[ref].text}", parts)


def _output(node: Node, index: int) -> Write:
    return Write(node, f"output {index} of {node.name!r}")


def _name(ref: Ref) -> str:
    return f"{ref[0]}:{ref[1]}"
