"""Training goes on from an imported model, which is then exported again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import flowrt as tf
from flowrt.errors import InvalidArgumentError
from flowrt.onnx import export, import_model, load
from tests.onnx.test_export import run_elsewhere
from tests.onnx.test_models import classifier, info, model_of

RNG = np.random.default_rng(0)


def network() -> Any:
    """A convolution, its normalization, a resize with scales that say how, and a dense layer."""
    nodes = [
        helper.make_node("Conv", ["x", "conv.w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["c", "scale", "offset", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Resize", ["r", "", "scales"], ["s"], mode="nearest"),
        helper.make_node("GlobalAveragePool", ["s"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "1.v", "d"], ["y"], transB=1),
    ]
    floats = {
        "conv.w": RNG.normal(size=(8, 1, 3, 3)), "scale": np.ones(8), "offset": np.zeros(8),
        "mean": np.zeros(8), "variance": np.ones(8), "scales": np.array([1, 1, 2, 2]),
        "1.v": RNG.normal(size=(4, 8)), "d": np.zeros(4),
    }  # fmt: skip
    weights = {name: value.astype(np.float32) for name, value in floats.items()}
    return model_of(nodes, [info("x", ["n", 1, 8, 8])], [info("y", ["n", 4])], **weights)


def test_an_imported_cnn_is_trained_and_exported_again() -> None:
    """Quadrants: which one is bright."""
    original = network()
    labels = RNG.integers(0, 4, 64)
    images = RNG.normal(size=(64, 1, 8, 8)).astype(np.float32) * 0.1
    for image, label in zip(images, labels, strict=True):
        image[0, label // 2 * 4 : label // 2 * 4 + 4, label % 2 * 4 : label % 2 * 4 + 4] += 1 + label
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [64, 1, 8, 8], name="x")
        scores = import_model(original, {"x": x}, trainable=True)["y"]
        names = {each.op.name for each in tf.trainable_variables()}
        assert names == {"conv.w", "scale", "offset", "1.v", "d"}
        loss = tf.losses.sparse_softmax_cross_entropy(labels, scores)
        update = tf.train.AdamOptimizer(0.03).minimize(loss)
        session.run(tf.global_variables_initializer())
        before = session.run(scores, {x: images})
        np.testing.assert_allclose(before, load(original).run([images])["y"], rtol=1e-5, atol=1e-5)
        losses = [session.run([loss, update], {x: images})[0] for _ in range(150)]
        assert losses[-1] < 0.3 * losses[0]
        trained = session.run(scores, {x: images})
        model = export(session, [x], {"y": scores})
    found = run_elsewhere(model, {"x": images})[0]
    np.testing.assert_allclose(found, trained, rtol=1e-4, atol=1e-5)
    assert np.mean(found.argmax(1) == labels) > 0.9


def test_variables_by_name() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 3, 8, 8])
        y = import_model(classifier(), {"x": x}, trainable=["v"])["y"]
        assert [each.op.name for each in tf.trainable_variables()] == ["v"]
        assert tf.gradients(y, tf.trainable_variables())[0] is not None
        for name in ("odd", "rest"):
            with pytest.raises(InvalidArgumentError, match=f"initializers of floats; got {name!r}"):
                import_model(classifier(), {"x": x}, trainable=[name])
