"""Gathers of variables that are kept in parts: one for each stretch of a step in which a unit is needed.

A *unit* is what is gathered at once. The uses of all units, in the order of the step, form stretches of one
unit each; in each stretch the unit's variables are read, and so gathered, anew. What was gathered is freed
with its last reader: a training step gathers a unit for the forward pass and again for the backward pass, and
only the unit in which one turns into the other stays.

    uses       A A B B C C C B B A A        of three layers: the last five are the backward pass
    gathers    A   B   C     B   A

A look-up of rows is a read, and a gather of rows of the whole.

The reads of a stretch wait until the last but one has ended. So the gather of one stretch may run while the
stretch before it computes, and no more than two units are whole at any time. The idea is that of FSDP (Zhao
et al. 2023), decided once for all steps instead of while they run. With a limit of bytes units stay where
there is room for them: see `place_chunks`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, final

import numpy as np

from flowrt.dtypes import as_dtype, int32
from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from flowrt.graph.construction.constant import const
from flowrt.graph.effects import touches
from flowrt.graph.layouts.attributes import COPY, REGATHER, RESIDENT, UNIT, layouts_of
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather
from flowrt.graph.passes.layouts.place_chunks import Placed, place_chunks
from flowrt.graph.precision import COMPUTE


class Use(NamedTuple):
    """The node ``reader``, at ``position`` in the step, reads a variable of ``unit`` by ``ref``."""

    position: int
    unit: str
    reader: str
    ref: Ref


def schedule_gathers(subgraph: Subgraph, mesh: Mesh, memory: int | None = None) -> Subgraph:
    """``subgraph`` with a read of its own for each stretch; the same object if no variable is gathered.

    Raises `ResourceExhaustedError` for a unit above the bytes of ``memory`` that a device has, if that is
    known, and `InvalidArgumentError` for one above the limit that its variables name.
    """
    subgraph = _with_whole_tables(subgraph)
    units = _units_of_reads(subgraph)
    if not units:
        return subgraph
    stretches = _stretches(_uses(subgraph, units))
    if not stretches:
        return subgraph
    limit = min([int(node.attrs[RESIDENT]) for node in subgraph if RESIDENT in node.attrs], default=None)
    found, order = _Units(subgraph, mesh), [stretch[0].unit for stretch in stretches]
    if memory is not None:
        found.check(order, memory, "the memory of a device", ResourceExhaustedError)
    if limit is not None:
        found.check(order, limit, "the limit of what a device has of units", InvalidArgumentError)
    places = place_chunks(order, found.sizes, limit)
    return _with_reads(subgraph, units, stretches, places)


def _with_whole_tables(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` without look-ups in variables that are kept in parts alone."""
    tables = {node.name for node in subgraph if UNIT in node.attrs and COPY not in node.attrs}
    if not any(node.op is resource_gather and node.inputs[0][0] in tables for node in subgraph):
        return subgraph
    nodes: dict[str, Node] = {}
    for node in subgraph:
        if node.op is resource_gather and node.inputs[0][0] in tables:
            handle, (rows,), dtype = subgraph.nodes[node.inputs[0][0]], node.outputs, node.outputs[0].dtype
            table, axis = f"{node.name}/table", f"{node.name}/axis"
            nodes[table] = node.replace(
                name=table, op=read_variable_op, inputs=node.inputs[:1], attrs={"dtype": dtype},
                outputs=(TensorSpec(dtype, handle.attrs["shape"]),),
            )  # fmt: skip
            nodes[axis] = node.replace(
                name=axis, op=const, inputs=(), controls=(), outputs=(TensorSpec(int32, ()),),
                attrs={"value": np.zeros((), np.int32), "dtype": int32},
            )  # fmt: skip
            indices = subgraph.spec(node.inputs[1]).dtype
            attrs = {
                "batch_dims": node.attrs["batch_dims"],
                "Tparams": dtype,
                "Tindices": indices,
                "Taxis": int32,
            }
            inputs = ((table, 0), node.inputs[1], (axis, 0))
            node = node.replace(op=gather_op, inputs=inputs, controls=(), attrs=attrs, outputs=(rows,))
        nodes[node.name] = node
    return subgraph.replace(nodes=nodes)


def _units_of_reads(subgraph: Subgraph) -> dict[str, str]:
    """The unit of each read of a variable that is gathered again, by name. A read of which the value is used
    after the variable is written, which a loop or branch may do too, stays as it is.
    """
    units = {node.name: node.attrs[UNIT] for node in subgraph if REGATHER in node.attrs}
    found: dict[str, str] = {}
    source: dict[str, str] = {}
    """The read of which a node is the value, or a cast of it."""
    current: dict[str, set[str]] = defaultdict(set)
    """The reads of each variable since it was last written."""
    stale: set[str] = set()
    for node in subgraph:
        written = {handle[0] for handle, writes in touches(node) if writes} & units.keys()
        if node.op.effect is Effect.NESTED:  # it may use a value after it has written
            stale.update(*[current[handle] for handle in written])
        for name, _ in node.inputs:
            if source.get(name) in stale:
                found.pop(source[name], None)
        stale.update(*[current.pop(handle, ()) for handle in written])
        handle = node.inputs[0][0] if node.inputs else ""
        if node.op is read_variable_op and handle in units:
            found[node.name], source[node.name] = units[handle], node.name
            current[handle].add(node.name)
        elif node.op is cast_op and handle in source:
            source[node.name] = source[handle]
    return found


