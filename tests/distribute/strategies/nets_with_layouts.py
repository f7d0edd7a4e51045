"""Nets that are trained under any layout: what to feed, the loss and the update, in float64 or float32."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from flowrt.graph.layouts.mesh import Mesh

DEVICES = 8
BATCH = 12
RATE = 0.05


class Net(NamedTuple):
    feeds: dict[Any, Any]
    loss: Any
    train: Any


def _trained(logits: Any, labels: Any, feeds: Mapping[Any, Any]) -> Net:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tf.reduce_mean(losses)
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return Net(dict(feeds), loss, tf.train.AdamOptimizer(RATE).minimize(loss))


def mlp(dtype: Any = tf.float64) -> Net:
    """Two layers with dropout."""
    rng = np.random.default_rng(0)
    x, y = tf.placeholder(dtype, [None, 6]), tf.placeholder(tf.int32, [None])
    h = tf.layers.dense(x, 8, tf.nn.relu, name="hidden")
    logits = tf.layers.dense(tf.nn.dropout(h, 0.8, seed=4), 4, name="logits")
    return _trained(logits, y, {x: rng.standard_normal((BATCH, 6)), y: rng.integers(0, 4, BATCH)})


def cnn(dtype: Any = tf.float64) -> Net:
    """A convolution with batch normalization, pooling, and dropout before the last layer."""
    rng = np.random.default_rng(1)
    x, y = tf.placeholder(dtype, [None, 8, 8, 1]), tf.placeholder(tf.int32, [None])
    h = tf.layers.conv2d(x, 4, 3, padding="same")
    h = tf.layers.max_pooling2d(tf.nn.relu(tf.layers.batch_normalization(h, training=True)), 2, 2)
    h = tf.layers.dense(tf.layers.flatten(h), 16, tf.nn.relu, name="hidden")
    logits = tf.layers.dense(tf.layers.dropout(h, 0.3, training=True, seed=3), 4, name="logits")
    return _trained(logits, y, {x: rng.standard_normal((BATCH, 8, 8, 1)), y: rng.integers(0, 4, BATCH)})


def lenet(dtype: Any = tf.float64) -> Net:
    """Two convolutions, each with average pooling, and three layers (LeCun et al. 1998), smaller."""
    rng = np.random.default_rng(4)
    x, y = tf.placeholder(dtype, [None, 12, 12, 1]), tf.placeholder(tf.int64, [None])
    h = tf.layers.average_pooling2d(tf.layers.conv2d(x, 3, 3, activation=tf.nn.tanh), 2, 2)
    h = tf.layers.average_pooling2d(tf.layers.conv2d(h, 4, 2, activation=tf.nn.tanh), 2, 2)
    h = tf.layers.dense(tf.layers.flatten(h), 10, tf.nn.tanh, name="first")
    h = tf.layers.dense(h, 8, tf.nn.tanh, name="hidden")
    logits = tf.layers.dense(h, 4, name="logits")
    return _trained(logits, y, {x: rng.standard_normal((BATCH, 12, 12, 1)), y: rng.integers(0, 4, BATCH)})


def lstm(dtype: Any = tf.float64) -> Net:
    """A recurrent net: a loop in the graph, and its gradient. Its gates are cut nowhere, but its classes."""
    rng = np.random.default_rng(5)
    x, y = tf.placeholder(dtype, [None, 5, 3]), tf.placeholder(tf.int32, [None])
    _, state = tf.nn.dynamic_rnn(tf.nn.rnn_cell.BasicLSTMCell(6), x, dtype=dtype)
    logits = tf.layers.dense(state.h, 4, name="classes")
    return _trained(logits, y, {x: rng.standard_normal((BATCH, 5, 3)), y: rng.integers(0, 4, BATCH)})


def embedding(dtype: Any = tf.float64) -> Net:
    """The mean of looked-up rows: sparse gradients."""
    rng = np.random.default_rng(2)
    x, y = tf.placeholder(tf.int32, [None, 5]), tf.placeholder(tf.int32, [None])
    rows = tf.get_variable("embedding", [10, 6], dtype)
    logits = tf.layers.dense(tf.reduce_mean(tf.nn.embedding_lookup(rows, x), 1), 4, name="logits")
    return _trained(logits, y, {x: rng.integers(0, 10, (BATCH, 5)), y: rng.integers(0, 4, BATCH)})


def gpt(
    dtype: Any = tf.float64, blocks: int = 2, width: int = 8, heads: int = 4, length: int = 6, words: int = 11
) -> Net:
    """A decoder with separate query, key and value products."""
    rng = np.random.default_rng(3)
    tokens, targets = (tf.placeholder(tf.int32, [BATCH, length]) for _ in range(2))

    def weights(name: str, *shape: int) -> Any:
        return tf.get_variable(name, shape, dtype)

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [BATCH, length, heads, width // heads]), [0, 2, 1, 3])

    def normalised(x: Any, name: str) -> Any:
        centred = x - tf.reduce_mean(x, -1, keepdims=True)
        scale = tf.get_variable(name, [width], dtype, tf.ones_initializer())
        return centred * tf.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-5) * scale

    h = tf.nn.embedding_lookup(weights("words", words, width), tokens)
    for block in range(blocks):
        with tf.variable_scope(f"block{block}"):
            x = tf.reshape(normalised(h, "first"), [-1, width])
            query, key, value = (split(x @ weights(n, width, width)) for n in ("query", "key", "value"))
            found = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
            joined = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), [-1, width])
            h += tf.reshape(joined @ weights("output", width, width), [BATCH, length, width])
            x = tf.reshape(normalised(h, "second"), [-1, width])
            inner = tf.nn.gelu(x @ weights("w1", width, 4 * width))
            h += tf.reshape(inner @ weights("w2", 4 * width, width), [BATCH, length, width])
    logits = tf.reshape(h, [-1, width]) @ weights("logits", width, words)
    feeds = {t: rng.integers(0, words, (BATCH, length)) for t in (tokens, targets)}
    return _trained(logits, tf.reshape(targets, [-1]), feeds)


NETS: dict[str, Callable[[], Net]] = {
    "mlp": mlp, "lenet": lenet, "cnn": cnn, "embedding": embedding, "lstm": lstm, "gpt": gpt,
}  # fmt: skip

COLUMNS: dict[str, Sequence[Any]] = {
    "hidden/kernel": [None, "tp"],
    "hidden/bias": ["tp"],
    "logits/kernel": ["tp", None],
    "classes/kernel": [None, "tp"],
    "classes/bias": ["tp"],
    "embedding": ["tp", None],
    r"block.*/(query|key|value|w1)": [None, "tp"],
    r"block.*/(output|w2)": ["tp", None],
}
"""Tensor parallelism: a product with sharded columns, then one with sharded rows (Shoeybi et al. 2019)."""

VOCABULARY: dict[str, Sequence[Any]] = {**COLUMNS, "words": ["tp", None], "logits": [None, "tp"]}
"""Of the GPT, also its words: rows of the embedding, columns of the logits."""


def of_net(build: Callable[[], Net], layouts: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
    """Those of ``layouts`` for which the net has variables."""
    with tf.Graph():
        build()
        names = [v.op.name for v in tf.trainable_variables()]
    return {p: entries for p, entries in layouts.items() if any(re.fullmatch(p, name) for name in names)}


def trained(
    build: Callable[[], Net],
    mesh: Mesh | None = None,
    batch: Any = None,
    layouts: Mapping[str, Sequence[Any]] = {},
    steps: int = 20,
    target: str = "",
) -> tuple[list[float], list[Any]]:
    """The losses of ``steps`` steps, and the variables after them, in a session of ``target``."""
    with tf.Graph() as graph:
        tf.set_random_seed(7)
        if mesh is None:
            net = build()
        else:
            strategy = tf.distribute.LayoutStrategy(mesh, batch=batch)
            strategy.variable_layouts(layouts)
            with strategy.scope():
                net = build()
        config = None if target else tf.ConfigProto(device_count={"CPU": DEVICES})
        with tf.Session(target, graph=graph, config=config) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([net.loss, net.train], net.feeds)[0] for _ in range(steps)]
            return losses, session.run(tf.trainable_variables())
