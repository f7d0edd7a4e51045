"""Reference variables of TensorFlow 1 as variables with handles, during import.

A reference is a variable's memory: a reader sees what is there by then, and an assignment passes it on. In
flowrt a handle names the variable, and each read is an operation, ordered by creation. So

- ``Variable w`` becomes the handle ``w``, with ``w/Read/ReadVariableOp`` beside it, which is fetched for it;
- an operation that reads the value of a reference gets a read of its own, right before it and with its
  control inputs, so that it sees the assignments that it waits for;
- ``Assign``, ``ApplyAdam`` and others become the operations on handles. The name of one stays with a read
  behind it; that of an optimizer's update, which nobody fetches, only where another operation reads it.

Where TensorFlow leaves open which of an assignment and a read comes first, the order of the file decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.graph.effects import AT_END
from flowrt.graph.evaluate import located
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import OpDef
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.state.variable_ops import read_variable_op, var_handle_op
from flowrt.graph.topology import sort_topologically
from flowrt.tf1.graph_import import reference_ops, v1_ops
from flowrt.tf1.graph_import.import_branches import unused_name
from flowrt.tf1.graph_import.reference_ops import is_optimizers, on_handles, reference_op

_PASSING: Mapping[OpDef, OpDef] = {
    reference_ops.REF_IDENTITY: identity,
    reference_ops.REF_SWITCH: v1_ops.SWITCH,
    reference_ops.REF_ENTER: v1_ops.ENTER,
}
_OF_VALUES: Mapping[OpDef, OpDef] = {
    reference_ops.REF_MERGE: v1_ops.MERGE,
    reference_ops.REF_EXIT: v1_ops.EXIT,
    reference_ops.REF_NEXT_ITERATION: v1_ops.NEXT_ITERATION,
}


def references_to_handles(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with handles in place of references; the same object if there
    are none. Raises `InvalidArgumentError`, with the node's name, for an update of what is no reference.
    """
    if not any(_is_on_references(node) for node in nodes.values()):
        return nodes
    return _Rewriter(nodes).run()


def _is_on_references(node: Node) -> bool:
    return reference_op(node.op.name) is node.op


