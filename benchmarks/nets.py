"""Training steps whose memory is looked at: nets with an optimizer, what to fetch and what to feed."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf
from examples.char_lm import CONTEXT, Model


class Step(NamedTuple):
    """What to fetch and what to feed."""

    fetches: list[Any]
    feed: dict[Any, Any]


def _train(loss: Any, optimizer: Any, feed: dict[Any, Any]) -> Step:
    return Step([optimizer.minimize(loss), loss], feed)


def _weights(*shape: int) -> Any:
    return tf.Variable(tf.random_normal(shape, stddev=0.05))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    return tf.reduce_mean(losses)


def deep_mlp(layers: int = 1000) -> Step:
    """Layers of 64 x 64 with gradient descent, batch 64."""
    x = h = tf.placeholder(tf.float32, [64, 64])
    for _ in range(layers):
        h = tf.nn.relu(tf.matmul(h, _weights(64, 64)) + tf.Variable(tf.zeros([64])))
    loss = tf.reduce_mean(tf.square(h))
    return _train(loss, tf.train.GradientDescentOptimizer(0.1), {x: np.ones((64, 64))})


def mlp_adam() -> Step:
    """784-512-512-10 with Adam, batch 128."""
    x, labels = tf.placeholder(tf.float32, [128, 784]), tf.placeholder(tf.int64, [128])
    h = x
    for inputs, outputs in pairwise((784, 512, 512, 10)):
        h = tf.matmul(h, _weights(inputs, outputs)) + tf.Variable(tf.zeros([outputs]))
        h = h if outputs == 10 else tf.nn.relu(h)
    feed = {x: np.ones((128, 784)), labels: np.arange(128) % 10}
    return _train(_cross_entropy(h, labels), tf.train.AdamOptimizer(), feed)


def lenet(batch: int | None = 64) -> Step:
    """Two convolutions and two dense layers with gradient descent, 64 images of 28 x 28. ``batch``: how many
    are known of when the graph is built.
    """
    x, labels = tf.placeholder(tf.float32, [batch, 28, 28, 1]), tf.placeholder(tf.int64, [batch])
    h = x
    for shape in ((5, 5, 1, 32), (5, 5, 32, 64)):
        h = tf.nn.relu(tf.nn.conv2d(h, _weights(*shape), strides=[1, 1, 1, 1], padding="SAME"))
        h = tf.nn.max_pool(h, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
    h = tf.nn.relu(tf.matmul(tf.reshape(h, [-1, 3136]), _weights(3136, 256)))
    loss = _cross_entropy(tf.matmul(h, _weights(256, 10)), labels)
    feed = {x: np.ones((64, 28, 28, 1)), labels: np.arange(64) % 10}
    return _train(loss, tf.train.GradientDescentOptimizer(0.01), feed)


def digits_cnn(batch: int | None = 64) -> Step:
    """The net of ``examples/digits_cnn.py``, 64 images of 8 x 8. ``batch`` as in `lenet`."""
    x, labels = tf.placeholder(tf.float32, [batch, 8, 8, 1]), tf.placeholder(tf.int64, [batch])
    h = tf.layers.conv2d(x, 32, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.conv2d(h, 32, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.max_pooling2d(h, 2, 2)
    h = tf.layers.conv2d(h, 64, 3, padding="same", activation=tf.nn.relu)
    h = tf.layers.flatten(tf.layers.max_pooling2d(h, 2, 2))
    logits = tf.layers.dense(tf.layers.dense(h, 128, activation=tf.nn.relu), 10)
    feed = {x: np.ones((64, 8, 8, 1)), labels: np.arange(64) % 10}
    return _train(_cross_entropy(logits, labels), tf.train.AdamOptimizer(), feed)


def char_lm() -> Step:
    """The model of ``examples/char_lm.py``, 90 characters, batch 128."""
    model = Model(90)
    feed = {model.contexts: np.zeros((128, CONTEXT)), model.targets: np.zeros(128)}
    return Step([model.train, model.bits], feed)


def gpt(layers: int = 4, width: int = 64, heads: int = 4, batch: int = 8, length: int = 32) -> Step:
    """A decoder of ``layers`` blocks with Adam; attention without its mask, which takes no memory."""
    tokens, targets = (tf.placeholder(tf.int32, [batch, length]) for _ in range(2))
    h = tf.reshape(tf.nn.embedding_lookup(_weights(90, width), tokens), [-1, width])

    def split(x: Any) -> Any:
        return tf.transpose(tf.reshape(x, [batch, length, heads, -1]), [0, 2, 1, 3])

    for _ in range(layers):
        x = _normalised(h)
        query, key, value = (split(tf.matmul(x, _weights(width, width))) for _ in range(3))
        found = tf.matmul(tf.nn.softmax(tf.matmul(query, key, transpose_b=True)), value)
        joined = tf.reshape(tf.transpose(found, [0, 2, 1, 3]), [-1, width])
        h = h + tf.matmul(joined, _weights(width, width))
        inner = tf.nn.relu(tf.matmul(_normalised(h), _weights(width, 4 * width)))
        h = h + tf.matmul(inner, _weights(4 * width, width))
    loss = _cross_entropy(tf.matmul(_normalised(h), _weights(width, 90)), tf.reshape(targets, [-1]))
    return _train(loss, tf.train.AdamOptimizer(), dict.fromkeys((tokens, targets), np.zeros((batch, length))))


def _normalised(x: Any) -> Any:
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    scale = tf.Variable(tf.ones([int(x.shape[-1])]))
    return centred * tf.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + 1e-5) * scale


NETS: dict[str, Callable[[], Step]] = {
    "MLP of 1,000 layers": deep_mlp,
    "MLP with Adam": mlp_adam,
    "LeNet": lenet,
    "digits CNN": digits_cnn,
    "character model": char_lm,
    "GPT, 4 blocks": gpt,
}
