"""Training steps of whole models, written once against TensorFlow 1's names: with dropout, powers and batch
normalization as people write them. Their first steps are measured too, from an empty cache: what is compiled
beside a step takes its time there.
"""

from __future__ import annotations

import math
import os
import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.inputs import digits, floats
from benchmarks.timing import MEMORY, Outcome, median_s

FIRST_STEPS = 20


class Bert:
    """BERT-tiny: 16 x 128 tokens of 30,522 symbols, 2 layers of 128 with 2 heads."""

    batch, length, symbols, width, layers, heads = 16, 128, 30522, 128, 2, 2


class Transformer:
    """A decoder: 8 x 64 tokens of 1,000 symbols, 6 layers of 128 with 4 heads."""

    batch, length, symbols, width, layers, heads = 8, 64, 1000, 128, 6, 4


def bert_tiny_adam(tf: Any) -> Outcome:
    """A training step of BERT-tiny with Adam: the loss of the masked words, a tenth of all."""
    net = Bert
    tokens = tf.placeholder(tf.int32, [net.batch, net.length])
    labels = tf.placeholder(tf.int32, [net.batch, net.length])
    weights = tf.placeholder(tf.float32, [net.batch, net.length])
    table = _weights(tf, net.symbols, net.width)
    h = tf.gather(table, tokens) + _weights(tf, net.length, net.width)
    h = tf.reshape(_dropout(tf, _layer_norm(tf, h)), [-1, net.width])
    for _ in range(net.layers):
        h = _encoder_layer(tf, net, h, 0.0)
    h = _layer_norm(tf, _dense(tf, h, net.width, _gelu(tf)))
    masked = tf.gather(h, tf.constant(np.arange(0, net.batch * net.length, 10), tf.int32))
    logits = tf.matmul(masked, table, transpose_b=True) + tf.Variable(tf.zeros([net.symbols]))
    wanted = tf.reshape(labels, [-1])[::10]
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=wanted, logits=logits)
    counted = tf.reshape(weights, [-1])[::10]
    loss = tf.reduce_sum(losses * counted) / (tf.reduce_sum(counted) + 1e-5)
    feed = {
        tokens: digits(net.batch, net.length, below=net.symbols),
        labels: digits(net.length, net.batch, below=net.symbols).T,
        weights: np.ones([net.batch, net.length], np.float32),
    }
    return _trained(tf, tf.train.AdamOptimizer(1e-4), loss, feed)


def transformer_6x128(tf: Any) -> Outcome:
    """A training step of a decoder of 6 layers of 128 with dropout and Adam."""
    net = Transformer
    tokens = tf.placeholder(tf.int32, [net.batch, net.length])
    table = _weights(tf, net.symbols, net.width)
    h = tf.nn.embedding_lookup(table, tokens) * math.sqrt(net.width) + _weights(tf, net.length, net.width)
    h = tf.reshape(_dropout(tf, h), [-1, net.width])
    mask = np.triu(np.full([net.length, net.length], -1e9, np.float32), 1)
    for _ in range(net.layers):
        h = _encoder_layer(tf, net, h, mask)
    logits = tf.reshape(tf.matmul(h, table, transpose_b=True), [net.batch, net.length, net.symbols])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tokens[:, 1:], logits=logits[:, :-1])
    feed = {tokens: digits(net.batch, net.length, below=net.symbols)}
    return _trained(tf, tf.train.AdamOptimizer(1e-4), tf.reduce_mean(losses), feed)


