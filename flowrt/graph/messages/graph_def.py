"""Nodes to GraphDef, TensorFlow's message for storing, sending and displaying graphs.

An input is "node:1", or "node" for output 0; control inputs "^node" come last. Attributes have the kinds of
the op's definition. Output shapes can be inferred and are stored only on request. A function is stored once
in the library, even if several operations own it; its parameters are arguments of its signature, and in its
nodes an input is "argument", or "node:output:1" with TensorFlow's name of the output.

The inverse is `flowrt.tf1.graph_import.read_graph_def`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

from flowrt import dtypes, protos
from flowrt.errors import OpError
from flowrt.graph.evaluate import located
from flowrt.graph.messages.attr_values import FunctionName, attr_kind, encode_attr, kind_of_value
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import Shape

if TYPE_CHECKING:
    from flowrt.protos.graph_pb2 import FunctionDef, GraphDef, NodeDef

VERSION = 2474
"""The GraphDef version written, and the newest one read: TensorFlow 2.21's."""

OUTPUT_SHAPES = "_output_shapes"
SOURCE = "_source"

WRITTEN_AS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "PartitionedCall": ("StatefulPartitionedCall", {}),
    "TensorListAdd": ("AddN", {"T": dtypes.variant, "N": 2}),
    "TensorListZerosLike": ("ZerosLike", {"T": dtypes.variant}),
}
"""TensorFlow's name for an op, and the attributes that it has there. TensorFlow's PartitionedCall has no
effects, and two ops on numbers also accept lists.
"""

FormatRef: TypeAlias = Callable[[Ref], str]


def subgraph_to_graph_def(subgraph: Subgraph) -> GraphDef:
    """The nodes of ``subgraph`` as a GraphDef, with their shapes; feeds, fetches and targets are left out."""
    return nodes_to_graph_def(subgraph, add_shapes=True)


def nodes_to_graph_def(
    nodes: Iterable[Node], *, add_shapes: bool = False, with_sources: bool = False
) -> GraphDef:
    """A GraphDef of ``nodes`` and of the functions that they own.

    ``add_shapes`` puts the static shapes into attribute "_output_shapes", ``with_sources`` the user's
    "file:line" into "_source". Raises `UnimplementedError` or `InvalidArgumentError`, with the node's name,
    for an attribute that a message cannot hold.
    """
    writer = _Writer(add_shapes, with_sources)
    for node in nodes:
        writer.write_node(writer.graph_def.node.add(), node, format_ref)
    return writer.graph_def


def format_ref(ref: Ref) -> str:
    """A node's input as GraphDef writes it: "node", or "node:1"."""
    name, index = ref
    return name if index == 0 else f"{name}:{index}"


