"""GraphDef to nodes: all reading and checking that needs no graph.

The nodes have no output specs: `flowrt.tf1.graph_import.import_graph_def` infers them when it adds the nodes
to a graph. An attribute that is a function is a `Subgraph` of such nodes; its parameters are _Feed nodes,
with an attribute "shape" if the message has one. A function is read once, when a node needs it; unused
functions of the library are not read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, final

from flowrt import dtypes
from flowrt.errors import (
    InvalidArgumentError,
    NotFoundError,
    OpError,
    ResourceExhaustedError,
    UnimplementedError,
    nearest,
)
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.functions.control_flow import call_op
from flowrt.graph.messages.attr_values import FunctionName, attr_kind, attr_names, check_attrs, decode_attr
from flowrt.graph.messages.graph_def import OUTPUT_SHAPES, VERSION, WRITTEN_AS
from flowrt.graph.messages.tensor_proto import decode_type
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.op_def import Effect, OpDef, op_def, registered_ops
from flowrt.graph.source import Source, user_line
from flowrt.tf1.composed_ops import arrays, examples, pictures, quantized, recurrent, sounds, sparse  # noqa: F401 (they define ops)
from flowrt.tf1.composed_ops.composition import COMPOSED
from flowrt.tf1.graph_import import fused_spellings, older_spellings  # noqa: F401 (define them)
from flowrt.tf1.graph_import.import_partitions import join_parts
from flowrt.tf1.graph_import.op_adapters import ADAPTED, adapted
from flowrt.tf1.graph_import.reference_ops import reference_op
from flowrt.tf1.graph_import.v1_ops import V1_OPS

if TYPE_CHECKING:
    from flowrt.protos.graph_pb2 import FunctionDef, GraphDef, NodeDef, VersionDef

MAX_NODES = 1_000_000
MAX_NAME_LENGTH = 4096
MAX_NESTING = 40
"""Maximum nesting depth of functions."""

_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*")
_INPUT = re.compile(r"(?P<control>\^)?(?P<name>[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*)(:(?P<index>\d{1,6}))?")
_NESTED_INPUT = re.compile(
    r"(?P<control>\^)?(?P<name>[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*)"
    r"(:(?P<output>[A-Za-z][A-Za-z0-9_]*))?(:(?P<index>\d{1,6}))?"
)

# TensorFlow's other names for ops: older ones of the same behaviour, those that promise to have no effect.
_RENAMED = {
    "BatchMatMul": "BatchMatMulV2",
    "PlaceholderV2": "Placeholder",
    "StatefulPartitionedCall": "PartitionedCall",
    "StatelessCase": "Case",
    "StatelessIf": "If",
    "StatelessWhile": "While",
}
_ON_LISTS = {written: op for op, (written, attrs) in WRITTEN_AS.items() if "T" in attrs}
_OF_GRADIENTS = re.compile(r"Optional\w+")
_ON_REFERENCES = re.compile(r"Variable(V2)?|TemporaryVariable|Assign(Add|Sub)?|Scatter\w+|(Sparse)?Apply\w+")

# Attributes that only TensorFlow's ops have, with the values (None: any) that have no effect in flowrt.
_SAYS_NOTHING: dict[str, tuple[Any, ...] | None] = {
    "use_locking": None,  # an update always holds the variable's lock
    "debug_name": None,
    "grad_a": None,  # that an input is a gradient
    "grad_b": None,
    "grad_x": None,
    "grad_y": None,
    "allowed_devices": ((),),
    "validate_shape": None,  # a shape that a variable was made with is always checked, another one never
    "multiply_linear_by_lr": (False,),
    "update_slots": (True,),
    "bad_indices_policy": ("", "DEFAULT", "ERROR"),
    "Tshape": (dtypes.int32,),
    "config": None,  # how TensorFlow runs a function
    "config_proto": None,
    "executor_type": None,
    "client_terminated": (False,),
}
_OF_PARTITIONS = ("_Send", "_Recv", "_Contribute")


def read_nodes(
    graph_def: GraphDef, source: Source | None, defaults: Mapping[tuple[str, str], Any] = {}
) -> Mapping[str, Node]:
    """The nodes of ``graph_def``, by name and in its order, with ``source`` and without output specs.

    Attributes that the op does not define are left out where ``defaults`` (by op and attribute) holds their
    value. Raises `NotFoundError` for ops that flowrt lacks, all at once, and for functions that the library
    lacks; `InvalidArgumentError`, with the node's name, for malformed names, inputs and attributes, for
    recursive functions, and for unsupported versions; `ResourceExhaustedError` beyond the limits of this
    file.
    """
    _check_versions(graph_def.versions)
    if len(graph_def.node) > MAX_NODES:
        raise ResourceExhaustedError(
            f"GraphDef: expected at most {MAX_NODES} nodes; got {len(graph_def.node)}"
        )
    return _Reader(graph_def, source, defaults).nodes()


@final
class _Reader:
    """One GraphDef that is being read."""

    def __init__(
        self, graph_def: GraphDef, source: Source | None, defaults: Mapping[tuple[str, str], Any]
    ) -> None:
        self._graph_def, self._source, self._defaults = graph_def, source, defaults
        self._library = {f.signature.name: f for f in graph_def.library.function}
        self._functions: dict[str, Subgraph] = {}
        self._open: list[str] = []  # the functions that are being read, the outermost first

    def nodes(self) -> Mapping[str, Node]:
        self._check_ops(self._graph_def.node)
        return join_parts(adapted(self._read_all(self._graph_def.node, parse_ref)))

    def _check_ops(self, node_defs: Iterable[NodeDef]) -> None:
        unknown: dict[str, str] = {}
        for node_def in node_defs:
            if node_def.op not in self._library and find_op(node_def.op) is None:
                unknown.setdefault(node_def.op[:200], node_def.name[:200])
        if unknown:
            text = "; ".join(f"{op!r} (node {name!r}{_hint(op)})" for op, name in unknown.items())
            raise NotFoundError(f"GraphDef: expected ops that flowrt has; got {text}", source=user_line())

    def _read_all(self, node_defs: Iterable[NodeDef], parse: ParseRef) -> dict[str, Node]:
        nodes: dict[str, Node] = {}
        for node_def in node_defs:
            try:
                node = self._read_node(node_def, parse)
                if node.name in nodes:
                    raise InvalidArgumentError("expected unique names; got this one twice")
            except OpError as error:
                if error.op is not None:
                    raise
                where = None if self._source is None else str(self._source)
                name, op = node_def.name[:200], node_def.op[:200]
                raise type(error)(error.message, op=name, op_type=op, source=where) from None
            nodes[node.name] = node
        return nodes

    def _read_node(self, node_def: NodeDef, parse: ParseRef) -> Node:
        name = node_def.name
        if len(name) > MAX_NAME_LENGTH or not _NODE_NAME.fullmatch(name):
            expected = f"1 to {MAX_NAME_LENGTH} letters, digits and _.\\->/"
            raise InvalidArgumentError(f"node name: expected {expected}; got {name[:200]!r}")
        inputs, controls = _read_inputs(node_def, parse)
        if node_def.op in self._library:  # a call under the function's own name
            call = {"f": self._function(FunctionName(node_def.op))}
            return Node(name, call_op, inputs, controls, call, node_def.device, self._source, ())
        op = _op_of(node_def)
        attrs = self._read_attrs(node_def, op)
        if op.name == "Placeholder" and self._graph_def.versions.producer < 24 and attrs["shape"] == ():
            attrs["shape"] = None  # TensorFlow's graphs before version 24 mean "unknown" by a scalar
        return Node(name, op, inputs, controls, attrs, node_def.device, self._source, ())

    def _read_attrs(self, node_def: NodeDef, op: OpDef) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        unknown = () if op.name not in WRITTEN_AS else WRITTEN_AS[op.name][1]
        for key, message in sorted(node_def.attr.items()):  # maps of messages have no order
            kind = "list(shape)" if key == OUTPUT_SHAPES else attr_kind(op, key)
            if kind is not None or key.startswith("_"):
                attrs[key] = self._with_functions(decode_attr(message, key, kind))
            elif key not in unknown:
                self._check_says_nothing(node_def, op, key, decode_attr(message, key, None))
        for key, attr in op.attrs.items():
            if key not in attrs and attr.required:
                if op.effect is Effect.NESTED and attr.kind == "list(type)":
                    continue  # follows from the functions
                raise InvalidArgumentError(f"attribute {key!r} ({attr.kind}): expected a value; got none")
            attrs.setdefault(key, attr.default)
        check_attrs(op, attrs)
        return attrs

    def _check_says_nothing(self, node_def: NodeDef, op: OpDef, key: str, value: Any) -> None:
        neutral = _SAYS_NOTHING.get(key, ())
        if neutral is None or value in neutral:
            return
        if (node_def.op, key) not in self._defaults or self._defaults[node_def.op, key] != value:
            hint = nearest(key, attr_names(op))
            raise InvalidArgumentError(f"expected attributes of {node_def.op}; got {key[:200]!r}.{hint}")

    # --- functions

    def _with_functions(self, value: Any) -> Any:
        if isinstance(value, FunctionName):
            return self._function(value)
        if isinstance(value, tuple) and value and isinstance(value[0], FunctionName):
            return tuple(map(self._function, value))
        return value

    def _function(self, name: FunctionName) -> Subgraph:
        if name in self._functions:
            return self._functions[name]
        if name not in self._library:
            hint = nearest(name, self._library)
            raise NotFoundError(f"function {name[:200]!r}: not in the library of the GraphDef.{hint}")
        if name in self._open:
            circle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise InvalidArgumentError(f"expected non-recursive functions; got {circle[:400]}")
        if len(self._open) == MAX_NESTING:
            message = f"expected at most {MAX_NESTING} nested functions; got {name[:200]!r}"
            raise ResourceExhaustedError(message)
        self._open.append(name)
        self._functions[name] = function = self._read_function(self._library[name])
        self._open.pop()
        return function

    def _read_function(self, function_def: FunctionDef) -> Subgraph:
        signature = function_def.signature
        what = f"function {signature.name[:200]!r}"
        self._check_ops(function_def.node_def)
        scope = _FunctionScope(what, function_def, self._library)
        nodes = {
            arg.name: self._parameter(what, arg, function_def.arg_attr.get(i))
            for i, arg in enumerate(signature.input_arg)
        }
        inside = join_parts(adapted(self._read_all(function_def.node_def, scope.parse)))
        if len(nodes) < len(signature.input_arg) or not nodes.keys().isdisjoint(inside):
            raise InvalidArgumentError(f"{what}: expected different names for arguments and nodes")
        fetches = [scope.result(arg.name) for arg in signature.output_arg]
        targets = [scope.target(name) for name in signature.control_output]
        feeds = tuple(nodes)
        return Subgraph({**nodes, **inside}, feeds, tuple(fetches), tuple(targets))

    def _parameter(self, what: str, arg: Any, arg_attrs: Any) -> Node:
        if arg.number_attr or arg.type_attr or arg.type_list_attr:
            raise UnimplementedError(f"{what}: expected arguments of one dtype each; got {arg.name[:200]!r}")
        attrs: dict[str, Any] = {"dtype": decode_type(arg.type)}
        if arg_attrs is not None and OUTPUT_SHAPES in arg_attrs.attr:
            shapes = decode_attr(arg_attrs.attr[OUTPUT_SHAPES], OUTPUT_SHAPES, "list(shape)")
            if len(shapes) != 1:
                raise InvalidArgumentError(
                    f"{what}: expected one shape of {arg.name[:200]!r}; got {len(shapes)}"
                )
            attrs["shape"] = shapes[0]
        return Node(arg.name, feed_op, (), (), attrs, "", self._source, ())


# --- names of tensors

ParseRef: TypeAlias = Callable[[str], tuple[Ref, bool]]
"""Parses an input of a NodeDef to a `Ref` and whether it is a control input."""


def parse_ref(text: str) -> tuple[Ref, bool]:
    """An input of a NodeDef, and whether it is a control input. Raises `InvalidArgumentError`."""
    match = _INPUT.fullmatch(text)
    if match is None or (match["control"] and match["index"]):
        raise InvalidArgumentError(f"expected an input 'node', 'node:index' or '^node'; got {text[:200]!r}")
    return (match["name"], int(match["index"] or 0)), bool(match["control"])


@final
class _FunctionScope:
    """The names inside a function."""

    def __init__(self, what: str, function_def: FunctionDef, library: Mapping[str, FunctionDef]) -> None:
        self._what, self._function_def, self._library = what, function_def, library
        self._arguments = {arg.name for arg in function_def.signature.input_arg}
        self._nodes = {node_def.name: node_def for node_def in function_def.node_def}

    def parse(self, text: str) -> tuple[Ref, bool]:
        """See `ParseRef`: "argument", "node:output:index" or "^node". Raises `InvalidArgumentError`."""
        match = _NESTED_INPUT.fullmatch(text)
        if match is not None:
            name, output, index = match["name"], match["output"], int(match["index"] or 0)
            if match["control"] and not output:
                return (name, 0), True
            if name in self._arguments and not output and not index:
                return (name, 0), False
            if name in self._nodes and output:
                return (name, self._offset(self._nodes[name], output, index)), False
        raise InvalidArgumentError(
            f"{self._what}: expected 'argument', 'node:output:index' or '^node' of this function; got"
            f" {text[:200]!r}.{nearest(text.partition(':')[0], self._nodes)}"
        )

    def _offset(self, node_def: NodeDef, output: str, index: int) -> int:
        """Index among all outputs of element ``index`` of ``output``."""
        offset, lengths = 0, self._lengths(node_def)
        for name, length in lengths:
            if name == output and index < length:
                return offset + index
            offset += length
        raise InvalidArgumentError(
            f"{self._what}: expected outputs of {node_def.op[:200]} {node_def.name[:200]!r}"
            f" ({', '.join(name for name, _ in lengths)}); got '{output[:200]}:{index}'"
        )

    def _lengths(self, node_def: NodeDef) -> list[tuple[str, int]]:
        if node_def.op in self._library:
            return [(arg.name, 1) for arg in self._library[node_def.op].signature.output_arg]
        op, attrs = _op_of(node_def), node_def.attr
        found = []
        for argument in op.outputs:
            key = argument.number_attr or argument.type_attr or ""
            length = 1
            if argument.is_list:
                length = 0 if key not in attrs else attrs[key].i or len(attrs[key].list.type)
            found.append((argument.name, length))
        return found

    def result(self, name: str) -> Ref:
        """The tensor that the function returns as ``name``."""
        if name not in self._function_def.ret:
            raise InvalidArgumentError(
                f"{self._what}: expected a tensor to return as {name[:200]!r}; got none"
            )
        return self.parse(self._function_def.ret[name])[0]

    def target(self, name: str) -> str:
        """The node that runs for the control output ``name``."""
        target: str = self._function_def.control_ret.get(name, "")
        if target not in self._nodes:
            raise InvalidArgumentError(
                f"{self._what}: expected one of its nodes as control output {name[:200]!r}; got "
                f"{target[:200]!r}"
            )
        return target


def _read_inputs(node_def: NodeDef, parse: ParseRef) -> tuple[tuple[Ref, ...], tuple[str, ...]]:
    inputs: list[Ref] = []
    controls: dict[str, None] = {}
    for text in node_def.input:
        ref, is_control = parse(text)
        if is_control:
            controls[ref[0]] = None
        elif controls:
            raise InvalidArgumentError(f"expected control inputs after all others; got {text!r} after one")
        else:
            inputs.append(ref)
    return tuple(inputs), tuple(controls)


# --- ops and versions


def find_op(name: str) -> OpDef | None:
    """The definition that nodes of op ``name`` get; ops that only the compiler makes are not found."""
    if name.startswith("_") and name not in _OF_PARTITIONS:
        return ADAPTED.get(name)
    ops = registered_ops()
    return (
        ops.get(name)
        or ops.get(_RENAMED.get(name, name))
        or V1_OPS.get(name)
        or ADAPTED.get(name)
        or COMPOSED.get(name)
        or reference_op(name)
    )


def _op_of(node_def: NodeDef) -> OpDef:
    """The definition of a node's op; TensorFlow uses the same op names for numbers and lists."""
    if node_def.op in _ON_LISTS and "T" in node_def.attr and node_def.attr["T"].type == dtypes.variant.number:
        return op_def(_ON_LISTS[node_def.op])
    if node_def.op in ADAPTED and ADAPTED[node_def.op].types.keys() & node_def.attr.keys() - {"T"}:
        return ADAPTED[node_def.op]  # TensorFlow's, not the operation of that name in flowrt
    found = find_op(node_def.op)
    assert found is not None
    return found


def _hint(op: str) -> str:
    if _ON_REFERENCES.fullmatch(op):
        return ": no such update of a reference variable can be imported"
    if _OF_GRADIENTS.fullmatch(op):
        return ": of a gradient through control flow, import the graph without it and take flowrt.gradients()"
    found = nearest(op, (name for name in registered_ops() if not name.startswith("_")))
    return f".{found}" if found else ""


def _check_versions(versions: VersionDef) -> None:
    if versions.producer < 0:
        raise InvalidArgumentError(
            f"GraphDef: expected a producer version of at least 0; got {versions.producer}"
        )
    if versions.min_consumer > VERSION:
        got = f"a graph for versions {versions.min_consumer} and later"
        raise InvalidArgumentError(f"GraphDef: expected one for readers of version {VERSION}; got {got}")
    if VERSION in versions.bad_consumers:
        raise InvalidArgumentError(
            f"GraphDef: expected one for readers of version {VERSION}; got one that excludes it"
        )
