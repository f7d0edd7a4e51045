"""A mixture of experts on several devices: ``python examples/experts.py [--devices 2]``.

Each token goes to the expert that a small layer chooses for it. On a mesh of one axis the devices share the
batch, and they share the experts: a device gathers its tokens by expert, an all-to-all brings each expert's
tokens to its device, and another one brings the results back (Lepikhin et al. 2020, GShard). The model is
written once, for one device; two `relayout`s and the layouts of the experts' weights say the rest. The script
prints what travels, and the losses beside those of one device.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import flowrt as tf
from flowrt.viz import explain_layouts

GROUPS, TOKENS, WIDTH, HIDDEN, EXPERTS, CAPACITY = 8, 16, 16, 32, 4, 8
"""Tokens are dispatched within a group, each expert takes ``CAPACITY`` of it: the others pass by."""


def weights(name: str, *shape: int) -> Any:
    """Those of all experts: each device has some of them."""
    return tf.get_variable(name, shape, layout=["device", None, None])


def experts(x: Any) -> Any:
    """Each token of ``[group, token, width]`` through its expert, by the probability of the choice."""
    scores = tf.nn.softmax(tf.layers.dense(x, EXPERTS, use_bias=False, name="choice"))
    chosen = tf.one_hot(tf.argmax(scores, -1), EXPERTS)
    place = tf.cumsum(chosen, axis=1, exclusive=True)  # how many of the group chose the same expert before
    slots = tf.one_hot(tf.cast(tf.reduce_sum(place * chosen, -1), tf.int32), CAPACITY)  # none if it is full
    dispatch = tf.einsum("gte,gtc->gtec", chosen, slots)

    by_group, by_expert = [None, "device", None, None], ["device", None, None, None]
    given = tf.distribute.relayout(tf.einsum("gtec,gtm->egcm", dispatch, x), by_expert)
    hidden = tf.nn.relu(tf.einsum("egcm,emh->egch", given, weights("up", EXPERTS, WIDTH, HIDDEN)))
    made = tf.einsum("egch,ehm->egcm", hidden, weights("down", EXPERTS, HIDDEN, WIDTH))
    made = tf.distribute.relayout(made, by_expert)  # so is its gradient
    made = tf.distribute.relayout(made, by_group)
    return tf.einsum("gtec,egcm->gtm", dispatch, made) * tf.reduce_max(scores, -1, keepdims=True)


def model() -> tuple[Any, Any, Any, Any]:
    """The inputs, the targets, the loss and the update."""
    inputs, targets = (tf.placeholder(tf.float32, [GROUPS, TOKENS, WIDTH]) for _ in range(2))
    loss = tf.reduce_mean(tf.square(inputs + experts(inputs) - targets))
    return inputs, targets, loss, tf.train.AdamOptimizer(0.01).minimize(loss)


def train(devices: int, steps: int) -> list[float]:
    """The losses of ``steps`` steps."""
    strategy = tf.distribute.LayoutStrategy(tf.distribute.Mesh([("device", devices)]), batch="device")
    random = np.random.default_rng(0)
    turn = np.linalg.qr(random.standard_normal((WIDTH, WIDTH)))[0]
    with tf.Graph().as_default():
        tf.set_random_seed(1)
        with strategy.scope():
            inputs, targets, loss, update = model()
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": devices})) as session:
            session.run(tf.global_variables_initializer())
            losses: list[float] = []
            feed: dict[Any, Any] = {}
            for _ in range(steps):
                x = random.standard_normal((GROUPS, TOKENS, WIDTH)).astype(np.float32)
                feed = {inputs: x, targets: np.abs(x @ turn)}
                losses.append(float(session.run([loss, update], feed)[0]))
            layouts = explain_layouts(session, [loss, update], feed)
            assert layouts is not None  # the graph has layouts
            totals = layouts.totals()
            for kind, (count, nbytes) in sorted(totals.items()) if devices > 1 else ():
                print(f"{kind}: {count} per step, {nbytes:,} bytes")
        return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=2, help="devices that share the batch and the experts")
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    found, expected = train(options.devices, options.steps), train(1, options.steps)
    for step in range(0, options.steps, 5):
        print(f"step {step:3}: loss {found[step]:.4f}, on one device {expected[step]:.4f}")
    print(f"largest difference {max(abs(a - b) for a, b in zip(found, expected, strict=True)):.1e}")


if __name__ == "__main__":
    main()
