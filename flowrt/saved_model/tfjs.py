"""Graph models of TensorFlow.js: a ``model.json`` with the topology, and weights in files beside it.

The topology is a GraphDef as JSON in which constants have no values: these are "weights", named as the nodes,
those of functions included. A file has one after the other, quantized or not; integers are int32, as
TensorFlow.js has no others. See tfjs-converter/docs and tfjs-core/src/io/types.ts of TensorFlow.js.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
from google.protobuf import json_format
from google.protobuf.json_format import ParseError

from flowrt import dtypes, protos
from flowrt.dtypes import as_dtype
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.saved_model.frozen_graph import model_of
from flowrt.saved_model.graph_model import GraphModel
from flowrt.storage.durable_files import path_string
from flowrt.tf1.message_files import read_bytes

Array = np.ndarray[Any, Any]

STORED = {"float32": "<f4", "int32": "<i4", "bool": "?", "complex64": "<c8"}
QUANTIZED = {"uint8": "u1", "uint16": "<u2", "float16": "<f2"}
LENGTH_BYTES = 4
"""Bytes of the length before a string."""


def load_graph_model(path: Any, *, allow_files: bool = False) -> GraphModel:
    """The model in the ``model.json`` of a TensorFlow.js graph model; layers models have no graph. Inputs and
    outputs are those of its signature; without one, placeholders, and tensors that nothing reads.

    >>> model = tf.saved_model.load_graph_model("blazeface/model.json")

    Raises `InvalidArgumentError` for other files and for weights outside of the folder, `NotFoundError` for
    missing files and for ops that flowrt does not have, and as `load_frozen_graph`.
    """
    name = path_string(path, "load_graph_model")
    message, inputs, outputs = read_graph_model(name)
    return model_of(message, name, inputs, outputs, allow_files)


Names: TypeAlias = "dict[str, str] | None"


def read_graph_model(path: str) -> tuple[Any, Names, Names]:
    """The GraphDef, with values, and its inputs and outputs: names of tensors by those that callers use, None
    without a signature. Raises as `load_graph_model`.
    """
    try:
        model = json.loads(read_bytes(path))
        message = json_format.ParseDict(
            model["modelTopology"], protos.graph_pb2.GraphDef(), ignore_unknown_fields=True
        )
        weights = _weights(model.get("weightsManifest") or (), os.path.dirname(path))
        for nodes in (message.node, *[function.node_def for function in message.library.function]):
            for node in nodes:
                _complete(node, weights)
        signature = model.get("signature") or (model.get("userDefinedMetadata") or {}).get("signature") or {}
        return message, _tensors(signature, "inputs"), _tensors(signature, "outputs")
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None
    except OpError:  # of a file, which it names
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, ParseError) as error:
        # JSON raises ValueError; the others are of JSON that has other types or lacks keys
        expected = f"expected a graph model of TensorFlow.js; {type(error).__name__}: {error}"
        raise InvalidArgumentError(f"{path}: {expected}") from error


def _tensors(signature: Any, side: str) -> Names:
    return {str(key): given["name"] for key, given in (signature.get(side) or {}).items()} or None


def _complete(node: Any, weights: Mapping[str, Array]) -> None:
    """Give ``node`` the value, and the attributes, that the topology leaves out."""
    if node.op == "Const" and node.name in weights:
        tensor, array = node.attr["value"].tensor, weights[node.name]
        if array.dtype == object:
            tensor.string_val.extend(array.reshape(-1).tolist())
        else:
            wanted = np.dtype(as_dtype(tensor.dtype).as_numpy_dtype)
            is_integer = {array.dtype.kind, wanted.kind} <= set("iu")
            if not is_integer and not np.can_cast(array.dtype, wanted, "same_kind"):
                raise TypeError(f"weight {node.name!r}: expected {wanted.name}; got {array.dtype.name}")
            tensor.tensor_content = array.astype(wanted).tobytes()
    elif node.op == "Prelu":  # an operation of TensorFlow.js alone
        node.attr["T"].type = dtypes.float32.as_datatype_enum
    elif node.op == "_FusedConv2D" and "TArgs" not in node.attr:  # a newer attribute of TensorFlow's
        node.attr["TArgs"].list.type.extend([dtypes.float32.as_datatype_enum] * node.attr["num_args"].i)


# --- weights


def _weights(manifest: Any, folder: str) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for group in manifest:
        data, at = b"".join(read_bytes(_inside(folder, name)) for name in group["paths"]), 0
        for weight in group["weights"]:
            found[weight["name"]], at = _weight(weight, data, at)
    return found


def _inside(folder: str, name: str) -> str:
    """The path of a file of the folder. Raises `InvalidArgumentError` for one outside of it."""
    path, root = os.path.realpath(os.path.join(folder, name)), os.path.realpath(folder)
    if os.path.commonpath([path, root]) != root:
        raise InvalidArgumentError(f"expected weights in the folder of the model; got {name!r}")
    return path


def _weight(weight: Mapping[str, Any], data: bytes, at: int) -> tuple[Array, int]:
    """The array at ``data[at:]``, and where it ends."""
    shape, scheme = [int(size) for size in weight["shape"]], weight.get("quantization")
    count = math.prod(shape)
    if weight["dtype"] == "string":
        return _texts(weight["name"], data, at, count)
    stored = np.dtype(QUANTIZED[scheme["dtype"]] if scheme else STORED[weight["dtype"]])
    end = at + count * stored.itemsize
    if min(shape, default=0) < 0 or end > len(data):
        message = f"expected {stored.name}{shape} at byte {at} of {len(data)}"
        raise InvalidArgumentError(f"weight {weight['name']!r}: {message}; it is longer")
    array = np.frombuffer(data, stored, count, at)
    return (_dequantized(array, scheme, np.dtype(STORED[weight["dtype"]])) if scheme else array), end


def _dequantized(array: Array, scheme: Mapping[str, Any], dtype: np.dtype[Any]) -> Array:
    if "scale" in scheme:
        array = array * np.float32(scheme["scale"]) + np.float32(scheme["min"])
    return (np.rint(array) if dtype.kind == "i" else array).astype(dtype)


def _texts(name: str, data: bytes, at: int, count: int) -> tuple[Array, int]:
    """Strings, each after its length, in a vector."""
    if not 0 <= count * LENGTH_BYTES <= len(data) - at:
        raise InvalidArgumentError(f"weight {name!r}: expected {count} strings; got {len(data) - at} bytes")
    texts = np.empty(count, object)
    for i in range(count):
        begin = at + LENGTH_BYTES
        end = begin + int.from_bytes(data[at:begin], "little")
        if begin > len(data) or end > len(data):
            raise InvalidArgumentError(f"weight {name!r}: expected {count} strings; the data end in {i}")
        texts[i], at = data[begin:end], end
    return texts, at
