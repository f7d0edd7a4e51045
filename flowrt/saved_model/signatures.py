"""Signatures: the inputs and outputs of a graph by the names that callers use, as messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from flowrt import protos
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.messages.tensor_proto import encode_shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.saved_model.signature_constants import PREDICT_METHOD_NAME

__all__ = [
    "build_signature_def", "build_tensor_info", "get_tensor_from_tensor_info", "predict_signature_def",
]  # fmt: skip


def build_tensor_info(tensor: NumericLike) -> Any:
    """The TensorInfo of a tensor: its name, dtype and shape. Raises `DTypeError` for anything else."""
    if not isinstance(tensor, Tensor):
        raise misuse(f"build_tensor_info: expected a tensor; got {tensor!r}", DTypeError)
    made = protos.meta_graph_pb2.TensorInfo(name=tensor.name)
    made.dtype = cast(Any, tensor.dtype.number)
    encode_shape(made.tensor_shape, tensor.spec.shape)
    return made


def build_signature_def(
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, Any] | None = None,
    method_name: str | None = None,
) -> Any:
    """The SignatureDef of TensorInfos by name."""
    made = protos.meta_graph_pb2.SignatureDef(method_name=method_name or "")
    for given, field in ((inputs, made.inputs), (outputs, made.outputs)):
        for name, info in (given or {}).items():
            field[name].CopyFrom(info)
    return made


def predict_signature_def(inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> Any:
    """The SignatureDef of a function of tensors. Raises `InvalidArgumentError` without inputs or outputs."""
    for what, given in (("inputs", inputs), ("outputs", outputs)):
        if not given:
            raise misuse(f"predict_signature_def: expected {what}; got {given!r}", InvalidArgumentError)
    given, made = ({name: build_tensor_info(t) for name, t in each.items()} for each in (inputs, outputs))
    return build_signature_def(given, made, PREDICT_METHOD_NAME)


def get_tensor_from_tensor_info(
    tensor_info: Any, graph: Graph | None = None, import_scope: str | None = None
) -> Tensor:
    """The tensor of ``graph`` (or the default graph) that a TensorInfo names. Raises `NotFoundError` if there
    is none, `UnimplementedError` for a sparse one.
    """
    name = tensor_name(tensor_info)
    full = f"{import_scope}/{name}" if import_scope else name
    tensor: Tensor = (graph or get_default_graph()).get_tensor_by_name(full)
    return tensor


def tensor_name(tensor_info: Any) -> str:
    """The name in a TensorInfo. Raises `UnimplementedError` for one of several tensors."""
    if tensor_info.WhichOneof("encoding") != "name":
        raise UnimplementedError("signature: expected dense tensors; got a sparse or a composite one")
    name: str = tensor_info.name
    return name


def op_signature_def(op: Operation, key: str) -> Any:
    """The SignatureDef of an operation without inputs and outputs."""
    return build_signature_def(None, {key: protos.meta_graph_pb2.TensorInfo(name=op.name)})