def _uses(subgraph: Subgraph, units: Mapping[str, str]) -> list[Use]:
    """The uses of units in the order of the step. A cast of a variable belongs to its read."""
    source = {name: name for name in units}
    found = []
    for position, node in enumerate(subgraph):
        if node.op is cast_op and node.inputs[0][0] in units:
            source[node.name] = node.inputs[0][0]
            continue
        read = [ref for ref in dict.fromkeys(node.inputs) if ref[0] in source]
        found += [Use(position, units[source[ref[0]]], node.name, ref) for ref in read]
    return found


def _stretches(uses: Sequence[Use]) -> list[list[Use]]:
    found: list[list[Use]] = []
    for use in uses:
        if not found or found[-1][-1].unit != use.unit:
            found.append([])
        found[-1].append(use)
    return found


def _with_reads(
    subgraph: Subgraph, units: Mapping[str, str], stretches: Sequence[Sequence[Use]], places: Sequence[Placed]
) -> Subgraph:
    number_of = {(use.reader, use.ref): places[i].brought for i, uses in enumerate(stretches) for use in uses}
    nodes: dict[str, Node] = {}
    made: dict[tuple[int, str], str] = {}
    """The copies of reads and casts by the stretch for which they were made."""
    of_handle: dict[str, list[str]] = defaultdict(list)

    def read_for(number: int, name: str) -> str:
        if (number, name) not in made:
            made[number, name] = copied(number, subgraph.nodes[name])
        return made[number, name]

    def copied(number: int, node: Node) -> str:
        name = f"{node.name}/stretch{number}"
        if node.op is cast_op:
            read = read_for(number, node.inputs[0][0])
            attrs = {**node.attrs, UNIT: nodes[read].attrs[UNIT]}
            nodes[name] = node.replace(name=name, inputs=((read, 0),), attrs=attrs)
            return name
        first = stretches[number][0].position
        ended = [use for i in places[number].after for use in stretches[i] if use.position < first]
        attrs = {**node.attrs, UNIT: f"{stretches[number][0].unit} {number}"}
        controls = tuple(dict.fromkeys([*node.controls, *[use.reader for use in ended]]))
        nodes[name] = node.replace(name=name, attrs=attrs, controls=controls)
        of_handle[node.inputs[0][0]].append(name)
        return name

    for node in subgraph:
        inputs = tuple(
            (read_for(number_of[node.name, ref], ref[0]), ref[1]) if (node.name, ref) in number_of else ref
            for ref in node.inputs
        )
        reads = [name for handle, writes in touches(node) if writes for name in of_handle[handle[0]]]
        nodes[node.name] = node.replace(inputs=inputs, controls=(*node.controls, *reads))
    return subgraph.replace(nodes=nodes)


@final
class _Units:
    """The variables of each unit, with the bytes that a device gets of each, at most."""

    def __init__(self, subgraph: Subgraph, mesh: Mesh) -> None:
        self._subgraph = subgraph
        self._variables: dict[str, dict[str, int]] = defaultdict(dict)
        for node in subgraph:
            layouts = layouts_of(node.attrs, mesh) if REGATHER in node.attrs else None
            if layouts is not None:
                dtype = as_dtype(node.attrs.get(COMPUTE, node.attrs["dtype"]))
                part = layouts.used.local_shape(node.attrs["shape"], mesh.coordinates[0])
                self._variables[node.attrs[UNIT]][node.name] = math.prod(part) * dtype.size
        self.sizes = {unit: sum(variables.values()) for unit, variables in self._variables.items()}

    def check(self, order: Sequence[str], limit: int, what: str, error: type[OpError]) -> None:
        """Raise ``error`` for a unit above ``limit`` bytes, which is ``what``, of those used in ``order``."""
        largest = max(order, key=self.sizes.__getitem__)
        if self.sizes[largest] <= limit:
            return
        variables, size = self._variables[largest], self.sizes[largest]
        first, *others = variables
        which = (
            f"{len(variables)} variables, {first!r} to {others[-1]!r}" if others else f"variable {first!r}"
        )
        together = max([self.sizes[a] + self.sizes[b] for a, b in pairwise(order)], default=size)
        hint = f"A limit of {size:,} would do"
        if together > size:
            hint += f", or of {together:,}, so that one unit comes while another is used"
        if others:
            hint += f"; or smaller units: its largest variable has {max(variables.values()):,}"
        source = self._subgraph.nodes[first].source
        raise error(
            f"unit {largest!r} of {which}: expected at most {limit:,} bytes, {what}; got {size:,}. {hint}",
            source=None if source is None else str(source),
        )
