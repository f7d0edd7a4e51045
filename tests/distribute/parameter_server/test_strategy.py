"""`ParameterServerStrategy` in clusters whose tasks are all in this process; about 6 s."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.parameter_server.placement import MIN_PART_BYTES
from flowrt.distribute.strategies.variables.partitioned_variable import PartitionedVariable
from tests.distribute.parameter_server.cluster import cluster, run_workers
from tests.distribute.parameter_server.training import INPUTS, OUTPUTS, batch, build, train_alone

GENERATION, VERSION, ACKNOWLEDGED, DROPPED, WAITS, CLOCKS = 1, 2, 3, 4, 5, 6


def sgd():
    return tf.train.GradientDescentOptimizer(0.1)


def adam():
    return tf.train.AdamOptimizer(0.05)


class Shared:
    """What the workers of one run have in common: the cluster, and that the chief has initialized."""

    def __init__(self, cluster):
        self.cluster, self.initialized = cluster, threading.Event()

    def session(self, worker, strategy):
        config = strategy.update_config_proto(tf.ConfigProto())
        session = tf.Session(self.cluster.masters[worker], config=config)
        if worker == 0:
            session.run(tf.global_variables_initializer())
            self.initialized.set()
        assert self.initialized.wait(60)
        session.run(tf.local_variables_initializer())
        return session


def train(workers, servers, steps, optimizer=sgd, rows=INPUTS, pause=lambda worker, step: None, **how):
    """Train with ``steps`` steps of each worker; the variables, and what the servers say, at the end."""
    with cluster(servers, workers) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, **how)
            model = build(strategy, optimizer, rows)
            report, leave = (strategy.shard_status(), strategy.staleness_histogram()), strategy.leave()
            with shared.session(worker, strategy) as session:
                together.meet()
                for step in range(steps):
                    pause(worker, step)
                    session.run(model.train, {model.inputs: batch(worker, step)})
                session.run(leave)
                together.meet()
                values, reported = session.run([model.variables, report])
                together.meet()
                return values, reported, session.run(model.global_step), strategy.extended.loads

        return run_workers(workers, work)[0]


# --- synchronous

STEPS = 30


@pytest.mark.parametrize("optimizer", [sgd, adam])
@pytest.mark.parametrize(("workers", "servers"), [(1, 1), (2, 2), (3, 2), (4, 2)])
def test_sync_is_training_on_one_machine_with_all_batches(optimizer, workers, servers):
    values, (statuses, histograms), global_step, _ = train(workers, servers, STEPS, optimizer, mode="sync")
    whole = [np.concatenate([batch(worker, step) for worker in range(workers)]) for step in range(STEPS)]
    for mine, expected in zip(values, train_alone(optimizer, whole), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-12)
    assert global_step == STEPS
    for status, histogram in zip(statuses, histograms, strict=True):
        assert list(status[VERSION:]) == [STEPS, STEPS, 0, 0, *[STEPS] * workers]
        assert list(histogram) == [STEPS * workers]


def test_a_staleness_of_0_is_sync_to_the_last_bit_however_the_workers_sleep(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "off")  # no kernel is replaced by a compiled one while training

    def sleepy(seed):
        draw = random.Random(seed)
        return lambda worker, step: time.sleep(draw.random() * 0.004)

    values = [
        train(3, 2, 8, adam, pause=sleepy(seed), mode=mode)[0]
        for seed, mode in enumerate(["sync", ("ssp", 0)])
    ]
    for one, other in zip(*values, strict=True):
        assert np.array_equal(one, other)


# --- asynchronous, and bounded


def test_no_update_of_four_workers_is_lost():
    with cluster(1, 4) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode="async")
            with strategy.scope():
                total = tf.get_variable("total", [3], tf.float64, initializer=tf.zeros_initializer())
                add = strategy.run(lambda: sgd_of_one().apply_gradients([(-tf.ones([3], tf.float64), total)]))
                counts = strategy.staleness_histogram()
            with shared.session(worker, strategy) as session:
                together.meet()
                for _ in range(40):
                    session.run(add)
                together.meet()
                return session.run([total, counts])

        total, (histogram,) = run_workers(4, work)[0]
    assert np.array_equal(total, [160.0] * 3)
    assert sum(histogram) == 160


def sgd_of_one():
    return tf.train.GradientDescentOptimizer(1.0)


def test_nobody_is_more_than_the_staleness_ahead():
    def work(worker, together):
        strategy, draw = made.strategy(worker, mode=("ssp", 2)), random.Random(worker)
        model = build(strategy, sgd)
        status, leave = strategy.shard_status(), strategy.leave()
        with shared.session(worker, strategy) as session:
            together.meet()
            apart = []
            for step in range(25):
                time.sleep(draw.random() * 0.006)
                session.run(model.train, {model.inputs: batch(worker, step)})
                apart += [np.ptp(each[CLOCKS:]) for each in session.run(status)]
            together.meet()
            session.run(leave)
            return max(apart), int(session.run(model.global_step))

    with cluster(1, 3) as made:
        shared = Shared(made)
        results = run_workers(3, work)
    assert all(apart <= 3 and global_step == 75 for apart, global_step in results)


# --- backup workers


def test_a_straggler_holds_nobody_up_and_its_late_gradient_is_never_applied():
    steps, others_are_done = 5, threading.Event()

    def wait(worker, inputs):
        if worker == 4:
            assert others_are_done.wait(60)  # its step has read the variables, and has not pushed
        return inputs

    with cluster(2, 5) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode=("backup", 1))
            with strategy.scope():
                weights = tf.get_variable("weights", [INPUTS], tf.float64, initializer=tf.ones_initializer())
                bias = tf.get_variable("bias", [], tf.float64, initializer=tf.ones_initializer())
                inputs = tf.placeholder(tf.float64, [None, INPUTS])

                def step():
                    seen = tf.py_func(lambda value: wait(worker, value), [inputs], tf.float64)
                    return sgd().minimize(tf.reduce_sum(seen * weights) + bias)

                train = strategy.run(step)
                status = strategy.shard_status()
            with shared.session(worker, strategy) as session:
                together.meet()
                for number in range(1 if worker == 4 else steps):
                    session.run(train, {inputs: batch(worker, number)})
                if worker == 4:
                    return session.run([[weights, bias], status])
                before = session.run([weights, bias])
                waiting.wait(60)
                others_are_done.set()
                return before

        waiting = threading.Barrier(4)
        *before, (after, statuses) = run_workers(5, work)
    for one in before:
        assert all(np.array_equal(x, y) for x, y in zip(one, after, strict=True))
    for status in statuses:
        assert list(status[[VERSION, DROPPED]]) == [steps, 1]


# --- who is missing


def test_a_worker_that_never_comes_is_named():
    with cluster(1, 2) as made:
        strategy = made.strategy(0, mode="sync", timeout_s=0.2)
        model = build(strategy, sgd)
        with Shared(made).session(0, strategy) as session:
            with pytest.raises(
                tf.errors.DeadlineExceededError,
                match=r"worker 0's gradient.*waits for worker 1 \(at clock 0\)",
            ):
                session.run(model.train, {model.inputs: batch(0, 0)})


def test_who_leaves_is_not_waited_for():
    with cluster(1, 2) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode="sync")
            model, leave = build(strategy, sgd), strategy.leave()
            with shared.session(worker, strategy) as session:
                together.meet()
                for step in range(2 + 3 * worker):
                    session.run(model.train, {model.inputs: batch(worker, step)})
                session.run(leave)
                return int(session.run(model.global_step))

        assert run_workers(2, work)[1] == 5


def test_a_step_with_a_deadline_ends_in_time_and_can_be_made_again():
    with cluster(1, 2) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode="sync")
            model = build(strategy, sgd)
            with shared.session(worker, strategy) as session:
                feed = {model.inputs: batch(worker, 0)}
                session.run(model.train, feed)  # compiled: the deadline below is spent on the wait alone
                together.meet()
                if worker == 0:
                    with pytest.raises(tf.errors.DeadlineExceededError, match="waits for worker 1"):
                        session.run(model.train, feed, options=tf.RunOptions(timeout_in_ms=2000))
                together.meet()
                session.run(model.train, feed)
                together.meet()
                return session.run(model.variables)

        values = run_workers(2, work)[0]
    whole = [np.concatenate([batch(0, 0), batch(1, 0)])] * 2
    for mine, expected in zip(values, train_alone(sgd, whole), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-12)


# --- variables


def test_reads_before_and_after_the_update_of_one_run_see_the_value_before_and_after():
    with cluster(1, 1) as made, tf.Graph().as_default():
        strategy = made.strategy(0)
        with strategy.scope():
            variables = [tf.get_variable(name, initializer=1.0) for name in ("a", "b")]
            before = [variable.read_value() for variable in variables]
            train = strategy.run(lambda: sgd_of_one().minimize(tf.add_n([v.read_value() for v in variables])))
            after = [variable.read_value() for variable in variables]
        with Shared(made).session(0, strategy) as session:
            assert session.run([before, after, train])[:2] == [[1.0, 1.0], [0.0, 0.0]]


def test_a_large_variable_is_split_so_that_the_servers_have_as_many_bytes():
    rows = 3 * MIN_PART_BYTES // (OUTPUTS * 8) + 1
    values, _, _, loads = train(2, 3, 2, adam, rows=rows, mode="sync")
    weights, bias = values
    assert sum(loads) == rows * OUTPUTS * 8 + OUTPUTS * 8 + 8
    assert max(loads) - min(loads) <= 40
    whole = [np.concatenate([batch(worker, step) for worker in range(2)]) for step in range(2)]
    expected, expected_bias = train_alone(adam, whole)
    np.testing.assert_allclose(weights[:INPUTS], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(bias, expected_bias, rtol=0, atol=1e-12)
    assert np.array_equal(weights[INPUTS:], np.ones_like(weights[INPUTS:]))


def test_a_split_variable_is_read_written_and_saved_as_one(tmp_path):
    rows = 2 * MIN_PART_BYTES // 8 + 1
    start = np.arange(rows, dtype=np.float64)
    with cluster(2, 1) as made, tf.Graph().as_default():
        strategy = made.strategy(0)
        with strategy.scope():
            table = tf.get_variable("table", initializer=start)
        assert isinstance(table, PartitionedVariable)
        assert table.name == "table:0"
        assert len({part.device for part in table.copies}) == 2
        found = tf.nn.embedding_lookup(table, [[0, rows - 1], [rows // 2, 1]])
        saver = tf.train.Saver()
        added = table.assign_add(tf.ones([rows], tf.float64))
        with Shared(made).session(0, strategy) as session:
            assert np.array_equal(session.run(found), [[0, rows - 1], [rows // 2, 1]])
            assert np.array_equal(session.run(added), start + 1)
            path = saver.save(session, str(tmp_path / "model"))
            session.run(table.assign(tf.zeros([rows], tf.float64)))
            saver.restore(session, path)
            assert np.array_equal(session.run(table), start + 1)
        with pytest.raises(tf.errors.UnimplementedError, match=r"expected assign.*split over servers"):
            table.scatter_add(tf.IndexedSlices(tf.zeros([1], tf.float64), [0]))
    with tf.Graph().as_default(), tf.Session() as session:  # one process has it whole
        table = tf.get_variable("table", initializer=np.zeros(rows))
        tf.train.Saver().restore(session, path)
        assert np.array_equal(session.run(table), start + 1)


def test_sparse_gradients_update_the_rows_that_any_worker_names():
    with cluster(1, 2) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode="sync")
            with strategy.scope():
                table = tf.get_variable("table", [4, 1], tf.float64, initializer=tf.zeros_initializer())
                rows = tf.placeholder(tf.int32, [None])
                train = strategy.run(
                    lambda: sgd_of_one().minimize(tf.reduce_sum(tf.nn.embedding_lookup(table, rows)))
                )
            with shared.session(worker, strategy) as session:
                together.meet()
                session.run(train, {rows: [[0, 1], [1, 3, 3]][worker]})
                together.meet()
                return session.run(table)

        assert np.array_equal(run_workers(2, work)[0].ravel(), [-0.5, -1.0, 0.0, -1.0])


# --- wrong use


def test_without_a_cluster_there_is_one_worker_with_its_variables_beside_it(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    strategy = tf.distribute.experimental.ParameterServerStrategy()
    model = build(strategy, sgd)
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        session.run(model.train, {model.inputs: batch(0, 0)})
        assert session.run(model.global_step) == 1
    assert strategy.num_replicas_in_sync == 1


def test_the_cluster_is_that_of_flowrt_run(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setenv("FLOWRT_CLUSTER", '{"worker": ["h0:1", "h1:1"]}')
    monkeypatch.setenv("FLOWRT_TASK", "worker:1")
    strategy = tf.distribute.experimental.ParameterServerStrategy()
    assert "worker 1 of 2" in repr(strategy)
    assert strategy.extended.parameter_devices == ("/job:worker/task:0", "/job:worker/task:1")


def resolver(task_type, **jobs):
    spec = tf.train.ClusterSpec({job: [f"h{i}:{port}" for i in range(2)] for job, port in jobs.items()})
    return tf.distribute.cluster_resolver.SimpleClusterResolver(spec, task_type=task_type, task_id=1)


def test_without_ps_tasks_the_workers_keep_the_variables():
    strategy = tf.distribute.experimental.ParameterServerStrategy(resolver("worker", worker=1, chief=2))
    assert strategy.extended.parameter_devices == tuple(
        f"/job:{job}/task:{i}" for job in ("chief", "worker") for i in range(2)
    )
    assert strategy.extended.servers.worker == 3


def test_a_ps_task_has_no_strategy():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"worker or chief.*this process is ps 1.*server.join"
    ):
        tf.distribute.experimental.ParameterServerStrategy(resolver("ps", ps=1, worker=2))


@pytest.mark.parametrize("replicas", [0, 3])
def test_replicas_that_cannot_be_are_refused(replicas):
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"replicas=1, or 2 with several.*got {replicas}"
    ):
        tf.distribute.experimental.ParameterServerStrategy(
            resolver("worker", ps=1, worker=2), replicas=replicas
        )


def test_gradients_are_applied_in_run_only():
    with cluster(1, 1) as made, tf.Graph().as_default():
        strategy = made.strategy(0)
        with strategy.scope():
            weights = tf.get_variable("weights", [2])
            with pytest.raises(tf.errors.FailedPreconditionError, match=r"strategy.run\(\)"):
                sgd().minimize(tf.reduce_sum(weights))
            with pytest.raises(tf.errors.FailedPreconditionError, match="expected a training operation"):
                strategy.shard_status()


def test_a_variable_of_another_place_is_not_trained():
    with cluster(1, 1) as made, tf.Graph().as_default():
        outside = tf.get_variable("outside", [2])
        strategy = made.strategy(0)
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"'outside' is on 'no device'.*strategy's scope"
        ):
            strategy.run(lambda: sgd().minimize(tf.reduce_sum(outside)))


def test_workers_with_different_scripts_are_both_told():
    with cluster(1, 2) as made:
        shared = Shared(made)

        def work(worker, together):
            strategy = made.strategy(worker, mode="sync")
            with strategy.scope():
                both = [tf.get_variable(name, [2], tf.float64) for name in ("a", "b")]
                used = both if worker == 0 else both[:1]
                train = strategy.run(lambda: sgd().minimize(tf.add_n([tf.reduce_sum(v) for v in used])))
            with shared.session(worker, strategy) as session:
                together.meet()
                with pytest.raises(
                    tf.errors.InvalidArgumentError, match=r"worker 0 updates .*worker 1 .*the same script\?"
                ):
                    session.run(train)
                together.meet()

        run_workers(2, work)
