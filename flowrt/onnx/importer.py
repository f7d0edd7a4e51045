"""`import_model`: the graph of a ModelProto, node by node, in the default graph."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError, UnimplementedError
from flowrt.onnx.function_bodies import body_of, defaults_of
from flowrt.onnx.node import Node
from flowrt.onnx.proto import array_of, attribute_value, newest_opset, onnx, opsets_of, read_model, schema_of
from flowrt.onnx.registry import handler_of
from flowrt.onnx.training import trainable_variables
from flowrt.onnx.values import NeedsValueError, Value, compute, is_known

MAX_DEPTH = 50
"""The depth of functions and graphs in one another."""


def import_model(
    model: Any, inputs: Mapping[str, Value], *, trainable: Collection[str] | bool = False
) -> dict[str, Value]:
    """The outputs of ``model``, by name, in the default graph.

    ``model`` is a path, bytes, or a ModelProto; ``inputs`` has a tensor for each of its inputs, an array for
    one that is known, a list for a sequence, None for an optional one without a value. Inputs that the model
    initializes may be left out. With ``trainable`` the initializers of these names become variables of the
    graph; True means all floats but those that say how to build (the scales of a resize) and the statistics
    of batch normalizations.

    >>> with flowrt.Graph().as_default():
    ...     x = flowrt.placeholder(flowrt.float32, [8, 3, 32, 32])
    ...     features = import_model("backbone.onnx", {"input": x})["features"]

    Raises `UnimplementedError` that names all operations that are missing, or the node that cannot be built,
    `InvalidArgumentError` for a model that is wrong.
    """
    model = read_model(model)
    graph = model.graph
    check_operations(model)
    initialized = {each.name for each in graph.initializer}
    wanted = [each.name for each in graph.input]
    if unknown := set(inputs) - set(wanted):
        raise InvalidArgumentError(f"the model: expected inputs of {wanted}; got {sorted(unknown)}")
    if missing := [name for name in wanted if name not in inputs and name not in initialized]:
        raise InvalidArgumentError(f"the model: expected inputs for {missing}; got {sorted(inputs)}")
    library = _Library(model)

    def build(values: Mapping[str, Value]) -> list[Value]:
        return Scope(library).run(graph, values)

    variables = trainable_variables(model, inputs, trainable, build) if trainable else {}
    outputs = build({**variables, **inputs})
    return dict(zip([each.name for each in graph.output], outputs, strict=True))


def check_operations(model: Any) -> None:
    """Raise `UnimplementedError` that names each operation without a handler or body, and its first node."""
    missing: dict[tuple[str, str, int], list[str | bytes]] = defaultdict(list)  # bytes are no UTF-8
    functions = {(each.domain, each.name) for each in model.functions}
    graphs = [(model.graph.node, opsets_of(model))]
    graphs += [(each.node, opsets_of(each)) for each in model.functions]
    for protos, opsets in graphs:
        for proto in _nodes(protos):
            domain = _domain(proto)
            if not all(isinstance(each, str) for each in (domain, proto.op_type)):  # bytes that are no text
                raise InvalidArgumentError(f"the model: expected an operation; got {proto.op_type!r}")
            if (proto.domain, proto.op_type) in functions:
                continue
            version = opsets.get(domain, 0)
            schema = schema_of(domain, proto.op_type, version)
            has_body = schema is not None and (schema.has_function or schema.has_context_dependent_function)
            if not has_body and handler_of(domain, proto.op_type, version) is None:
                missing[domain, proto.op_type, version].append(proto.name or next(iter(proto.output), ""))
    if missing:
        rows = [
            f"{domain or 'ONNX'}'s {op} (opset {version}): {_nodes_from(names)}"
            for (domain, op, version), names in missing.items()
        ]
        head = "1 operation is" if len(rows) == 1 else f"{len(rows)} operations are"
        raise UnimplementedError("\n  ".join([f"{head} not supported:", *rows]))


def _nodes_from(names: Sequence[Any]) -> str:
    return f"node {names[0]!r}" if len(names) == 1 else f"{len(names)} nodes, the first is {names[0]!r}"


def _nodes(protos: Any, depth: int = 0) -> Iterator[Any]:
    """All nodes, those of graphs in attributes included."""
    if depth > MAX_DEPTH:
        raise InvalidArgumentError(f"the model: expected graphs at most {MAX_DEPTH} deep in one another")
    for proto in protos:
        yield proto
        for attribute in proto.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes(graph.node, depth + 1)


def _domain(proto: Any) -> str:
    return "" if proto.domain == "ai.onnx" else proto.domain


@final
class _Library:
    """The functions of a model and the versions of its domains, which all scopes share."""

    def __init__(self, model: Any) -> None:
        self.functions = {(each.domain, each.name): each for each in model.functions}
        self.opsets = opsets_of(model)


@final
class Scope:
    """Values by name, of a graph and of those around it, ``outer``."""

    def __init__(
        self,
        library: _Library,
        outer: Scope | None = None,
        opsets: Mapping[str, int] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > MAX_DEPTH:
            raise InvalidArgumentError(
                f"the model: expected functions at most {MAX_DEPTH} deep in one another"
            )
        self._library, self._outer, self._depth = library, outer, depth
        self._opsets = library.opsets if opsets is None else opsets
        self.values: dict[str, Value] = {}

    def inner(self) -> Scope:
        """A scope for a graph in an attribute, which may name what is here."""
        return Scope(self._library, self, self._opsets, self._depth + 1)

    def run(self, graph: Any, inputs: Mapping[str, Value]) -> list[Value]:
        """Import the nodes of ``graph`` for ``inputs``; its outputs, in order."""
        for each in graph.initializer:
            self.values[each.name] = array_of(each)
        for each in graph.sparse_initializer:
            self.values[each.values.name] = _dense(each)
        self.values |= inputs
        for proto in graph.node:
            self._import(proto, {})
        return [self.value(each.name) for each in graph.output]

    def value(self, name: str) -> Value:
        """Raises `InvalidArgumentError` for a name that nothing has."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope._outer
        raise InvalidArgumentError(f"the model: expected a value {name!r} before it is used; there is none")

    def _version(self, domain: str) -> int:
        """The version of a domain; a body may leave out that of what it uses."""
        return self._opsets.get(domain) or self._library.opsets.get(domain) or newest_opset(domain)

    def _import(self, proto: Any, given: Mapping[str, Any]) -> None:
        """Import one node; ``given`` has the AttributeProtos of the function that it is in."""
        attributes = _resolved(proto, given)
        inputs = [self.value(name) if name else None for name in proto.input]
        domain = _domain(proto)
        node = Node(
            proto.op_type,
            domain,
            self._version(domain),
            proto.name,
            {each.name: attribute_value(each) for each in attributes},
            tuple(proto.input),
            tuple(proto.output),
            self,
        )
        try:
            results = self._results(node, proto, attributes, inputs)
        except (NeedsValueError, InvalidArgumentError, UnimplementedError) as error:
            if str(node) in str(error):
                raise
            if isinstance(error, NeedsValueError):
                raise NeedsValueError(f"{node}: {error}", error.tensor) from error
            raise type(error)(f"{node}: {error}") from error
        except OpError as error:
            raise InvalidArgumentError(f"{node}: {error}") from error
        except MemoryError as error:
            raise ResourceExhaustedError(f"{node}: out of memory: {error}") from error
        except Exception as error:  # whatever a handler meets in a model that is damaged
            raise InvalidArgumentError(f"{node}: {type(error).__name__}: {error}") from error
        for name, result in zip(proto.output, results, strict=False):
            if name:
                self.values[name] = result

    def _results(
        self, node: Node, proto: Any, attributes: Sequence[Any], inputs: Sequence[Value]
    ) -> tuple[Value, ...]:
        function = self._library.functions.get((proto.domain, proto.op_type))
        handler = handler_of(node.domain, node.op, node.version) if function is None else None
        if handler is not None:
            has_graphs = any(each.HasField("g") or each.graphs for each in attributes)
            is_fixed = not has_graphs and all(map(is_known, inputs))
            found = compute(lambda: handler(node, *inputs)) if is_fixed else handler(node, *inputs)
            return found if isinstance(found, tuple) else (found,)
        if function is None:
            resolved = onnx().NodeProto()
            resolved.CopyFrom(proto)
            del resolved.attribute[:]
            resolved.attribute.extend(attributes)
            function = body_of(resolved, node.domain, node.version, inputs)
        if function is None:
            node.refuse("it is not supported")
        given = defaults_of(node.domain, node.op, node.version)
        given |= {each.name: each for each in function.attribute_proto}
        given |= {each.name: each for each in attributes}
        scope = Scope(self._library, None, opsets_of(function), self._depth + 1)
        scope.values.update(zip(function.input, [*inputs, *[None] * len(function.input)], strict=False))
        for each in function.node:
            scope._import(each, given)
        return tuple(scope.values.get(name) for name in function.output)  # None: an optional that is left out


def _resolved(proto: Any, given: Mapping[str, Any]) -> list[Any]:
    """The AttributeProtos of a node; a reference stands for an attribute of the function, if it has it."""
    found = []
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            found.append(attribute)
        elif attribute.ref_attr_name in given:
            copy = onnx().AttributeProto()
            copy.CopyFrom(given[attribute.ref_attr_name])
            copy.name = attribute.name
            found.append(copy)
    return found


def _dense(sparse: Any) -> Any:
    """The array of a SparseTensorProto."""
    values, indices = array_of(sparse.values), array_of(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return dense
