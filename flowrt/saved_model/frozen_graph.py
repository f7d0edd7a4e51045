"""Frozen graphs: GraphDef files with constants in place of variables. `load_frozen_graph`, `freeze`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph_util import convert_variables_to_constants
from flowrt.saved_model.file_writes import check_writes_no_files
from flowrt.saved_model.graph_model import GraphModel
from flowrt.storage.durable_files import PathLike, path_string
from flowrt.tf1.graph_import.import_graph_def import import_graph_def
from flowrt.tf1.message_files import read_message

_FED = ("Placeholder", "PlaceholderWithDefault")


def load_frozen_graph(
    path: PathLike, outputs: Sequence[str] | None = None, *, allow_files: bool = False
) -> GraphModel:
    """The model in a GraphDef file (text if its name ends in ``.pbtxt``). Inputs are its placeholders,
    ``outputs`` tensors ("node", "node:1") or, if None, all that nothing reads.

    >>> model = tf.saved_model.load_frozen_graph("inception.pb", ["softmax"])

    Raises `NotFoundError` for ops that flowrt does not have, all at once, and as `import_graph_def`;
    `PermissionDeniedError` for outputs that write files, unless ``allow_files``.
    """
    name = path_string(path, "load_frozen_graph")
    message = read_message(name, protos.graph_pb2.GraphDef)
    asked = None if outputs is None else {each: each for each in outputs}
    return model_of(message, name, None, asked, allow_files)


def model_of(
    message: Any,
    where: str,
    inputs: Mapping[str, str] | None,
    outputs: Mapping[str, str] | None,
    allow_files: bool,
) -> GraphModel:
    """The model of a GraphDef from the file ``where``: names of tensors by those that callers use, or None as
    in `load_frozen_graph`. Raises as that.
    """
    with Graph() as graph:
        import_graph_def(message, name="")
    fed = _placeholders(graph) if inputs is None else _named(graph, inputs)
    found = unread(graph) if outputs is None else _named(graph, outputs)
    if not found:
        raise InvalidArgumentError(f"{where}: expected outputs; got a graph without any")
    if not allow_files:
        check_writes_no_files(message, [tensor.op.name for tensor in found.values()])
    return GraphModel(Session(graph=graph), fed, found)


def _named(graph: Graph, names: Mapping[str, str]) -> dict[str, Tensor]:
    return {key: tensor_of(graph, name) for key, name in names.items()}


def _placeholders(graph: Graph) -> dict[str, Tensor]:
    return {op.name: op.outputs[0] for op in graph.get_operations() if op.type in _FED}


def freeze(model: GraphModel) -> Any:
    """The GraphDef of what the outputs need, with the variables' values as constants."""
    names = list(dict.fromkeys(tensor.op.name for tensor in model.outputs.values()))
    return convert_variables_to_constants(model.session, model.graph.as_graph_def(add_shapes=True), names)


def tensor_of(graph: Graph, name: str) -> Tensor:
    """The tensor "node:1", or output 0 of "node"."""
    tensor: Tensor = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    return tensor


def unread(graph: Graph) -> dict[str, Tensor]:
    """The tensors that no operation reads, by name; of placeholders and constants none."""
    operations: Sequence[Operation] = graph.get_operations()
    read = {ref for op in operations for ref in op.node.inputs}
    ends = [
        op
        for op in operations
        if op.outputs and op.type not in (*_FED, "Const") and not any(t.ref in read for t in op.outputs)
    ]
    return {op.name if i == 0 else f"{op.name}:{i}": t for op in ends for i, t in enumerate(op.outputs)}
