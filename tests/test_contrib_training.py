"""Short programs over contrib's training names and conversion functions, as public code writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import layers, slim
from flowrt.contrib.tensorboard.plugins import projector
from flowrt.errors import InvalidArgumentError


def run(fetches: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


def test_layer_norm_is_over_all_axes_but_the_first() -> None:
    x = np.random.default_rng(0).normal(size=(2, 3, 4))
    out = layers.layer_norm(tf.constant(x), scope="ln")
    mean, deviation = x.mean((1, 2), keepdims=True), x.std((1, 2), keepdims=True)
    np.testing.assert_allclose(run(out), (x - mean) / deviation, rtol=1e-6, atol=1e-9)
    assert [(v.op.name, v.shape.as_list()) for v in tf.trainable_variables()] == [
        ("ln/beta", [4]),
        ("ln/gamma", [4]),
    ]


@pytest.mark.parametrize(
    "optimizer", ["SGD", tf.train.GradientDescentOptimizer, tf.train.GradientDescentOptimizer(0.5)]
)
def test_optimize_loss_clips_multiplies_and_counts(optimizer: Any) -> None:
    x = tf.get_variable("x", initializer=[3.0, 4.0])
    count = tf.train.get_or_create_global_step()
    step = layers.optimize_loss(
        tf.reduce_sum(x * x) / 2, count, 0.5, optimizer, gradient_multipliers={"x:0": 2.0}, clip_gradients=1.0
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(step) == 12.5
        np.testing.assert_allclose(session.run(x), [3 - 0.5 * 0.6, 4 - 0.5 * 0.8], rtol=1e-6)
        assert session.run(count) == 1


def test_optimize_loss_refuses_what_it_does_not_know() -> None:
    loss = tf.square(tf.Variable(1.0))
    for given in (
        {"optimizer": "Sgd"},
        {"clip_gradients": "no"},
        {"summaries": ["x"]},
        {"learning_rate": -1.0},
    ):
        arguments = {"learning_rate": 0.1, "optimizer": "SGD", **given}
        with pytest.raises(InvalidArgumentError, match="optimize_loss: expected"):
            layers.optimize_loss(loss, None, **arguments)


def test_sequence_loss_averages_by_weights() -> None:
    logits, targets = np.random.default_rng(1).normal(size=(2, 3, 5)), np.array([[0, 1, 2], [3, 4, 0]])
    weights = np.array([[1.0, 1, 0], [0.5, 0, 0]])
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(logs, targets[..., None], -1)[..., 0] * weights
    loss = tf.contrib.seq2seq.sequence_loss
    got = run([loss(logits, targets, weights), loss(logits, targets, weights, True, False)])
    np.testing.assert_allclose(got[0], losses.sum() / weights.sum())
    np.testing.assert_allclose(got[1], losses.sum(1) / weights.sum(1))


def test_hparams_keep_their_types() -> None:
    h = tf.contrib.training.HParams(rate=0.1, layers=[1, 2], name="a", on=True)
    h.parse("rate=1,layers=[3,4],layers[1]=5,on=false,name=b c")
    assert h.values() == {"rate": 1.0, "layers": [3, 5], "name": "b c", "on": False}
    assert "rate" in h
    assert h.get("absent", 7) == 7
    assert tf.contrib.training.HParams(rate=0.1).parse_json('{"rate": 2}').rate == 2.0
    with pytest.raises(InvalidArgumentError):
        h.override_from_dict({"rate": 3.0, "layers": 1})
    assert h.rate == 1.0
    with pytest.raises(InvalidArgumentError, match="absent"):
        h.parse("absent=1")


def test_the_projector_and_the_analyzer_describe_a_model(tmp_path: Path) -> None:
    w = tf.get_variable("w", [3, 4])
    assert slim.model_analyzer.analyze_vars([w]) == (12, 48)
    config = projector.ProjectorConfig()
    config.embeddings.add().tensor_name = w.name
    with tf.summary.FileWriter(str(tmp_path)) as writer:
        projector.visualize_embeddings(writer, config)
    expected = 'embeddings {\n  tensor_name: "w:0"\n}\n'
    assert (tmp_path / "projector_config.pbtxt").read_text() == expected
    assert slim.convolution2d is slim.conv2d


def test_conversion_functions_are_asked_by_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowrt.graph.construction.conversions._registered", [])

    class Money:
        cents = 250

    def convert(value: Any, dtype: Any = None, name: Any = None, as_ref: bool = False) -> Any:
        return tf.constant(value.cents / 100, dtype or tf.float32, name=name)

    with pytest.raises(tf.errors.DTypeError, match="an int as priority; got 'x'"):
        tf.register_tensor_conversion_function(Money, convert, "x")  # and leaves nothing behind
    tf.register_tensor_conversion_function(Money, lambda *args, **kwargs: tf.constant(9.0), priority=200)
    tf.register_tensor_conversion_function(Money, convert)
    tf.register_tensor_conversion_function(Money, lambda *args, **kwargs: NotImplemented, priority=1)
    assert run(tf.add(1.0, Money())) == 3.5
    np.testing.assert_array_equal(run(tf.convert_to_tensor([Money(), Money()], tf.float64)), [2.5, 2.5])
    assert all(hasattr(tf.Tensor, m) for m in tf.Tensor.OVERLOADABLE_OPERATORS - {"__div__", "__rdiv__"})
