"""Units of variables that are kept in parts, found in the step: what is used one after the other is one unit.

A unit is what is gathered at once, see `schedule_gathers`. Where the script names none, the variables of a
repeated scope (``block_3/``), or a variable that is in none, are a *block*; blocks are joined in the order in
which the step first uses them, in whatever order they were made, while they are small together.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flowrt.graph.layouts.attributes import FOUND, UNIT
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import read_variable_op, var_handle_op

UNIT_BYTES = 25 << 20
"""Blocks of this size together are one unit, unless one is larger (PyTorch's DDP has buckets of it)."""


class Block(NamedTuple):
    """Variables that are never divided: those with names in ``scope``. Frozen ones, and those of other
    dtypes, are blocks of another ``kind``, and are not joined with these.
    """

    scope: str
    kind: str

    def __str__(self) -> str:
        """The `UNIT` of its variables as they are made."""
        return f"{FOUND} {self.kind} {self.scope}"


def join_units(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with the units of blocks; the same object if the script names all units, or has none."""
    blocks = blocks_of(subgraph)
    if not blocks:
        return subgraph
    units = units_in_order(subgraph.nodes, blocks, _in_order_of_use(subgraph, blocks))

    def with_unit(node: Node) -> Node:
        unit = units.get(node.attrs.get(UNIT, ""))
        return node if unit is None else node.replace(attrs={**node.attrs, UNIT: unit})

    return subgraph.mapped(with_unit)


def blocks_of(handles: Iterable[Node]) -> dict[str, Block]:
    """The blocks of those variables ``handles`` that are found to be of a unit, by name."""
    units = {node.name: str(node.attrs.get(UNIT, "")) for node in handles if node.op is var_handle_op}
    return {name: _parsed(unit) for name, unit in units.items() if unit.startswith(f"{FOUND} ")}


def _parsed(text: str) -> Block:
    _, kind, scope = text.split(" ", 2)
    return Block(scope, kind)


def units_in_order(
    nodes: Mapping[str, Node], blocks: Mapping[str, Block], order: Iterable[str]
) -> dict[str, str]:
    """The unit of each of ``blocks``, by its text, if variables come in this ``order``: the name of the first
    variable of it. ``nodes`` are the handles, with others.
    """
    sizes: dict[Block, int] = defaultdict(int)
    for name, block in blocks.items():
        attrs = nodes[name].attrs
        sizes[block] += math.prod(attrs["shape"]) * attrs["dtype"].size
    units: dict[str, str] = {}
    last: dict[str, tuple[str, int]] = {}
    """The unit to which the next block of a kind may be added, and its bytes."""
    for name in order:
        block = blocks[name]
        if str(block) in units:
            continue
        unit, nbytes = last.get(block.kind, (name, 0))
        if nbytes and nbytes + sizes[block] > UNIT_BYTES:
            unit, nbytes = name, 0
        units[str(block)] = unit
        last[block.kind] = unit, nbytes + sizes[block]
    return units


def _in_order_of_use(subgraph: Subgraph, blocks: Mapping[str, Block]) -> list[str]:
    """The variables in the order in which something is first computed from them, then those that only other
    operations have.
    """
    variable: dict[str, str] = {name: name for name in blocks}
    """The variable of which a node is the handle, the value, or a cast of it."""
    found: dict[str, None] = {}
    for node in subgraph:
        passes_on = node.op in (read_variable_op, cast_op) and node.inputs[0][0] in variable
        if passes_on:
            variable[node.name] = variable[node.inputs[0][0]]
        else:
            found |= dict.fromkeys(variable[name] for name, _ in node.inputs if name in variable)
    return [*found, *(name for name in blocks if name not in found)]
