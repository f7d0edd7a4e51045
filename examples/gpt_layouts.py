"""A GPT with data and tensor parallelism: ``python examples/gpt_layouts.py [--dp 2] [--tp 2] [--turns 1]``.

The model is written once, for one device. A mesh, and a layout per weight by name, say how it is computed:
``--dp`` devices share the batch, ``--tp`` devices share each block's heads and hidden units (Megatron,
Shoeybi et al. 2019), and ``--turns`` micro-batches follow one another on the same devices. The script prints
the losses, those of one device beside them, and what travels in a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.viz import explain_layouts

TEXT = (
    "the graph is built once and run many times; a layout says what of a tensor each device has, and the "
    "rest follows: what is sharded stays sharded, what is a sum is added up where it is needed, and nothing "
    "moves that does not have to. "
)
BATCH, LENGTH, WIDTH, HEADS, BLOCKS = 8, 32, 32, 4, 2
LAYOUTS: dict[str, Sequence[str | None]] = {
    r".*/(query|key|value|up)/kernel": [None, "tp"],  # columns: each device has some heads, some hidden units
    r".*/up/bias": ["tp"],
    r".*/(output|down)/kernel": ["tp", None],  # rows: the products are added up, once per pair
}


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
    """The inputs, the targets, the loss and the update: of the whole batch, on one device."""
    inputs, targets = (tf.placeholder(tf.int32, [BATCH, LENGTH]) for _ in range(2))
    h = tf.nn.embedding_lookup(tf.get_variable("letters", [letters, WIDTH]), inputs)
    h += tf.get_variable("positions", [LENGTH, WIDTH])
    for block in range(BLOCKS):
        with tf.variable_scope(f"block{block}"):
            h += attention(tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_attention"))
            inner = tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_mlp")
            h += tf.layers.dense(tf.layers.dense(inner, 4 * WIDTH, tf.nn.gelu, name="up"), WIDTH, name="down")
    logits = tf.layers.dense(h, letters, name="logits")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
    loss = tf.reduce_mean(losses)
    return inputs, targets, loss, tf.train.AdamOptimizer(3e-3).minimize(loss)


def train(strategy: Any, steps: int, devices: int) -> list[float]:
    """The losses of ``steps`` steps."""
    letters = sorted(set(TEXT))
    codes = np.array([letters.index(letter) for letter in TEXT * 2], np.int32)
    random = np.random.default_rng(0)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        if strategy is None:
            inputs, targets, loss, update = model(len(letters))
        else:
            with strategy.scope():
                inputs, targets, loss, update = model(len(letters))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
            session.run(tf.global_variables_initializer())
            losses: list[float] = []
            feed: dict[Any, Any] = {}
            for _ in range(steps):
                starts = random.integers(0, len(TEXT), BATCH)
                rows = np.stack([codes[start : start + LENGTH + 1] for start in starts])
                feed = {inputs: rows[:, :-1], targets: rows[:, 1:]}
                losses.append(float(session.run([loss, update], feed)[0]))
            if strategy is not None:
                layouts = explain_layouts(session, [loss, update], feed)
                assert layouts is not None  # the graph has layouts
                totals = layouts.totals()
                for kind, (count, nbytes) in sorted(totals.items()):
                    print(f"{kind}: {count} per step, {nbytes:,} bytes")
        return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dp", type=int, default=2, help="devices that share the batch")
    parser.add_argument("--tp", type=int, default=2, help="devices that share each block")
    parser.add_argument("--turns", type=int, default=1, help="micro-batches, one after the other")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    axes = [
        tf.distribute.Axis("dp", options.dp),
        tf.distribute.Axis("turn", options.turns, is_time=True),
        tf.distribute.Axis("tp", options.tp),
    ]
    strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh(axes), batch=("dp", "turn"))
    strategy.variable_layouts(LAYOUTS)
    found = train(strategy, options.steps, options.dp * options.tp)
    expected = train(None, options.steps, 1)
    for step in range(0, options.steps, 5):
        print(f"step {step:3}: loss {found[step]:.4f}, on one device {expected[step]:.4f}")
    print(f"largest difference {max(abs(a - b) for a, b in zip(found, expected, strict=True)):.1e}")


if __name__ == "__main__":
    main()
