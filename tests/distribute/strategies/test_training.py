"""Training on several replicas gives the weights of one large batch: optimizers, layers, metrics, sparse
rows.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.train.optimizers.moving_averages import assign_moving_average
from tests.distribute.strategies.cpus import central, initialized, mirrored, numbered, session

D = tf.distribute
RNG = np.random.default_rng(3)
X, Y = RNG.standard_normal((12, 4)), RNG.standard_normal((12, 2))
STRATEGIES: dict[str, Callable[[], Any]] = {
    "one": lambda: D.OneDeviceStrategy("/cpu:1"),
    **{f"mirrored {n}": (lambda n=n: mirrored(n)) for n in (1, 2, 3, 4)},
    **{f"central {n}": (lambda n=n: central(n)) for n in (2, 4)},
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: tf.train.GradientDescentOptimizer(0.1),
    "momentum": lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    "adam": lambda: tf.train.AdamOptimizer(0.1),
    "adamw": lambda: tf.train.AdamWOptimizer(0.01, 0.1),
    "adagrad": lambda: tf.train.AdagradOptimizer(0.1),
    "rmsprop": lambda: tf.train.RMSPropOptimizer(0.1, momentum=0.5),
    "ftrl": lambda: tf.train.FtrlOptimizer(0.1),
    "lars": lambda: tf.train.LARSOptimizer(0.1),
    "lamb": lambda: tf.train.LAMBOptimizer(0.1),
}


def assert_one_value(copies: list[Any]) -> None:
    """Equal to the last bit: what differed once would go on to differ more."""
    for other in copies[1:]:
        np.testing.assert_array_equal(other, copies[0])


def shares(strategy: Any, *arrays: np.ndarray) -> tuple[Any, ...]:
    """Each array's rows divided among the replicas, in order."""
    count = strategy.num_replicas_in_sync
    return tuple(numbered(strategy, np.array_split(array, count)) for array in arrays)


def trained(strategy: Any, make_optimizer: Callable[[], Any], steps: int = 5, **options: Any) -> Any:
    """The weights, and the step counter, after ``steps`` steps on all of X and Y."""
    with tf.Graph().as_default():
        with strategy.scope():
            w = tf.get_variable("w", initializer=tf.constant(np.linspace(-1, 1, 8).reshape(4, 2)), **options)
            b = tf.get_variable("b", initializer=tf.zeros([2], tf.float64))
            optimizer, global_step = make_optimizer(), tf.train.get_or_create_global_step()

        def fn(x: Any, y: Any) -> Any:
            loss = tf.reduce_sum(tf.square(tf.tanh(x @ w + b) - y)) / len(X)
            return optimizer.minimize(loss, global_step)

        train = strategy.group(strategy.run(fn, args=shares(strategy, X, Y)))
        with initialized() as sess:
            for _ in range(steps):
                sess.run(train)
            for v in (w, b):
                values = sess.run(list(v.copies))
                assert_one_value(values)
            return sess.run([w, b, global_step])


@pytest.mark.parametrize("name", STRATEGIES)
def test_weights_are_those_of_one_large_batch(name: str) -> None:
    expected = trained(D.get_strategy(), OPTIMIZERS["adam"])
    for found, value in zip(trained(STRATEGIES[name](), OPTIMIZERS["adam"]), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_updates_every_copy(optimizer: str) -> None:
    expected = trained(D.get_strategy(), OPTIMIZERS[optimizer])
    for make in (mirrored, central):
        for found, value in zip(trained(make(2), OPTIMIZERS[optimizer]), expected, strict=True):
            np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)


def test_constraints_and_schedules_hold_on_every_copy() -> None:
    def decayed() -> Any:
        rate = tf.train.exponential_decay(0.3, tf.train.get_or_create_global_step(), 1, 0.5)
        return tf.train.GradientDescentOptimizer(rate)

    def positive(w: Any) -> Any:
        return tf.maximum(w, tf.constant(0.1, tf.float64))

    expected = trained(D.get_strategy(), decayed, constraint=positive)
    for found, value in zip(trained(mirrored(2), decayed, constraint=positive), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=0, atol=1e-12)
    assert expected[0].min() == 0.1


