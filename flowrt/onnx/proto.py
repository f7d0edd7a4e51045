"""The door to the package `onnx`: models from files, tensors as arrays, schemas."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, NotFoundError, UnimplementedError
from flowrt.storage.file_kinds import HEAD_BYTES, described

OLDEST_OPSET = 7
MAX_VERSION = 1 << 31


def onnx() -> Any:
    """The package. Raises `NotFoundError` where it is not installed."""
    try:
        import onnx
        import onnx.helper
        import onnx.numpy_helper
    except ImportError as error:
        raise NotFoundError(
            f"ONNX models need the package onnx: pip install 'flowrt[onnx]' ({error})"
        ) from None
    return onnx


def read_model(source: Any) -> Any:
    """The ModelProto of a path, of bytes, or ``source`` itself, of an opset that handlers know.

    Raises `NotFoundError` for a missing file, `InvalidArgumentError` for anything that is no model.
    """
    library = onnx()
    where, head = "the model", None
    if isinstance(source, library.ModelProto):
        return _converted(source)
    try:
        if isinstance(source, bytes | bytearray):
            head = bytes(source[:HEAD_BYTES])
            model = library.ModelProto.FromString(bytes(source))
        else:
            where = os.fspath(source)
            with open(where, "rb") as file:
                head = file.read(HEAD_BYTES)
                file.seek(0)
                model = library.ModelProto.FromString(file.read())
            library.external_data_helper.load_external_data_for_model(model, os.path.dirname(where) or ".")
    except FileNotFoundError as error:
        raise NotFoundError(f"{where}: {error.strerror or error}") from error
    except Exception as error:
        # protobuf's DecodeError, and what the package raises for data outside of the folder
        raise InvalidArgumentError(
            f"{where}: expected an ONNX model; {type(error).__name__}: {error}{described(head)}"
        ) from error
    if not model.HasField("graph"):
        raise InvalidArgumentError(f"{where}: expected an ONNX model; it has no graph{described(head)}")
    return _converted(model)


def opsets_of(model: Any) -> dict[str, int]:
    """The version of each domain; "" is ONNX's own."""
    return {_domain(each.domain): each.version for each in model.opset_import} or {"": 1}


def newest_opset(domain: str) -> int:
    """The newest version that the package has."""
    return int(onnx().defs.onnx_opset_version()) if not domain else 1


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _converted(model: Any) -> Any:
    """``model``, with names that are text, in an opset that handlers know."""
    graph = model.graph
    for each in (*graph.input, *graph.output, *graph.initializer):
        if not isinstance(each.name, str):
            raise InvalidArgumentError(f"the model: expected names in UTF-8; got {each.name!r:.80}")
    for domain, version in opsets_of(model).items():
        if not 0 < version < MAX_VERSION:
            raise InvalidArgumentError(f"the model: expected a version of {domain or 'ONNX'}; got {version}")
    version = opsets_of(model).get("", OLDEST_OPSET)
    if version >= OLDEST_OPSET:
        return model
    from onnx import version_converter

    try:
        return version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:
        raise UnimplementedError(
            f"opset {version}: expected {OLDEST_OPSET} or later, and ONNX's converter failed: {error}"
        ) from error


def array_of(tensor: Any) -> Any:
    """The array of a TensorProto; strings are objects of bytes. Raises `InvalidArgumentError`."""
    library = onnx()
    try:
        array = library.numpy_helper.to_array(tensor)
    except Exception as error:
        raise InvalidArgumentError(f"tensor {tensor.name!r}: {error}") from error
    if array.dtype.kind in "OUS":
        flat = [each.encode() if isinstance(each, str) else each for each in array.reshape(-1).tolist()]
        array = np.array([*flat, None], object)[:-1].reshape(array.shape)
    return array


def dtype_of(element_type: int) -> Any:
    """The NumPy dtype of an element type; of strings `object`. Raises `UnimplementedError`."""
    library = onnx()
    try:
        dtype = library.helper.tensor_dtype_to_np_dtype(element_type)
    except Exception as error:
        raise UnimplementedError(f"expected an element type of ONNX's; got {element_type}") from error
    return np.dtype(object) if dtype.kind in "OUS" else dtype


def attribute_value(attribute: Any) -> Any:
    """The value of an AttributeProto: a number, text, array, graph, or a list."""
    library = onnx()
    value = library.helper.get_attribute_value(attribute)
    kinds = library.AttributeProto
    if attribute.type == kinds.TENSOR:
        return array_of(value)
    if attribute.type == kinds.STRING:
        return value.decode("utf-8", "replace")
    if attribute.type == kinds.STRINGS:
        return [each.decode("utf-8", "replace") for each in value]
    return value


def schema_of(domain: str, op: str, version: int) -> Any | None:
    """The schema of an operation, None if ONNX has none."""
    library = onnx()
    try:
        return library.defs.get_schema(op, version, domain)
    except (library.defs.SchemaError, TypeError):  # or a name that is no text
        return None


def element_type(dtype: np.dtype[Any]) -> int:
    """The element type of a NumPy dtype; `object` is a string. Raises `UnimplementedError`."""
    library = onnx()
    if dtype.kind == "O":
        return int(library.TensorProto.STRING)
    try:
        return int(library.helper.np_dtype_to_tensor_dtype(dtype))
    except (KeyError, ValueError) as error:
        raise UnimplementedError(f"expected a dtype that ONNX has; got {dtype}") from error
