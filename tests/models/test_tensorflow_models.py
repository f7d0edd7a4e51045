"""Public models of TensorFlow: frozen graphs of TensorFlow.js, and a SavedModel. They are skipped where their
packages were not fetched; where FLOWRT_TENSORFLOW names an interpreter, TensorFlow computes the same.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import flowrt as tf
from tests.models.fetch import folder_of
from tests.models.tensorflow_cases import GRAPHS, ROOT, SAVED_MODELS, SNIPPETS, pictures, write_case

INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")

OURS_ALONE = {"centernet": "noise has near-ties, which its peaks tell apart"}


def test_graphs_of_tensorflow_js(tmp_path: Path) -> None:
    """Each runs; those that TensorFlow can run give what it gives."""
    folder = folder_of("@vladmandic/human")
    if not folder.is_dir():
        pytest.skip("@vladmandic/human is not there: python -m tests.models.fetch")
    for name in GRAPHS:
        model = tf.saved_model.load_graph_model(folder / f"{name}.json")
        feeds = pictures(model.inputs)
        found = model.run(feeds)
        assert all(np.isfinite(value).all() for value in found.values())
        write_case(folder / f"{name}.json", tmp_path / name, model, feeds, found)
    if INTERPRETER is None:
        return
    names = [name for name in GRAPHS if name not in OURS_ALONE]
    command = [INTERPRETER, "-m", "tests.models.run_tensorflow", str(tmp_path), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110, cwd=ROOT)
    assert done.stdout.split("\n")[:-1] == [f"same {name}" for name in names], done.stderr[-2000:]


_GUESSES = """
import sys, json, tensorflow as tf
model = tf.saved_model.load(sys.argv[1])
scores = model.signatures["serving_default"](tf.constant(json.loads(sys.argv[2])))["scores"]
print(json.dumps(scores.numpy().tolist()))
"""


def test_languages_are_guessed_as_tensorflow_guesses_them() -> None:
    """By the estimator's SavedModel, and by its form for TensorFlow.js, with weights of 8 bits."""
    saved, converted = folder_of("guesslang"), folder_of("@vscode/vscode-languagedetection")
    if not (saved.is_dir() and converted.is_dir()):
        pytest.skip("guesslang is not there: python -m tests.models.fetch")
    texts = np.array(SNIPPETS, object)
    model = tf.saved_model.load_model(str(saved / "model"))
    found = model.signatures["serving_default"](inputs=texts)
    best = [row[np.argmax(scores)] for row, scores in zip(found["classes"], found["scores"], strict=True)]
    assert best[:4] == [b"py", b"c", b"sql", b"html"]
    other = tf.saved_model.load_graph_model(converted / "model.json")(inputs=texts)
    assert other["classes"].tolist() == found["classes"].tolist()
    np.testing.assert_allclose(other["scores"], found["scores"], 0.1)
    if INTERPRETER is not None:
        command = [INTERPRETER, "-c", _GUESSES, str(saved / "model")]
        command.append(json.dumps([text.decode() for text in SNIPPETS]))
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
        np.testing.assert_allclose(found["scores"], json.loads(done.stdout.split("\n")[-2]), 1e-4)


def test_a_saved_model_gives_what_its_onnx_form_gives() -> None:
    folder, saved = folder_of("basic-pitch"), SAVED_MODELS["basic-pitch"]
    if not folder.is_dir():
        pytest.skip("basic-pitch is not there: python -m tests.models.fetch")
    x = saved.feeds["input_2"]
    found = tf.saved_model.load_model(str(saved.path)).signatures["serving_default"](input_2=x)
    session = onnxruntime.InferenceSession(folder / "nmp.onnx", providers=["CPUExecutionProvider"])
    names = [f"StatefulPartitionedCall:{i}" for i in range(3)]
    expected = session.run(names, {"serving_default_input_2:0": x})
    for name, value in zip(("contour", "note", "onset"), expected, strict=True):
        np.testing.assert_allclose(found[name], value, 1e-3, 1e-4, err_msg=name)
