"""`SyncReplicasOptimizer` with workers that are threads, each with a session of a cluster; about 3 s."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from tests.contracts.check_transport import wait_until
from tests.distribute.parameter_server.cluster import cluster, run_workers
from tests.executor.test_remote_device import plug_in

SPARSE_ROWS = 4


class Replica:
    """One worker's graph: a dense and a sparse variable, gradients that are fed."""

    def __init__(self, made, worker, aggregate, total, num_tokens=-1):
        device = tf.train.replica_device_setter(cluster=made.spec, worker_device=f"/job:worker/task:{worker}")
        with tf.device(device):
            self.dense = tf.get_variable("dense", initializer=np.zeros(2))
            self.sparse = tf.get_variable("sparse", initializer=np.zeros((SPARSE_ROWS, 1)))
            self.global_step = tf.train.get_or_create_global_step()
            self.gradient = tf.placeholder(tf.float64, [2])
            self.rows = tf.placeholder(tf.int64, [None])
            ones = tf.ones([tf.shape(self.rows)[0], 1], tf.float64)
            self.optimizer = tf.train.SyncReplicasOptimizer(
                tf.train.GradientDescentOptimizer(1.0),
                replicas_to_aggregate=aggregate,
                total_num_replicas=total,
            )
            self.train = self.optimizer.apply_gradients(
                [(self.gradient, self.dense), (tf.IndexedSlices(ones, self.rows), self.sparse)],
                self.global_step,
            )
        self.values = [self.dense, self.sparse, self.global_step]
        config = tf.ConfigProto(device_filters=["/job:ps", f"/job:worker/task:{worker}"])
        self.session = tf.train.MonitoredTrainingSession(
            made.masters[worker],
            worker == 0,
            hooks=[self.optimizer.make_session_run_hook(worker == 0, num_tokens)],
            config=config,
            max_wait_secs=60,
        )

    def step(self, value, rows):
        self.session.run(self.train, {self.gradient: [value, 2 * value], self.rows: rows})

    def wait_for_step(self, number):
        wait_until(lambda: self.session.run(self.global_step) >= number, f"step {number}", 60.0)


def test_an_update_is_the_mean_of_two_workers():
    def work(worker, together):
        replica = Replica(made, worker, 2, 2, num_tokens=0)
        with replica.session:
            for value in (1.0, 3.0):
                replica.step(value * (1 + worker), [worker, 3])  # which ends with the update
            together.meet()
            seen = replica.session.run(replica.values)
            together.meet()
        return seen

    with cluster(1, 2) as made:
        for dense, sparse, global_step in run_workers(2, work):
            assert global_step == 2
            mean = (1.0 + 3.0) * 1.5
            np.testing.assert_allclose(dense, [-mean, -2 * mean])
            np.testing.assert_allclose(sparse.ravel(), [-2.0, -2.0, 0.0, -2.0])


def test_an_update_on_gpus_is_the_mean_of_two_workers(monkeypatch):
    """What a GPU sends to another task has left when its part of the step ends; indices are on the GPU."""
    plug_in(monkeypatch, 0)
    test_an_update_is_the_mean_of_two_workers()


def test_with_tokens_to_begin_with_the_second_gradient_is_too_old():
    """As in TensorFlow, where that lets the system begin again when the chief was restarted."""

    def work(worker, together):
        replica = Replica(made, worker, 2, 2)
        with replica.session:
            replica.step(1.0, [])
            replica.wait_for_step(1)
            replica.step(100.0, [])
            together.meet()
            assert replica.session.run(replica.global_step) == 1
            together.meet()
            replica.step(3.0, [])
            replica.wait_for_step(2)
            together.meet()
            seen = replica.session.run(replica.dense)
            together.meet()
        return seen

    with cluster(1, 2) as made:
        for dense in run_workers(2, work):
            np.testing.assert_allclose(dense, [-4.0, -8.0])


def test_of_three_workers_the_slowest_is_a_spare_whose_gradient_is_dropped():
    def work(worker, together):
        replica = Replica(made, worker, 2, 3, num_tokens=0)
        seen = []
        with replica.session:
            together.meet()
            for active, value in [
                ((0, 1), 1.0),
                ((2,), 1e9),
                ((0, 2), 1.0),
            ]:  # the second is of step 0, too late
                if worker in active:
                    replica.step(value, [worker])
                together.meet()
                seen.append(replica.session.run(replica.dense))
                together.meet()
        return seen

    with cluster(1, 3) as made:
        for seen in run_workers(3, work):
            np.testing.assert_allclose(seen, [[-1.0, -2.0], [-1.0, -2.0], [-2.0, -4.0]])


def test_one_worker_may_give_all_the_gradients_of_an_update():
    def work(worker, together):
        replica = Replica(made, worker, 2, 1, num_tokens=1)
        with replica.session:
            for value in (1.0, 3.0):
                replica.step(value, [0])
            replica.wait_for_step(1)
            return replica.session.run(replica.dense)

    with cluster(1, 1) as made:
        (dense,) = run_workers(1, work)
    np.testing.assert_allclose(dense, [-2.0, -4.0])


# --- wrong use


def new(aggregate=2, total=None):
    return tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), aggregate, total)


def test_without_a_step_counter_nothing_tells_what_is_too_old():
    variable = tf.get_variable("v", [1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a global_step"):
        new().minimize(tf.reduce_sum(variable))


def test_a_hook_needs_the_training_operation():
    with pytest.raises(
        tf.errors.FailedPreconditionError, match=r"expected apply_gradients\(\) or minimize\(\)"
    ):
        new().make_session_run_hook(True).begin()


def test_too_few_tokens_would_hang():
    variable, step = tf.get_variable("v", [1]), tf.train.create_global_step()
    optimizer = new(4, 2)
    optimizer.minimize(tf.reduce_sum(variable), global_step=step)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected at least 2 tokens.*got 1"):
        optimizer.get_init_tokens_op(1)
    assert optimizer.get_init_tokens_op(2).type == "QueueEnqueueManyV2"
    assert new(1).get_slot_names() == []


def test_no_replica_is_too_few():
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least 1 replica; got 0"):
        new(0)