def resnet20_momentum(tf: Any) -> Outcome:
    """A training step of ResNet-20 on 32 images of 32 x 32 x 3 with momentum and weight decay (He et al.,
    "Deep residual learning for image recognition", 2015, section 4.2).
    """
    images, labels = tf.placeholder(tf.float32, [32, 32, 32, 3]), tf.placeholder(tf.int64, [32])
    kernels: list[Any] = []

    def convolved(x: Any, channels: int, stride: int) -> Any:
        kernels.append(_weights(tf, 3, 3, int(x.shape[-1]), channels, scale=(9 * channels / 2) ** -0.5))
        x = tf.nn.conv2d(x, kernels[-1], strides=[1, stride, stride, 1], padding="SAME")
        scale, offset = tf.Variable(tf.ones([channels])), tf.Variable(tf.zeros([channels]))
        return tf.nn.fused_batch_norm(x, scale, offset, epsilon=1e-5)[0]

    h = tf.nn.relu(convolved(images, 16, 1))
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            stride = stride if block == 0 else 1
            inner = tf.nn.relu(convolved(h, channels, stride))
            inner = convolved(inner, channels, 1)
            if stride == 2:  # the shortcut without weights: every second pixel, with new channels of zeros
                h = tf.pad(h[:, ::2, ::2, :], [[0, 0], [0, 0], [0, 0], [0, channels // 2]])
            h = tf.nn.relu(inner + h)
    h = tf.reduce_mean(h, [1, 2])
    output = _weights(tf, 64, 10)
    logits = tf.matmul(h, output) + tf.Variable(tf.zeros([10]))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    decay = tf.add_n([tf.nn.l2_loss(kernel) for kernel in [*kernels, output]])
    feed = {images: floats(32, 32, 32, 3), labels: digits(32)}
    optimizer = tf.train.MomentumOptimizer(0.01, 0.9)
    return _trained(tf, optimizer, tf.reduce_mean(losses) + 1e-4 * decay, feed)


def _trained(tf: Any, optimizer: Any, loss: Any, feed: dict[Any, Any]) -> Outcome:
    """Seconds of the first step, of the second, of the first `FIRST_STEPS` together and of one of many, from
    an empty cache of compiled loops; and the peak of memory. With dropout the losses of sides differ, so they
    only have to be finite.
    """
    os.environ["FLOWRT_CACHE_DIR"] = ""
    train = optimizer.minimize(loss)
    session = tf.Session()
    session.run(tf.global_variables_initializer())

    def step() -> Any:
        return session.run([train, loss], feed)[1]

    times = []
    for _ in range(FIRST_STEPS):
        start = time.perf_counter()
        value = step()
        times.append(time.perf_counter() - start)
    if not math.isfinite(value):
        raise ValueError(f"expected a finite loss after {FIRST_STEPS} steps; got {value}")
    figures = {"first_step": times[0], "second_step": times[1], "first_20": sum(times)}
    figures["step"] = median_s(step)
    figures[MEMORY] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Outcome(figures)


# --- parts of a transformer


def _weights(tf: Any, *shape: int, scale: float = 0.02) -> Any:
    return tf.Variable(floats(*shape, scale=scale))


def _dense(tf: Any, x: Any, width: int, activation: Callable[[Any], Any] | None = None) -> Any:
    y = tf.matmul(x, _weights(tf, int(x.shape[-1]), width)) + tf.Variable(tf.zeros([width]))
    return y if activation is None else activation(y)


def _dropout(tf: Any, x: Any) -> Any:
    return tf.nn.dropout(x, keep_prob=0.9)


def _layer_norm(tf: Any, x: Any) -> Any:
    width = int(x.shape[-1])
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    scale, offset = tf.Variable(tf.ones([width])), tf.Variable(tf.zeros([width]))
    return tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-12)


def _gelu(tf: Any) -> Callable[[Any], Any]:
    def gelu(x: Any) -> Any:
        return x * (0.5 * (1.0 + tf.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * tf.pow(x, 3)))))

    return gelu


def _encoder_layer(tf: Any, net: Any, h: Any, mask: Any) -> Any:
    """[tokens, width] -> the same, normalized after each residual as in BERT."""
    depth = net.width // net.heads

    def heads() -> Any:
        x = tf.reshape(_dense(tf, h, net.width), [net.batch, net.length, net.heads, depth])
        return tf.transpose(x, [0, 2, 1, 3])

    query, key, value = heads(), heads(), heads()
    scores = tf.multiply(tf.matmul(query, key, transpose_b=True), 1.0 / math.sqrt(depth)) + mask
    mixed = tf.matmul(_dropout(tf, tf.nn.softmax(scores)), value)
    mixed = tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [-1, net.width])
    h = _layer_norm(tf, h + _dropout(tf, _dense(tf, mixed, net.width)))
    inner = _dense(tf, h, 4 * net.width, _gelu(tf))
    return _layer_norm(tf, h + _dropout(tf, _dense(tf, inner, net.width)))


CASES: dict[str, Callable[[Any], Outcome]] = {
    case.__name__: case for case in (resnet20_momentum, bert_tiny_adam, transformer_6x128)
}
