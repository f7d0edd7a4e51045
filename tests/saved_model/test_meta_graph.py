"""MetaGraphs: training goes on from TensorFlow's, with reference variables; ours go there and come back."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.protos import meta_graph_pb2
from tests.saved_model.cases import OPTIMIZERS, RUNS, STEPS, batch

FIXTURES = Path(__file__).parent / "fixtures"
VALUES = json.loads((FIXTURES / "values.json").read_text())
INTERPRETER = os.environ.get("FLOWRT_TENSORFLOW")


def losses(session: Any, steps: range) -> list[float]:
    feeds = [dict(zip(("x:0", "y:0"), batch(step), strict=True)) for step in steps]
    return [float(session.run(["loss:0", "train"], feed)[0]) for feed in feeds]


def message(name: str) -> Any:
    return meta_graph_pb2.MetaGraphDef.FromString((FIXTURES / f"{name}.meta").read_bytes())


@pytest.mark.parametrize("scope", [None, "there"])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_training_goes_on_from_tensorflows_graph(name: str, scope: str | None, tmp_path: Path) -> None:
    with tf.Graph(), tf.Session() as session:
        saver = tf.train.import_meta_graph(str(FIXTURES / f"{name}.meta"), import_scope=scope)
        saver.restore(session, str(FIXTURES / name))
        if scope is not None:
            assert session.run("there/global_step:0") == STEPS
            return
        np.testing.assert_allclose(
            losses(session, range(STEPS, 2 * STEPS)), VALUES["training"][name][STEPS:], 1e-5
        )
        step = tf.train.get_global_step()
        prefix = saver.save(session, str(tmp_path / "m"), global_step=step)
        assert prefix.endswith("-6")
        expected = {v.op.name: session.run(v) for v in tf.global_variables()}
    reader = tf.train.load_checkpoint(prefix)  # written by the graph's own operations
    assert reader.get_variable_to_shape_map().keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(reader.get_tensor(key), value)
    with tf.Graph(), tf.Session() as session:
        saver = tf.train.import_meta_graph(f"{prefix}.meta")
        saver.restore(session, prefix)
        assert session.run("global_step:0") == 6
        tf.train.Saver(file_format="flowrt").save(session, str(tmp_path / "own"))
        session.run("init")
        saver.restore(session, str(tmp_path / "own"))  # flowrt's, which the graph's operations do not read
        assert session.run("global_step:0") == 6


def test_training_begins_anew_with_the_graphs_initializer() -> None:
    with tf.Graph(), tf.Session() as session:
        tf.train.import_meta_graph(str(FIXTURES / "AdamOptimizer.meta"))
        session.run(tf.global_variables_initializer())
        session.run("init")
        first = losses(session, range(20))
        assert first[-1] < first[0]
        w = tf.trainable_variables()[0]
        update = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(w * w), var_list=[w])
        before = session.run(w)
        session.run(update)
        np.testing.assert_allclose(session.run(w), before * 0.8, 1e-5)


def test_collections_are_there() -> None:
    with tf.Graph() as graph:
        tf.train.import_meta_graph(str(FIXTURES / "AdamOptimizer.meta"))
        assert [v.name for v in tf.trainable_variables()] == ["net/w:0", "net/v:0", "net/b:0"]
        assert tf.global_variables()[:3] == tf.trainable_variables()
        assert tf.get_collection("words") == ["a word"]
        assert tf.get_collection("inputs") == [graph.get_tensor_by_name("x:0")]
        assert tf.get_collection("train_op")[0] is graph.get_operation_by_name("train")
        assert tf.train.get_global_step().name == "global_step:0"


def test_each_read_of_a_reference_sees_what_it_waits_for() -> None:
    with tf.Graph(), tf.Session() as session:
        tf.train.import_meta_graph(str(FIXTURES / "references.meta"))
        session.run("again")
        for (x, fetches), expected in zip(RUNS, VALUES["references"], strict=True):
            found = session.run(fetches, {"x:0": x})
            assert [np.asarray(value).tolist() for value in found] == expected, fetches


@pytest.mark.parametrize("name", [*OPTIMIZERS, "references"])
def test_no_name_is_lost_but_those_of_control_flow(name: str) -> None:
    meta = message(name)
    with tf.Graph() as graph:
        tf.train.import_meta_graph(meta)
    lost = {node.name for node in meta.graph_def.node} - {op.name for op in graph.get_operations()}
    inner = ("Switch", "Merge", "Enter", "Exit", "NextIteration", "LoopCond")
    scopes = {n.name.partition("/")[0] for n in meta.graph_def.node if n.op.removeprefix("Ref") in inner}
    assert {each.partition("/")[0] for each in lost} <= scopes


def test_devices_are_dropped_and_inputs_replaced() -> None:
    meta = message("AdamOptimizer")
    for node in meta.graph_def.node:
        node.device = "/device:GPU:7"
    with tf.Graph(), tf.Session() as session:
        x = tf.zeros([2, 3])
        saver = tf.train.import_meta_graph(meta, clear_devices=True, input_map={"x:0": x})
        saver.restore(session, str(FIXTURES / "AdamOptimizer"))
        assert session.run("output:0").shape == (2, 1)


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda m: setattr(m.saver_def, "restore_op_name", "no"), tf.errors.InvalidArgumentError, "got 'no'"),
        (
            lambda m: m.collection_def["variables"].bytes_list.value.append(b"\xff"),
            tf.errors.InvalidArgumentError,
            "collection 'variables': expected VariableDef",
        ),
        (
            lambda m: m.collection_def["queue_runners"].bytes_list.value.append(b"\n\x01x"),
            tf.errors.InvalidArgumentError,
            "queue runner: expected a name in its graph; got",
        ),
        (
            lambda m: m.graph_def.node.add(name="p", op="ApplyPowerSign", input=["net/w"]),
            tf.errors.NotFoundError,
            "'ApplyPowerSign'.*no such update of a reference variable",
        ),
        (
            lambda m: next(n for n in m.graph_def.node if n.op == "Assign").input.__setitem__(0, "x"),
            tf.errors.InvalidArgumentError,
            "expected input 0 to be a reference to a variable; got 'x'",
        ),
    ],
)
def test_a_damaged_one_is_a_typed_error_and_changes_nothing(change: Any, error: Any, said: str) -> None:
    meta = message("AdamOptimizer")
    change(meta)
    with tf.Graph() as graph:
        with pytest.raises(error, match=said):
            tf.train.import_meta_graph(meta)
        assert (graph.get_operations(), graph.get_all_collection_keys()) == ([], [])


def test_what_cannot_be_imported_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    meta = message("AdamOptimizer")
    meta.collection_def["savers"].bytes_list.value.append(b"x")
    with tf.Graph() as graph, caplog.at_level(logging.WARNING):
        tf.train.import_meta_graph(meta)
        assert "savers" not in graph.get_all_collection_keys()
    assert "collection 'savers' is left out" in caplog.text


# --- ours


def network() -> None:
    """As that of the fixtures, with a branch and a loop."""
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = tf.placeholder(tf.float32, [None, 1], name="y")
    w = tf.get_variable("w", [3, 1], initializer=tf.ones_initializer())
    scaled = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: x)
    output = tf.while_loop(lambda i, _: i < 2, lambda i, a: (i + 1, a + 1.0), [0, tf.matmul(scaled, w)])[1]
    loss = tf.reduce_mean(tf.square(output - y), name="loss")
    step = tf.train.get_or_create_global_step()
    tf.train.AdamOptimizer(0.05).minimize(loss, global_step=step, name="train")
    tf.add_to_collection("outputs", output)
    tf.add_to_collection("numbers", 3)
    tf.add_to_collection("things", object())


def test_ours_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with tf.Graph(), tf.Session() as session, caplog.at_level(logging.WARNING):
        network()
        session.run(tf.global_variables_initializer())
        losses(session, range(STEPS))
        saver = tf.train.Saver(file_format="tensorflow")
        prefix = saver.save(session, str(tmp_path / "m"))
        assert "collection 'things' is left out" in caplog.text
        expected = losses(session, range(STEPS, 2 * STEPS))
        saver.export_meta_graph(str(tmp_path / "m.pbtxt"))
    for path in (f"{prefix}.meta", str(tmp_path / "m.pbtxt")):
        with tf.Graph(), tf.Session() as session:
            tf.train.import_meta_graph(path).restore(session, prefix)
            assert tf.get_collection("numbers") == [3]
            assert tf.get_collection("outputs")[0].dtype == tf.float32
            np.testing.assert_allclose(losses(session, range(STEPS, 2 * STEPS)), expected, 1e-6)


def test_queue_runners_go_along() -> None:
    with tf.Graph():
        names = tf.train.range_input_producer(3, num_epochs=2, shuffle=False).dequeue()
        tf.identity(tf.train.batch([names], 2), name="rows")
        message = tf.train.export_meta_graph()
    for scope in (None, "there"):
        with tf.Graph(), tf.Session() as session:
            tf.train.import_meta_graph(message, import_scope=scope)
            session.run(tf.local_variables_initializer())
            coordinator = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(session, coordinator)
            rows = "rows:0" if scope is None else f"{scope}/rows:0"
            assert [session.run(rows).tolist() for _ in range(3)] == [[0, 1], [2, 0], [1, 2]]
            with pytest.raises(tf.errors.OutOfRangeError):
                session.run(rows)
            coordinator.request_stop()
            coordinator.join(threads)


def test_a_queue_runner_is_read_from_its_message() -> None:
    queue = tf.FIFOQueue(3, tf.int32)
    runner = tf.train.QueueRunner(queue, [queue.enqueue(1)])
    message = runner.to_proto()
    again = tf.train.QueueRunner.from_proto(message)
    assert (again.enqueue_ops, again.close_op) == (runner.enqueue_ops, runner.close_op)
    assert again.queue_closed_exception_types == (tf.errors.OutOfRangeError,)
    assert again.to_proto() == message
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a close_op and a cancel_op"):
        tf.train.QueueRunner(queue.queue_ref.op, runner.enqueue_ops)


_RECURRENT = """
import sys, json
import tensorflow.compat.v1 as tf
from tensorflow.python.ops import rnn
from tests.graph.write_tensorflow_graphs import Cell
tf.disable_v2_behavior()
place = tf.train.range_input_producer(50, shuffle=False).dequeue()
x, lengths = tf.train.batch([tf.sin(tf.cast(place + tf.range(4), tf.float32)), place % 4], 5)
w = tf.get_variable("w", [2], initializer=tf.ones_initializer())
inputs = x[:, :, None] * w
outputs, _ = rnn.dynamic_rnn(Cell(), inputs, sequence_length=lengths, dtype=tf.float32)
kept = tf.while_loop(
    lambda i, _: i < 2, lambda i, a: (i + 1, tf.cond(a[0] > 1, lambda: a * w, lambda: a + w)), [0, w])[1]
