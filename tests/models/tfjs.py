"""Graph models of TensorFlow.js as GraphDefs: a topology as JSON and weights in shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf import json_format

from flowrt import protos

DT_FLOAT = 1


def graph_def(path: Path) -> Any:
    """The GraphDef of a ``model.json`` with the shards beside it."""
    model = json.loads(path.read_text())
    topology = model["modelTopology"]
    topology.pop("versions", None)
    weights = weights_of(model["weightsManifest"], path.parent)
    graph = json_format.ParseDict(topology, protos.graph_pb2.GraphDef(), ignore_unknown_fields=True)
    for node in graph.node:
        if node.op == "Prelu":  # an operation of TensorFlow.js alone
            node.attr["T"].type = DT_FLOAT
        if node.op == "_FusedConv2D" and "TArgs" not in node.attr:  # a newer attribute of TensorFlow's
            node.attr["TArgs"].list.type.extend([DT_FLOAT] * node.attr["num_args"].i)
        if node.op == "Const" and node.name in weights:
            tensor, array = node.attr["value"].tensor, weights[node.name]
            if array.dtype == object:
                tensor.string_val.extend(array.reshape(-1).tolist())
            else:
                tensor.tensor_content = array.tobytes()
    return graph


def weights_of(manifest: list[Any], folder: Path) -> dict[str, Any]:
    """The weights by name; quantized ones as float32."""
    found: dict[str, Any] = {}
    for group in manifest:
        data, at = b"".join((folder / name).read_bytes() for name in group["paths"]), 0
        for weight in group["weights"]:
            count = int(np.prod(weight["shape"], dtype=np.int64))
            scheme = weight.get("quantization")
            if weight["dtype"] == "string":
                texts = []
                for _ in range(count):
                    size = int.from_bytes(data[at : at + 4], "little")
                    texts.append(data[at + 4 : at + 4 + size])
                    at += 4 + size
                found[weight["name"]] = np.array([*texts, None], object)[:-1].reshape(weight["shape"])
                continue
            dtype = np.dtype((scheme or weight)["dtype"])
            array = np.frombuffer(data, dtype, count, at).reshape(weight["shape"])
            at += count * dtype.itemsize
            if scheme and "scale" in scheme:
                array = array * np.float32(scheme["scale"]) + np.float32(scheme["min"])
            found[weight["name"]] = array.astype(weight["dtype"])
    return found
