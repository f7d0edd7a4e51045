"""Public models of TensorFlow: frozen graphs of TensorFlow.js, and a SavedModel. They are skipped where their
packages were not fetched; where FLOWRT_TENSORFLOW names an interpreter, TensorFlow computes the same.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import flowrt as tf
from tests.models.fetch import folder_of
from tests.models.tfjs import graph_def

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")

GRAPHS = (
    "antispoof", "blazeface", "centernet", "emotion", "facemesh", "faceres", "handlandmark-lite", "iris",
    "liveness", "movenet-lightning",
)  # fmt: skip

OURS_ALONE = {
    "facemesh": "Prelu is an operation of TensorFlow.js alone",
    "iris": "Prelu is an operation of TensorFlow.js alone",
    "movenet-lightning": "FusedDepthwiseConv2dNative is an operation of TensorFlow.js alone",
    "centernet": "noise has near-ties, which its peaks tell apart",
}


def pictures(inputs: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {}
    for name, tensor in inputs.items():
        shape = [1 if size is None else size for size in tensor.shape.as_list()]
        values = rng.uniform(0, 1, shape)
        dtype = tensor.dtype.as_numpy_dtype
        found[name] = (values if dtype == np.float32 else values * 255).astype(dtype)
    return found


_RUNS = """
import sys, numpy as np, tensorflow.compat.v1 as tf
folder, *names = sys.argv[1:]
for name in names:
    graph, given = tf.GraphDef(), dict(np.load(f"{folder}/{name}.npz"))
    graph.ParseFromString(open(f"{folder}/{name}.pb", "rb").read())
    wanted = [key[4:] + ":0" for key in given if key.startswith("out/")]
    feeds = {key[3:] + ":0": given[key] for key in given if key.startswith("in/")}
    with tf.Graph().as_default() as g, tf.Session() as session:
        tf.import_graph_def(graph, name="")
        for key, value in zip(wanted, session.run(wanted, feeds)):
            np.testing.assert_allclose(given["out/" + key[:-2]], value, 1e-3, 1e-4, err_msg=f"{name} {key}")
    print("same", name)
"""


def test_graphs_of_tensorflow_js(tmp_path: Path) -> None:
    """Each runs; those that TensorFlow can run give what it gives."""
    folder = folder_of("@vladmandic/human")
    if not folder.is_dir():
        pytest.skip("@vladmandic/human is not there: python -m tests.models.fetch")
    for name in GRAPHS:
        file = tmp_path / f"{name}.pb"
        file.write_bytes(graph_def(folder / f"{name}.json").SerializeToString())
        model = tf.saved_model.load_frozen_graph(file)
        feeds = pictures(model.inputs)
        found = model.session.run(model.outputs, {model.inputs[key]: feeds[key] for key in feeds})
        assert all(np.isfinite(value).all() for value in found.values())
        given = {f"in/{key}": value for key, value in feeds.items()}
        np.savez(tmp_path / f"{name}.npz", **given, **{f"out/{key}": value for key, value in found.items()})
    if INTERPRETER is None:
        return
    names = [name for name in GRAPHS if name not in OURS_ALONE]
    command = [INTERPRETER, "-c", _RUNS, str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.stdout.split("\n")[:-1] == [f"same {name}" for name in names], done.stderr[-2000:]


def test_a_saved_model_gives_what_its_onnx_form_gives() -> None:
    folder = folder_of("basic-pitch")
    if not folder.is_dir():
        pytest.skip("basic-pitch is not there: python -m tests.models.fetch")
    x = (0.1 * np.random.default_rng(0).normal(size=(1, 43844, 1))).astype(np.float32)
    model = tf.saved_model.load_model(str(folder / "nmp"))
    found = model.signatures["serving_default"](input_2=x)
    session = onnxruntime.InferenceSession(folder / "nmp.onnx", providers=["CPUExecutionProvider"])
    names = [f"StatefulPartitionedCall:{i}" for i in range(3)]
    expected = session.run(names, {"serving_default_input_2:0": x})
    for name, value in zip(("contour", "note", "onset"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, 1e-3, 1e-4, err_msg=name)
