"""The bodies of operations that have no handler: those in the schema, which may depend on types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.onnx.proto import onnx, schema_of
from flowrt.onnx.values import dtype_of, has_static_shape, shape_of


def body_of(proto: Any, domain: str, version: int, inputs: Sequence[Any]) -> Any | None:
    """The FunctionProto that computes the NodeProto ``proto`` for ``inputs``, None if its schema has none."""
    schema = schema_of(domain, proto.op_type, version)
    if schema is None:
        return None
    function = onnx().FunctionProto
    if schema.has_context_dependent_function:
        types = [_type_of(value).SerializeToString() for value in inputs]
        for opset in _fitting(schema.context_dependent_function_opset_versions, version):
            content = schema.get_context_dependent_function_with_opset_version(
                opset, proto.SerializeToString(), types
            )
            if content:
                return function.FromString(content)
    if schema.has_function:
        for opset in _fitting(schema.function_opset_versions, version):
            content = schema.get_function_with_opset_version(opset)
            if content:
                return function.FromString(content)
    return None


def defaults_of(domain: str, op: str, version: int) -> dict[str, Any]:
    """The AttributeProtos that the schema gives to attributes that are left out."""
    schema = schema_of(domain, op, version)
    if schema is None:
        return {}
    return {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}


def _fitting(versions: Sequence[int], version: int) -> list[int]:
    """The versions up to ``version``, newest first."""
    return sorted((each for each in versions if each <= version), reverse=True)


def _type_of(value: Any) -> Any:
    """The TypeProto of a value."""
    library = onnx()
    if value is None:
        return library.TypeProto()
    if isinstance(value, list):
        element = _type_of(value[0]) if value else library.TypeProto()
        return library.helper.make_sequence_type_proto(element)
    dtype = dtype_of(value)
    kind = library.TensorProto.STRING if dtype.kind == "O" else library.helper.np_dtype_to_tensor_dtype(dtype)
    shape = shape_of(value) if has_static_shape(value) else None
    return library.helper.make_tensor_type_proto(kind, shape)