@final
class _Writer:
    """A GraphDef that is being written."""

    def __init__(self, add_shapes: bool, with_sources: bool) -> None:
        self.graph_def = protos.graph_pb2.GraphDef()
        self.graph_def.versions.producer = VERSION
        self._add_shapes, self._with_sources = add_shapes, with_sources
        self._functions: dict[Subgraph, FunctionName] = {}

    def write_node(self, node_def: NodeDef, node: Node, format_input: FormatRef) -> None:
        try:
            self._write_node(node_def, node, format_input)
        except OpError as error:
            raise located(node, error) from None

    def _write_node(self, node_def: NodeDef, node: Node, format_input: FormatRef) -> None:
        node_def.name = node.name
        node_def.op, added = WRITTEN_AS.get(node.op.name, (node.op.name, {}))
        node_def.device = node.device
        node_def.input.extend([format_input(ref) for ref in node.inputs])
        node_def.input.extend([f"^{name}" for name in node.controls])
        for key, value in (*node.attrs.items(), *added.items()):
            kind = attr_kind(node.op, key) or kind_of_value(key, value)
            if value is not None or kind == "shape":
                kind, value = self._with_names(node, key, kind, value)
                encode_attr(node_def.attr[key], key, kind, value)
        if "output_shapes" in node.op.attrs and node.op.effect is Effect.NESTED:
            _write_shapes(node_def.attr, "output_shapes", node.outputs)  # what a loop's variables may become
        if self._add_shapes:
            _write_shapes(node_def.attr, OUTPUT_SHAPES, node.outputs)
        if self._with_sources and node.source is not None:
            encode_attr(node_def.attr[SOURCE], SOURCE, "string", str(node.source))

    def _with_names(self, node: Node, key: str, kind: str, value: Any) -> tuple[str, Any]:
        """Kind and value of an attribute, with functions replaced by their names in the library."""
        if kind == "list(func)":
            return kind, [self._function_name(node, f"{key}{i}", f) for i, f in enumerate(value)]
        if kind != "func":
            return kind, value
        if isinstance(value, Subgraph):
            return kind, self._function_name(node, key, value)
        return "string", str(value)  # compiled partitions only: for display, not for import

    def _function_name(self, owner: Node, key: str, function: Subgraph) -> FunctionName:
        """The name of ``function``, which is then in the library: "while_body_12" is the twelfth."""
        found = self._functions.get(function)
        if found is None:
            scope = re.sub(r"[^A-Za-z0-9_]", "_", owner.name)
            found = FunctionName(f"{scope}_{key}_{len(self._functions)}")
            self._functions[function] = found
            self._write_function(self.graph_def.library.function.add(), found, function)
        return found

    def _write_function(self, function_def: FunctionDef, name: str, function: Subgraph) -> None:
        function_def.signature.name = name
        names = _argument_names(function)
        for i, feed in enumerate(function.feeds):
            spec = function.nodes[feed].outputs[0]
            function_def.signature.input_arg.add(name=names[feed], type=spec.dtype.number)
            _write_shapes(function_def.arg_attr[i].attr, OUTPUT_SHAPES, [spec])

        def format_input(ref: Ref) -> str:
            return names.get(ref[0]) or _format_nested_ref(function.nodes[ref[0]], ref[1])

        for node in function:
            if node.name not in names:
                node = node.replace(controls=tuple(c for c in node.controls if c not in names))
                self.write_node(function_def.node_def.add(), node, format_input)
        for i, ref in enumerate(function.fetches):
            number = function.spec(ref).dtype.number
            function_def.signature.output_arg.add(name=f"result_{i}", type=number)
            function_def.ret[f"result_{i}"] = format_input(ref)
        for i, target in enumerate(function.targets):
            function_def.signature.control_output.append(f"target_{i}")
            function_def.control_ret[f"target_{i}"] = target


def _argument_names(function: Subgraph) -> dict[str, str]:
    """Map from parameters to argument names: lower-case letters, digits and _, distinct from all nodes."""
    taken, names = set(function.nodes), dict[str, str]()
    for feed in function.feeds:
        short = re.sub(r"[^a-z0-9_]", "_", feed.rpartition("/")[2].lower())
        name = short = short if short[:1].isalpha() else f"arg_{short}"
        count = 0
        while name in taken:
            count += 1
            name = f"{short}_{count}"
        taken.add(name)
        names[feed] = name
    return names


def _format_nested_ref(node: Node, index: int) -> str:
    """An input inside a function: "node:output:1" is the second of the outputs "output" of the node."""
    places = [
        f"{argument.name}:{i}" for argument in node.op.outputs for i in range(argument.length(node.attrs))
    ]
    return f"{node.name}:{places[index]}"


def _write_shapes(attrs: Any, key: str, specs: Iterable[TensorSpec]) -> None:
    encode_attr(attrs[key], key, "list(shape)", [written_shape(spec) for spec in specs])


def written_shape(spec: TensorSpec) -> Shape:
    """A tensor's shape in TensorFlow's terms: a list is a scalar, whatever its elements."""
    return () if spec.dtype is dtypes.variant else spec.shape