def test_a_weighted_mean_of_uneven_shards_is_the_full_gradient_and_a_mean_of_means_is_not() -> None:
    strategy = mirrored(3)
    parts = [slice(0, 7), slice(7, 12), slice(12, 12)]
    x, y = (numbered(strategy, [array[part] for part in parts]) for array in (X, Y))
    with strategy.scope():
        w = tf.Variable(np.ones((4, 2)))

    def gradients(x: Any, y: Any) -> tuple[Any, Any]:
        errors = tf.reduce_sum(tf.square(x @ w - y), 1)
        rows = tf.cast(tf.shape(x)[0], tf.float64)
        mean = tf.math.divide_no_nan(tf.reduce_sum(errors), rows)
        gradient = tf.gradients(mean, w)[0]
        return gradient * rows / len(X), gradient

    weighted, means = strategy.run(gradients, args=(x, y))
    full = tf.gradients(tf.reduce_mean(tf.reduce_sum(tf.square(tf.constant(X) @ w - Y), 1)), w)[0]
    with initialized() as sess:
        expected = sess.run(full)
        np.testing.assert_allclose(sess.run(strategy.reduce("sum", weighted)), expected, rtol=0, atol=1e-12)
        assert np.abs(sess.run(strategy.reduce("mean", means)) - expected).max() > 0.1


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adagrad"])
@pytest.mark.parametrize("make", [mirrored, central])
def test_sparse_gradients_are_gathered(make, optimizer: str) -> None:
    ids = np.array([0, 2, 2, 5, 0, 4])

    def run(strategy: Any) -> Any:
        with tf.Graph().as_default():
            with strategy.scope():
                table = tf.get_variable("table", initializer=tf.constant(np.arange(12.0).reshape(6, 2)))
                chosen = OPTIMIZERS[optimizer]()

            def fn(ids: Any) -> Any:
                rows = tf.nn.embedding_lookup(table, ids)
                (gradient,) = tf.gradients(tf.reduce_sum(rows * rows) / len(X), table)
                assert isinstance(gradient, tf.IndexedSlices)
                return chosen.apply_gradients([(gradient, table)])

            train = strategy.group(strategy.run(fn, args=shares(strategy, ids)))
            with initialized() as sess:
                for _ in range(3):
                    sess.run(train)
                values = sess.run(list(table.copies))
                assert_one_value(values)
                return values[0]

    np.testing.assert_allclose(run(make(2)), run(D.get_strategy()), rtol=0, atol=1e-12)


def test_a_checkpoint_of_one_strategy_goes_on_with_another(tmp_path: Path) -> None:
    def steps(strategy: Any, restore: bool, save: bool) -> Any:
        with tf.Graph().as_default():
            with strategy.scope():
                w = tf.get_variable("w", initializer=tf.constant(np.ones((4, 2))))
                optimizer = tf.train.AdamOptimizer(0.1)

            def fn(x: Any, y: Any) -> Any:
                return optimizer.minimize(tf.reduce_sum(tf.square(x @ w - y)) / len(X))

            train = strategy.group(strategy.run(fn, args=shares(strategy, X, Y)))
            saver, path = tf.train.Saver(), str(tmp_path / "model")
            with session() as sess:
                if restore:
                    saver.restore(sess, path)
                else:
                    sess.run(tf.global_variables_initializer())
                for _ in range(3):
                    sess.run(train)
                if save:
                    saver.save(sess, path)
                return sess.run(w)

    steps(D.get_strategy(), restore=False, save=True)
    expected = steps(D.get_strategy(), restore=True, save=False)
    for strategy in (mirrored(2), central(3)):
        np.testing.assert_allclose(steps(strategy, restore=True, save=False), expected, rtol=0, atol=1e-12)


