import numpy as np
import pytest

import flowrt as tf

PARTS, ROWS = 3, 4


def data():
    rng = np.random.default_rng(0)
    return rng.standard_normal((PARTS * ROWS, 5)), rng.standard_normal((PARTS * ROWS, 2))


def make(strategy):
    """The variables, an optimizer with slots, and the loss of some rows, divided by the large batch."""
    with strategy.scope():
        table = tf.get_variable("table", [5, 2], tf.float64, tf.glorot_uniform_initializer(seed=1))
        bias = tf.get_variable("bias", [2], tf.float64, tf.zeros_initializer())
        optimizer = tf.train.AdamOptimizer(0.125)

    def loss_of(rows, labels):
        picked = tf.gather(table, tf.range(5))  # an IndexedSlices for its gradient
        return tf.reduce_sum((tf.matmul(rows, picked) + bias - labels) ** 2) / (PARTS * ROWS)

    return [table, bias], optimizer, loss_of


def train_whole(steps):
    with tf.Graph().as_default():
        variables, optimizer, loss_of = make(tf.distribute.get_strategy())
        train = optimizer.minimize(loss_of(*map(tf.constant, data())))
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for _ in range(steps):
                session.run(train)
            return session.run(variables)


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_parts_make_the_step_of_the_whole_batch(replicas):
    """0: without a strategy."""
    with tf.Graph().as_default():
        devices = [f"/cpu:{i}" for i in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices) if replicas else tf.distribute.get_strategy()
        variables, optimizer, loss_of = make(strategy)
        accumulator = tf.train.GradientAccumulator(optimizer)
        rows, labels = tf.placeholder(tf.float64, [None, 5]), tf.placeholder(tf.float64, [None, 2])
        step = tf.train.create_global_step()

        def accumulate():
            number = tf.distribute.get_replica_context().replica_id_in_sync_group
            count = max(replicas, 1)
            own = slice(number * ROWS // count, (number + 1) * ROWS // count)
            return accumulator.accumulate(loss_of(rows[own], labels[own]))

        add = strategy.group(strategy.run(accumulate))
        apply = strategy.group(strategy.run(lambda: accumulator.apply_gradients(step)))
        with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
            session.run(tf.global_variables_initializer())
            for _ in range(3):
                for x, y in zip(*(np.split(part, PARTS) for part in data()), strict=True):
                    session.run(add, {rows: x, labels: y})
                session.run(apply)
            trained, steps = session.run([variables, step])
    assert steps == 3
    for got, expected in zip(trained, train_whole(3), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_there_must_be_something_to_apply():
    accumulator = tf.train.GradientAccumulator(tf.train.GradientDescentOptimizer(1.0))
    with pytest.raises(tf.errors.FailedPreconditionError, match="expected accumulate"):
        accumulator.apply_gradients()
