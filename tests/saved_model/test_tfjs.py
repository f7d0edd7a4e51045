"""Graph models of TensorFlow.js: a topology as JSON, weights of every kind in files; damaged ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

import flowrt as tf

CONSTANTS = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3) / 4,
    "axis": np.array([-1], np.int64),
    "names": np.array([b"a", b"", b"cde"], object),
    "mask": np.array([True, False, True]),
    "steps": np.array([3, -2, 0], np.int32),
}
STORED: dict[str, bytes] = {
    "w": np.arange(6, dtype=np.uint8).tobytes(),
    "axis": np.array([-1], "<i4").tobytes(),
    "names": b"\1\0\0\0a\0\0\0\0\3\0\0\0cde",
    "mask": b"\1\0\1",
    "steps": np.array([5, 0, 2], "<u2").tobytes(),
}
KINDS: dict[str, dict[str, Any]] = {
    "w": {"dtype": "float32", "quantization": {"dtype": "uint8", "scale": 0.25, "min": 0}},
    "axis": {"dtype": "int32"},
    "names": {"dtype": "string"},
    "mask": {"dtype": "bool"},
    "steps": {"dtype": "int32", "quantization": {"dtype": "uint16", "scale": 0.9999, "min": -2}},
}


def write(folder: Path) -> Path:
    """A model with weights of all kinds in two files, as the converter of TensorFlow.js writes them."""
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        given = {name: tf.constant(value, name=name) for name, value in CONSTANTS.items()}
        product = tf.matmul(x, given["w"])
        tf.reduce_sum(tf.where(given["mask"], product[0], -product[0]), given["axis"], name="sum")
        tf.identity(given["names"], name="texts")
        tf.identity(given["steps"], name="numbers")
        topology = json_format.MessageToDict(graph.as_graph_def())
    for node in topology["node"]:
        if node["name"] in CONSTANTS:
            tensor = node["attr"]["value"]["tensor"]
            node["attr"]["value"]["tensor"] = {key: tensor[key] for key in tensor if not key.endswith("Val")}
            node["attr"]["value"]["tensor"].pop("tensorContent", None)
    data = b"".join(STORED.values())
    (folder / "a.bin").write_bytes(data[:11])
    (folder / "b.bin").write_bytes(data[11:])
    weights = [{"name": name, "shape": list(CONSTANTS[name].shape), **KINDS[name]} for name in STORED]
    outputs = {"total": {"name": "sum:0"}, "texts": {"name": "texts"}, "numbers": {"name": "numbers:0"}}
    model = {
        "format": "graph-model",
        "modelTopology": topology,
        "weightsManifest": [{"paths": ["a.bin", "b.bin"], "weights": weights}],
        "signature": {"inputs": {"given": {"name": "x:0"}}, "outputs": outputs},
    }
    (folder / "model.json").write_text(json.dumps(model))
    return folder / "model.json"


def test_weights_of_all_kinds_are_read(tmp_path: Path) -> None:
    with tf.saved_model.load_graph_model(write(tmp_path)) as model:
        found = model.run({"given": np.array([[1, 2]], np.float32)})
    product = np.array([1, 2]) @ CONSTANTS["w"]
    assert found["total"] == product[0] - product[1] + product[2]
    assert found["texts"].tolist() == CONSTANTS["names"].tolist()
    assert found["numbers"].tolist() == CONSTANTS["steps"].tolist()


def test_without_a_signature_inputs_are_placeholders(tmp_path: Path) -> None:
    path = write(tmp_path)
    model = json.loads(path.read_text())
    del model["signature"]
    path.write_text(json.dumps(model))
    with tf.saved_model.load_graph_model(path) as loaded:
        assert (list(loaded.inputs), list(loaded.outputs)) == (["x"], ["sum", "texts", "numbers"])


def _weight(number: int, **changed: Any) -> Callable[[Any], None]:
    return lambda model: model["weightsManifest"][0]["weights"][number].update(changed)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        pytest.param(_weight(4, shape=[9]), "weight 'steps': expected uint16.9. at byte", id="too long"),
        pytest.param(_weight(4, shape=[-1]), "weight 'steps'", id="negative"),
        pytest.param(_weight(2, shape=[1 << 40]), "'names': expected 1099511627776 strings", id="wild"),
        pytest.param(_weight(2, shape=[9]), "weight 'names'", id="strings that end"),
        pytest.param(_weight(0, dtype="float8"), "KeyError: 'float8'", id="unknown dtype"),
        pytest.param(_weight(1, dtype="float32"), "of TensorFlow.js; TypeError", id="other dtype"),
        pytest.param(lambda m: m.pop("modelTopology"), "KeyError: 'modelTopology'", id="no topology"),
        pytest.param(lambda m: m.update(signature=[1]), "AttributeError", id="no signature"),
        pytest.param(lambda m: m["weightsManifest"][0].update(paths=["../x"]), "in the folder", id="outside"),
        pytest.param(lambda m: m["modelTopology"].update(node=3), "ParseError", id="no nodes"),
    ],
)
def test_a_damaged_model_is_one_typed_error(
    damage: Callable[[Any], None], message: str, tmp_path: Path
) -> None:
    path = write(tmp_path)
    (tmp_path.parent / "x").write_bytes(b"secret")
    model = json.loads(path.read_text())
    damage(model)
    path.write_text(json.dumps(model))
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
        tf.saved_model.load_graph_model(path)
    assert str(path) in str(error.value)


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "b.bin").unlink()
    with pytest.raises(tf.errors.NotFoundError, match=r"b\.bin"):
        tf.saved_model.load_graph_model(path)
