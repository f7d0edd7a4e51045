"""Accesses of a program's nodes: the bytes that each reads and writes, and the value that a read must find.

    output                                  a write of its node
    view                                    the value of what it is a view of
    variable                                its last update before the read, in the order of the graph
    parameter of a function                 the value of the argument
    feed, constant                          what was there before the program

They follow from the graph and from the places of its tensors. See `flowrt.executor.verify.verify_program`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, final

from flowrt import dtypes
from flowrt.device.memory_ranges import Range, bounds, contains, overlap
from flowrt.errors import InternalError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.program.control_flow import Control
from flowrt.executor.program.program import Segment
from flowrt.executor.program.updates import nodes_of
from flowrt.executor.verify.memory_contents import InitialValues, Write, are_same_array, is_register, register
from flowrt.graph.effects import touches
from flowrt.graph.evaluate import located
from flowrt.graph.node import LENT, Node, Ref, Subgraph
from flowrt.graph.ops.collective.transfer import SENDS
from flowrt.graph.ops.state.variable_ops import assign_other_rows_op
from flowrt.graph.resources.variables import VariableResource


class BoundControl(NamedTuple):
    """A loop or branches, and the functions in them."""

    control: Control
    functions: Sequence[Layer]


class Layer(NamedTuple):
    """Nodes that were bound together, in the order of the graph, and where their tensors are, with the loops
    and branches by node. ``parameters`` are the tensors of earlier layers that feeds stand for. Nodes of
    ``dropped`` need not run.
    """

    subgraph: Subgraph
    tensors: BoundTensors
    controls: Mapping[str, BoundControl]
    parameters: Mapping[str, Ref] = {}
    dropped: Collection[str] = ()


class Stored(NamedTuple):
    """A tensor of ``node``, or a variable, as its readers must find it: ``write`` is its value, None for what
    was there before the program.
    """

    node: Node
    text: str
    where: Range
    write: Write | None

    def moved(self, where: Range, initial: InitialValues) -> Stored:
        """The tensor after its value was moved to ``where``."""
        if where == self.where:
            return self
        return self._replace(where=where, write=self.write or initial.at(self.where))


class Written(NamedTuple):
    """Bytes that a node writes; a register's value may be a view of ``source``."""

    where: Range
    write: Write
    source: Stored | None = None


class Access(NamedTuple):
    """The reads of a node, and its writes, which come after them."""

    reads: Sequence[Stored]
    writes: Sequence[Written]


class Nested(NamedTuple):
    """A node that owns functions: its loop or branches, the values of its inputs (None for those that are not
    followed), the last updates of all variables before it, and where the node leaves its outputs and updates.
    """

    bound: BoundControl
    inputs: Sequence[Stored | None]
    updates: Mapping[int, Write]
    outputs: Sequence[Stored | None]
    variables: Mapping[int, Stored]


