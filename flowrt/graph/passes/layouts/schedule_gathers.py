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
from typing import NamedTuple

import numpy as np

from flowrt.dtypes import int32
from flowrt.graph.construction.constant import const
from flowrt.graph.layouts.attributes import COPY, REGATHER, RESIDENT, UNIT
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.array.gather_scatter import gather_op
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, resource_gather
from flowrt.graph.passes.layouts.place_chunks import Placed, place_chunks


class Use(NamedTuple):
    """The node ``reader``, at ``position`` in the step, reads a variable of ``unit`` by ``ref``."""

    position: int
    unit: str
    reader: str
    ref: Ref


def schedule_gathers(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with a read of its own for each stretch; the same object if no variable is gathered."""
    subgraph = _with_whole_tables(subgraph)
    units = _units_of_reads(subgraph)
    if not units:
        return subgraph
    stretches = _stretches(_uses(subgraph, units))
    if not stretches:
        return subgraph
    sizes, limit = _sizes(subgraph)
    places = place_chunks([stretch[0].unit for stretch in stretches], sizes, limit)
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
    """The unit of each read of a variable that is gathered again, by name. A variable that is written before
    a reader of its old value has run is read once.
    """
    handles = {node.name: node.attrs[UNIT] for node in subgraph if REGATHER in node.attrs}
    reads: dict[str, str] = {}
    written: set[str] = set()
    for node in subgraph:
        handle = node.inputs[0][0] if node.inputs else ""
        if node.op is read_variable_op and handle in handles:
            reads[node.name] = handles[handle]
            written.discard(handle)
        elif node.op.effect is Effect.WRITE and handle in handles:
            written.add(handle)
        for name in {name for name, _ in node.inputs} & reads.keys():
            if subgraph.nodes[name].inputs[0][0] in written:
                del reads[name]
    return reads


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
        controls = node.controls
        if node.op.effect is Effect.WRITE and node.inputs:
            controls = (*controls, *of_handle[node.inputs[0][0]])
        nodes[node.name] = node.replace(inputs=inputs, controls=controls)
    return subgraph.replace(nodes=nodes)


def _sizes(subgraph: Subgraph) -> tuple[dict[str, int], int | None]:
    """The bytes of each unit, whole, and the limit of what a device may have of them."""
    sizes: dict[str, int] = defaultdict(int)
    limits = [int(node.attrs[RESIDENT]) for node in subgraph if RESIDENT in node.attrs]
    for node in subgraph:
        if REGATHER in node.attrs and node.op.effect is Effect.HANDLE:
            sizes[node.attrs[UNIT]] += math.prod(node.attrs["shape"]) * node.attrs["dtype"].size
    return sizes, min(limits, default=None)
