"""A GraphDef with ops that flowrt does not have: it cannot be built but can be drawn.

Checks only what a drawing needs: names are unique, and edges end at nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError, nearest
from flowrt.graph.construction.constant import feed_op, placeholder_op
from flowrt.graph.evaluate import located
from flowrt.graph.functions.control_flow import call_op
from flowrt.graph.messages.attr_values import (
    MAX_LIST_LENGTH,
    FunctionName,
    attr_kind,
    decode_attr,
    kind_of_message,
)
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES
from flowrt.graph.messages.tensor_proto import decode_type
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs
from flowrt.graph.op_def import Argument, Attr, Effect, OpDef
from flowrt.graph.ops.collective.transfer import recv_op, send_op
from flowrt.graph.ops.text.python_calls import no_op
from flowrt.graph.shapes import Shape
from flowrt.tf1.graph_import.import_partitions import join_parts
from flowrt.tf1.graph_import.read_graph_def import MAX_NESTING, MAX_NODES, find_op
from flowrt.viz.foreign_specs import UNKNOWN, with_specs
from flowrt.viz.from_parts import PAIR

GraphDef = Any  # the messages of flowrt.protos.graph_pb2
NodeDef = Any
FunctionDef = Any


def read_foreign(graph_def: GraphDef) -> Subgraph:
    """The nodes of ``graph_def``, with any ops; in file order if it has a cycle.

    Raises `InvalidArgumentError` for duplicate names and for inputs that are not nodes;
    `ResourceExhaustedError` for more than `MAX_NODES`.
    """
    reader = _Reader(graph_def)
    nodes = _check_edges({node.name: node for node in reader.read(graph_def.node, _global_ref, {})})
    with suppress(InvalidArgumentError):  # one part of several: its ends are drawn
        nodes = join_parts(nodes)
    if (count := _num_nodes(Subgraph(nodes), {})) > MAX_NODES:
        raise ResourceExhaustedError(
            f"GraphDef: expected at most {MAX_NODES} nodes, those of a function once per owner; got {count}"
        )
    return with_specs(Subgraph(nodes))


def _num_nodes(graph: Subgraph, known: dict[Subgraph, int]) -> int:
    """The number of nodes, with those of a function counted once per owner."""
    if graph not in known:
        inner = [function for node in graph for function in owned_subgraphs(node.attrs)]
        known[graph] = len(graph) + sum([_num_nodes(function, known) for function in inner])
    return known[graph]


def needed(graph: Subgraph, fetches: Iterable[Any]) -> Subgraph:
    """The subgraph of ``graph`` for the operations and tensors ``fetches`` names. Raises `NotFoundError`."""
    waiting = [str(getattr(fetch, "name", fetch)).partition(":")[0] for fetch in fetches]
    for name in waiting:
        if name not in graph.nodes:
            raise NotFoundError(
                f"fetches: expected names of the graph; got {name!r}.{nearest(name, graph.nodes)}"
            )
    found: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            node = graph.nodes[name]
            waiting += [*[producer for producer, _ in node.inputs], *node.controls]
    return graph.with_nodes([node for node in graph if node.name in found])


def _check_edges(nodes: Mapping[str, Node]) -> Mapping[str, Node]:
    for node in nodes.values():
        for name in (*[name for name, _ in node.inputs], *node.controls):
            if name not in nodes:
                message = f"expected inputs that are nodes; got {name[:200]!r}.{nearest(name[:200], nodes)}"
                raise located(node, InvalidArgumentError(message))
    return nodes


# --- nodes


ParseRef: TypeAlias = Callable[[str], Ref]
Outputs: TypeAlias = Mapping[str, Mapping[str, int]]


def _global_ref(text: str) -> Ref:
    name, colon, index = text.rpartition(":")
    return (name, _number(index)) if colon else (text, 0)


def _number(text: str) -> int:
    """The index of an output. Raises `InvalidArgumentError`."""
    if text.isdecimal() and len(text) < 6 and int(text) < MAX_LIST_LENGTH:
        return int(text)
    raise InvalidArgumentError(f"expected outputs below {MAX_LIST_LENGTH}; got {text[:200]!r}")


@final
class _Reader:
    """One GraphDef that is being read."""

    def __init__(self, graph_def: GraphDef) -> None:
        self._library = {f.signature.name: f for f in graph_def.library.function}
        self._functions: dict[str, Subgraph] = {}
        self._open: list[str] = []

    def read(self, node_defs: Iterable[NodeDef], parse: ParseRef, outputs: Outputs) -> Iterator[Node]:
        """``outputs`` of the nodes that are read by name."""
        seen = set()
        for node_def in node_defs:
            name = node_def.name
            if name in seen or not name.isprintable() or not name:
                message = f"node name: expected a unique printable name; got {name[:200]!r}"
                raise InvalidArgumentError(message)
            seen.add(name)
            yield self._node(node_def, parse, outputs.get(name, {}))

    def _node(self, node_def: NodeDef, parse: ParseRef, outputs: Mapping[str, int]) -> Node:
        inputs = tuple([parse(text) for text in node_def.input if not text.startswith("^")])
        controls = dict.fromkeys(text[1:] for text in node_def.input if text.startswith("^"))
        if node_def.op in self._library:  # a call under the function's own name
            op, attrs = call_op, {"f": self._function(FunctionName(node_def.op))}
        else:
            op = find_op(node_def.op) or _unknown_op(node_def.op, outputs)
            lengths = {
                a.number_attr: outputs[a.name] for a in op.outputs if a.name in outputs and a.number_attr
            }
            op, attrs = self._with_attributes(op, lengths, node_def.attr)
        return Node(node_def.name, op, inputs, tuple(controls), attrs, node_def.device, None, ())

    def _with_attributes(
        self, op: OpDef, given: Mapping[str, Any], messages: Mapping[str, Any]
    ) -> tuple[OpDef, dict[str, Any]]:
        """``op`` with the kinds of all attributes that there are, and these."""
        attrs = {key: attr.default for key, attr in op.attrs.items() if not attr.required} | {**given}
        kinds: dict[str, Attr] = {}
        for key, message in sorted(messages.items()):
            kind, value = self._attribute(key, message)
            if key not in (OUTPUT_SHAPES, "output_shapes") or kind == "list(shape)":
                attrs[key] = value
                kinds |= {key: Attr(kind)} if attr_kind(op, key) != kind else {}
        if op.name == "Const" and not isinstance(attrs.get("value"), np.ndarray):
            return _left_out(attrs)
        if op in (send_op, recv_op) and not all(isinstance(attrs.get(key), str) for key in PAIR):
            raise InvalidArgumentError(f"{op.name}: expected the attributes {', '.join(PAIR)}")
        if owned_subgraphs(attrs):
            op = replace(op, effect=Effect.NESTED)
            if "output_shapes" in attrs:  # written by the outputs
                attrs = {OUTPUT_SHAPES: attrs["output_shapes"], **attrs, "output_shapes": ()}
        return replace(op, attrs={**op.attrs, **kinds}) if kinds else op, attrs

    def _attribute(self, key: str, message: Any) -> tuple[str, Any]:
        """Kind and value; as text if flowrt cannot represent it."""
        try:
            value = decode_attr(message, key, None)
        except OpError:
            return "string", " ".join(str(message).split())
        if isinstance(value, FunctionName):
            value = self._function(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], FunctionName):
            value = tuple(map(self._function, value))
        return kind_of_message(message), value

    def _function(self, name: FunctionName) -> Any:
        """The function, or its name if it cannot be shown."""
        if name in self._functions:
            return self._functions[name]
        if name not in self._library or name in self._open or len(self._open) == MAX_NESTING:
            return name
        self._open.append(name)
        self._functions[name] = function = self._read_function(self._library[name])
        self._open.pop()
        return function

    def _read_function(self, function_def: FunctionDef) -> Subgraph:
        signature = function_def.signature
        arguments = [arg.name for arg in signature.input_arg]
        parameters = {
            arg.name: _parameter(arg, function_def.arg_attr[i].attr)
            for i, arg in enumerate(signature.input_arg)
        }
        places = _Places(function_def)
        inside = self.read(function_def.node_def, places.ref, places.outputs)
        nodes = _check_edges({**parameters, **{node.name: node for node in inside}})
        fetches = [places.ref(function_def.ret[arg.name]) for arg in signature.output_arg]
        targets = [function_def.control_ret[name] for name in signature.control_output]
        ends = [name for name, _ in fetches] + targets
        if not set(ends) <= set(nodes):
            raise InvalidArgumentError(
                f"function {signature.name[:200]!r}: expected results of its own nodes"
            )
        return Subgraph(nodes, tuple(arguments), tuple(fetches), tuple(targets))


def _left_out(attrs: dict[str, Any]) -> tuple[OpDef, dict[str, Any]]:
    """A constant without its value, or of a dtype that flowrt lacks."""
    dtype = attrs.get("dtype")
    return placeholder_op, {**attrs, "dtype": dtype if isinstance(dtype, DType) else UNKNOWN, "shape": None}


def _parameter(arg: Any, attrs: Any) -> Node:
    spec = TensorSpec(_dtype(arg.type), _one_shape(attrs))
    return Node(arg.name, feed_op, (), (), {"dtype": spec.dtype, "shape": spec.shape}, "", None, (spec,))


def _dtype(number: int) -> DType:
    try:
        return decode_type(number)
    except OpError:  # any type, or one that flowrt lacks
        return UNKNOWN


def _one_shape(attrs: Any) -> Shape:
    """The shape of a function's argument, if the file has it."""
    try:
        shapes: tuple[Shape, ...] = decode_attr(attrs[OUTPUT_SHAPES], OUTPUT_SHAPES, "list(shape)")
        (shape,) = shapes
    except (OpError, ValueError):
        return None
    return shape


