"""Writes random checkpoints, MetaGraphs and SavedModels, with what they must give, in an environment with
TensorFlow: python -m tests.saved_model.random_files FOLDER FIRST COUNT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf2
import tensorflow.compat.v1 as tf

NUMBERS = (
    *("float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16"),
    *("uint32", "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"),
)
ACTIVATIONS = (tf.nn.relu, tf.nn.tanh, tf.nn.sigmoid, tf.nn.elu, tf.nn.softplus, tf.nn.selu, tf.nn.leaky_relu)
OPTIMIZERS: tuple[Callable[[], Any], ...] = (
    lambda: tf.train.GradientDescentOptimizer(0.05),
    lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True),
    lambda: tf.train.AdamOptimizer(0.01),
    lambda: tf.train.RMSPropOptimizer(0.01),
    lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5, centered=True),
    lambda: tf.train.AdagradOptimizer(0.05),
    lambda: tf.train.AdadeltaOptimizer(0.5),
    lambda: tf.train.FtrlOptimizer(0.05, l1_regularization_strength=0.01),
)


def as_json(value: Any) -> dict[str, Any]:
    array = np.asarray(value)
    text = array.dtype.kind in "OS"
    data = [v.hex() for v in array.ravel().tolist()] if text else np.ascontiguousarray(array).tobytes().hex()
    return {"dtype": "string" if text else str(array.dtype), "shape": list(array.shape), "data": data}


def random_array(rng: Any, dtype: str, shape: list[int]) -> Any:
    """Any bits that are numbers; strings of any bytes, empty and long ones too."""
    if dtype == "string":
        words = [rng.bytes(int(rng.choice([0, 1, 5, 300]))) for _ in range(int(np.prod(shape)))]
        return np.array(words, object).reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    kind = tf.as_dtype(dtype).as_numpy_dtype
    if dtype.startswith("complex"):
        return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(kind)
    if dtype.startswith(("int", "uint")):
        found = np.iinfo(kind)
        return rng.integers(found.min, found.max, shape, dtype=kind, endpoint=True)
    return rng.normal(size=shape).astype(kind)


def random_shape(rng: Any) -> list[int]:
    return [
        int(rng.choice([0, 1, 2, 3, 7], p=[0.05, 0.2, 0.3, 0.3, 0.15])) for _ in range(rng.integers(0, 5))
    ]


def write_checkpoint(rng: Any, path: Path) -> Any:
    """Variables of one graph: whole or in slices, in one file or one a device, of names or objects."""
    values = {}
    for i in range(int(rng.integers(1, 9))):
        dtype = str(rng.choice([*NUMBERS, "string"]))
        values[f"scope{i % 3}/v{i}"] = random_array(rng, dtype, random_shape(rng))
    if rng.random() < 0.05:
        values["large"] = rng.normal(size=(1024, 1024 * int(rng.integers(1, 17)))).astype(np.float32)
    if rng.random() < 0.25:
        saved = tf2.train.Checkpoint(**{n.replace("/", "_"): tf2.Variable(v) for n, v in values.items()})
        saved.write(str(path))
        ending = "/.ATTRIBUTES/VARIABLE_VALUE"
        return {n.replace("/", "_") + ending: as_json(v) for n, v in values.items()}
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.Graph().as_default() as graph, tf.Session(config=config) as session:
        feeds, inits = {}, []
        for i, (name, value) in enumerate(values.items()):
            given = tf.placeholder(
                tf.as_dtype(value.dtype) if value.dtype != object else tf.string, value.shape
            )
            feeds[given] = value
            parts = int(rng.integers(1, 4))
            resource = bool(rng.integers(2)) or given.dtype.name.startswith("float8")
            cut = value.ndim and value.shape[0] >= parts > 1 and value.size and value.dtype == np.float32
            with graph.device(f"/cpu:{i % 2}"):
                if cut:
                    split = tf.fixed_size_partitioner(parts)
                    variable = tf.get_variable(name, value.shape, given.dtype, partitioner=split)
                    starts = np.cumsum([0, *(int(v.shape[0]) for v in variable)])
                    for v, start in zip(variable, starts, strict=False):
                        inits.append(tf.assign(v, given[start : start + int(v.shape[0])]))
                else:
                    variable = tf.Variable(given, name=name, use_resource=resource)
                    inits.append(variable.initializer)
        session.run(inits, feeds)
        sharded = bool(rng.integers(2))
        tf.train.Saver(sharded=sharded).save(session, str(path), write_meta_graph=False)
    return {name: as_json(value) for name, value in values.items()}


def network(rng: Any, x: Any, width: int, outputs: int) -> Any:
    """Layers of a random kind: dense, convolutions, batch statistics, dropout at rate 0, gathers."""
    h = x
    for layer in range(int(rng.integers(1, 4))):
        act = ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]
        kind = int(rng.integers(4))
        with tf.variable_scope(f"layer{layer}"):
            if kind == 0:
                h = act(dense(h, width))
            elif kind == 1:
                image = tf.reshape(dense(h, 16), [-1, 4, 4, 1])
                kernel = tf.get_variable(
                    "kernel", [3, 3, 1, 2], initializer=tf.random_normal_initializer(0, 0.3)
                )
                image = act(tf.nn.conv2d(image, kernel, [1, 1, 1, 1], "SAME"))
                h = tf.reshape(tf.nn.max_pool(image, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"), [-1, 8])
            elif kind == 2:
                mean, variance = tf.nn.moments(h, [1], keep_dims=True)
                h = act(dense((h - mean) * tf.rsqrt(variance + 1e-3), width))
            else:
                parts = tf.split(dense(h, 2 * width), 2, axis=1)
                h = tf.concat([act(parts[0]), parts[1] * tf.stop_gradient(tf.sigmoid(parts[0]))], 1)
    return dense(h, outputs, "out")


def dense(x: Any, width: int, name: str = "dense") -> Any:
    with tf.variable_scope(name):
        w = tf.get_variable("w", [int(x.shape[1]), width], initializer=tf.random_normal_initializer(0, 0.4))
        b = tf.get_variable("b", [width], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, w), b)


def batches(rng: Any, steps: int) -> list[dict[str, Any]]:
    return [
        {"x:0": rng.normal(size=(5, 3)).astype(np.float32), "y:0": rng.normal(size=(5, 2)).astype(np.float32)}
        for _ in range(steps)
    ]


def write_meta_graph(rng: Any, path: Path) -> Any:
    """A network in the middle of its training; losses of the steps that follow."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(int(rng.integers(1 << 30)))
        tf.get_variable_scope().set_use_resource(bool(rng.integers(2)))
        x, y = tf.placeholder(tf.float32, [None, 3], "x"), tf.placeholder(tf.float32, [None, 2], "y")
        output = network(rng, x, int(rng.integers(2, 6)), 2)
        loss = tf.reduce_mean(tf.squared_difference(output, y), name="loss")
        step = tf.train.get_or_create_global_step()
        optimizer = OPTIMIZERS[int(rng.integers(len(OPTIMIZERS)))]()
        if rng.random() < 0.3:
            pairs = optimizer.compute_gradients(loss)
            clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 1.0)
            clipped_pairs = zip(clipped, [v for _, v in pairs], strict=True)
            optimizer.apply_gradients(clipped_pairs, global_step=step, name="train")
        else:
            optimizer.minimize(loss, global_step=step, name="train")
        session.run(tf.global_variables_initializer())
        for feed in batches(rng, 2):
            session.run("train", feed)
        tf.train.Saver().save(session, str(path))
        after = batches(rng, 3)
        losses = [float(session.run([loss, "train"], feed)[0]) for feed in after]
    return {"feeds": [{k: as_json(v) for k, v in feed.items()} for feed in after], "losses": losses}