@final
class _Rewriter:
    """``made`` are the resulting nodes, ``handles`` the handles behind references, ``owners`` the nodes
    for which others were added.
    """

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self._nodes, self._made = nodes, dict[str, Node]()
        self._taken = set(nodes)
        self._handles: dict[Ref, Ref] = {}
        self._owners: dict[str, str] = {}
        self._read = {ref for node in nodes.values() for ref in node.inputs}
        self._unchecked = {
            node.inputs[0][0]
            for node in nodes.values()
            if node.op is reference_ops.ASSIGN and node.inputs and not node.attrs.get("validate_shape", True)
        }

    def run(self) -> dict[str, Node]:
        for name in sort_topologically(_without_back_edges(self._nodes)):
            node = self._nodes[name]
            if not _is_on_references(node) or node.op in _OF_VALUES:
                op = _OF_VALUES.get(node.op, node.op)
                self._put(self._with_values(node, range(len(node.inputs))).replace(op=op))
            elif node.op is reference_ops.VARIABLE:
                self._variable(node)
            elif node.op in _PASSING:
                self._pass_on(node)
            else:
                self._update(node)
        return self._in_the_files_order()

    def _in_the_files_order(self) -> dict[str, Node]:
        """Nodes in loops were met in another order; those that were added stand where their owner does."""
        place = {name: i for i, name in enumerate(self._nodes)}
        order = {name: place[self._owners.get(name, name)] for name in self._made}
        return {name: self._made[name] for name in sorted(self._made, key=order.__getitem__)}

    # --- kinds of nodes

    def _variable(self, node: Node) -> None:
        shape = None if node.name in self._unchecked else node.attrs["shape"]
        attrs = {key: value for key, value in node.attrs.items() if key != OUTPUT_SHAPES}
        self._put(node.replace(op=var_handle_op, attrs={**attrs, "shape": shape, "shared_name": node.name}))
        self._handles[node.name, 0] = node.name, 0
        read = node.beside(
            f"{node.name}/Read/ReadVariableOp", read_variable_op, ((node.name, 0),), (),
            {"dtype": node.attrs["dtype"], AT_END: True},
        )  # fmt: skip
        if read.name not in self._taken:
            self._put(read, node)

    def _pass_on(self, node: Node) -> None:
        made = self._with_values(node, range(1, len(node.inputs)))
        attrs = {key: value for key, value in node.attrs.items() if key != OUTPUT_SHAPES}
        self._put(
            made.replace(
                op=_PASSING[node.op],
                inputs=(self._handle(node, 0), *made.inputs[1:]),
                controls=self._controls(node, [node.inputs[0]], made.controls),
                attrs={**attrs, "T": dtypes.resource},
            )
        )
        for output in range(len(node.op.outputs)):
            self._handles[node.name, output] = node.name, output

    def _update(self, node: Node) -> None:
        """Replace an op on references by that on handles, and let what it returns be a read behind it."""
        op = on_handles(node.op)
        if len(node.inputs) != len(op.inputs):
            message = f"expected {len(op.inputs)} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))
        references = [i for i, argument in enumerate(op.inputs) if argument.dtype is dtypes.resource]
        made = self._with_values(node, [i for i in range(len(node.inputs)) if i not in references])
        inputs = [self._handle(node, i) if i in references else ref for i, ref in enumerate(made.inputs)]
        number = node.attrs.get("T", node.attrs.get("dtype"))
        given = {
            key: value for key, value in node.attrs.items() if key.startswith("_") and key != OUTPUT_SHAPES
        }
        for key in (*op.types, *op.attrs):
            if key in ("T", "dtype"):
                given[key] = number
            elif key in node.attrs:
                given[key] = node.attrs[key]
        controls = self._controls(node, [node.inputs[i] for i in references], made.controls)
        made = made.replace(op=op, inputs=tuple(inputs), controls=controls, attrs=given)
        if op.outputs or (is_optimizers(node.op) and (node.name, 0) not in self._read):
            self._put(made)
            return
        written = unused_name(f"{node.name}/{op.name}", self._taken)
        self._put(made.replace(name=written), node)
        shapes = {OUTPUT_SHAPES: node.attrs[OUTPUT_SHAPES]} if OUTPUT_SHAPES in node.attrs else {}
        read = node.beside(node.name, read_variable_op, (inputs[0],), (written,), {"dtype": number, **shapes})
        self._put(read)
        self._handles[node.name, 0] = inputs[0]

    # --- their inputs

    def _handle(self, node: Node, position: int) -> Ref:
        ref = node.inputs[position]
        if ref not in self._handles:
            message = f"expected input {position} to be a reference to a variable; got {ref[0]!r}"
            raise located(node, InvalidArgumentError(message))
        return self._handles[ref]

    def _controls(self, node: Node, references: list[Ref], controls: tuple[str, ...]) -> tuple[str, ...]:
        """The control inputs of a node on references: after what passed these on."""
        before = [ref[0] for ref in references if self._handles[ref] != ref]
        return tuple(dict.fromkeys([*controls, *before]))

    def _with_values(self, node: Node, positions: Any) -> Node:
        """``node``, with reads in place of the references at ``positions``."""
        reads: dict[Ref, Ref] = {}
        for position in positions:
            ref = node.inputs[position]
            if ref in self._handles and ref not in reads:
                reads[ref] = self._add_read(node, ref), 0
        if not reads:
            return node
        return node.replace(inputs=tuple(reads.get(ref, ref) for ref in node.inputs))

    def _add_read(self, node: Node, ref: Ref) -> str:
        name = unused_name(f"{node.name}/ReadVariableOp", self._taken)
        handle = self._handles[ref]
        controls = self._controls(node, [ref], node.controls)
        self._put(
            node.beside(name, read_variable_op, (handle,), controls, {"dtype": self._dtype(handle)}), node
        )
        return name

    def _dtype(self, handle: Ref) -> Any:
        name = handle[0]
        while self._made[name].op is not var_handle_op:
            name = self._made[name].inputs[0][0]
        return self._made[name].attrs["dtype"]

    def _put(self, node: Node, owner: Node | None = None) -> None:
        self._made[node.name] = node
        if owner is not None:
            self._owners[node.name] = owner.name


def _without_back_edges(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """``nodes`` without the edges that close loops, and without those from others, which are replaced."""

    def is_before(ref: Ref, node: Node) -> bool:
        if ref[0] not in nodes:
            return False
        closes = nodes[ref[0]].op in (v1_ops.NEXT_ITERATION, reference_ops.REF_NEXT_ITERATION)
        return not (closes and node.op in (v1_ops.MERGE, reference_ops.REF_MERGE))

    return {
        node.name: node.replace(
            inputs=tuple(ref for ref in node.inputs if is_before(ref, node)),
            controls=tuple(c for c in node.controls if c in nodes),
        )
        for node in nodes.values()
    }