# --- layers and metrics


def test_batch_norm_moves_each_replicas_statistics_and_saves_their_mean() -> None:
    strategy = mirrored(2)
    layer = tf.layers.BatchNormalization(momentum=0.5)

    def fn(x: Any) -> Any:
        out = layer(x, training=True)
        with tf.control_dependencies(layer.updates):
            return tf.identity(out)

    out = strategy.run(fn, args=shares(strategy, X))
    with initialized() as sess:
        sess.run(strategy.experimental_local_results(out))
        means = [X[:6].mean(0) / 2, X[6:].mean(0) / 2]
        np.testing.assert_allclose(sess.run(list(layer.moving_mean.copies)), means, atol=1e-12)
        np.testing.assert_allclose(sess.run(layer.moving_mean), np.mean(means, 0), atol=1e-12)
    assert [v.op.name for v in tf.trainable_variables()] == [
        "batch_normalization/gamma",
        "batch_normalization/beta",
    ]


@pytest.mark.parametrize("is_fused", (False, True))
@pytest.mark.parametrize("is_fed", (False, True))
def test_a_replica_without_rows_has_no_say_in_batch_norm(is_fused: bool, is_fed: bool) -> None:
    """Of five rows in batches of four the second replica gets none in the second step."""
    strategy, rows = mirrored(2), np.random.default_rng(2).standard_normal((5, 2, 2, 3))
    dataset = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    iterator = strategy.experimental_distribute_dataset(dataset).make_initializable_iterator()
    training = tf.placeholder_with_default(True, []) if is_fed else True
    with strategy.scope():
        layer = tf.layers.BatchNormalization(momentum=0.5, fused=is_fused)
        optimizer = tf.train.GradientDescentOptimizer(0.1)

    def fn(x: Any) -> Any:
        loss = tf.reduce_sum(layer(x, training=training) ** 3)
        with tf.control_dependencies([optimizer.minimize(loss), *layer.updates]):
            return tf.shape(x)[0]

    counts = strategy.experimental_local_results(strategy.run(fn, args=(iterator.get_next(),)))
    with initialized() as sess:
        sess.run(iterator.initializer)
        assert np.array([sess.run(counts), sess.run(counts)]).tolist() == [[2, 2], [1, 0]]
        mean_of_idle = rows[2:4].mean((0, 1, 2)) / 2
        np.testing.assert_allclose(sess.run(layer.moving_mean.copies[1]), mean_of_idle, atol=1e-12)
        assert np.isfinite(sess.run([layer.gamma, layer.beta, layer.moving_variance])).all()


METRICS: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda labels, _: tf.metrics.mean(labels),
    "accuracy": lambda labels, found: tf.metrics.accuracy(labels, tf.round(found)),
    "recall": lambda labels, found: tf.metrics.recall(labels, tf.round(found)),
    "true_positives": lambda labels, found: tf.metrics.true_positives(labels, tf.round(found)),
    "mean_iou": lambda labels, found: tf.metrics.mean_iou(labels, tf.round(found), 2),
    "auc": tf.metrics.auc,
}


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("make", [mirrored, central])
def test_a_metrics_value_is_one_tensor_of_what_all_replicas_counted(make, metric: str) -> None:
    labels, found = np.array([1.0, 0, 0, 1, 1, 0, 1]), np.array([0.9, 0.2, 0.7, 0.4, 0.6, 0.1, 0.8])
    strategy = make(2)

    def fn(labels: Any, found: Any) -> Any:
        value, update = METRICS[metric](labels, found)
        tf.add_to_collection("values", value)
        return value, update

    shares = (numbered(strategy, [labels[:3], labels[3:]]), numbered(strategy, [found[:3], found[3:]]))
    value, updates = strategy.run(fn, args=shares)
    with tf.Graph().as_default(), tf.Session() as alone:
        value_alone, update_alone = METRICS[metric](tf.constant(labels), tf.constant(found))
        alone.run(tf.local_variables_initializer())
        alone.run(update_alone)
        expected = alone.run(value_alone)
    assert isinstance(value, tf.Tensor)
    assert tf.get_collection("values") == [value, value]
    assert len(strategy.experimental_local_results(updates)) == 2
    with initialized() as sess:
        sess.run(strategy.experimental_local_results(updates))
        np.testing.assert_allclose(sess.run(value), expected, rtol=1e-6)


