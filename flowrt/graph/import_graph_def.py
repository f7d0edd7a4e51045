"""GraphDef into the default graph: `import_graph_def`.

The way: read all nodes (`flowrt.graph.graph_def`, which touches no graph), give each its name in the graph,
put producers first, then add one after the other, so that shapes are inferred and checked as for any
operation. Whatever goes wrong, the graph is then as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from flowrt import protos
from flowrt.dtypes import DType
from flowrt.errors import DTypeError, InvalidArgumentError, OpError, ResourceExhaustedError
from flowrt.graph.attr_values import decode_attr
from flowrt.graph.build import convert_to_tensor, output_dtypes
from flowrt.graph.evaluate import located
from flowrt.graph.graph import Graph, Operation, Tensor, get_default_graph, user_source
from flowrt.graph.graph_def import MAX_LIST_LENGTH, format_ref, parse_ref, read_nodes, read_output_shapes
from flowrt.graph.node import Node, Ref
from flowrt.graph.op_def import Argument, OpDef, nearest
from flowrt.graph.passes.prune import sort_topologically
from flowrt.graph.shapes import Shape


def import_graph_def(
    graph_def: Any,
    input_map: Mapping[str, Any] | None = None,
    return_elements: Sequence[str] | None = None,
    name: str | None = None,
    op_dict: None = None,
    producer_op_list: Any = None,
    validate_colocation_constraints: bool = True,
) -> list[Any] | None:
    """Add the nodes of ``graph_def`` to the default graph, with ``name/`` ("import/") before their names.

    ``input_map`` replaces tensors of ``graph_def`` ("node:1", "node"; "^node" for control inputs) by
    tensors of the graph. ``return_elements`` names operations ("node") and tensors ("node:1") of
    ``graph_def``; they are returned in that order. A name that the graph has already gets a suffix ``_1``,
    ``_2``, …. ``producer_op_list`` (an OpList) tells the defaults of the producer's ops: unknown attributes
    that have them are dropped. Without ``validate_colocation_constraints`` colocation with nodes that are
    not in ``graph_def`` is dropped too. ``op_dict`` is not used. The caller's scopes (device, control
    dependencies) colour the new operations.

    Raises, with the node's name: `NotFoundError` for unknown ops (all at once, with the nearest ones);
    `DTypeError` for dtypes that do not fit; `InvalidArgumentError` for whatever else does not hold together
    (inputs, attributes, shapes, a cycle, versions, names in ``input_map`` and ``return_elements``);
    `ResourceExhaustedError` for sizes beyond the limits. The graph is then unchanged.
    """
    graph = get_default_graph()
    graph.check_building()
    message = _as_graph_def(graph_def)
    nodes = read_nodes(message, user_source(), _producer_defaults(producer_op_list))
    shapes = read_output_shapes(message)
    with graph.rollback_on_error(), graph.name_scope("import" if name is None else name) as scope:
        mapped = _InputMap(graph, input_map or {})
        importer = _Importer(graph, nodes, mapped, scope)
        if validate_colocation_constraints:
            importer.check_colocation()
        importer.add_all(shapes)
        mapped.check_used(importer)
        return None if return_elements is None else importer.elements(return_elements)


def _as_graph_def(graph_def: Any) -> Any:
    own = protos.graph_pb2.GraphDef
    if isinstance(graph_def, own):
        return graph_def
    if hasattr(graph_def, "DESCRIPTOR") and graph_def.DESCRIPTOR.name == "GraphDef":
        return own.FromString(graph_def.SerializeToString())  # TensorFlow's own: the same bytes
    raise DTypeError(f"graph_def: expected a GraphDef; got {type(graph_def).__name__}")


def _producer_defaults(op_list: Any) -> dict[tuple[str, str], Any]:
    """``{(op, attribute): default}`` of an OpList."""
    found: dict[tuple[str, str], Any] = {}
    for op in () if op_list is None else op_list.op:
        for attr in op.attr:
            if attr.HasField("default_value"):
                default = protos.graph_pb2.AttrValue.FromString(attr.default_value.SerializeToString())
                found[op.name, attr.name] = decode_attr(default, attr.name, None)
    return found


class _InputMap:
    """``input_map`` with its keys parsed, and which of them were needed."""

    def __init__(self, graph: Graph, given: Mapping[str, Any]) -> None:
        self.tensors: dict[Ref, Tensor] = {}
        self.controls: dict[str, Operation] = {}
        self.used: set[Ref | str] = set()
        for key, value in given.items():
            if not isinstance(key, str):
                raise DTypeError(f"input_map: expected names as keys; got {key!r}")
            ref, is_control = parse_ref(key)
            if is_control:
                element = graph.as_graph_element(value)
                self.controls[ref[0]] = element if isinstance(element, Operation) else element.op
            else:
                self.tensors[ref] = _own_tensor(graph, key, value)

    def check_used(self, importer: _Importer) -> None:
        """Refuse keys that name nothing in the GraphDef."""
        refs = [(format_ref(r), r[0], r[1]) for r in self.tensors if r not in self.used]
        refs += [(f"^{name}", name, -1) for name in self.controls if name not in self.used]
        for key, name, index in refs:
            op = importer.added.get(name)
            if op is None or index >= len(op.outputs):
                hint = nearest(name, importer.added)
                raise InvalidArgumentError(f"input_map: expected names of the GraphDef; got {key!r}.{hint}")


def _own_tensor(graph: Graph, key: str, value: Any) -> Tensor:
    tensor = value if isinstance(value, Tensor) else convert_to_tensor(value, name="inputs")
    if tensor.graph is not graph:
        raise InvalidArgumentError(
            f"input_map {key!r}: expected a tensor of the default graph; got {tensor!r}"
        )
    return tensor


class _Importer:
    """One import: ``names`` are the nodes' names in ``graph``, ``added`` its operations by old name."""

    def __init__(self, graph: Graph, nodes: Mapping[str, Node], mapped: _InputMap, scope: str) -> None:
        self.graph, self.nodes, self.mapped = graph, nodes, mapped
        self.added: dict[str, Operation] = {}
        self.names = _choose_names(graph, nodes, scope)

    def check_colocation(self) -> None:
        for node in self.nodes.values():
            for name in _colocated_with(node):
                if name not in self.nodes:
                    message = f"expected colocation with a node of the GraphDef; got {name!r}"
                    raise located(node, InvalidArgumentError(f"{message}.{nearest(name, self.nodes)}"))

    def add_all(self, shapes: Mapping[str, tuple[Shape, ...]]) -> None:
        inner = {name: self._without_mapped(node) for name, node in self.nodes.items()}
        for node in inner.values():
            for ref in [*node.inputs, *((name, 0) for name in node.controls)]:
                if ref[0] not in inner:
                    message = f"expected inputs among the nodes of the GraphDef; got {format_ref(ref)!r}"
                    hint = nearest(ref[0], inner) or " input_map can replace it"
                    raise located(node, InvalidArgumentError(f"{message}.{hint}"))
        for name in sort_topologically(inner):
            node = self.nodes[name]
            try:
                op = self.added[name] = self._add(node)
                if name in shapes:
                    _merge_shapes(op, shapes[name])
            except OpError as error:
                raise located(node, error) from error.__cause__
            except Exception as error:  # a shape rule met what no program builds
                message = f"expected inputs and attributes as the op takes them; got {error!r}"
                raise located(node, InvalidArgumentError(message)) from error

    def _without_mapped(self, node: Node) -> Node:
        tensors, controls = self.mapped.tensors, self.mapped.controls
        if not tensors and not controls:
            return node
        return node.replace(
            inputs=tuple(ref for ref in node.inputs if ref not in tensors),
            controls=tuple(name for name in node.controls if name not in controls),
        )

    def _add(self, node: Node) -> Operation:
        inputs = [self.tensor(ref) for ref in node.inputs]
        attrs = bind_types(node.op, inputs, node.attrs)
        if "_class" in attrs:
            near = [self.names[name] for name in _colocated_with(node) if name in self.names]
            attrs["_class"] = tuple(f"loc:@{name}" for name in near)
        place = self.graph.device(node.device) if node.device else nullcontext()
        order = self.graph.control_dependencies(self._controls(node)) if node.controls else nullcontext()
        with place, order:
            return self.graph.add(
                node.op, self.names[node.name], inputs, attrs, output_dtypes(node.op, attrs)
            )

    def _controls(self, node: Node) -> list[Operation]:
        self.mapped.used.update(name for name in node.controls if name in self.mapped.controls)
        return [self.mapped.controls.get(name) or self.added[name] for name in node.controls]

    def tensor(self, ref: Ref) -> Tensor:
        """The graph's tensor for ``ref`` of the GraphDef. Raises `InvalidArgumentError`."""
        if ref in self.mapped.tensors:
            self.mapped.used.add(ref)
            return self.mapped.tensors[ref]
        op = self.added[ref[0]]
        if ref[1] >= len(op.outputs):
            message = f"{op.type} {ref[0]!r} has {len(op.outputs)} outputs; got its output {ref[1]}"
            raise InvalidArgumentError(f"expected an output that exists: {message}")
        return op.outputs[ref[1]]

    def elements(self, names: Sequence[str]) -> list[Any]:
        """The operations and tensors that ``names`` name in the GraphDef. Raises `InvalidArgumentError`."""
        if isinstance(names, (str, bytes)) or not all(isinstance(n, str) for n in names):
            raise DTypeError(f"return_elements: expected a list of names; got {names!r}")
        found: list[Any] = []
        for name in names:
            ref, is_control = parse_ref(name)
            is_known = ref[0] in self.added or (":" in name and ref in self.mapped.tensors)
            if is_control or not is_known:
                hint = nearest(name, self.added)
                message = f"return_elements: expected names of the GraphDef; got {name!r}.{hint}"
                raise InvalidArgumentError(message)
            found.append(self.tensor(ref) if ":" in name else self.added[name])
        return found