loss = tf.reduce_mean(outputs ** 2) + tf.reduce_sum(kept)
loss = tf.identity(loss, name="loss")
tf.train.AdamOptimizer(0.01).minimize(loss, name="train")
with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    tf.train.Saver().save(session, sys.argv[1])
    tf.train.start_queue_runners(session, tf.train.Coordinator())
    print(json.dumps([float(session.run(["loss:0", "train"])[0]) for _ in range(6)]))
"""


@pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")
def test_training_goes_on_through_loops_branches_and_queues_of_tensorflow_1(tmp_path: Path) -> None:
    prefix = str(tmp_path / "m")
    command = [str(INTERPRETER), "-c", _RECURRENT, prefix]
    ran = subprocess.run(
        command, cwd=Path(__file__).parents[2], check=True, timeout=120, stdout=subprocess.PIPE
    )
    with tf.Graph(), tf.Session() as session:
        tf.train.import_meta_graph(f"{prefix}.meta").restore(session, prefix)
        coordinator = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(session, coordinator)
        found = [float(session.run(["loss:0", "train"])[0]) for _ in range(6)]
        coordinator.request_stop()
        coordinator.join(threads)
    np.testing.assert_allclose(found, json.loads(ran.stdout.splitlines()[-1]), 1e-5)


_GOES_ON = """
import sys, json
import tensorflow.compat.v1 as tf
from tests.saved_model.cases import STEPS, batch
tf.disable_eager_execution()
saver = tf.train.import_meta_graph(sys.argv[1] + ".meta")
with tf.Session() as session:
    saver.restore(session, sys.argv[1])
    assert [v.name for v in tf.trainable_variables()] == ["w:0"]
    feeds = [dict(zip(("x:0", "y:0"), batch(step))) for step in range(STEPS, 2 * STEPS)]
    print(json.dumps([float(session.run(["loss:0", "train"], feed)[0]) for feed in feeds]))
    saver.save(session, sys.argv[1] + "_back")
"""


@pytest.mark.skipif(INTERPRETER is None, reason="FLOWRT_TENSORFLOW names no interpreter")
def test_tensorflow_goes_on_from_ours(tmp_path: Path) -> None:
    with tf.Graph(), tf.Session() as session:
        network()
        session.run(tf.global_variables_initializer())
        losses(session, range(STEPS))
        prefix = tf.train.Saver(file_format="tensorflow").save(session, str(tmp_path / "m"))
        expected = losses(session, range(STEPS, 2 * STEPS))
        root = Path(__file__).parents[2]
        ran = subprocess.run(
            [str(INTERPRETER), "-c", _GOES_ON, prefix],
            cwd=root,
            check=True,
            timeout=120,
            stdout=subprocess.PIPE,
        )
        np.testing.assert_allclose(json.loads(ran.stdout.splitlines()[-1]), expected, 1e-5)
        tf.train.Saver().restore(session, f"{prefix}_back")
        assert session.run("global_step:0") == 2 * STEPS
