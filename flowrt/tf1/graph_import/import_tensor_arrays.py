"""TensorArrays of TensorFlow 1 as lists, during import.

In TensorFlow 1 an array is a resource: its handle identifies it, and every write returns a flow, a number
that serves only to order reads after the write. A list needs no handle: it is itself the value that flows. So
the flow of an array becomes the list, operations lose the handle input, and operations that forward flows and
handles (Enter, Switch, Merge, Identity, ...) forward lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.constant import const
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import OpDef, op_def
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.lists.tensor_lists import format_element_shape
from flowrt.graph.shapes import Shape
from flowrt.tf1.graph_import import v1_ops

_PASSING = (v1_ops.ENTER, v1_ops.EXIT, identity, v1_ops.MERGE, v1_ops.NEXT_ITERATION, v1_ops.SWITCH)


def arrays_to_lists(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    """``nodes``, which have no output specs, with lists in place of TensorArrays; the same object if there
    are none. Raises `InvalidArgumentError`, with the node's name, for a handle not made by a TensorArray.
    """
    if not any(node.op in _RULES for node in nodes.values()):
        return nodes
    return _Rewriter(nodes).run()


@final
class _Rewriter:
    """``nodes`` are the original nodes, ``made`` the resulting ones."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes, self.made = nodes, dict[str, Node]()

    def run(self) -> dict[str, Node]:
        for node in self.nodes.values():
            made = self._rewritten(node) if node.op in _RULES else node
            self.made[made.name] = made.replace(inputs=tuple(map(self._list, made.inputs)))
        self._pass_lists_on()
        return self.made

    def _rewritten(self, node: Node) -> Node:
        count = len(node.op.inputs)
        if len(node.inputs) != count:
            message = f"expected {count} inputs; got {len(node.inputs)}"
            raise located(node, InvalidArgumentError(message))
        return _RULES[node.op](self, node)

    def _list(self, ref: Ref) -> Ref:
        """The list for the handle or flow of an array, both outputs of one operation."""
        producer = self.nodes.get(ref[0])
        return (ref[0], 0) if producer is not None and producer.op is v1_ops.TENSOR_ARRAY else ref

    def _pass_lists_on(self) -> None:
        """Set the types of the operations that forward lists."""
        readers: dict[str, list[str]] = {}
        for node in self.made.values():
            for name, _ in node.inputs:
                readers.setdefault(name, []).append(node.name)
        waiting = [name for name, node in self.nodes.items() if node.op in _MAKE_LISTS]
        while waiting:
            for name in readers.get(waiting.pop(), ()):
                node = self.made[name]
                if node.op in _PASSING and node.attrs.get("T") is not dtypes.variant:
                    self.made[name] = node.replace(attrs={**node.attrs, "T": dtypes.variant})
                    waiting.append(name)

    def array(self, node: Node) -> Node:
        """The TensorArrayV3 with the handle that ``node`` reads."""
        name, seen = node.inputs[0][0] if node.inputs else "", set[str]()
        while name in self.nodes and name not in seen:
            seen.add(name)
            found = self.nodes[name]
            if found.op is v1_ops.TENSOR_ARRAY:
                return found
            if found.op not in _PASSING or not found.inputs:
                break
            name = found.inputs[0][0]
        message = f"expected the handle of a TensorArrayV3; got {node.inputs[:1]}"
        raise located(node, InvalidArgumentError(message))

    def become(self, node: Node, op: str, *inputs: Ref, **attrs: Any) -> Node:
        """``node`` with another op."""
        kept = {key: value for key, value in node.attrs.items() if key.startswith("_")}
        return node.replace(op=op_def(op), inputs=inputs, attrs={**kept, **attrs})

    def constant(self, node: Node, name: str, array: np.ndarray[Any, Any]) -> Ref:
        """A new constant for ``node``, in the same frame and branch: it has a control edge from one of its
        inputs.
        """
        full = f"{node.name}/{name}"
        while full in self.nodes or full in self.made:
            full += "_"
        waits = (node.inputs[-1][0],)
        attrs = {"value": array, "dtype": as_dtype(array.dtype)}
        self.made[full] = Node(full, const, (), waits, attrs, node.device, node.source, ())
        return full, 0

    def element_shape(self, node: Node, shape: Shape) -> Ref:
        return self.constant(node, "element_shape", np.array(format_element_shape(shape), np.int32))


def _make(r: _Rewriter, node: Node) -> Node:
    shape = r.element_shape(node, node.attrs["element_shape"])
    return r.become(node, "TensorListReserve", shape, node.inputs[0], element_dtype=node.attrs["dtype"])


def _write(r: _Rewriter, node: Node) -> Node:
    _, index, value, flow = node.inputs
    resizes = r.array(node).attrs["dynamic_size"]
    attrs = {"resize_if_index_out_of_bounds": resizes, "_write_once": True}
    return r.become(node, "TensorListSetItem", flow, index, value, **attrs)


def _read(r: _Rewriter, node: Node) -> Node:
    _, index, flow = node.inputs
    shape = r.element_shape(node, r.array(node).attrs["element_shape"])
    return r.become(node, "TensorListGetItem", flow, index, shape, element_dtype=node.attrs["dtype"])


def _gather(r: _Rewriter, node: Node) -> Node:
    _, indices, flow = node.inputs
    shape = r.element_shape(node, node.attrs["element_shape"])
    return r.become(node, "TensorListGather", flow, indices, shape, element_dtype=node.attrs["dtype"])


def _scatter(r: _Rewriter, node: Node) -> Node:
    _, indices, value, flow = node.inputs
    attrs = {"_resizes": r.array(node).attrs["dynamic_size"], "_write_once": True}
    return r.become(node, "TensorListScatterIntoExistingList", flow, value, indices, **attrs)


def _concat(r: _Rewriter, node: Node) -> Node:
    rows = node.attrs["element_shape_except0"]
    shape = r.element_shape(node, None if rows is None else (None, *rows))
    lengths = r.constant(node, "leading_dims", np.zeros(0, np.int64))
    inputs = (node.inputs[1], shape, lengths)
    return r.become(node, "TensorListConcatV2", *inputs, element_dtype=node.attrs["dtype"])


def _split(r: _Rewriter, node: Node) -> Node:
    _, value, lengths, _ = node.inputs
    shape = r.element_shape(node, r.array(node).attrs["element_shape"])
    return r.become(node, "TensorListSplit", value, shape, lengths)


_MAKE_LISTS = (v1_ops.TENSOR_ARRAY, v1_ops.WRITE, v1_ops.SCATTER, v1_ops.SPLIT)
_RULES: Mapping[OpDef, Callable[[_Rewriter, Node], Node]] = {
    v1_ops.TENSOR_ARRAY: _make,
    v1_ops.WRITE: _write,
    v1_ops.READ: _read,
    v1_ops.GATHER: _gather,
    v1_ops.SCATTER: _scatter,
    v1_ops.CONCAT: _concat,
    v1_ops.SPLIT: _split,
    v1_ops.SIZE: lambda r, node: r.become(node, "TensorListLength", node.inputs[1]),
    v1_ops.CLOSE: lambda r, node: r.become(node, "NoOp"),
}
