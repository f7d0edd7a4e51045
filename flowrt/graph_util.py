"""``flowrt.graph_util``: GraphDefs pruned to what outputs need, and frozen, without variables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from flowrt import protos
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.graph.messages.tensor_proto import Array, encode_shape, encode_tensor
from flowrt.tf1.missing_names import missing_from

GraphDef = Any  # the message of flowrt.protos.graph_pb2, which is not imported before it is needed
NodeDef = Any
FunctionDef = Any


def extract_sub_graph(graph_def: GraphDef, dest_nodes: Iterable[str]) -> GraphDef:
    """The nodes that ``dest_nodes`` need, in their order. Raises `NotFoundError` for an unknown name."""
    nodes = {node.name: node for node in graph_def.node}
    waiting, needed = list(dest_nodes), set[str]()
    while waiting:
        name = waiting.pop()
        if name not in nodes:
            raise NotFoundError(f"node {name!r}: the graph has no such node.{nearest(name, nodes)}")
        if name not in needed:
            needed.add(name)
            waiting += [_producer(text) for text in nodes[name].input]
    found = protos.graph_pb2.GraphDef()
    found.node.extend([node for node in graph_def.node if node.name in needed])
    found.versions.CopyFrom(graph_def.versions)
    _copy_functions(graph_def, found)
    return found


def _copy_functions(source: GraphDef, target: GraphDef) -> None:
    """Copy the functions that nodes of ``target`` need, in their order."""
    library = {function.signature.name: function for function in source.library.function}
    waiting, needed = list(target.node), set[str]()
    while waiting:
        node = waiting.pop()
        for name in (node.op, *(ref.name for value in node.attr.values() for ref in _function_refs(value))):
            if name in library and name not in needed:
                needed.add(name)
                waiting += library[name].node_def
    target.library.function.extend([f for f in source.library.function if f.signature.name in needed])


def _function_refs(value: Any) -> list[Any]:
    """The names of functions in an AttrValue."""
    return [value.func] if value.HasField("func") else list(value.list.func)


def _producer(text: str) -> str:
    """The name of the node in the input "name", "name:1" or "^name"."""
    return text.removeprefix("^").partition(":")[0]


def convert_variables_to_constants(
    sess: Any,
    input_graph_def: GraphDef,
    output_node_names: Iterable[str],
    variable_names_whitelist: Collection[str] | None = None,
    variable_names_blacklist: Collection[str] | None = None,
) -> GraphDef:
    """The subgraph for ``output_node_names``, with variables replaced by their values in ``sess``.

    A whitelist or a blacklist restricts which ones. Variables in functions are replaced, too. Raises
    `NotFoundError` for an unknown name, `InvalidArgumentError` for a variable that the outputs write, and the
    errors of ``sess.run`` for one without a value.
    """
    cut = extract_sub_graph(input_graph_def, output_node_names)
    names = [
        node.name
        for node in cut.node
        if node.op == "VarHandleOp"
        and (variable_names_whitelist is None or node.name in variable_names_whitelist)
        and node.name not in (variable_names_blacklist or ())
    ]
    values = sess.run({name: f"{name}/Read/ReadVariableOp:0" for name in names})
    frozen = protos.graph_pb2.GraphDef()
    frozen.versions.CopyFrom(cut.versions)
    frozen.library.CopyFrom(cut.library)
    _Freezer(frozen, {name: np.asarray(value) for name, value in values.items()}).freeze(cut.node)
    _prune_library(frozen)
    return frozen


def _prune_library(graph_def: GraphDef) -> None:
    needed = protos.graph_pb2.GraphDef()
    needed.node.extend(graph_def.node)
    _copy_functions(graph_def, needed)
    graph_def.library.CopyFrom(needed.library)


class _Freezer:
    """Writes nodes with constants instead of variables into ``frozen``, with the functions in its library.

    In a function a variable is an argument: an operation that passes a constant calls a copy of the function
    in which that argument is a value.
    """

    def __init__(self, frozen: GraphDef, values: Mapping[str, Array]) -> None:
        self._frozen, self._values = frozen, values
        self._library = {function.signature.name: function for function in frozen.library.function}
        self._copies: dict[tuple[str, tuple[str, ...]], str] = {}

    def freeze(self, nodes: Iterable[NodeDef]) -> None:
        constants = dict(self._values)
        for node in nodes:
            if node.name in self._values:
                value = self._values[node.name]
                self._frozen.node.append(_constant(node.name, value, node.attr["dtype"], node.device))
            else:
                self._frozen.node.extend(self._frozen_node(node, constants, ""))

    def _frozen_node(self, node: NodeDef, constants: dict[str, Array], output: str) -> list[NodeDef]:
        """The replacement of ``node`` if the tensors of ``constants`` are values. ``output`` is the suffix of
        output names in a function: ":output:0".
        """
        given = [constants.get(_producer(text)) if text[:1] != "^" else None for text in node.input]
        if all(value is None for value in given):
            return [node]
        if node.op in ("ReadVariableOp", "ResourceGather"):
            return _read(node, output)
        made = protos.graph_pb2.NodeDef()
        made.CopyFrom(node)
        if node.op == "Identity":
            assert given[0] is not None
            made.attr["T"].type = _number(given[0])
            constants[node.name] = given[0]
        elif any(_function_refs(value) for value in node.attr.values()):
            self._pass_values(made, given, constants)
        else:
            name = next(_producer(t) for t, v in zip(node.input, given, strict=True) if v is not None)
            raise InvalidArgumentError(
                f"{node.op} {node.name!r}: expected a variable that is only read; got {name!r}"
            )
        return [made]

    def _pass_values(self, node: NodeDef, given: list[Array | None], constants: dict[str, Array]) -> None:
        """Make ``node`` own functions of values, where it passes variables."""
        types = node.attr["T" if node.op.endswith("While") else "Tin"].list.type
        data = [text for text in node.input if text[:1] != "^"]
        arguments = given[len(data) - len(types) : len(data)]
        for i, value in enumerate(arguments):
            if value is not None:
                types[i] = _number(value)
        if node.op.endswith("While"):
            for shape, value in zip(node.attr["output_shapes"].list.shape, arguments, strict=False):
                if value is not None:
                    encode_shape(shape, value.shape)
        for attr in node.attr.values():
            for ref in _function_refs(attr):
                ref.name = self._function(ref.name, arguments)

    def _function(self, name: str, arguments: list[Array | None]) -> str:
        """The name of a copy of the function ``name`` in which some arguments are values."""
        key = name, tuple("" if value is None else f"{value.dtype}{value.shape}" for value in arguments)
        if key not in self._copies:
            self._copies[key] = f"{name}_frozen_{len(self._copies)}"
            copy = self._copy(self._library[name], self._copies[key], arguments)
            self._frozen.library.function.append(copy)
        return self._copies[key]

    def _copy(self, function: FunctionDef, name: str, arguments: list[Array | None]) -> FunctionDef:
        """``function`` as ``name``, of values for those of ``arguments`` that are there."""
        copy = protos.graph_pb2.FunctionDef()
        copy.CopyFrom(function)
        copy.signature.name = name
        del copy.node_def[:]
        constants: dict[str, Array] = {}
        for i, (arg, value) in enumerate(zip(copy.signature.input_arg, arguments, strict=True)):
            if value is not None:
                arg.type = _number(value)
                constants[arg.name] = value
                copy.arg_attr.pop(i, None)
        for node in function.node_def:
            copy.node_def.extend(self._frozen_node(node, constants, ":output:0"))
        for arg in copy.signature.output_arg:
            value = constants.get(_producer(copy.ret[arg.name]))
            if value is not None:
                arg.type = _number(value)
        _rename_outputs(function, copy)
        return copy


def _number(value: Array) -> Any:
    return as_dtype(value.dtype).number


def _rename_outputs(function: FunctionDef, copy: FunctionDef) -> None:
    """Rename the outputs of reads that became Identities in a ``copy`` of ``function``."""
    ops = {node.name: node.op for node in copy.node_def}
    reads = [n.name for n in function.node_def if n.op == "ReadVariableOp" and ops[n.name] == "Identity"]
    renamed = {f"{name}:value:0": f"{name}:output:0" for name in reads}
    for node in copy.node_def:
        node.input[:] = [renamed.get(text, text) for text in node.input]
    for key, text in copy.ret.items():
        copy.ret[key] = renamed.get(text, text)


def _read(node: NodeDef, output: str) -> list[NodeDef]:
    """The replacement for a read of a variable that is a value."""
    made = protos.graph_pb2.NodeDef(name=node.name, device=node.device, input=node.input)
    if node.op == "ReadVariableOp":
        made.op = "Identity"
        made.attr["T"].CopyFrom(node.attr["dtype"])
        return [made]
    axis_type = protos.graph_pb2.AttrValue(type=protos.graph_pb2.DT_INT32)
    axis = _constant(f"{node.name}/axis", np.array(0, np.int32), axis_type, node.device)
    made.op = "GatherV2"
    made.input.insert(2, axis.name + output)
    made.attr["Tparams"].CopyFrom(node.attr["dtype"])
    made.attr["Tindices"].CopyFrom(node.attr["Tindices"])
    made.attr["Taxis"].CopyFrom(axis_type)
    made.attr["batch_dims"].CopyFrom(node.attr["batch_dims"])
    return [axis, made]


def _constant(name: str, value: Array, dtype: Any, device: str) -> NodeDef:
    made = protos.graph_pb2.NodeDef(name=name, op="Const", device=device)
    made.attr["dtype"].CopyFrom(dtype)
    encode_tensor(made.attr["value"].tensor, value)
    return made


__getattr__ = missing_from("graph_util")
