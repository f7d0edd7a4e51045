"""GraphDef into the default graph: `import_graph_def`.

The steps: read all nodes (`flowrt.tf1.graph_import.read_graph_def`, which does not touch the graph); convert
TensorFlow 1's reference variables, control flow, TensorArrays and stacks to handles, While and If, and lists
(`flowrt.tf1.graph_import.import_references`, `flowrt.tf1.graph_import.import_control_flow`,
`flowrt.tf1.graph_import.import_lists`); name each node in the graph, and add them one by one, producers first
(`flowrt.tf1.graph_import.import_nodes`). On any error the graph is left unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrt import protos
from flowrt.errors import DTypeError, InvalidArgumentError, nearest
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph, user_source
from flowrt.graph.evaluate import located
from flowrt.graph.messages.attr_values import decode_attr
from flowrt.graph.messages.graph_def import format_ref
from flowrt.graph.node import Node, Ref
from flowrt.tf1.graph_import.import_control_flow import raise_control_flow
from flowrt.tf1.graph_import.import_lists import handles_to_lists
from flowrt.tf1.graph_import.import_nodes import InputMap, NodeImporter, colocated_with
from flowrt.tf1.graph_import.import_references import references_to_handles
from flowrt.tf1.graph_import.read_graph_def import parse_ref, read_nodes


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

    ``input_map`` replaces tensors of ``graph_def`` ("node:1", "node"; "^node" for control inputs) by tensors
    of the graph. ``return_elements`` names operations ("node") and tensors ("node:1") of ``graph_def``; they
    are returned in that order. A name that is taken gets a suffix ``_1``, ``_2``, …. ``producer_op_list`` (an
    OpList) has the defaults of the producer's ops: unknown attributes at their default are dropped. Without
    ``validate_colocation_constraints`` colocation with nodes that are not in ``graph_def`` is dropped too.
    ``op_dict`` is not used. The caller's scopes (device, control dependencies) apply to the new operations.
    Functions of the library become those of the operations that own them. Control flow of TensorFlow 1
    (Switch, Merge, Enter, ...) becomes While and If operations, its TensorArrays become lists; the names of
    Exit and Merge nodes stay those of their values.

    Raises, with the node's name: `NotFoundError` for unknown ops (all at once, with the nearest ones);
    `DTypeError` for dtypes that do not match; `InvalidArgumentError` for other inconsistencies (inputs,
    attributes, shapes, a cycle, versions, names in ``input_map`` and ``return_elements``);
    `ResourceExhaustedError` for sizes beyond the limits. The graph is then unchanged.
    """
    graph = get_default_graph()
    with graph.rollback_on_error():
        importer = import_nodes(graph_def, input_map, name, producer_op_list, validate_colocation_constraints)
        return None if return_elements is None else _elements(importer, return_elements)


def import_nodes(
    graph_def: Any,
    input_map: Mapping[str, Any] | None = None,
    name: str | None = None,
    producer_op_list: Any = None,
    validate_colocation_constraints: bool = True,
) -> NodeImporter:
    """The importer of `import_graph_def`, which has the new operations by their names in
    ``graph_def``.
    """
    graph = get_default_graph()
    graph.check_building()
    message = _as_graph_def(graph_def)
    read = read_nodes(message, user_source(), _producer_defaults(producer_op_list))
    nodes = handles_to_lists(raise_control_flow(references_to_handles(read)))
    given = {key: _adopted(graph, value) for key, value in (input_map or {}).items()}
    with graph.rollback_on_error(), graph.name_scope("import" if name is None else name) as scope:
        if validate_colocation_constraints:
            _check_colocation(read)
        mapped = _parse_input_map(graph, given)
        importer = NodeImporter(graph, nodes, mapped, _choose_names(graph, nodes, scope))
        importer.add_all()
        _check_used(mapped, importer)
        return importer


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


def _parse_input_map(graph: Graph, given: Mapping[str, Any]) -> InputMap:
    tensors: dict[Ref, Tensor] = {}
    controls: dict[str, Operation] = {}
    for key, value in given.items():
        if not isinstance(key, str):
            raise DTypeError(f"input_map: expected names as keys; got {key!r}")
        ref, is_control = parse_ref(key)
        if is_control:
            element = graph.as_graph_element(value)
            controls[ref[0]] = element if isinstance(element, Operation) else element.op
        else:
            tensors[ref] = _own_tensor(graph, key, value)
    return InputMap(tensors, controls)


def _adopted(graph: Graph, value: Any) -> Any:
    """A tensor of a graph around the function ``graph`` as its parameter, which outlives a failed import."""
    adopted = graph.adopt(value) if isinstance(value, Tensor) else None
    return value if adopted is None else adopted


def _own_tensor(graph: Graph, key: str, value: Any) -> Tensor:
    tensor = value if isinstance(value, Tensor) else convert_to_tensor(value, name="inputs")
    if tensor.graph is not graph:
        raise InvalidArgumentError(
            f"input_map {key!r}: expected a tensor of the default graph; got {tensor!r}"
        )
    return tensor


def _check_used(mapped: InputMap, importer: NodeImporter) -> None:
    """Reject keys of the input map that do not occur in the GraphDef."""
    refs = [(format_ref(r), r[0], r[1]) for r in mapped.tensors if r not in mapped.used]
    refs += [(f"^{name}", name, -1) for name in mapped.controls if name not in mapped.used]
    for key, name, index in refs:
        op = importer.added.get(name)
        if op is None or index >= len(op.outputs):
            hint = nearest(name, importer.added)
            raise InvalidArgumentError(f"input_map: expected names of the GraphDef; got {key!r}.{hint}")


def _check_colocation(nodes: Mapping[str, Node]) -> None:
    for node in nodes.values():
        for name in colocated_with(node):
            if name not in nodes:
                message = f"expected colocation with a node of the GraphDef; got {name!r}"
                raise located(node, InvalidArgumentError(f"{message}.{nearest(name, nodes)}"))


def _elements(importer: NodeImporter, names: Sequence[str]) -> list[Any]:
    """The operations and tensors of the GraphDef called ``names``. Raises `InvalidArgumentError`."""
    if isinstance(names, (str, bytes)) or not all(isinstance(n, str) for n in names):
        raise DTypeError(f"return_elements: expected a list of names; got {names!r}")
    found: list[Any] = []
    for name in names:
        ref, is_control = parse_ref(name)
        is_known = ref[0] in importer.added or (":" in name and ref in importer.mapped.tensors)
        if is_control or not is_known:
            hint = nearest(name, importer.added)
            message = f"return_elements: expected names of the GraphDef; got {name!r}.{hint}"
            raise InvalidArgumentError(message)
        found.append(importer.tensor(ref) if ":" in name else importer.added[name])
    return found


def _choose_names(graph: Graph, nodes: Mapping[str, Node], scope: str) -> dict[str, str]:
    taken: dict[str, str] = {}
    for name in nodes:
        full = graph.operation_name(f"{scope}{name}/")
        while full in taken:  # another node took it as its suffixed name
            full = graph.unique_absolute(full)
        taken[full] = name
    return {name: full for full, name in taken.items()}
