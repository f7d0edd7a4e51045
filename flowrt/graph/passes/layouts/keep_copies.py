"""Copies, on the devices, of variables that are kept in parts or in host memory.

A variable with a *copy* (attribute `_copy`) is kept twice: in parts, which its updates change, and whole on
every coordinate, which its readers read. After each write the parts are gathered into the copies. The copy
may have a narrower dtype, in which the parts travel: then casts to it read the copy, and all others the
parts. The copy of a variable in host memory may be in parts too, ``float32 in parts``, on the devices.

    w -> ReadVariableOp -> MatMul           w@copy -> ReadVariableOp -> MatMul
    w -> ResourceApplyAdam          ==>     w -> ResourceApplyAdam
                                            w -> ReadVariableOp, gathered -> AssignVariableOp of w@copy

In loops and branches the variable itself is read.

A variable with the attribute `_rows` is its own copy: every coordinate keeps it whole and updates its part,
rows of the same memory, as a variable of their own. Then the other rows are gathered into it.

    w -> ReadVariableOp -> MatMul           w -> ReadVariableOp -> MatMul
    w -> ResourceApplyAdam          ==>     w -> w@rows -> ResourceApplyAdam
                                            w@rows -> ReadVariableOp, gathered -> _AssignOtherRows of w

ZeRO's stages 1 and 2 keep parameters so (Rajbhandari et al. 2020).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import final

from flowrt import dtypes
from flowrt.dtypes import DType
from flowrt.graph.effects import is_stateful, touches
from flowrt.graph.layouts.attributes import (
    COPY,
    IN_PARTS,
    LAYOUT,
    MEMORY,
    MESH,
    REGATHER,
    ROWS,
    STORED,
    SUMMED,
    UNIT,
)  # fmt: skip
from flowrt.graph.layouts.memory_places import place_of
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.base.identities import cast_op
from flowrt.graph.ops.state.variable_ops import (
    assign_other_rows_op,
    assign_variable_op,
    read_variable_op,
    resource_gather,
    rows_of_variable_op,
    var_handle_op,
)


def keep_copies(subgraph: Subgraph) -> Subgraph:
    """``subgraph`` with reads and refreshed contents of copies; the same object if no variable has one."""
    if not any((COPY in n.attrs or ROWS in n.attrs) and n.op is var_handle_op for n in subgraph):
        return subgraph
    return _Rewrite(subgraph).run()


@final
class _Rewrite:
    def __init__(self, subgraph: Subgraph) -> None:
        self._given = subgraph
        self._handles = {node.name: node for node in subgraph if COPY in node.attrs}
        """The variables with a copy."""
        self._wholes = {node.name: node for node in subgraph if ROWS in node.attrs}
        """The variables of which rows are updated."""
        self._nodes: dict[str, Node] = {}
        self._ends: dict[str, tuple[str, ...]] = {}
        """Operations to wait for in place of a node."""
        self._reads: dict[str, list[str]] = defaultdict(list)
        """The reads of each variable since its last write."""
        self._stale: set[str] = set()
        """Reads after which their variables were written."""

    def run(self) -> Subgraph:
        for node in self._given:
            for made in self._rewritten(node.redirected({}, self._ends)):
                self._nodes[made.name] = made
        targets = [end for name in self._given.targets for end in self._ends.get(name, (name,))]
        return self._given.replace(nodes=self._nodes, targets=tuple(targets))

    def _rewritten(self, node: Node) -> Iterator[Node]:
        if node.name in self._handles:
            yield node
            yield copy_of(node)
        elif node.name in self._wholes:
            yield node
            yield _rows_of(node)
        elif node.op in (read_variable_op, resource_gather) and self._has_equal_copy(node.inputs[0]):
            yield node.replace(inputs=(_copy(node.inputs[0]), *node.inputs[1:]))
        elif node.op is cast_op and (read := self._read_of(node)) is not None:
            attrs = {"dtype": node.outputs[0].dtype}
            yield node.beside(
                node.name, read_variable_op, (_copy(read.inputs[0]),), read.controls, attrs, node.outputs
            )
            self._ends[read.name] = (*self._ends.get(read.name, (read.name,)), node.name)
        else:
            updated = self._updated(node)
            node = node.replace(inputs=tuple(_rows(ref) if ref in updated else ref for ref in node.inputs))
            yield node
            if node.op is read_variable_op:
                self._reads[node.inputs[0][0]].append(node.name)
            if node.op.effect is Effect.WRITE or (node.op.effect is Effect.NESTED and is_stateful(node)):
                yield from self._refreshed(node, updated)

    def _updated(self, node: Node) -> list[Ref]:
        """The variables of which ``node`` updates the rows: all that it writes but for what it sets."""
        if node.op is assign_variable_op or not self._wholes:
            return []
        return [handle for handle, writes in touches(node) if writes and handle[0] in self._wholes]

    def _has_equal_copy(self, handle: Ref) -> bool:
        found = self._handles.get(handle[0])
        return found is not None and _dtype_of_copy(found) is found.attrs["dtype"]

    def _read_of(self, cast: Node) -> Node | None:
        """The read of which ``cast`` is in the copy as well."""
        read = self._given.nodes[cast.inputs[0][0]]
        if read.op is not read_variable_op or read.name in self._stale:
            return None
        handle = self._handles.get(read.inputs[0][0])
        is_copy = handle is not None and _dtype_of_copy(handle) is cast.outputs[0].dtype
        return self._nodes[read.name] if is_copy else None

    def _refreshed(self, write: Node, updated: Sequence[Ref]) -> Iterator[Node]:
        """The operations after ``write`` that gather what it wrote into copies, and into wholes of which it
        ``updated`` rows.
        """
        ends: list[str] = []
        for whole in updated:
            found, stem = self._wholes[whole[0]], f"{write.name}/{whole[0]}@whole"
            read = _read(write, f"{stem}/rows", _rows(whole)[0], found.attrs["dtype"], found)
            attrs = {"dtype": found.attrs["dtype"]}
            yield read
            given = (whole, _rows(whole), (read.name, 0))
            yield write.beside(stem, assign_other_rows_op, given, (write.name,), attrs)
            ends.append(stem)
        for handle in dict.fromkeys(name for name, _ in write.inputs if name in self._handles):
            found = self._handles[handle]
            own, dtype = found.attrs["dtype"], _dtype_of_copy(found)
            stem = f"{write.name}/{handle}@copy"
            read = _read(write, f"{stem}/parts", handle, own, found)
            yield read
            value: Ref = (read.name, 0)
            if dtype is not own:
                spec = TensorSpec(dtype, found.attrs["shape"])
                attrs = {"SrcT": own, "DstT": dtype, "Truncate": False, UNIT: found.attrs[UNIT]}
                yield write.beside(f"{stem}/cast", cast_op, (value,), (), attrs, (spec,))
                value = (f"{stem}/cast", 0)
            inputs = (_copy((handle, 0)), value)
            yield write.beside(stem, assign_variable_op, inputs, (write.name,), {"dtype": dtype})
            ends.append(stem)
            self._stale.update(self._reads.pop(handle, ()))
        if ends:
            self._ends[write.name] = tuple(ends)


def copy_of(handle: Node) -> Node:
    """The handle of the copy that the variable ``handle`` has."""
    is_in_parts = IN_PARTS in handle.attrs[COPY]
    kept = (MESH, LAYOUT, SUMMED, *((STORED, UNIT, REGATHER) if is_in_parts else ()))
    place = place_of(handle.attrs) if is_in_parts else None
    attrs = {
        "dtype": _dtype_of_copy(handle), "shape": handle.attrs["shape"], "shared_name": "",
        "container": handle.attrs.get("container", ""),
        **{key: handle.attrs[key] for key in kept if key in handle.attrs},
        **({} if place is None else {MEMORY: str(place._replace(name=f"{place.name}@copy"))}),
    }  # fmt: skip
    return handle.replace(name=_copy((handle.name, 0))[0], attrs=attrs)


def _dtype_of_copy(handle: Node) -> DType:
    return dtypes.as_dtype(str(handle.attrs[COPY]).removesuffix(IN_PARTS))


def _copy(handle: Ref) -> Ref:
    return f"{handle[0]}@copy", 0


def _read(write: Node, name: str, handle: str, dtype: DType, found: Node) -> Node:
    spec = TensorSpec(dtype, found.attrs["shape"])
    attrs = {"dtype": dtype, UNIT: found.attrs[UNIT]}
    return write.beside(name, read_variable_op, ((handle, 0),), (write.name,), attrs, (spec,))


def _rows_of(handle: Node) -> Node:
    """The handle of the rows that a coordinate updates of the variable ``handle``."""
    shape = handle.attrs["shape"]
    attrs = {key: handle.attrs[key] for key in (MESH, LAYOUT, STORED, UNIT)}
    name, inputs = _rows((handle.name, 0))[0], ((handle.name, 0),)
    attrs |= {"begin": 0, "end": shape[0]}
    return handle.replace(name=name, op=rows_of_variable_op, inputs=inputs, attrs=attrs)


def _rows(handle: Ref) -> Ref:
    return f"{handle[0]}@rows", 0
