"""`explain_layouts`: what it says of a step is what the step does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import flowrt as tf
from flowrt.cli.main import main
from flowrt.errors import InvalidArgumentError
from flowrt.viz import explain_layouts

SCRIPT = """
import numpy as np
import flowrt as tf

with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 2)]), batch="dp").scope():
    x = tf.placeholder(tf.float32, [8, 4], name="x")
    w = tf.get_variable("w", [4, 6])
    loss = tf.reduce_sum(tf.matmul(x, w), name="loss")
    top = tf.nn.top_k(tf.reshape(x, [-1]), 2, name="top").values
with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
    session.run(tf.global_variables_initializer())
    session.run([loss, top], {x: np.ones((8, 4))})
"""


def test_a_script_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    assert main(["explain", "--layouts", str(path)]) == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line.split()[2:4] for line in text.splitlines() if "train.py" in line}
    assert text.startswith("mesh: [dp=2]")
    assert "stage" not in text
    assert rows["w"] == ["resource[4,", "6]"]
    assert rows["x"] == ["float32[8/dp,", "4]"]
    assert rows["loss"] == ["float32[]+{dp}", "in"]
    assert "TopKV2 'top' " in text
    assert "gathers 128 bytes a step" in text


def test_bytes_are_those_of_the_collectives() -> None:
    with tf.Graph().as_default():
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("tp", 4)])).scope():
            x = tf.placeholder(tf.float32, [2, 8])
            w = tf.get_variable("w", [8, 16], layout=["tp", None])
            y = tf.tanh(tf.matmul(x, w))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 4})) as session:
            found = explain_layouts(session, y, {x: np.ones((2, 8))})
    assert found is not None
    assert found.totals()["AllReduce"] == (1, 2 * 3 * 2 * 16 * 4)  # 2 (n - 1) l
    assert found.remarks == ()


def test_a_step_without_layouts_has_none() -> None:
    with tf.Graph() as graph:
        y = tf.constant(1.0) + tf.placeholder(tf.float32, [2], name="x")
    assert explain_layouts(graph, y) is None


def test_a_running_worker_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="layouts: expected a script or a GraphDef"):
        explain_layouts("grpc://localhost:1")


def test_a_step_on_the_way_to_two_layouts_is_counted_once() -> None:
    with tf.Graph().as_default() as graph:
        with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("a", 2), ("b", 2)])).scope():
            w = tf.get_variable("w", [8, 16], layout=[("a", "b"), None])
            added = tf.matmul(tf.placeholder(tf.float32, [8, 8], name="x"), w, name="added")
            rows = tf.distribute.relayout(added, ["a", None])  # ReduceScatter over a, AllReduce over b
            blocks = tf.distribute.relayout(added, ["a", "b"])  # ReduceScatter over a, then over b
    found = explain_layouts(graph, [rows, blocks])
    assert found is not None
    moved = [(move.collective, move.axes) for move in found.moves if move.tensor == "added:0"]
    assert moved == [("ReduceScatter", "a"), ("AllReduce", "b"), ("ReduceScatter", "b")]
