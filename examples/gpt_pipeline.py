"""A GPT in a pipeline: ``python examples/gpt_pipeline.py [--pp 2] [--micro-batches 4] [--schedule 1f1b]``.

The model is written once, and `tf.distribute.stage` says where a stage begins. The stages are on ``--pp``
devices, and the batch passes through them in ``--micro-batches`` parts. The table of letters is at the first
stage; the last one reads it, too, to compute the logits. ``--dp`` devices share each micro-batch of a stage,
and ``--tp`` share its heads and hidden units: one strategy for all three. The script prints what travels in a
step, and the losses beside those of one device.

    flowrt-run --standalone --nproc 2 examples/gpt_pipeline.py     # the devices are those of both processes
"""

from __future__ import annotations

import argparse
import contextlib
import time
from typing import Any, Literal

import numpy as np

import flowrt as tf
from flowrt.viz import explain_layouts

TEXT = (
    "a stage computes its part of a micro-batch and sends it on, and while the next stage is at work on it, "
    "the first one has begun another; on the way back it is the same, and at the end all gradients are "
    "there. "
)
BATCH, LENGTH, HEADS, BLOCKS = 32, 32, 4, 4
PLAN: dict[str, Literal["column", "row"]] = {
    r".*/(query|key|value|up)/kernel": "column",
    r".*/(output|down)/kernel": "row",
}


def attention(x: Any, width: int) -> Any:
    def heads(name: str) -> Any:
        projected = tf.layers.dense(x, width, use_bias=False, name=name)
        return tf.transpose(tf.reshape(projected, [BATCH, LENGTH, HEADS, width // HEADS]), [0, 2, 1, 3])

    query, key, value = heads("query"), heads("key"), heads("value")
    scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(width // HEADS)
    later = np.triu(np.full((LENGTH, LENGTH), -1e9, np.float32), 1)
    joined = tf.transpose(tf.matmul(tf.nn.softmax(scores + later), value), [0, 2, 1, 3])
    return tf.layers.dense(tf.reshape(joined, [BATCH, LENGTH, width]), width, name="output")


def model(letters: int, width: int, stages: int) -> tuple[Any, Any, Any, Any]:
    """The inputs, the targets, the loss and the update of the whole batch, in ``stages``."""

    def at(stage: int) -> contextlib.AbstractContextManager[None]:
        return tf.distribute.stage(stage) if stages > 1 else contextlib.nullcontext()

    inputs, targets = (tf.placeholder(tf.int32, [BATCH, LENGTH]) for _ in range(2))
    with at(0):
        table = tf.get_variable("letters", [letters, width])
        h = tf.nn.embedding_lookup(table, inputs) + tf.get_variable("positions", [LENGTH, width])
    for block in range(BLOCKS):
        with at(block * stages // BLOCKS), tf.variable_scope(f"block{block}"):
            x = tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_attention")
            h += attention(x, width)
            x = tf.contrib.layers.layer_norm(h, begin_norm_axis=-1, scope="before_mlp")
            h += tf.layers.dense(tf.layers.dense(x, 4 * width, tf.nn.gelu, name="up"), width, name="down")
    with at(stages - 1):
        logits = tf.tensordot(h, table, [[2], [1]])  # the first stage's table, sent once per step
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits)
        loss = tf.reduce_mean(losses)
    return inputs, targets, loss, tf.train.AdamOptimizer(3e-3).minimize(loss)


def train(strategy: Any, width: int, steps: int, devices: int) -> tuple[list[float], float]:
    """The losses of ``steps`` steps, and the seconds of the fastest."""
    letters = sorted(set(TEXT))
    codes = np.array([letters.index(letter) for letter in TEXT * 2], np.int32)
    random = np.random.default_rng(0)
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        if strategy is None:
            inputs, targets, loss, update = model(len(letters), width, 1)
        else:
            with strategy.scope():
                inputs, targets, loss, update = model(len(letters), width, strategy.schedule.stages)
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
            session.run(tf.global_variables_initializer())
            losses: list[float] = []
            seconds: list[float] = []
            feed: dict[Any, Any] = {}
            for _ in range(steps):
                starts = random.integers(0, len(TEXT), BATCH)
                rows = np.stack([codes[start : start + LENGTH + 1] for start in starts])
                feed = {inputs: rows[:, :-1], targets: rows[:, 1:]}
                begun = time.perf_counter()
                losses.append(float(session.run([loss, update], feed)[0]))
                seconds.append(time.perf_counter() - begun)
            if strategy is not None and strategy.extended.should_save_summary:
                layouts = explain_layouts(session, [loss, update], feed)
                assert layouts is not None  # the graph has layouts
                totals = layouts.totals()
                for kind, (count, nbytes) in sorted(totals.items()):
                    if nbytes:
                        print(f"{kind}: {count} per step, {nbytes:,} bytes")
        return losses, min(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pp", type=int, default=2, help="devices in a row, with a part of the blocks each")
    parser.add_argument("--dp", type=int, default=1, help="devices that share each micro-batch of a stage")
    parser.add_argument("--tp", type=int, default=1, help="devices that share each block of a stage")
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--schedule", default="1f1b", help="a name, or a file with a line per device")
    parser.add_argument("--chunks", type=int, help="stages per device (default: the schedule's)")
    parser.add_argument("--remat", action="store_true", help="compute a stage again for its backward pass")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    strategy = tf.distribute.PipelineStrategy(
        tf.distribute.Mesh([("pp", options.pp), ("dp", options.dp), ("tp", options.tp)]),
        micro_batches=options.micro_batches,
        schedule=options.schedule,
        chunks=options.chunks,
        remat="stage" if options.remat else None,
        plan=PLAN,
        batch="dp",
    )
    found, seconds = train(strategy, options.width, options.steps, options.pp * options.dp * options.tp)
    expected, alone = train(None, options.width, options.steps, 1)
    if strategy.extended.should_save_summary:  # the first process
        print(f"fastest step: {seconds * 1e3:.1f} ms, on one device {alone * 1e3:.1f}")
        for step in range(0, options.steps, 5):
            print(f"step {step:3}: loss {found[step]:.4f}, on one device {expected[step]:.4f}")
        print(f"largest difference {max(abs(a - b) for a, b in zip(found, expected, strict=True)):.1e}")


if __name__ == "__main__":
    main()