@final
class NodeAccesses:
    """The accesses of all nodes of ``layers`` that run in ``segments``. Of a function, ``arguments`` are the
    values of its parameters, and ``updates`` the last updates of the variables before it. Raises
    `InternalError` if another node should run, or if one would write over what it reads.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        segments: Sequence[Segment],
        initial: InitialValues,
        arguments: Sequence[Stored | None] = (),
        updates: Mapping[int, Write] = {},
    ) -> None:
        self.sent: list[Stored] = []
        """Tensors that other devices may read until the program ends, by the nodes that send them."""
        self.updates = dict(updates)
        """The last update of each variable, by the ``id`` of its resource."""
        self._initial = initial
        self._of_node: dict[int, Access] = {}
        """Accesses by the node's ``id``: nodes of two layers may have one name."""
        self._nested: dict[int, Nested] = {}
        self._stored: list[dict[Ref, Stored]] = []
        """The tensors of each layer."""
        self._arguments = dict(zip(layers[0].subgraph.feeds, arguments, strict=False))
        instructions = [instruction for segment in segments for instruction in segment.instructions]
        self._executed = {id(node) for instruction in instructions for node in nodes_of(instruction)}
        self._executed |= {id(segment.control.node) for segment in segments if segment.control is not None}
        self._executed |= {id(segment.receive) for segment in segments}
        for layer in layers:
            self._stored.append({})
            for node in layer.subgraph:
                if node.name in layer.subgraph.feeds:
                    self._begin(layer, node)
                else:
                    self._visit(layer, node)

    def of(self, node: Node) -> Access:
        return self._of_node[id(node)]

    def nested(self, node: Node) -> Nested | None:
        """The functions of ``node``; None if it owns none."""
        return self._nested.get(id(node))

    def find(self, ref: Ref) -> Stored | None:
        """The tensor; None for lists and resources, which are not followed."""
        return next((layer[ref] for layer in reversed(self._stored) if ref in layer), None)

    def stored(self, refs: Iterable[Ref], kept: Mapping[Ref, Range]) -> list[Stored]:
        """The tensors that are followed; those ``kept`` are moved there."""
        found = [(ref, stored) for ref in refs if (stored := self.find(ref)) is not None]
        return [stored.moved(kept.get(ref, stored.where), self._initial) for ref, stored in found]

    # --- one node

    def _begin(self, layer: Layer, feed: Node) -> None:
        """A feed, filled before the program begins, or a parameter."""
        ref = (feed.name, 0)
        where = _place(layer.tensors, ref)
        if where is None:
            return
        outer = layer.parameters.get(feed.name)
        argument = self._arguments.get(feed.name) if outer is None else self.find(outer)
        if outer is None:
            write = None if argument is None else argument.moved(where, self._initial).write
            self._stored[-1][ref] = _stored(layer, feed, 0, where, write)
        elif argument is not None:  # otherwise its node was dropped
            self._stored[-1][ref] = argument.moved(where, self._initial)

    def _visit(self, layer: Layer, node: Node) -> None:
        tensors, known = layer.tensors, self._stored[-1]
        inputs = [self._read(layer, ref) for ref in node.inputs]
        made = [self._output(layer, node, index) for index in range(len(node.outputs))]
        reads = [read for read in inputs if read is not None]
        new = [output for output in made if output is not None and output.write and output.write.node is node]
        writes = [Written(output.where, output.write, self._source(node)) for output in new if output.write]
        variables = dict[int, Stored]()
        update = Write(node, f"the update by {node.name!r}")
        for handle, is_written in touches(node):
            variable = _variable(tensors, handle)
            if variable is not None:
                where, before = bounds(variable.array), self.updates.get(id(variable))
                text = f"variable {variable.name!r}"
                if node.op is not assign_other_rows_op or not variable.all_rows:  # it reads nothing of those
                    reads.append(Stored(node, text, where, before))
                if is_written:
                    for each in (variable, *variable.all_rows):
                        variables[id(each)] = Stored(node, text, bounds(each.array), update)
                    writes.append(Written(where, update))
        if writes and id(node) not in self._executed:
            check_dropped(layer, node)
            return
        bound = layer.controls.get(node.name)
        if bound is not None:
            self._nested[id(node)] = Nested(bound, inputs, dict(self.updates), made, variables)
        elif writes:
            check_inputs(tensors, node, writes)
        self._of_node[id(node)] = Access(reads, [] if bound else writes)
        known.update({(node.name, index): stored for index, stored in enumerate(made) if stored is not None})
        self.updates.update({key: stored.write for key, stored in variables.items() if stored.write})
        is_kept = node.op in SENDS and LENT not in node.attrs
        sent = known.get(node.inputs[0]) if is_kept else None
        if sent is not None and not is_register(sent.where):  # the value of a register is passed on
            self.sent.append(sent._replace(node=node, text=f"{sent.text} for the receiver"))

    def _read(self, layer: Layer, ref: Ref) -> Stored | None:
        """The tensor. If its node does not run, it expects a write that does not come."""
        stored, where = self._stored[-1].get(ref), _place(layer.tensors, ref)
        if stored is not None or where is None:
            return stored
        node = layer.subgraph.nodes[ref[0]]
        return _stored(layer, node, ref[1], where, _new(node, ref[1]))

    def _output(self, layer: Layer, node: Node, index: int) -> Stored | None:
        """An output: new bytes, or those of another tensor or a variable."""
        tensors, op = layer.tensors, node.op
        where = _place(tensors, (node.name, index))
        if where is None:
            return None
        write: Write | None = _new(node, index)
        if op.name == "Const":
            write = None
        elif op.reads_variable:
            variable = _variable(tensors, node.inputs[op.aliased])
            if variable is not None and contains(bounds(variable.array), where):
                write = self.updates.get(id(variable))
        elif (viewed := self._source(node)) is not None and contains(viewed.where, where):
            write = viewed.write
        return _stored(layer, node, index, where, write)

    def _source(self, node: Node) -> Stored | None:
        """The tensor of which the outputs of ``node`` may be views."""
        is_view = node.op.alias and not node.op.reads_variable and node.inputs
        return self._stored[-1].get(node.inputs[node.op.aliased]) if is_view else None


def check_dropped(layer: Layer, node: Node) -> None:
    """Raise if a node without an instruction should run."""
    if node.name not in layer.dropped:
        raise located(node, InternalError("program: expected an instruction; got none"))


def check_inputs(tensors: BoundTensors, node: Node, writes: Sequence[Written]) -> None:
    """Raise if the node would overwrite an input before it has read it: an elementwise one may write each
    element where it read it, and others may overwrite one input, if they say which.
    """
    places = [tensors.get((node.name, index)) for index in range(len(node.outputs))]
    arrays = [place.value for place in places if place is not None and place.slot is None]
    outputs = {bounds(array): array for array in arrays if getattr(array, "size", 0)}
    for number, ref in enumerate(node.inputs):
        may_overwrite = node.op.elementwise or number == node.op.overwrites
        where = _place(tensors, ref)
        if where is None or is_register(where):
            continue
        for written, *_ in writes:
            is_same = written in outputs and are_same_array(tensors[ref].value, outputs[written])
            if overlap(where, written) and not (may_overwrite and is_same):
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


def _stored(layer: Layer, node: Node, index: int, where: Range, write: Write | None) -> Stored:
    ref = (node.name, index)
    return Stored(node, f"{_name(ref)} at {layer.tensors[ref].text}", where, write)


def _new(node: Node, index: int) -> Write:
    return Write(node, f"output {index} of {node.name!r}")


def _name(ref: Ref) -> str:
    return f"{ref[0]}:{ref[1]}"
