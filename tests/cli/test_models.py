"""`flowrt convert` and `flowrt run-model`: what is written is read again; mistakes in one line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli.main import main

FIXTURES = Path(__file__).parents[1] / "storage" / "fixtures"


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    """A graph of x [n, 2] and y = 2 * x + 1."""
    with tf.Graph() as graph:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        tf.add(x * 2.0, 1.0, name="y")
        tf.negative(x, name="z")
    path = tmp_path / "m.pb"
    path.write_bytes(graph.as_graph_def().SerializeToString())
    return path


def test_a_frozen_graph_is_run(frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 2]], np.float32))
    assert main(["run-model", str(frozen), "--input", f"x={tmp_path}/x.npy"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "y: float32[1, 2] [[3. 5.]]",
        "z: float32[1, 2] [[-1. -2.]]",
    ]
    words = ["run-model", str(frozen), "--input", f"{tmp_path}/x.npy", "--output", "y"]
    assert main([*words, "--save", f"{tmp_path}/y.npz"]) == 0
    assert capsys.readouterr().out == "y: float32[1, 2] [[3. 5.]]\n"
    with np.load(tmp_path / "y.npz") as saved:
        assert saved["y"].tolist() == [[3, 5]]


def test_a_frozen_graph_becomes_text(frozen: Path, tmp_path: Path) -> None:
    assert main(["convert", str(frozen), str(tmp_path / "m.pbtxt"), "--output", "y"]) == 0
    with tf.saved_model.load_frozen_graph(tmp_path / "m.pbtxt") as model:
        assert (list(model.inputs), list(model.outputs)) == (["x"], ["y"])
        assert model.run([np.zeros((1, 2), np.float32)])["y"].tolist() == [[1, 1]]


def test_a_checkpoint_goes_there_and_back(tmp_path: Path) -> None:
    source, here, back = str(FIXTURES / "all"), str(tmp_path / "here"), str(tmp_path / "back")
    assert main(["convert", source, here, "--to", "flowrt"]) == 0
    assert main(["convert", here, back]) == 0
    assert {path.name for path in tmp_path.iterdir()} >= {"back.index", "here.index.json"}
    first, last = tf.train.load_checkpoint(source), tf.train.load_checkpoint(back)
    assert first.get_variable_to_shape_map() == last.get_variable_to_shape_map()
    for name in first.get_variable_to_dtype_map():
        assert first.get_tensor(name).tolist() == last.get_tensor(name).tolist()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["convert", "{m}", "{t}/m.xyz"], "m.xyz: expected a model that can be written: DIRECTORY/"),
        (["convert", "{m}", "{m}"], "expected another place for the result"),
        (["convert", "{t}/no.pb", "{t}/n.pb"], "no.pb: there is no such file"),
        (["convert", "{t}/", "{t}/n.pb"], "expected a SavedModel (saved_model.pb); there is none"),
        (["run-model", "{m}"], "expected values of all inputs; got none of x"),
        (["run-model", "{m}", "--input", "{m}"], "expected an array (.npy)"),
        (["run-model", "{m}", "--input", "{t}/x.npy"], "x.npy: No such file"),
        (["run-model", "{m}", "--output", "w"], "'w'"),
    ],
)
def test_a_mistake_is_one_line(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main([word.format(m=frozen, t=tmp_path) for word in words]) == 2
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, said in line) == ("", True), line


def test_a_graph_becomes_onnx_and_comes_back(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, back = str(tmp_path / "m.onnx"), str(tmp_path / "back.pb")
    assert main(["convert", str(frozen), model]) == 0
    np.save(tmp_path / "x.npy", np.array([[1, 2]], np.float32))
    capsys.readouterr()
    for path in (model, back):
        assert main(["run-model", path, "--input", f"{tmp_path}/x.npy", "--output", "y"]) == 0
        assert capsys.readouterr().out == "y: float32[1, 2] [[3. 5.]]\n"
        assert main(["convert", model, back]) == 0
        capsys.readouterr()
