"""Nodes to GraphDef and back: the message in which graphs are stored, sent and shown, as TensorFlow writes
it.

An input is "node:1", or "node" for output 0; control inputs "^node" stand last. Attributes have the kinds
of the op's definition. Output shapes can be inferred and are stored only when asked for: `read_nodes` gives
nodes without output specs, which `import_graph_def` finds when it adds them to a graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flowrt import protos
from flowrt.errors import InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from flowrt.graph.attr_values import attr_kind, attr_names, decode_attr, encode_attr, kind_of_value
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Source, Subgraph
from flowrt.graph.op_def import OpDef, nearest, registered_ops
from flowrt.graph.shapes import Shape
from flowrt.graph.source import user_line

if TYPE_CHECKING:
    from flowrt.protos.graph_pb2 import GraphDef, NodeDef, VersionDef

VERSION = 2474
"""The GraphDef version that is written, and the newest that is read: TensorFlow 2.21's."""
MAX_NODES = 1_000_000
MAX_NAME_LENGTH = 4096
MAX_LIST_LENGTH = 65_536
"""How many outputs an attribute may ask for, and how many elements an input that says *how* may have."""

OUTPUT_SHAPES = "_output_shapes"
SOURCE = "_source"

_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_INPUT = re.compile(r"(?P<control>\^)?(?P<name>[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*)(:(?P<index>\d{1,6}))?")

# TensorFlow's older names for ops whose behaviour did not change, and its ops on reference variables.
_RENAMED = {"BatchMatMul": "BatchMatMulV2", "PlaceholderV2": "Placeholder"}
_ON_REFERENCES = re.compile(r"Variable(V2)?|TemporaryVariable|Assign(Add|Sub)?|Scatter\w+|(Sparse)?Apply\w+")

# Attributes that only TensorFlow's ops have, with the values (None: all) at which they say nothing to flowrt.
_SAYS_NOTHING: dict[str, tuple[Any, ...] | None] = {
    "use_locking": None,  # an update always holds the variable's lock
    "debug_name": None,
    "grad_a": (False,),
    "grad_b": (False,),
    "grad_x": (False,),
    "grad_y": (False,),
    "allowed_devices": ((),),
    "validate_shape": (False,),
    "multiply_linear_by_lr": (False,),
    "update_slots": (True,),
}


# --- writing


def subgraph_to_graph_def(subgraph: Subgraph) -> GraphDef:
    """The nodes of ``subgraph`` as a GraphDef, with their shapes; feeds, fetches and targets are left out."""
    return nodes_to_graph_def(subgraph, add_shapes=True)


def nodes_to_graph_def(
    nodes: Iterable[Node], *, add_shapes: bool = False, with_sources: bool = False
) -> GraphDef:
    """A GraphDef of ``nodes``.

    ``add_shapes`` puts the known shapes into attribute "_output_shapes", ``with_sources`` the user's
    "file:line" into "_source". Raises `UnimplementedError` or `InvalidArgumentError`, with the node's name,
    for an attribute that a message cannot hold.
    """
    graph_def = protos.graph_pb2.GraphDef()
    graph_def.versions.producer = VERSION
    for node in nodes:
        try:
            _fill_node_def(graph_def.node.add(), node, add_shapes, with_sources)
        except OpError as error:
            raise located(node, error) from None
    return graph_def


def _fill_node_def(node_def: NodeDef, node: Node, add_shapes: bool, with_sources: bool) -> None:
    node_def.name = node.name
    node_def.op = node.op.name
    node_def.device = node.device
    node_def.input.extend([format_ref(ref) for ref in node.inputs])
    node_def.input.extend([f"^{name}" for name in node.controls])
    for key, value in node.attrs.items():
        kind = attr_kind(node.op, key) or kind_of_value(key, value)
        if value is None and kind != "shape":
            continue
        if kind == "func":  # of a compiled partition only: to be looked at, not to be read again
            kind, value = "string", str(value)
        encode_attr(node_def.attr[key], key, kind, value)
    if add_shapes:
        shapes = [spec.shape for spec in node.outputs]
        encode_attr(node_def.attr[OUTPUT_SHAPES], OUTPUT_SHAPES, "list(shape)", shapes)
    if with_sources and node.source is not None:
        encode_attr(node_def.attr[SOURCE], SOURCE, "string", str(node.source))


