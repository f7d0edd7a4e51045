"""A small network on real data, in one page: ``python examples/digits_mlp.py [--devices 2] [--steps 600]``.

Prints the accuracy on the held-out fifth. With several devices, the layers are spread over them; the trained
weights are the same, bit for bit with FLOWRT_JIT=off.
"""

from __future__ import annotations

import argparse

from digits import load

import flowrt as tf


def main(devices: int, steps: int) -> float:
    """Train, and return the accuracy on the test set."""
    digits = load()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [None, 8, 8, 1])
    labels = tf.placeholder(tf.int64, [None])
    h = tf.layers.flatten(x)
    for layer, units in enumerate([128, 64]):
        with tf.device(f"/cpu:{layer % devices}"):
            h = tf.layers.dense(h, units, activation=tf.nn.relu)
    with tf.device(f"/cpu:{devices - 1}"):
        logits = tf.layers.dense(h, 10)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    train = tf.train.AdamOptimizer(2e-3).minimize(loss, colocate_gradients_with_ops=True)
    accuracy = tf.reduce_mean(tf.to_float(tf.equal(tf.argmax(logits, 1), labels)))

    dataset = tf.data.Dataset.from_tensor_slices((digits.images, digits.labels))
    batches = dataset.shuffle(len(digits.labels), seed=1).repeat().batch(64)
    next_batch = batches.make_one_shot_iterator().get_next()
    config = tf.ConfigProto(device_count={"CPU": devices}, intra_op_parallelism_threads=1)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for step in range(1, steps + 1):
            images, targets = session.run(next_batch)
            _, value = session.run([train, loss], {x: images, labels: targets})
            if step % 100 == 0:
                print(f"step {step:4d}  loss {value:.4f}")
        result = session.run(accuracy, {x: digits.test_images, labels: digits.test_labels})
    print(f"test accuracy {result:.4f}")
    return float(result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=1, help="CPU devices to spread the layers over")
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    main(arguments.devices, arguments.steps)
