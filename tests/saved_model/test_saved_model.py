"""SavedModels: TensorFlow's, of both generations, give its values; ours are loaded here and there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.protos import meta_graph_pb2

FIXTURES = Path(__file__).parent / "fixtures"
VALUES = json.loads((FIXTURES / "values.json").read_text())
INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")
ERRORS = tf.errors


def fed(name: str) -> dict[str, Any]:
    return {"x": np.array(VALUES[name]["x"], np.float32)}


def check(name: str, found: dict[str, Any]) -> None:
    expected = {key: value for key, value in VALUES[name].items() if key != "x"}
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        if key == "words":
            assert [word.decode() for word in found[key]] == value
        else:
            np.testing.assert_allclose(found[key], value, 1e-6)


@pytest.mark.parametrize("name", ["version_1", "version_2"])
def test_a_model_of_tensorflows_gives_its_values(name: str, tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / name, tmp_path / "moved")
    model = tf.saved_model.load_model(tmp_path / "moved")
    check(name, model.signatures["serving_default"](**fed(name)))
    model.close()


def test_a_model_in_a_session_of_the_programs() -> None:
    with tf.Graph(), tf.Session() as session:
        assert tf.saved_model.loader.maybe_saved_model_directory(FIXTURES / "version_1")
        meta_graph = tf.saved_model.loader.load(
            session, [tf.saved_model.SERVING], str(FIXTURES / "version_1")
        )
        signature = meta_graph.signature_def[tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY]
        outputs = {
            key: tf.saved_model.utils.get_tensor_from_tensor_info(info)
            for key, info in signature.outputs.items()
        }
        check("version_1", session.run(outputs, {signature.inputs["x"].name: fed("version_1")["x"]}))
        assert [v.op.name for v in tf.global_variables()] == ["w"]


def saved(folder: Path, *, reads: bool = True) -> str:
    """A model of ours, which returns the content of a file of its assets, if it ``reads``."""
    (folder / "words.txt").write_text("no\nyes\n")
    with tf.Graph(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        w = tf.get_variable("w", initializer=[[1.0], [2.0]])
        y = tf.cond(tf.reduce_sum(x) > 0, lambda: tf.matmul(x, w), lambda: tf.matmul(x, w) * 10.0)
        path = tf.constant(str(folder / "words.txt"))
        tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
        read = tf.read_file(path, name="read")
        session.run(tf.global_variables_initializer())
        builder = tf.saved_model.builder.SavedModelBuilder(folder / "model")
        signature = tf.saved_model.predict_signature_def(
            {"x": x}, {"y": y, "words": read} if reads else {"y": y}
        )
        builder.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature}, assets_collection=[path]
        )
        builder.add_meta_graph(["serve", "twice"])
        with pytest.raises(ERRORS.FailedPreconditionError, match="written already"):
            builder.add_meta_graph_and_variables(session, ["serve"])
        builder.save()
    (folder / "words.txt").unlink()
    return str(folder / "model")


def test_ours_comes_back(tmp_path: Path) -> None:
    path = saved(tmp_path)
    model = tf.saved_model.load_model(path, ["serve"])
    for x, y in (([[1, 1]], [[3]]), ([[-1, -1]], [[-30]])):
        found = model.signatures["serving_default"](x=np.array(x, np.float32))
        assert (found["y"].tolist(), found["words"]) == (y, b"no\nyes\n")
    with pytest.raises(ERRORS.InvalidArgumentError, match="expected inputs x; got 'z'"):
        model.signatures["serving_default"](z=1)
    with pytest.raises(ERRORS.InvalidArgumentError, match="expected values of all inputs; got none of x"):
        model.signatures["serving_default"]()
    with pytest.raises(ERRORS.InvalidArgumentError, match=r"inputs by name \(x=\.\.\.\); got 1 in order"):
        model.signatures["serving_default"](np.ones([1, 2]))
    with pytest.raises(ERRORS.NotFoundError, match=r"signatures \(serving_default\); got 'serving'. Nearest"):
        model.signatures["serving"]
    assert "serving" not in model.signatures
    other = tf.saved_model.load_model(path, {"twice", "serve"})
    assert other.session.run("w:0").tolist() == [[1], [2]]


def test_simple_save_and_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with tf.Graph(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None], name="x")
        y = tf.multiply(x, tf.Variable(2.0))
        session.run(tf.global_variables_initializer())
        tf.saved_model.simple_save(session, tmp_path / "model", {"in": x}, {"out": y})
        with pytest.raises(ERRORS.AlreadyExistsError, match="expected a new directory"):
            tf.saved_model.simple_save(session, tmp_path / "model", {"in": x}, {"out": y})
        with pytest.raises(ERRORS.InvalidArgumentError, match="predict_signature_def: expected outputs"):
            tf.saved_model.simple_save(session, tmp_path / "none", {"in": x}, {})
    np.save(tmp_path / "x.npy", np.array([1, 2], np.float32))
    assert main(["run-model", str(tmp_path / "model"), "--input", f"in={tmp_path}/x.npy"]) == 0
    assert capsys.readouterr().out == "out: float32[2] [2. 4.]\n"
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "m.pb")]) == 0
    assert main(["convert", str(tmp_path / "m.pb"), f"{tmp_path}/again/"]) == 0
    capsys.readouterr()
    assert main(["run-model", f"{tmp_path}/again/", "--input", f"{tmp_path}/x.npy"]) == 0
    assert capsys.readouterr().out == "Mul: float32[2] [2. 4.]\n"


def changed(path: Path, change: Any) -> str:
    message = meta_graph_pb2.SavedModel.FromString((FIXTURES / "version_1" / "saved_model.pb").read_bytes())
    change(message.meta_graphs[0])
    shutil.copytree(FIXTURES / "version_1", path)
    (path / "saved_model.pb").write_bytes(message.SerializeToString())
    return str(path)


def writes(key: str) -> Any:
    """A graph that writes a file when it is loaded, or when its signature runs."""

    def change(meta: Any) -> None:
        node = meta.graph_def.node.add(name="bad", op="WriteFile", input=["path", "path"])
        if key == "main":
            meta.collection_def["saved_model_main_op"].node_list.value.append(node.name)
        else:
            target = meta.signature_def["serving_default"].outputs["scores"].name.partition(":")[0]
            next(n for n in meta.graph_def.node if n.name == target).input.append("^bad")

    return change


def prints(meta: Any) -> None:
    """It prints to a file when it is loaded."""
    node = meta.graph_def.node.add(name="bad", op="PrintV2", input=["path"])
    node.attr["output_stream"].s = b"file:///tmp/printed"
    meta.collection_def["saved_model_main_op"].node_list.value.append(node.name)


def leaves(meta: Any) -> None:
    kind = meta_graph_pb2.AssetFileDef
    value = meta.collection_def["saved_model_assets"].any_list.value[0]
    asset = kind.FromString(value.value)
    asset.filename = "../../etc/passwd"
    value.value = asset.SerializeToString()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (writes("main"), ERRORS.PermissionDeniedError, "WriteFile 'bad'.*allow_files=True"),
        (writes("signature"), ERRORS.PermissionDeniedError, "WriteFile 'bad'.*allow_files=True"),
        (prints, ERRORS.PermissionDeniedError, "PrintV2 'bad'.*allow_files=True"),
        (leaves, ERRORS.InvalidArgumentError, "expected assets by their names; got '../../etc/passwd'"),
        (
            lambda m: m.collection_def["saved_model_main_op"].node_list.value.append("no"),
            ERRORS.InvalidArgumentError,
            "expected a name in its graph; got 'no'",
        ),
        (
            lambda m: m.signature_def["s"].inputs["i"].coo_sparse.SetInParent(),
            ERRORS.UnimplementedError,
            "expected dense tensors",
        ),
    ],
)
def test_what_a_model_may_not(tmp_path: Path, change: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        tf.saved_model.load_model(changed(tmp_path / "m", change))
    assert not (tmp_path / "bad").exists()


def test_a_frozen_graph_that_writes_files_is_refused(tmp_path: Path) -> None:
    target, path = str(tmp_path / "written"), tmp_path / "model.pb"
    with tf.Graph() as graph:
        with tf.control_dependencies([tf.write_file(target, "x")]):
            tf.identity(tf.constant(1.0), name="bad")
        tf.constant(2.0, name="two") + 1.0
        tf.identity(tf.constant(3.0), name="good")
    path.write_bytes(graph.as_graph_def().SerializeToString())
    for outputs in (None, ["bad"]):
        with pytest.raises(ERRORS.PermissionDeniedError, match=r"WriteFile .WriteFile.: .*allow_files=True"):
            tf.saved_model.load_frozen_graph(path, outputs)
    with tf.saved_model.load_frozen_graph(path, ["good"]) as model:
        assert model.run({}) == {"good": 3.0}
    assert not os.path.exists(target)
    with tf.saved_model.load_frozen_graph(path, ["bad"], allow_files=True) as model:
        assert model.run({}) == {"bad": 1.0}
    assert os.path.exists(target)


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ERRORS.NotFoundError, match="expected a SavedModel"):
        tf.saved_model.load_model(tmp_path)
    with pytest.raises(
        ERRORS.NotFoundError, match="expected a graph with tags train; it has graphs with: serve"
    ):
        tf.saved_model.load_model(FIXTURES / "version_1", ["train"])
    shutil.copytree(FIXTURES / "version_1", tmp_path / "cut")
    for name in ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001"):
        whole = (FIXTURES / "version_1" / name).read_bytes()
        (tmp_path / "cut" / name).write_bytes(whole[: len(whole) // 2])
        with pytest.raises(tf.OpError):
            tf.saved_model.load_model(tmp_path / "cut")
        (tmp_path / "cut" / name).write_bytes(whole)


_SERVES = """
import sys
import tensorflow as tf
model = tf.saved_model.load(sys.argv[1], tags=["serve"])
found = model.signatures["serving_default"](x=tf.constant([[-1.0, -1.0]]))
assert found["y"].numpy().tolist() == [[-30.0]], found
"""


@pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")
def test_tensorflow_serves_ours(tmp_path: Path) -> None:
    subprocess.run([str(INTERPRETER), "-c", _SERVES, saved(tmp_path, reads=False)], check=True, timeout=120)