@pytest.mark.parametrize("make", [mirrored, central])
def test_a_metric_is_collected_once_and_its_updates_are_each_replicas(make) -> None:
    strategy = make(2)

    def fn(x: Any) -> Any:
        return tf.metrics.mean(x, metrics_collections=["values"], updates_collections="updates")

    value, updates = strategy.run(fn, args=(numbered(strategy, [[1.0, 2.0, 3.0], [6.0]]),))
    assert tf.get_collection("values") == [value]
    assert tf.get_collection("updates") == list(updates.values)
    with initialized() as sess:
        for _ in range(2):
            sess.run(strategy.experimental_local_results(updates))
        assert sess.run(value) == 3.0


@pytest.mark.parametrize("zero_debias", [False, True])
@pytest.mark.parametrize("make", [mirrored, central])
def test_a_moving_average_is_of_the_replicas_mean(make, zero_debias: bool) -> None:
    def run(strategy: Any, value: Any) -> Any:
        with tf.Graph().as_default():
            with strategy.scope():
                v = tf.Variable(np.zeros(2), trainable=False)
            moved = strategy.run(
                lambda x: assign_moving_average(v, x, 0.9, zero_debias), args=(value(strategy),)
            )
            with initialized() as sess:
                for _ in range(3):
                    sess.run(strategy.experimental_local_results(moved))
                return sess.run(list(v.copies))

    values = np.array([[1.0, 2.0], [3.0, 6.0]])
    (expected,) = run(D.get_strategy(), lambda _: tf.constant(values.mean(0)))
    for found in run(make(2), lambda strategy: numbered(strategy, values)):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("is_shared", [True, False])
def test_averages_of_variables_follow_every_copy(is_shared: bool) -> None:
    strategy = mirrored(2)
    average = tf.train.ExponentialMovingAverage(0.5)
    with strategy.scope():
        v = tf.Variable(8.0, name="v", aggregation=tf.VariableAggregation.MEAN)

    def fn() -> Any:
        with tf.control_dependencies([v.assign(0.0, read_value=False)]):
            return (average if is_shared else tf.train.ExponentialMovingAverage(0.5)).apply([v])

    step = strategy.group(strategy.run(fn))
    (shadow,) = [v for v in tf.global_variables() if v.op.name == "v/ExponentialMovingAverage"]
    with initialized() as sess:
        sess.run(step)
        assert sess.run(list(shadow.copies)) == [4.0, 4.0]


def test_a_monitored_session_saves_and_goes_on(tmp_path: Path) -> None:
    def run(last_step: int) -> Any:
        with tf.Graph().as_default():
            strategy = mirrored(2)
            with strategy.scope():
                step = tf.train.get_or_create_global_step()
                w = tf.get_variable("w", initializer=tf.constant(np.ones((4, 2))))
                optimizer = tf.train.AdamOptimizer(0.1)

            def fn(x: Any, y: Any) -> Any:
                return optimizer.minimize(tf.reduce_sum(tf.square(x @ w - y)) / len(X), step)

            train = strategy.group(strategy.run(fn, args=shares(strategy, X, Y)))
            hooks = [tf.train.StopAtStepHook(last_step=last_step)]
            config = tf.ConfigProto(device_count={"CPU": 2})
            with tf.train.MonitoredTrainingSession(
                checkpoint_dir=str(tmp_path), hooks=hooks, config=config
            ) as sess:
                while not sess.should_stop():
                    found, _ = sess.run([w, train])
                return found

    run(2)
    resumed = run(5)
    for path in tmp_path.iterdir():
        path.unlink()
    np.testing.assert_allclose(resumed, run(5), rtol=0, atol=1e-12)


