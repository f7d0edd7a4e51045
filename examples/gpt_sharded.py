"""A GPT too large for a device: ``python examples/gpt_sharded.py [--limit-mb 12] [--devices 4]``.

Its weights, gradients and Adam's states together take more than a device of ``--limit-mb`` has. It trains all
the same: fully sharded on ``--devices`` of them, each of which keeps its part and gathers a block at a time;
and on one of them, with weights and states in host memory. The losses are those of one large device.
"""

from __future__ import annotations

import argparse
import re
from typing import Any

import numpy as np

import flowrt as tf

TEXT = (
    "a device keeps its part of every weight; where a block is used, its weights are gathered, and freed "
    "when the last reader is done; each gradient is summed up straight into the parts, and so is the update. "
)
BATCH, LENGTH, WIDTH, HEADS, BLOCKS = 4, 16, 128, 4, 4


def attention(x: Any) -> Any:
    def heads(name: str) -> Any:
        projected = tf.layers.dense(x, WIDTH, use_bias=False, name=name)
        return tf.transpose(tf.reshape(projected, [BATCH, LENGTH, HEADS, WIDTH // HEADS]), [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(WIDTH // HEADS)
    later = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    joined = tf.transpose(tf.matmul(tf.nn.softmax(scores + later), value), [0, 2, 1, 3])
    return tf.layers.dense(tf.reshape(joined, [BATCH, LENGTH, WIDTH]), WIDTH, name="output")


def model(letters: int) -> tuple[Any, Any, Any, Any]:
    """The inputs, the targets, the loss and the update: as for one device."""
    inputs, targets = (tf.placeholder(tf.int32, [BATCH, LENGTH]) for _ in range(2))
    h = tf.nn.embedding_lookup(tf.get_variable("letters", [letters, WIDTH]), inputs)
    h += tf.get_variable("positions", [LENGTH, WIDTH])
    for block in range(BLOCKS):
        with tf.variable_scope(f"block{block}"):
            h += attention(tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_attention"))
            inner = tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_mlp")
            h += tf.layers.dense(tf.layers.dense(inner, 4 * WIDTH, tf.nn.gelu, name="up"), WIDTH, name="down")
    logits = tf.layers.dense(h, letters, name="logits")
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
    return inputs, targets, loss, tf.train.AdamOptimizer(3e-3).minimize(loss)


def train(devices: int, limit_mb: int, steps: int, **options: Any) -> tuple[list[float], int]:
    """The losses on ``devices`` of ``limit_mb`` each, beside the host, and the most bytes that one had."""
    letters = sorted(set(TEXT))
    codes = np.array([letters.index(letter) for letter in TEXT * 2], np.int32)
    random = np.random.default_rng(0)
    mesh = tf.distribute.Mesh([("dp", devices)], [f"/cpu:{i + 1}" for i in range(devices)])
    config = tf.ConfigProto(
        device_count={"CPU": devices + 1},
        experimental=tf.ConfigProto.Experimental(cpu_memory_limit_mb=[0] + [limit_mb] * devices),
    )
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        with tf.distribute.FullyShardedStrategy(mesh, axis="dp", units=r"block\d", **options).scope():
            inputs, targets, loss, update = model(len(letters))
        with tf.Session(config=config) as session:
            session.run(tf.global_variables_initializer())
            losses: list[float] = []
            for _ in range(steps):
                starts = random.integers(0, len(TEXT), BATCH)
                rows = np.stack([codes[start : start + LENGTH + 1] for start in starts])
                feed = {inputs: rows[:, :-1], targets: rows[:, 1:]}
                losses.append(float(session.run([loss, update], feed)[0]))
            return losses, max(device.pool.stats().peak_bytes_in_use for device in session.devices[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit-mb", type=int, default=12, help="memory of a device, in MiB")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    expected, peak = train(1, 0, options.steps, stage=0)
    print(f"one large device: {peak / 2**20:.1f} MiB, losses {expected[0]:.4f} to {expected[-1]:.4f}")
    try:
        train(1, options.limit_mb, 1, stage=0)
    except tf.errors.ResourceExhaustedError as error:
        reason = re.sub(r"^.*?: expected", "expected", str(error)).splitlines()[0]
        print(f"one of {options.limit_mb} MiB: {reason}")
    ways: list[tuple[str, int, dict[str, Any]]] = [
        (f"{options.devices} of {options.limit_mb} MiB, fully sharded", options.devices, {"stage": 3}),
        (f"one of {options.limit_mb} MiB, weights on the host", 1, {"stage": 3, "offload": "parameters"}),
    ]
    for what, devices, how in ways:
        losses, peak = train(devices, options.limit_mb, options.steps, **how)
        difference = max(abs(a - b) for a, b in zip(losses, expected, strict=True))
        print(f"{what}: {peak / 2**20:.1f} MiB, largest difference of a loss {difference:.1e}")


if __name__ == "__main__":
    main()
