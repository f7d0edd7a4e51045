"""Writes `fixtures`, in an environment with TensorFlow: python -m tests.saved_model.write_fixtures FOLDER"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import saved_model_pb2

from tests.saved_model.cases import OPTIMIZERS, RUNS, STEPS, batch


def losses(session: Any, loss: Any, update: Any, steps: range) -> list[float]:
    return [
        float(session.run([loss, update], dict(zip(("x:0", "y:0"), batch(step), strict=True)))[0])
        for step in steps
    ]


def save_training(folder: Path) -> dict[str, Any]:
    """Graphs of reference variables in the middle of their training."""
    found: dict[str, Any] = {}
    for name, given in OPTIMIZERS.items():
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(1)
            x = tf.placeholder(tf.float32, [None, 3], name="x")
            y = tf.placeholder(tf.float32, [None, 1], name="y")
            with tf.variable_scope("net"):
                w = tf.get_variable("w", [3, 4], initializer=tf.truncated_normal_initializer(0.0, 0.5))
                v = tf.get_variable("v", [4, 1], initializer=tf.ones_initializer())
                b = tf.get_variable("b", [4], initializer=tf.zeros_initializer())
            hidden = tf.nn.tanh(tf.nn.bias_add(tf.matmul(x, w), b))
            output = tf.matmul(hidden, v, name="output")
            loss = tf.reduce_mean(tf.square(output - y), name="loss")
            step = tf.train.get_or_create_global_step()
            optimizer = getattr(tf.train, name)(0.05, **given)
            update = optimizer.minimize(loss, global_step=step, name="train")
            tf.add_to_collection("train_op", update)
            tf.add_to_collection("inputs", x)
            tf.add_to_collection("words", "a word")
            tf.global_variables_initializer()
            session.run("init")
            before = losses(session, loss, update, range(STEPS))
            tf.train.Saver(sharded=name == "MomentumOptimizer").save(session, str(folder / name))
            after = losses(session, loss, update, range(STEPS, 2 * STEPS))
            found[name] = before + after
    return found


def save_references(folder: Path) -> Any:
    """Reads and writes of reference variables in an order of control inputs, in branches and in a loop."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [], name="x")
        v = tf.Variable([1.0, 2.0], name="v")
        n = tf.Variable(0, name="n")
        first = tf.identity(v + 0.0, name="first")
        with tf.control_dependencies([first]):
            added = tf.assign_add(v, [x, x])
        with tf.control_dependencies([added]):
            second = tf.identity(v.read_value() + 0.0, name="second")
        with tf.control_dependencies([second]):
            rows = tf.scatter_sub(v, [1], [1.0])
        with tf.control_dependencies([rows]):
            third = tf.identity(v.read_value() + 0.0, name="third")
        counted = tf.count_up_to(n, 2, name="counted")
        tf.identity(third + tf.cast(counted, tf.float32), name="all")
        chosen = tf.cond(x > 1, lambda: tf.assign(v, v * 2) + 0.0, lambda: v + 0.0)
        tf.identity(chosen, name="chosen")
        total = tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + v), [0, tf.zeros([2])])[1]
        tf.identity(total, name="total")
        tf.identity(tf.is_variable_initialized(v), name="ready")
        runs = []
        session.run(tf.global_variables_initializer())
        for feed, fetches in RUNS:
            runs.append([np.asarray(value).tolist() for value in session.run(fetches, {"x:0": feed})])
        session.run(tf.variables_initializer([v, n], name="again"))
        tf.train.Saver().save(session, str(folder / "references"))
    return runs


def save_version_1(folder: Path) -> Any:
    """A SavedModel of TensorFlow 1's: reference variables, a file of assets, a table."""
    asset = folder / "words.txt"
    asset.write_text("zero\none\ntwo\n")
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        w = tf.get_variable("w", initializer=[[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
        scores = tf.matmul(x, w, name="scores")
        path = tf.constant(str(asset), name="path")
        tf.add_to_collection(tf.GraphKeys.ASSET_FILEPATHS, path)
        table = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                path,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
            ),
            "unknown",
        )
        words = table.lookup(tf.argmax(scores, axis=1), name="words")
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        build = tf.saved_model.builder.SavedModelBuilder(str(folder / "version_1"))
        info = tf.saved_model.utils.build_tensor_info
        signature = tf.saved_model.signature_def_utils.build_signature_def(
            {"x": info(x)}, {"scores": info(scores), "words": info(words)},
            tf.saved_model.signature_constants.PREDICT_METHOD_NAME,
        )  # fmt: skip
        build.add_meta_graph_and_variables(
            session, ["serve"], {"serving_default": signature},
            assets_collection=tf.get_collection(tf.GraphKeys.ASSET_FILEPATHS),
            main_op=tf.tables_initializer(),
        )  # fmt: skip
        build.save()
        feed = np.array([[1, 1], [0, -1], [-2, 1]], np.float32)
        values = session.run([scores, words], {x: feed})
    asset.unlink()
    return {"x": feed.tolist(), "scores": values[0].tolist(), "words": [w.decode() for w in values[1]]}


def save_version_2(folder: Path) -> Any:
    """A SavedModel of TensorFlow 2's: functions."""

    class Module(tf2.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = tf2.Variable([[1.0, 2.0], [3.0, 4.0]])
            self.scale = tf2.Variable(0.5)

        @tf2.function(input_signature=[tf2.TensorSpec([None, 2], tf2.float32, "x")])
        def __call__(self, x: Any) -> Any:
            y = tf2.matmul(x, self.w) * self.scale
            for _ in tf2.range(2):
                y = tf2.cond(tf2.reduce_sum(y) > 1, lambda y=y: y - 1.0, lambda y=y: y + 0.25)
            return {"y": y, "total": tf2.reduce_sum(y)}

    module = Module()
    tf2.saved_model.save(module, str(folder / "version_2"))
    feed = np.array([[1, -1], [0.5, 2]], np.float32)
    found = module(tf2.constant(feed))
    return {"x": feed.tolist(), "y": found["y"].numpy().tolist(), "total": float(found["total"])}


def strip(path: Path, message: Any) -> None:
    """Leave out the definitions of the ops, most of a small file; one fixture keeps them."""
    message.ParseFromString(path.read_bytes())
    for each in getattr(message, "meta_graphs", [message]):
        each.meta_info_def.ClearField("stripped_op_list")
    path.write_bytes(message.SerializeToString())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    values = {"version_2": save_version_2(folder)}
    tf.disable_v2_behavior()
    values |= {"training": save_training(folder), "references": save_references(folder)}
    values["version_1"] = save_version_1(folder)
    (folder / "values.json").write_text(json.dumps(values))
    for name in ("MomentumOptimizer", "references"):
        strip(folder / f"{name}.meta", tf.MetaGraphDef())
    for name in ("version_1", "version_2"):
        strip(folder / name / "saved_model.pb", saved_model_pb2.SavedModel())
    (folder / "checkpoint").unlink()