def format_ref(ref: Ref) -> str:
    """A node's input as GraphDef writes it: "node", or "node:1"."""
    name, index = ref
    return name if index == 0 else f"{name}:{index}"


def parse_ref(text: str) -> tuple[Ref, bool]:
    """An input of a NodeDef, and whether it is a control input. Raises `InvalidArgumentError`."""
    match = _INPUT.fullmatch(text)
    if match is None or (match["control"] and match["index"]):
        raise InvalidArgumentError(f"expected an input 'node', 'node:index' or '^node'; got {text[:200]!r}")
    return (match["name"], int(match["index"] or 0)), bool(match["control"])


# --- reading


def read_nodes(
    graph_def: GraphDef, source: Source | None, defaults: Mapping[tuple[str, str], Any] = {}
) -> dict[str, Node]:
    """The nodes of ``graph_def``, by name and in its order, with ``source`` and without output specs.

    Attributes that the op does not define are left out where ``defaults`` (by op and attribute) holds their
    value, and so is "_output_shapes" (see `read_output_shapes`). Raises `NotFoundError` for ops that flowrt
    lacks, all at once; `InvalidArgumentError`, with the node's name, for names, inputs and attributes that
    are not well formed; for versions that do not fit too; `ResourceExhaustedError` beyond the limits of
    this file.
    """
    _check_versions(graph_def.versions)
    if len(graph_def.node) > MAX_NODES:
        raise ResourceExhaustedError(
            f"GraphDef: expected at most {MAX_NODES} nodes; got {len(graph_def.node)}"
        )
    _check_ops(graph_def)
    nodes: dict[str, Node] = {}
    for node_def in graph_def.node:
        try:
            node = _read_node(node_def, source, defaults, graph_def.versions.producer)
            if node.name in nodes:
                raise InvalidArgumentError("expected names that are all different; got this one twice")
        except OpError as error:
            where = None if source is None else str(source)
            name, op = node_def.name[:200], node_def.op[:200]
            raise type(error)(error.message, op=name, op_type=op, source=where) from None
        nodes[node.name] = node
    return nodes


def read_output_shapes(graph_def: GraphDef) -> dict[str, tuple[Shape, ...]]:
    """What "_output_shapes" tells of each node that has it. Raises `InvalidArgumentError`."""
    found = {}
    for node_def in graph_def.node:
        if OUTPUT_SHAPES in node_def.attr:
            try:
                found[node_def.name] = decode_attr(node_def.attr[OUTPUT_SHAPES], OUTPUT_SHAPES, "list(shape)")
            except InvalidArgumentError as error:
                raise type(error)(error.message, op=node_def.name, op_type=node_def.op) from None
    return found


def _check_versions(versions: VersionDef) -> None:
    if versions.producer < 0:
        raise InvalidArgumentError(
            f"GraphDef: expected a producer version of at least 0; got {versions.producer}"
        )
    if versions.min_consumer > VERSION:
        got = f"a graph for {versions.min_consumer} and later"
        raise InvalidArgumentError(f"GraphDef: expected one for readers of version {VERSION}; got {got}")
    if VERSION in versions.bad_consumers:
        raise InvalidArgumentError(
            f"GraphDef: expected one for readers of version {VERSION}; got one that bars it"
        )


def _check_ops(graph_def: GraphDef) -> None:
    unknown: dict[str, str] = {}
    for node_def in graph_def.node:
        if _find_op(node_def.op) is None:
            unknown.setdefault(node_def.op[:200], node_def.name[:200])
    if unknown:
        functions = {function.signature.name for function in graph_def.library.function}
        text = "; ".join(f"{op!r} (node {name!r}{_hint(op, functions)})" for op, name in unknown.items())
        raise NotFoundError(f"GraphDef: expected ops that flowrt has; got {text}", source=user_line())