def test_replicas_may_count_the_global_step() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        step = tf.train.get_or_create_global_step()
    counted = strategy.run(lambda: step.assign_add(1))
    with initialized() as sess:
        assert sess.run(strategy.experimental_local_results(counted)) == (1, 1)
        assert tf.train.global_step(sess, step) == 1


@pytest.mark.parametrize("make", [mirrored, central])
@pytest.mark.parametrize("count", [2, 3])
def test_collected_losses_and_updates_are_each_replicas_own(make, count: int) -> None:
    """The loss of a script of layers and losses, unchanged: the regularization counts once."""

    def run(strategy: Any) -> Any:
        with tf.Graph().as_default():
            with strategy.scope():
                optimizer = tf.train.GradientDescentOptimizer(0.01)
                w = tf.get_variable("w", [4, 4], tf.float64, tf.ones_initializer(), tf.nn.l2_loss)

            def fn(x: Any, y: Any) -> Any:
                out = tf.layers.dense(
                    x @ w, 2, kernel_initializer=tf.ones_initializer(), kernel_regularizer=tf.nn.l2_loss
                )
                tf.losses.mean_squared_error(y, out, 1 / len(X), reduction=tf.losses.Reduction.SUM)
                tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.no_op())
                assert len(tf.losses.get_losses()) == len(tf.get_collection(tf.GraphKeys.UPDATE_OPS)) == 1
                with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
                    return optimizer.minimize(tf.losses.get_total_loss())

            train = strategy.group(strategy.run(fn, args=shares(strategy, X, Y)))
            assert len(tf.losses.get_losses()) == strategy.num_replicas_in_sync
            assert len(tf.losses.get_regularization_losses()) == 2
            with initialized() as sess:
                for _ in range(4):
                    sess.run(train)
                return sess.run(tf.trainable_variables())

    for found, expected in zip(run(make(count)), run(D.get_strategy()), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_average_losses_add_up_to_that_of_the_batch() -> None:
    strategy = mirrored(2)
    losses = np.arange(6.0)

    def fn(x: Any) -> Any:
        return (
            tf.nn.compute_average_loss(x),
            tf.nn.compute_average_loss(x, sample_weight=[2, 0, 1], global_batch_size=12),
            tf.nn.scale_regularization_loss([x[0] * 0 + 3.0, 4.0]),
        )

    results = strategy.run(fn, args=shares(strategy, losses))
    with session() as sess:
        assert sess.run([strategy.reduce("sum", r) for r in results]) == [2.5, (0 + 2 + 6 + 5) / 12, 7.0]
        assert sess.run(tf.nn.compute_average_loss(losses)) == 2.5
    with pytest.raises(tf.errors.InvalidArgumentError, match="one loss per example"):
        tf.nn.compute_average_loss(1.0)


def test_what_a_merge_adds_to_a_collection_is_every_replicas() -> None:
    def fn() -> Any:
        tf.losses.add_loss(tf.constant(1.0))
        D.get_replica_context().merge_call(lambda _: tf.losses.add_loss(tf.constant(2.0)))
        tf.losses.add_loss(tf.constant(3.0))
        return tf.losses.get_total_loss()

    tf.losses.add_loss(tf.constant(10.0))
    totals = mirrored(2).run(fn)
    with session() as sess:
        assert sess.run([*totals.values, tf.losses.get_total_loss()]) == [16.0, 16.0, 20.0]


def test_an_optimizer_made_in_the_function_serves_all_replicas() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        v = tf.Variable(1.0)
    train = strategy.run(lambda: tf.train.MomentumOptimizer(1.0, 0.9).minimize(v * 0.25, var_list=[v]))
    with initialized() as sess:
        sess.run(train)
        assert sess.run(list(v.copies)) == [0.5, 0.5]
    assert [v.op.name for v in tf.global_variables()] == ["Variable", "Variable/Momentum"]