@final
class _Places:
    """The indices of outputs in a function, for references of the form "node:output:index"."""

    def __init__(self, function_def: FunctionDef) -> None:
        self._ops = {node_def.name: find_op(node_def.op) for node_def in function_def.node_def}
        self.outputs: dict[str, dict[str, int]] = {}
        """The names of the outputs of each node that is read, each with its minimum number of tensors."""
        texts = [text for node_def in function_def.node_def for text in node_def.input]
        for text in (*texts, *function_def.ret.values()):
            name, output, index = _parts(text)
            if output:
                found = self.outputs.setdefault(name, {})
                found[output] = max(found.get(output, 0), index + 1)

    def ref(self, text: str) -> Ref:
        """Counted by the op's definition, or in the order in which the outputs are read."""
        name, output, index = _parts(text)
        op = self._ops.get(name)
        if op is not None and output in (names := [a.name for a in op.outputs]):
            return name, names.index(output) + index
        read = self.outputs.get(name, {})
        before = takewhile(lambda each: each != output, read)
        return name, sum([read[each] for each in before]) + index


def _parts(text: str) -> tuple[str, str, int]:
    name, _, place = text.partition(":")
    output, _, index = place.partition(":")
    return name, output, _number(index) if index else 0


def _unknown_op(name: str, outputs: Mapping[str, int]) -> OpDef:
    """An op with the outputs that are read by name."""
    arguments = [
        Argument(output, None, UNKNOWN, f"_num_{output}" if count > 1 else None, False, False, count > 1)
        for output, count in outputs.items()
    ]
    return replace(no_op, name=name, outputs=tuple(arguments))
