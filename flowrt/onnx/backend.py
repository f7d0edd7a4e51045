"""The interface of ONNX's backend suite (`onnx.backend.base.Backend`): `prepare`, `run_model`, `run_node`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from flowrt.errors import UnimplementedError
from flowrt.onnx.importer import check_operations
from flowrt.onnx.model import OnnxModel
from flowrt.onnx.proto import onnx, read_model


@final
class BackendModel:
    """A prepared model."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def run(self, inputs: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        """The outputs in order. Raises as `OnnxModel.run`."""
        return tuple(self.model.run(inputs).values())


def is_compatible(model: Any, device: str = "CPU", **options: Any) -> bool:
    """Whether there is a handler or a body for each operation."""
    try:
        check_operations(read_model(model))
    except UnimplementedError:
        return False
    return True


def prepare(model: Any, device: str = "CPU", **options: Any) -> BackendModel:
    """The model, to run. Raises as `flowrt.onnx.load`."""
    return BackendModel(OnnxModel(read_model(model)))


def run_model(model: Any, inputs: Any, device: str = "CPU", **options: Any) -> tuple[Any, ...]:
    """The outputs of a model. Raises as `prepare` and `BackendModel.run`."""
    return prepare(model, device).run(inputs)


def run_node(node: Any, inputs: Sequence[Any], device: str = "CPU", **options: Any) -> tuple[Any, ...]:
    """The outputs of one NodeProto for ``inputs``."""
    helper = onnx().helper
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in zip([each for each in node.input if each], inputs, strict=True)
    ]
    outputs = [onnx().ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "node", values, outputs)
    opsets = options.get("opset_imports") or [helper.make_opsetid("", onnx().defs.onnx_opset_version())]
    return run_model(helper.make_model(graph, opset_imports=opsets), list(inputs), device)


def supports_device(device: str) -> bool:
    """Whether ``device``, as ONNX names it, is there."""
    return device == "CPU"
