"""One training script, several strategies: ``python examples/digits_strategies.py [--strategy NAME]``, and on
several workers ``flowrt-run --standalone --nproc 2 examples/digits_strategies.py --strategy multi_worker``.

The strategy is one line; the rest is the same for all. Every strategy, with any number of replicas that
divides the batch, gives the weights of one process that takes each batch as a whole. The script trains both
ways and prints the difference: float64 rounding. The parameter server strategy has one worker here; see
``digits_ps.py`` for several.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from digits import Digits, load

import flowrt as tf

BATCH = 48  # divisible by 1, 2, 3 and 4 replicas
STRATEGIES: dict[str, Callable[[list[str]], Any]] = {
    "default": lambda devices: tf.distribute.get_strategy(),
    "one_device": lambda devices: tf.distribute.OneDeviceStrategy(devices[0]),
    "mirrored": tf.distribute.MirroredStrategy,
    "central_storage": tf.distribute.experimental.CentralStorageStrategy,
    "parameter_server": lambda devices: tf.distribute.experimental.ParameterServerStrategy(),
    "layouts": lambda devices: tf.distribute.LayoutStrategy(
        tf.distribute.Mesh([("dp", len(devices))], devices), batch="dp"
    ),
    "multi_worker": lambda devices: tf.distribute.MultiWorkerMirroredStrategy(),
}


def dense(units: int, activation: Any) -> Any:
    """A layer that starts with the same weights in every run."""
    initializer = tf.glorot_uniform_initializer(seed=units)
    return tf.layers.Dense(units, activation, kernel_initializer=initializer)


def train(make_strategy: Callable[[], Any], digits: Digits, steps: int) -> tuple[list[np.ndarray], float]:
    """The trained weights, and the accuracy on the test set."""
    with tf.Graph().as_default():
        strategy = make_strategy()
        dataset = tf.data.Dataset.from_tensor_slices((digits.images.astype(np.float64), digits.labels))
        batches = dataset.shuffle(len(digits.labels), seed=1).repeat().batch(BATCH, drop_remainder=True)
        with strategy.scope():
            network = [dense(64, tf.nn.relu), dense(10, None)]
            optimizer = tf.train.AdamOptimizer(2e-3)
        iterator = strategy.experimental_distribute_dataset(batches).make_initializable_iterator()

        def logits_of(images: Any) -> Any:
            hidden, last = network
            return last(hidden(tf.reshape(images, [-1, 64])))

        def step(batch: Any) -> Any:
            images, labels = batch
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits_of(images))
            loss = tf.reduce_sum(losses) / BATCH  # gradients are summed over replicas
            with tf.control_dependencies([optimizer.minimize(loss)]):
                return tf.identity(loss)

        losses = strategy.run(step, args=(iterator.get_next(),))
        loss = strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)
        predicted = tf.argmax(logits_of(tf.constant(digits.test_images.astype(np.float64))), 1)
        accuracy = tf.reduce_mean(tf.to_float(tf.equal(predicted, digits.test_labels)))
        config = tf.ConfigProto(device_count={"CPU": 4})
        with tf.Session(config=config) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            session.run(iterator.initializer)
            for _ in range(steps):
                session.run(loss)
            return session.run(tf.trainable_variables()), float(session.run(accuracy))


def main(strategy: str, replicas: int, steps: int) -> None:
    """Train with ``strategy`` and without one, and print accuracy and difference."""
    digits, devices = load(), [f"/cpu:{i}" for i in range(replicas)]
    expected, _ = train(tf.distribute.get_strategy, digits, steps)
    weights, accuracy = train(lambda: STRATEGIES[strategy](devices), digits, steps)
    apart = max(float(np.abs(a - b).max()) for a, b in zip(weights, expected, strict=True))
    print(f"{strategy}: test accuracy {accuracy:.4f}, weights differ from one replica's by {apart:.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strategy", choices=STRATEGIES, default="mirrored")
    parser.add_argument("--replicas", type=int, choices=(1, 2, 3, 4), default=4)
    parser.add_argument("--steps", type=int, default=300)
    arguments = parser.parse_args()
    main(arguments.strategy, arguments.replicas, arguments.steps)