def _choose_names(graph: Graph, nodes: Mapping[str, Node], scope: str) -> dict[str, str]:
    taken: dict[str, str] = {}
    for name in nodes:
        full = graph.operation_name(f"{scope}{name}/")
        while full in taken:  # another node took it as its suffixed name
            full = graph.unique_absolute(full)
        taken[full] = name
    return {name: full for full, name in taken.items()}


def _colocated_with(node: Node) -> list[str]:
    groups = node.attrs.get("_class", ())
    if not isinstance(groups, tuple) or not all(isinstance(group, str) for group in groups):
        message = f"attribute '_class': expected a list of strings; got {groups!r}"
        raise located(node, InvalidArgumentError(message))
    return [group.removeprefix("loc:@") for group in groups if group.startswith("loc:@")]


def bind_types(op: OpDef, inputs: Sequence[Tensor], given: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes ``given`` with the type variables that the inputs tell.

    Raises `InvalidArgumentError` for the number of inputs, `DTypeError` for dtypes that the op does not take,
    `ResourceExhaustedError` for an input that must be small and is not.
    """
    attrs = dict(given)
    counts = [_length(argument, attrs) for argument in op.inputs]
    if sum(counts) != len(inputs):
        pairs = zip(op.inputs, counts, strict=True)
        names = ", ".join(f"{a.name} * {n}" if a.is_list else a.name for a, n in pairs)
        raise InvalidArgumentError(f"expected {sum(counts)} inputs ({names}); got {len(inputs)}")
    places = [(a, i) for a, n in zip(op.inputs, counts, strict=True) for i in range(n)]
    for position, ((argument, offset), tensor) in enumerate(zip(places, inputs, strict=True)):
        dtype = _dtype_for(argument, offset, tensor.dtype, attrs)
        if dtype is not tensor.dtype:
            got = f"{tensor.name!r} of {tensor.dtype.name}"
            raise DTypeError(f"input {position} ({argument.name}): expected dtype {dtype.name}; got {got}")
        if argument.on_host and math.prod(max(d or 1, 1) for d in tensor.spec.shape or ()) > MAX_LIST_LENGTH:
            where = f"input {position} ({argument.name})"  # shape rules make Python lists of these
            raise ResourceExhaustedError(
                f"{where}: expected {MAX_LIST_LENGTH} elements at most; got {tensor!r}"
            )
    for variable, allowed in op.types.items():
        bound = _required(attrs, variable)
        for dtype in bound if isinstance(bound, tuple) else (bound,):
            if dtype not in allowed:
                names = ", ".join(sorted(d.name for d in allowed))
                raise DTypeError(f"{variable}: expected one of {names}; got {dtype.name}")
    for argument in op.outputs:
        _length(argument, attrs)
    return attrs


def _dtype_for(argument: Argument, offset: int, given: DType, attrs: dict[str, Any]) -> DType:
    """The dtype that place ``offset`` of ``argument`` must have; a free type variable becomes ``given``."""
    if argument.type_attr is None:
        assert argument.dtype is not None
        return argument.dtype
    if argument.is_type_list:
        return attrs[argument.type_attr][offset]  # type: ignore[no-any-return]
    return attrs.setdefault(argument.type_attr, given)  # type: ignore[no-any-return]


def _length(argument: Argument, attrs: Mapping[str, Any]) -> int:
    """How many tensors ``argument`` stands for. Raises `InvalidArgumentError` when no attribute tells."""
    if argument.number_attr is not None:
        return int(_required(attrs, argument.number_attr))
    if argument.is_type_list:
        return len(_required(attrs, argument.type_attr or ""))
    return 1


def _required(attrs: Mapping[str, Any], key: str) -> Any:
    if key not in attrs:
        raise InvalidArgumentError(f"attribute {key!r}: expected a value; got none")
    return attrs[key]


def _merge_shapes(op: Operation, shapes: Sequence[Shape]) -> None:
    """Add what "_output_shapes" tells. Raises `InvalidArgumentError` when it contradicts what is known."""
    if len(shapes) != len(op.outputs):
        raise InvalidArgumentError(f"_output_shapes: expected {len(op.outputs)} shapes; got {len(shapes)}")
    for tensor, shape in zip(op.outputs, shapes, strict=True):
        tensor.set_shape(shape)