def write_saved_model(rng: Any, path: Path) -> Any:
    """A network to be served: of TensorFlow 1, or functions of TensorFlow 2."""
    x = rng.normal(size=(4, 3)).astype(np.float32)
    if rng.random() < 0.5:
        with tf.Graph().as_default(), tf.Session() as session:
            tf.set_random_seed(int(rng.integers(1 << 30)))
            given = tf.placeholder(tf.float32, [None, 3], "given")
            scores = network(rng, given, int(rng.integers(2, 6)), 2)
            outputs = {"scores": scores, "best": tf.argmax(scores, 1), "top": tf.nn.top_k(scores, 1)[0]}
            session.run(tf.global_variables_initializer())
            tf.saved_model.simple_save(session, str(path), {"x": given}, outputs)
            found = session.run(outputs, {given: x})
        return {"x": as_json(x), "outputs": {k: as_json(v) for k, v in found.items()}}

    class Served(tf2.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.w = [tf2.Variable(rng.normal(size=(3, 3)).astype(np.float32)) for _ in range(2)]
            self.turns, self.act = int(rng.integers(1, 4)), ACTIVATIONS[int(rng.integers(len(ACTIVATIONS)))]

        @tf2.function(input_signature=[tf2.TensorSpec([None, 3], tf2.float32, "x")])
        def __call__(self, x: Any) -> Any:
            for i in tf2.range(self.turns):
                x = tf2.cond(i % 2 == 0, lambda x=x: self.act(x @ self.w[0]), lambda x=x: x @ self.w[1] - 0.5)
            return {"scores": x, "rows": tf2.shape(x)[0]}

    module = Served()
    tf2.saved_model.save(module, str(path), signatures=module.__call__)
    return {"x": as_json(x), "outputs": {k: as_json(v.numpy()) for k, v in module(x).items()}}


WRITERS = {"checkpoint": write_checkpoint, "meta_graph": write_meta_graph, "saved_model": write_saved_model}


def main(folder: Path, first: int, count: int) -> None:
    for seed in range(first, first + count):
        kind = list(WRITERS)[seed % 3]
        expected = WRITERS[kind](np.random.default_rng(seed), folder / f"{kind}{seed}")
        (folder / f"{kind}{seed}.json").write_text(json.dumps(expected))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