def _find_op(name: str) -> OpDef | None:
    """The definition that nodes of op ``name`` get; ops that only the compiler makes are not found."""
    ops = registered_ops()
    return None if name.startswith("_") else ops.get(name) or ops.get(_RENAMED.get(name, name))


def _hint(op: str, functions: set[str]) -> str:
    if op in functions:
        return ": a call of a function, inline it first"
    if _ON_REFERENCES.fullmatch(op):
        return ": for reference variables, build the graph with use_resource=True"
    found = nearest(op, (name for name in registered_ops() if not name.startswith("_")))
    return f".{found}" if found else ""


def _read_node(
    node_def: NodeDef, source: Source | None, defaults: Mapping[tuple[str, str], Any], producer: int
) -> Node:
    name = node_def.name
    if len(name) > MAX_NAME_LENGTH or not _NODE_NAME.fullmatch(name):
        expected = f"1 to {MAX_NAME_LENGTH} letters, digits and _.\\->/"
        raise InvalidArgumentError(f"node name: expected {expected}; got {name[:200]!r}")
    op = _find_op(node_def.op)
    assert op is not None
    inputs, controls = _read_inputs(node_def)
    attrs = _read_attrs(node_def, op, defaults)
    if op.name == "Placeholder" and producer < 24 and attrs["shape"] == ():
        attrs["shape"] = None  # TensorFlow's graphs before version 24 mean "unknown" by a scalar
    return Node(name, op, inputs, controls, attrs, node_def.device, source, ())


def _read_inputs(node_def: NodeDef) -> tuple[tuple[Ref, ...], tuple[str, ...]]:
    inputs: list[Ref] = []
    controls: dict[str, None] = {}
    for text in node_def.input:
        ref, is_control = parse_ref(text)
        if is_control:
            controls[ref[0]] = None
        elif controls:
            raise InvalidArgumentError(f"expected control inputs behind all others; got {text!r} behind one")
        else:
            inputs.append(ref)
    return tuple(inputs), tuple(controls)


def _read_attrs(node_def: NodeDef, op: OpDef, defaults: Mapping[tuple[str, str], Any]) -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    for key, message in node_def.attr.items():
        kind = attr_kind(op, key)
        if kind is not None or key.startswith("_"):
            if key != OUTPUT_SHAPES:
                attrs[key] = decode_attr(message, key, kind)
        elif not _says_nothing(node_def.op, key, decode_attr(message, key, None), defaults):
            hint = nearest(key, attr_names(op))
            raise InvalidArgumentError(f"expected attributes of {node_def.op}; got {key[:200]!r}.{hint}")
    for key, attr in op.attrs.items():
        if key not in attrs:
            if attr.required:
                raise InvalidArgumentError(f"attribute {key!r} ({attr.kind}): expected a value; got none")
            attrs[key] = attr.default
    check_attrs(op, attrs)
    return attrs


def _says_nothing(op: str, key: str, value: Any, defaults: Mapping[tuple[str, str], Any]) -> bool:
    neutral = _SAYS_NOTHING.get(key, ())
    return neutral is None or value in neutral or ((op, key) in defaults and defaults[op, key] == value)


def check_attrs(op: OpDef, attrs: Mapping[str, Any]) -> None:
    """What shape rules rely on: lengths are sane, a constant has its declared dtype.

    Raises `InvalidArgumentError`.
    """
    for argument in (*op.inputs, *op.outputs):
        key = argument.number_attr
        if key is not None and key in attrs and not 0 <= attrs[key] <= MAX_LIST_LENGTH:
            expected = f"expected a length from 0 to {MAX_LIST_LENGTH}"
            raise InvalidArgumentError(f"attribute {key!r}: {expected}; got {attrs[key]}")
    if op.name == "Const" and attrs["value"].dtype != attrs["dtype"].np:
        expected, got = f"{attrs['dtype'].name}, as 'dtype' says", attrs["value"].dtype
        raise InvalidArgumentError(f"attribute 'value': expected {expected}; got {got}")
