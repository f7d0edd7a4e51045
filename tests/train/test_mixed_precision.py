"""Mixed precision in a session without a strategy, and the scales of losses."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, OpError

E = tf.train.experimental
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as made:
        yield made


def initialized() -> tf.Session:
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


# --- Precision


def test_a_precision_is_a_value() -> None:
    assert tf.distribute.Precision() == tf.distribute.Precision(tf.bfloat16, np.float32, "float32")
    assert len({tf.distribute.Precision("float16"), tf.distribute.Precision("float16")}) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("bfloat61",), DTypeError, "Precision: compute: .* got 'bfloat61'.*bfloat16"),
        (("int8",), DTypeError, "Precision: compute: expected a floating dtype; got 'int8'"),
        (("float64",), InvalidArgumentError, "compute='float64' and reduce='float32'"),
        (("float16", "bfloat16"), InvalidArgumentError, "compute='float16' and reduce='bfloat16'"),
        (("float16", "float64"), InvalidArgumentError, "reduce='float64' and keep='float32'"),
    ],
)
def test_a_precision_that_loses_range_is_an_error(arguments: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        tf.distribute.Precision(*arguments)
    assert Path(__file__).name in str(caught.value)


# --- the rewrite


def computed(x: Any, w: Any) -> np.ndarray:
    """The product of ``x`` and the variable ``w``."""
    with initialized() as session:
        value: np.ndarray = session.run(tf.matmul(x, w))
        return value


ONE_AND_A_BIT = 1 + 2.0**-12
"""float16 rounds it to 1."""


def test_enabled_it_computes_variables_before_and_after_in_float16() -> None:
    first = tf.get_variable("first", [2, 2], initializer=tf.constant_initializer(ONE_AND_A_BIT))
    optimizer = E.enable_mixed_precision_graph_rewrite(tf.train.AdamOptimizer())
    assert isinstance(optimizer, E.MixedPrecisionLossScaleOptimizer)
    second = tf.get_variable("second", [2, 2], initializer=tf.constant_initializer(ONE_AND_A_BIT))
    x = tf.ones([2, 2])
    for variable in (first, second):
        found = computed(x, variable)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, 2)
    E.disable_mixed_precision_graph_rewrite()
    third = tf.get_variable("third", [2, 2], initializer=tf.constant_initializer(ONE_AND_A_BIT))
    for variable in (first, second, third):
        np.testing.assert_array_equal(computed(x, variable), np.float32(2 * ONE_AND_A_BIT))


def test_enabled_it_replaces_no_other_precision() -> None:
    bfloat16 = tf.distribute.Precision("bfloat16")
    tf.get_default_graph().precision = bfloat16
    with pytest.raises(
        FailedPreconditionError, match="expected a graph without a precision; got one of bfloat16"
    ):
        E.enable_mixed_precision_graph_rewrite(tf.train.AdamOptimizer())
    assert tf.get_default_graph().precision == bfloat16


def test_a_graph_may_have_any_precision(graph: tf.Graph) -> None:
    graph.precision = tf.distribute.Precision("bfloat16")
    w = tf.get_variable("w", [2, 2], initializer=tf.constant_initializer(1 + 2.0**-9))
    np.testing.assert_array_equal(computed(tf.ones([2, 2]), w), 2)


def test_the_precision_of_a_graph_is_that_of_variables_which_it_has(graph: tf.Graph) -> None:
    """Not of those of a strategy with a policy, and a step that has run before runs in it, too."""
    exact = np.float32(2 + 2.0**-11)
    w = tf.get_variable("w", [2, 2], initializer=tf.constant_initializer(1 + 2.0**-12))
    policy = tf.distribute.Precision("float16")
    with tf.distribute.LayoutStrategy(tf.distribute.Mesh([("dp", 1)]), policy=policy).scope():
        own = tf.get_variable("own", [2, 2])
    y = tf.matmul(tf.ones([2, 2]), w)
    with initialized() as session:
        np.testing.assert_array_equal(session.run(y), exact)
        graph.precision = tf.distribute.Precision("bfloat16")
        np.testing.assert_array_equal(session.run(y), 2)
        assert own.op.node.attrs["_compute"] == "float16"
        graph.precision = None
        np.testing.assert_array_equal(session.run(y), exact)
        assert own.op.node.attrs["_compute"] == "float16"


def test_in_a_function_the_precision_is_that_of_the_whole_graph(graph: tf.Graph) -> None:
    def branch() -> Any:
        tf.get_default_graph().precision = tf.distribute.Precision("bfloat16")
        return tf.constant(0.0)

    tf.cond(tf.constant(True), branch, lambda: tf.constant(1.0))
    assert graph.precision == tf.distribute.Precision("bfloat16")


@pytest.mark.parametrize("precision", ["bfloat16", tf.bfloat16])
def test_a_graph_s_precision_that_is_none(precision: Any, graph: tf.Graph) -> None:
    w = tf.get_variable("w", [2, 2])
    with pytest.raises(DTypeError, match=r"Graph.precision: expected a Precision, or None; got"):
        graph.precision = precision
    assert "_compute" not in w.op.node.attrs
    assert graph.precision is None


# --- digits


def example(name: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLES))
        return importlib.import_module(name)


def mlp() -> tuple[Any, Any, Any, Any, dict[Any, Any]]:
    images, labels = tf.placeholder(tf.float32, [None, 8, 8, 1]), tf.placeholder(tf.int64, [None])
    h = tf.layers.flatten(images)
    for units in (128, 64):
        h = tf.layers.dense(h, units, activation=tf.nn.relu)
    logits = tf.layers.dense(h, 10)
    loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
    return images, labels, loss, tf.train.AdamOptimizer(2e-3).minimize(loss), {}


def cnn() -> tuple[Any, Any, Any, Any, dict[Any, Any]]:
    net = example("digits_cnn").Network("/cpu:0", "/cpu:0")
    return net.images, net.labels, net.loss, net.train, {net.training: True}


def losses(build: Callable[[], Any], precision: str, steps: int) -> list[float]:
    """Of training on batches of digits."""
    digits, rng = example("digits").load(), np.random.default_rng(0)
    with tf.Graph().as_default() as graph, pytest.MonkeyPatch.context() as patch:
        tf.set_random_seed(1)
        if precision == "bfloat16":
            graph.precision = tf.distribute.Precision("bfloat16")
        if precision == "float16":
            adam = tf.train.AdamOptimizer
            patch.setattr(
                tf.train, "AdamOptimizer", lambda rate: E.enable_mixed_precision_graph_rewrite(adam(rate))
            )
        images, labels, loss, train, feeds = build()
        with initialized() as session:
            found = []
            for _ in range(steps):
                rows = rng.integers(0, len(digits.labels), 64)
                feeds |= {images: digits.images[rows], labels: digits.labels[rows]}
                found.append(float(session.run([loss, train], feeds)[0]))
            return found


@pytest.mark.parametrize(
    ("build", "steps", "precision"),
    [
        (mlp, 100, "bfloat16"),
        pytest.param(cnn, 40, "float16", marks=pytest.mark.slow),
        pytest.param(mlp, 100, "float16", marks=pytest.mark.slow),
        pytest.param(cnn, 40, "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_digits_train_as_in_float32(build: Callable[[], Any], steps: int, precision: str) -> None:
    expected, found = losses(build, "float32", steps), losses(build, precision, steps)
    assert found != expected
    assert np.mean(expected[-10:]) < 0.5 * expected[0]
    np.testing.assert_allclose(np.mean(found[-10:]), np.mean(expected[-10:]), 0.05)


# --- scales of losses


def test_the_defaults_are_tensorflow_s() -> None:
    scale = E.DynamicLossScale()
    assert scale.get_config() == {"initial_loss_scale": 2.0**15, "increment_period": 2000, "multiplier": 2.0}
    assert E.DynamicLossScale.from_config(scale.get_config()).get_config() == scale.get_config()
    assert (
        repr(scale) == "DynamicLossScale(initial_loss_scale=32768.0, increment_period=2000, multiplier=2.0)"
    )
    assert E.FixedLossScale.from_config({"loss_scale_value": 8.0}).get_config() == {"loss_scale_value": 8.0}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: E.FixedLossScale(0.5), "value: expected a number of at least 1 that float32 holds; got 0.5"),
        (lambda: E.FixedLossScale(float("nan")), "got nan"),
        (lambda: E.FixedLossScale(float("inf")), "loss_scale_value: .* got inf"),
        (lambda: E.FixedLossScale(1e39), r"loss_scale_value: .* that float32 holds; got 1e\+39"),
        (lambda: E.DynamicLossScale(float("inf")), "initial_loss_scale: .* got inf"),
        (lambda: E.DynamicLossScale(multiplier=float("inf")), "multiplier: .* got inf"),
        (lambda: E.DynamicLossScale(increment_period=float("inf")), "a positive number of steps; got inf"),
        (lambda: E.DynamicLossScale(increment_period=2.5), "a positive number of steps; got 2.5"),
        (
            lambda: E.MixedPrecisionLossScaleOptimizer(tf.train.AdamOptimizer(), np.ones(2)),
            "a LossScale, a number or 'dynamic'; got array",
        ),
        (lambda: E.DynamicLossScale(increment_period=0), "increment_period: .* got 0"),
        (lambda: E.DynamicLossScale(multiplier="2"), "multiplier: .* got '2'"),
        (
            lambda: E.MixedPrecisionLossScaleOptimizer(tf.train.AdamOptimizer(), "dynamics"),
            "a LossScale, a number or 'dynamic'; got 'dynamics'",
        ),
        (lambda: E.MixedPrecisionLossScaleOptimizer(0.1, 2.0), "expected an optimizer .* got 0.1"),
        (
            lambda: E.enable_mixed_precision_graph_rewrite(
                E.enable_mixed_precision_graph_rewrite(tf.train.AdamOptimizer())
            ),
            "that does not scale its loss",
        ),
    ],
)
def test_a_wrong_argument_is_one_error(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(OpError, match=message) as caught:
        make()
    assert Path(__file__).name in str(caught.value)


def test_gradients_are_those_of_the_loss_as_it_is() -> None:
    w, rows = tf.Variable([3.0, 4.0]), tf.Variable([[1.0], [2.0]])
    loss = tf.reduce_sum(tf.square(w)) + tf.reduce_sum(tf.square(tf.gather(rows, [1])))
    optimizer = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), 2.0**10)
    pairs = optimizer.compute_gradients(lambda: loss, [w, rows])
    train = optimizer.apply_gradients(pairs)
    with initialized() as session:
        dense, sparse = session.run([gradient for gradient, _ in pairs])
        np.testing.assert_array_equal(dense, [6, 8])
        np.testing.assert_array_equal(sparse.values, [[4]])
        session.run(train)
        np.testing.assert_array_equal(session.run(w), [0, 0])
        np.testing.assert_array_equal(session.run(rows), [[1], [0]])


def test_a_gradient_below_float16_s_smallest_number_trains_with_a_scale(graph: tf.Graph) -> None:
    graph.precision = tf.distribute.Precision("float16")
    x = tf.fill([1, 1], 2.0**-14)

    def computed_gradient(scale: float) -> float:
        w, v = (tf.Variable(tf.ones([1, 1])) for _ in range(2))
        loss = tf.reduce_sum(tf.matmul(tf.matmul(x, w), v)) * 2.0**-12
        optimizer = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), scale)
        ((gradient, _),) = optimizer.compute_gradients(loss, [w])
        with initialized() as session:
            return float(session.run(gradient).item())

    assert computed_gradient(1.0) == 0
    assert computed_gradient(2.0**10) == 2.0**-26


def test_a_fixed_scale_makes_every_update() -> None:
    w, factor = tf.Variable(1.0), tf.placeholder(tf.float32, [])
    train = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), 4).minimize(w * factor)
    with initialized() as session:
        session.run(train, {factor: np.inf})
        assert session.run(w) == -np.inf


@pytest.mark.parametrize(
    ("period", "factors", "expected"),
    [
        (2, (1, 1, 1, np.nan, 1, 1), [4, 16, 16, 4, 4, 16]),
        (3, (1, np.nan, 1, 1, 1), [4, 1, 1, 1, 4]),
        (1, (np.inf, -np.inf, np.inf, 1), [1, 1, 1, 4]),
    ],
)
def test_a_dynamic_scale(period: int, factors: Sequence[float], expected: Sequence[float]) -> None:
    """It begins with 4, and is multiplied or divided by 4."""
    w, factor = tf.Variable(1.0), tf.placeholder(tf.float32, [])
    scale = E.DynamicLossScale(4.0, period, 4.0)
    optimizer = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(0.0), scale)
    train = optimizer.minimize(w * factor)
    with initialized() as session:
        found = []
        for value in factors:
            session.run(train, {factor: value})
            found.append(float(session.run(scale())))
    assert found == expected


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda m: m.FixedLossScaleManager(8.0), [8, 8, 8, 8, 8, 8]),
        (lambda m: m.ExponentialUpdateLossScaleManager(8.0, 2), [8, 16, 16, 16, 12.8, 12.8]),
        (lambda m: m.ExponentialUpdateLossScaleManager(4.0, 2, 1, 4, 0.125), [4, 16, 2, 2, 1, 1]),
    ],
)
def test_managers_of_scales(make: Callable[[Any], Any], expected: Sequence[float]) -> None:
    w, factor = tf.Variable(1.0), tf.placeholder(tf.float32, [])
    manager = make(tf.contrib.mixed_precision)
    train = tf.contrib.mixed_precision.LossScaleOptimizer(
        tf.train.GradientDescentOptimizer(0.5), manager
    ).minimize(w * factor)
    with initialized() as session:
        found = []
        for value in (1, 1, np.inf, 1, np.nan, 1):
            session.run(train, {factor: value})
            found.append(float(session.run(manager.get_loss_scale())))
        assert session.run(w) == 1 - 4 * 0.5
    np.testing.assert_allclose(found, expected, 1e-6)


def test_a_scale_does_not_become_infinite() -> None:
    w = tf.Variable(0.0)
    scale = E.DynamicLossScale(2.0**127, 1)
    optimizer = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(1.0), scale)
    train = optimizer.minimize(w)
    with initialized() as session:
        session.run(train)
        assert session.run(scale()) == 2.0**127


@pytest.mark.parametrize("make", [
    lambda: tf.train.AdamOptimizer(0.1), lambda: tf.train.FtrlOptimizer(0.1),
    lambda: tf.train.LAMBOptimizer(0.1), lambda: tf.train.RMSPropOptimizer(0.1, centered=True),
])  # fmt: skip
def test_optimizers_train_as_without_a_scale(make: Callable[[], Any]) -> None:
    def trained(wrap: Callable[[Any], Any]) -> list[Any]:
        with tf.Graph().as_default():
            w = tf.Variable(np.linspace(-1, 1, 6).reshape(2, 3).astype(np.float32))
            optimizer = wrap(make())
            train = optimizer.minimize(tf.reduce_sum(tf.square(w - 0.3)))
            slots = [optimizer.get_slot(w, name) for name in optimizer.get_slot_names()]
            with initialized() as session:
                for _ in range(5):
                    session.run(train)
                return session.run([w, *slots])

    expected = trained(lambda optimizer: optimizer)
    found = trained(lambda optimizer: E.MixedPrecisionLossScaleOptimizer(optimizer, "dynamic"))
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_has_the_scale(tmp_path: Path) -> None:
    w, factor = tf.Variable(1.0), tf.placeholder(tf.float32, [])
    scale = E.DynamicLossScale()
    optimizer = E.MixedPrecisionLossScaleOptimizer(tf.train.MomentumOptimizer(0.1, 0.9), scale)
    train = optimizer.minimize(w * factor)
    saver = tf.train.Saver()
    with initialized() as session:
        session.run(train, {factor: np.inf})
        path = saver.save(session, str(tmp_path / "model"))
    with initialized() as session:
        saver.restore(session, path)
        assert session.run(scale()) == 2.0**14


def test_gradients_clipped_by_their_norm_are_applied_with_a_scale(graph: tf.Graph) -> None:
    """The usual recipe for float16: the update is in a branch, which reads what was clipped outside."""

    def run(optimizer: Any) -> Any:
        with tf.Graph().as_default():
            w = tf.get_variable("w", initializer=np.array([3.0, 4.0], np.float32))
            pairs = optimizer.compute_gradients(tf.reduce_sum(tf.square(w)))
            clipped, norm = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 1.0)
            train = optimizer.apply_gradients([(clipped[0], w)])
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                return session.run([norm, train])[0], session.run(w)

    plain = tf.train.GradientDescentOptimizer(0.5)
    scaled = E.MixedPrecisionLossScaleOptimizer(tf.train.GradientDescentOptimizer(0.5), E.FixedLossScale(8.0))
    for found, expected in zip(run(scaled), run(plain), strict=True):
        np.testing.assert_allclose(found, expected, 1e-6)
