"""A convolutional network on two CPU devices: ``python examples/digits_cnn.py [--out runs/digits_cnn]``.

The convolutions run on one device and the dense layers on the other, so every step sends tensors between
them, forwards and backwards. It writes a checkpoint, event files for TensorBoard and a picture of the placed
graph, and prints the accuracy on the held-out fifth: at least 98 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from digits import load

import flowrt as tf

BATCH = 64

# Two devices, one BLAS thread each: the matrices are small, and on a busy machine a second thread would make
# every product wait for a free core.
CONFIG = tf.ConfigProto(device_count={"CPU": 2}, intra_op_parallelism_threads=1)
TRACED = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
TRACED_EVERY = 200  # steps


class Network:
    """The graph: placeholders, loss, training operation, accuracy and summaries. The convolutions are on the
    device ``first``, the dense layers on ``second``.
    """

    def __init__(self, first: str = "/cpu:0", second: str = "/cpu:1") -> None:
        self.images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
        self.labels = tf.placeholder(tf.int64, [None], name="labels")
        self.training = tf.placeholder_with_default(False, [], name="training")
        with tf.device(first):
            h = tf.layers.conv2d(self.images, 32, 3, padding="same", activation=tf.nn.relu, name="conv1")
            h = tf.layers.conv2d(h, 32, 3, padding="same", activation=tf.nn.relu, name="conv2")
            h = tf.layers.max_pooling2d(h, 2, 2, name="pool2")
            h = tf.layers.conv2d(h, 64, 3, padding="same", activation=tf.nn.relu, name="conv3")
            h = tf.layers.max_pooling2d(h, 2, 2, name="pool3")
        with tf.device(second):
            h = tf.layers.dense(tf.layers.flatten(h), 128, activation=tf.nn.relu, name="hidden")
            h = tf.layers.dropout(h, 0.4, training=self.training, name="dropout")
            logits = tf.layers.dense(h, 10, name="logits")
            with tf.name_scope("loss"):
                wanted = tf.one_hot(self.labels, 10)
                self.loss = tf.losses.softmax_cross_entropy(wanted, logits, label_smoothing=0.1)
            with tf.name_scope("accuracy"):
                hits = tf.equal(tf.argmax(logits, 1), self.labels)
                self.accuracy = tf.reduce_mean(tf.cast(hits, tf.float32))
        self.step = tf.train.get_or_create_global_step()
        rate = tf.train.exponential_decay(2e-3, self.step, 200, 0.5)
        optimizer = tf.train.AdamOptimizer(rate)
        self.train = optimizer.minimize(self.loss, global_step=self.step, colocate_gradients_with_ops=True)
        tf.summary.scalar("batch_loss", self.loss)
        tf.summary.scalar("learning_rate", rate)
        self.summaries = tf.summary.merge_all()


def main(out: Path, steps: int) -> float:
    """Train for ``steps`` batches and return the accuracy on the test set."""
    digits = load()
    tf.set_random_seed(3)
    network = Network()
    dataset = tf.data.Dataset.from_tensor_slices((digits.images, digits.labels))
    dataset = dataset.shuffle(len(digits.labels), seed=3).repeat().batch(BATCH).prefetch(2)
    next_batch = dataset.make_one_shot_iterator().get_next()
    saver = tf.train.Saver()
    out.mkdir(parents=True, exist_ok=True)
    with tf.Session(config=CONFIG) as session, tf.summary.FileWriter(str(out), session.graph) as events:
        session.run(tf.global_variables_initializer())
        start = time.perf_counter()
        for step in range(1, steps + 1):
            images, labels = session.run(next_batch)
            feed = {network.images: images, network.labels: labels, network.training: True}
            fetches = [network.train, network.loss, network.summaries]
            if step % TRACED_EVERY == 0:
                metadata = tf.RunMetadata()
                _, loss, summary = session.run(fetches, feed, TRACED, metadata)
                events.add_run_metadata(metadata, f"step_{step}", step)
            else:
                _, loss, summary = session.run(fetches, feed)
            events.add_summary(summary, step)
            show_progress(step, steps, loss, time.perf_counter() - start)
        test = {network.images: digits.test_images, network.labels: digits.test_labels}
        accuracy = float(session.run(network.accuracy, test))
        checkpoint = saver.save(session, str(out / "model"), global_step=network.step)
        picture = tf.viz.write_graph_picture(
            session, [network.train, network.loss], out / "graph.svg", depth=1
        )
    print(f"test accuracy {accuracy:.4f} on {len(digits.test_labels)} held-out images")
    print(f"checkpoint    {checkpoint}")
    print(f"events        {out} (tensorboard --logdir {out}, or flowrt report {out})")
    print(f"graph picture {picture}")
    return accuracy


def show_progress(step: int, steps: int, loss: float, seconds: float) -> None:
    """One line that is updated in place on a terminal; a line per hundred steps elsewhere."""
    on_terminal = sys.stdout.isatty()
    if not on_terminal and step % 100 and step != steps:
        return
    bar = ("#" * (30 * step // steps)).ljust(30, ".")
    line = f"step {step:4d}/{steps} [{bar}] loss {loss:.4f}  {1000 * seconds / step:.1f} ms per step"
    print(f"\r{line}" if on_terminal else line, end="" if on_terminal and step < steps else "\n", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/digits_cnn"), help="directory for checkpoint, events, picture"
    )
    parser.add_argument("--steps", type=int, default=600)
    arguments = parser.parse_args()
    main(arguments.out, arguments.steps)
