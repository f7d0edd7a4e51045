"""Slim's examples in files, training and evaluation, beside TensorFlow 1.15's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import slim
from flowrt.errors import InvalidArgumentError, NotFoundError

SIDES = ["ymin", "xmin", "ymax", "xmax"]
BOXES = [(0.1, 0.2), (0.1, 0.3), (0.5, 0.6), (0.5, 0.9)]
LOSSES = [1.318624, 1.300470, 1.246674, 1.417566, 0.740455, 0.346520]
"""Of TensorFlow 1.15, for `write_records`, `network` and six steps."""


def write_records(folder: Path) -> None:
    """Two files of 12 pictures, the brightness of which is their class, each with two boxes."""
    rng = np.random.RandomState(3)
    with tf.Graph().as_default(), tf.Session() as session:
        picture = tf.placeholder(tf.uint8, [8, 8, 3])
        encoded = tf.image.encode_png(picture)
        for part in range(2):
            with tf.python_io.TFRecordWriter(str(folder / f"train-{part}.tfrecord")) as writer:
                for _ in range(12):
                    label = int(rng.randint(3))
                    pixels = (rng.rand(8, 8, 3) * 80 + label * 80).astype(np.uint8)
                    example = tf.train.Example()
                    features = example.features.feature
                    features["image/encoded"].bytes_list.value.append(session.run(encoded, {picture: pixels}))
                    features["image/format"].bytes_list.value.append(b"png")
                    features["label"].int64_list.value.append(label)
                    for side, values in zip(
                        SIDES, [(0.1, 0.2), (0.1, 0.3), (0.5, 0.6), (0.5, 0.9)], strict=True
                    ):
                        features[f"box/{side}"].float_list.value.extend(values)
                    writer.write(example.SerializeToString())


def batch(folder: Path) -> Any:
    decoders = slim.tfexample_decoder
    features = {
        "image/encoded": tf.FixedLenFeature([], tf.string, ""),
        "image/format": tf.FixedLenFeature([], tf.string, "png"),
        "label": tf.FixedLenFeature([], tf.int64),
        **{f"box/{side}": tf.VarLenFeature(tf.float32) for side in SIDES},
    }
    handlers = {
        "image": decoders.Image(), "label": decoders.Tensor("label"),
        "boxes": decoders.BoundingBox(SIDES, "box/"),
    }  # fmt: skip
    decoder = decoders.TFExampleDecoder(features, handlers)
    dataset = slim.dataset.Dataset(str(folder / "train-*"), tf.TFRecordReader, decoder, 24, {}, num_classes=3)
    provider = slim.dataset_data_provider.DatasetDataProvider(dataset, shuffle=False)
    with pytest.raises(InvalidArgumentError, match=r"got \['box'\]"):
        provider.get(["box"])
    picture, label, boxes = provider.get(["image", "label", "boxes"])
    picture.set_shape([8, 8, 3])
    pictures, labels, boxes = tf.train.batch(
        [tf.to_float(picture) / 255.0, label, tf.reshape(boxes, [2, 4])], 6, capacity=30
    )
    return slim.prefetch_queue.prefetch_queue([pictures, labels, boxes], capacity=2).dequeue()


def network(pictures: Any) -> Any:
    def initializer(shape: Any, dtype: Any = None, partition_info: Any = None) -> Any:
        return tf.constant((np.arange(np.prod(shape)).reshape(shape) % 7 - 3) / 20, tf.float32)

    decay = slim.l2_regularizer(0.01)
    layers = [slim.conv2d, slim.fully_connected]
    with slim.arg_scope(layers, weights_initializer=initializer, weights_regularizer=decay):
        x = slim.conv2d(pictures, 4, [3, 3], scope="conv1", normalizer_fn=slim.batch_norm)
        x = slim.flatten(slim.max_pool2d(x, [2, 2]))
        return slim.fully_connected(x, 3, activation_fn=None, scope="fc")


@pytest.mark.slow
def test_a_network_is_trained_and_evaluated_from_files(tmp_path: Path) -> None:
    write_records(tmp_path)
    losses = []

    def step(*given: Any) -> Any:
        loss, stops = slim.learning.train_step(*given)
        losses.append(float(loss))
        return loss, stops

    with tf.Graph().as_default():
        pictures, labels, _ = batch(tmp_path)
        slim.losses.softmax_cross_entropy(network(pictures), slim.one_hot_encoding(labels, 3))
        train_op = slim.learning.create_train_op(
            slim.losses.get_total_loss(), tf.train.MomentumOptimizer(0.1, 0.9), clip_gradient_norm=2.0,
            gradient_multipliers={"fc/weights": 0.5}, summarize_gradients=True,
        )  # fmt: skip
        last = slim.learning.train(train_op, str(tmp_path / "log"), step, number_of_steps=6)
    np.testing.assert_allclose(losses, LOSSES, rtol=2e-5)
    assert last == losses[-1]
    with tf.Graph().as_default():
        pictures, labels, boxes = batch(tmp_path)
        tf.train.get_or_create_global_step()
        values, updates = slim.metrics.aggregate_metric_map({
            "accuracy": slim.metrics.streaming_accuracy(tf.argmax(network(pictures), 1), labels),
            "box": slim.metrics.streaming_mean(boxes),
        })  # fmt: skip
        asked = {"num_evals": 4, "eval_op": list(updates.values()), "final_op": values}
        found = slim.evaluation.evaluation_loop(
            "", str(tmp_path / "log"), str(tmp_path / "eval"), max_number_of_evaluations=1, **asked
        )
        again = slim.evaluation.evaluate_once(
            "", tf.train.latest_checkpoint(str(tmp_path / "log")), str(tmp_path / "eval"), **asked
        )
    assert found == again
    assert found["box"] == pytest.approx(0.4)
    with tf.Graph().as_default(), tf.Session() as session:
        network(tf.zeros([1, 8, 8, 3]))
        chosen = slim.get_variables_to_restore(exclude=["fc"])
        restore = slim.assign_from_checkpoint_fn(tf.train.latest_checkpoint(str(tmp_path / "log")), chosen)
        session.run(tf.global_variables_initializer())
        before = session.run(slim.get_variables("conv1/weights"))
        restore(session)
        assert not np.array_equal(session.run(slim.get_variables("conv1/weights")), before)


def test_gradients_are_multiplied_then_clipped() -> None:
    w, v = tf.get_variable("w", initializer=[3.0, 4.0]), tf.get_variable("v", initializer=[1.0])
    loss = tf.reduce_sum(w * w) / 2 + tf.reduce_sum(v)
    train_op = slim.learning.create_train_op(
        loss, tf.train.GradientDescentOptimizer(1.0), clip_gradient_norm=1.0, gradient_multipliers={v: 0.5}
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(train_op) == 13.5
        np.testing.assert_allclose(session.run(w), [3 - 0.6, 4 - 0.8], rtol=1e-6)
        assert session.run([v, tf.train.get_global_step()]) == [0.5, 1]
    with pytest.raises(InvalidArgumentError, match="expected a train_op and steps"):
        slim.learning.train(train_op, None, number_of_steps=0)


def test_a_loss_that_is_no_number_stops_training() -> None:
    w = tf.get_variable("w", initializer=0.0)
    train_op = slim.learning.create_train_op(tf.log(w), tf.train.GradientDescentOptimizer(1.0))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(InvalidArgumentError, match="LossTensor is inf or nan"):
            session.run(train_op)


def test_values_are_assigned_by_name(tmp_path: Path) -> None:
    w = tf.get_variable("w", [2])
    other = tf.get_variable("other", [1])
    with tf.Session() as session:
        slim.assign_from_values_fn({"w": [1.0, 2.0], "other": [3.0]})(session)
        path = tf.train.Saver([w]).save(session, str(tmp_path / "model"))
        operation, fed = slim.assign_from_checkpoint(path, {"w": w})
        session.run(w.assign([0.0, 0.0]))
        session.run(operation, fed)
        assert session.run(w).tolist() == [1, 2]
    with pytest.raises(NotFoundError):
        slim.assign_from_checkpoint_fn(path, [w, other])(tf.Session())
    assert slim.assign_from_checkpoint_fn(path, [other], ignore_missing_vars=True) is None
    assert slim.filter_variables([w, other], ["^w"], None) == [w]
    with pytest.raises(InvalidArgumentError, match="no variable 'x'"):
        slim.assign_from_values({"x": 0})
    with pytest.raises(NotFoundError, match="there are no files"):
        slim.parallel_reader.get_data_files(str(tmp_path / "none*"))


def test_a_decoder_tells_keys_and_items_that_there_are_not() -> None:
    decoders = slim.tfexample_decoder
    features = {"label": tf.FixedLenFeature([], tf.int64)}
    decoder = decoders.TFExampleDecoder(features, {"class": decoders.Tensor("labels")})
    with pytest.raises(
        InvalidArgumentError, match=r"'class': expected keys among \['label'\]; got \['labels'\]"
    ):
        decoder.decode(tf.constant(b""))
    with pytest.raises(InvalidArgumentError, match=r"expected items among \['class'\]; got \['box'\]"):
        decoder.decode(tf.constant(b""), ["box"])
