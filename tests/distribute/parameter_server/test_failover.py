"""Servers and workers that are killed, as processes; about 9 s."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.cluster import timeouts
from flowrt.distribute.strategies.parameter_server import parameter_server_session
from flowrt.graph.resources import parameter_shard
from tests.contracts.check_transport import wait_until
from tests.distribute.parameter_server.cluster import cluster, run_workers
from tests.distribute.parameter_server.training import batch, build
from tests.distribute.processes import ROOT, SOON_S
from tests.each import nightly

STEPS = 16
GENERATION, VERSION, ACKNOWLEDGED = 1, 2, 3


@pytest.fixture(autouse=True)
def without_compiled_loops(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "off")  # weights are compared to the last bit


def adam():
    return tf.train.AdamOptimizer(0.05)


def train(servers, before_step, *, workers=2, are_processes=True, **how):
    """The variables and the statuses after ``STEPS`` steps of each worker; ``before_step(cluster, worker,
    step)`` may kill.
    """
    with cluster(servers, workers, are_processes=are_processes) as made:
        for server in range(len(made.processes)):
            made.wait_for(server)

        def work(worker, together):
            strategy = made.strategy(worker, replicas=2, **how)
            model, status, leave = build(strategy, adam), strategy.shard_status(), strategy.leave()
            with strategy.training_session(made.masters[worker], worker == 0, max_wait_secs=60) as session:
                for step in range(STEPS):
                    before_step(made, worker, step)
                    session.run(model.train, {model.inputs: batch(worker, step)})
                session.run(leave)
                together.meet()
                found = session.run([model.variables, status])
                together.meet()
                return found

        return run_workers(workers, work)


@pytest.fixture(scope="module")
def undisturbed():
    """The variables of a run in which nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOWRT_JIT", "off")
        return train(2, lambda *_: None, are_processes=False, mode="sync")[0][0]


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert np.array_equal(one, other)


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_training_goes_on_without_a_server_and_gives_the_same_weights(victim, undisturbed):
    def kill(made, worker, step):
        if (worker, step) == (0, STEPS // 2):
            made.kill(victim)

    for values, statuses in train(2, kill, mode="sync"):
        assert_equal(values, undisturbed)
        assert [list(status[VERSION:]) for status in statuses] == [[STEPS, STEPS, 0, 0, STEPS, STEPS]] * 2
        assert [status[GENERATION] for status in statuses] == [2 if i == victim else 1 for i in range(2)]


@pytest.mark.slow
def test_a_server_that_is_lost_when_it_was_asked_is_not_waited_for(undisturbed, monkeypatch):
    monkeypatch.setattr(timeouts, "DIAL_S", 1.0)
    asked, doubtful = parameter_server_session._answers, threading.Semaphore(0)

    def answers(*server):
        return doubtful.acquire(blocking=False) or asked(*server)

    def kill(made, worker, step):
        if (worker, step) == (0, STEPS // 2):
            made.kill(1)
            doubtful.release(4)  # both workers find both servers there

    monkeypatch.setattr(parameter_server_session, "_answers", answers)
    began = time.monotonic()
    for values, _ in train(2, kill, mode="sync"):
        assert_equal(values, undisturbed)
    assert time.monotonic() - began < 30.0  # a session waits for a minute


@pytest.mark.slow
def test_two_of_three_servers_may_be_lost_one_after_the_other(undisturbed):
    def kill(made, worker, step):
        if worker == 0 and step in (5, 10):
            made.kill(0 if step == 5 else 1)

    for values, _ in train(3, kill, mode="sync"):
        assert_equal(values, undisturbed)


def test_no_gradient_of_an_asynchronous_worker_is_lost_or_counted_twice():
    def kill(made, worker, step):
        if (worker, step) == (1, 6):
            made.kill(0)

    for _, statuses in train(2, kill, mode="async"):
        assert [list(status[VERSION:4]) for status in statuses] == [[2 * STEPS] * 2] * 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_kill_at_any_moment_changes_nothing(seed, undisturbed):
    draw = random.Random(seed)

    def kill(made, worker, step):
        if (worker, step) == (0, 1):
            threading.Timer(draw.uniform(0, 0.1), made.kill, [seed % 2]).start()

    for values, _ in train(2, kill, mode="sync"):
        assert_equal(values, undisturbed)


def test_without_replicas_a_lost_server_is_an_error_that_names_it():
    with cluster(2, 1, are_processes=True) as made:
        for server in range(2):
            made.wait_for(server)
        strategy = made.strategy(0)
        model = build(strategy, adam)
        with tf.Session(made.masters[0], config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            made.kill(1)
            with pytest.raises(tf.errors.UnavailableError, match="/job:ps/replica:0/task:1"):
                session.run(model.train, {model.inputs: batch(0, 0)})


def test_the_others_go_on_when_a_worker_is_killed():
    with cluster(1, 2, own_workers=1) as made:
        strategy = made.strategy(0, mode="async")
        model, status = build(strategy, adam), strategy.shard_status()
        with tf.Session(made.masters[0], config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            with endless_worker(made, 1) as other:
                for _ in range(4):
                    assert other.stdout.readline()
            for step in range(5):
                session.run(model.train, {model.inputs: batch(0, step)})
            (found,) = session.run(status)
    assert found[-2] == 5
    assert found[-1] >= 3
    assert found[VERSION] == found[-2] + found[-1]


@pytest.mark.parametrize("mode", nightly(["sync", ("ssp", 1)], 1))
def test_a_worker_that_is_killed_is_named_to_those_who_wait_for_it(mode, monkeypatch):
    """As lost: after ``timeout_s``, 120 s, it would be said to be late."""
    monkeypatch.setattr(parameter_shard, "RETURN_S", 0.2)
    with cluster(1, 2, own_workers=1) as made:
        strategy = made.strategy(0, mode=mode)
        model = build(strategy, adam)
        with tf.Session(made.masters[0], config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

            def step(number):
                session.run(model.train, {model.inputs: batch(0, number)})

            with endless_worker(made, 1, mode) as other:
                assert other.stdout.readline()
                for number in range(3):
                    step(number)
                    assert other.stdout.readline()
            lost = r"lost worker 1 \(at clock \d+\): task .*task:1 was lost"
            with pytest.raises(tf.errors.DeadlineExceededError, match=lost):  # noqa: PT012
                for number in range(3, 100):
                    step(number)


@pytest.mark.parametrize("stage", nightly(["0", "session", "strategy"], 1))
def test_a_worker_that_is_killed_before_its_first_step_is_named(stage, monkeypatch):
    """After a training session was made, or a plain one, or none."""
    monkeypatch.setattr(parameter_shard, "RETURN_S", 0.2)
    with cluster(1, 2, own_workers=1) as made:
        strategy = made.strategy(0, mode="sync")
        model = build(strategy, adam)
        with tf.Session(made.masters[0], config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            check_loss_is_told(made, stage, lambda: session.run(model.train, {model.inputs: batch(0, 0)}))


def test_a_worker_that_is_killed_before_there_is_anything_to_wait_for_is_named(monkeypatch):
    monkeypatch.setattr(parameter_shard, "RETURN_S", 0.2)
    with cluster(1, 2, own_workers=1) as made:

        def train():
            strategy = made.strategy(0, mode="sync")
            model = build(strategy, adam)
            with strategy.training_session(made.masters[0], is_chief=True) as session:
                session.run(model.train, {model.inputs: batch(0, 0)})

        check_loss_is_told(made, "strategy", train)


def check_loss_is_told(made, stage, train):
    """``train()`` names worker 1, which was killed at ``stage`` (see `endless_worker`)."""
    with endless_worker(made, 1, "sync", stage) as other:
        assert other.stdout.readline() == ("session\n" if stage == "0" else stage + "\n")
        linked = made.servers[0]._connections._connections
        wait_until(lambda: "/job:worker/replica:0/task:1" in linked, "worker 1 is there")
    lost = r"lost worker 1 \(at clock 0\): task .*task:1 was lost"
    with pytest.raises(tf.errors.DeadlineExceededError, match=lost):
        train()


def test_a_backup_worker_takes_the_place_of_one_that_is_killed(monkeypatch):
    """Two of three gradients are enough. When a second worker is killed there is one, and both are named."""
    monkeypatch.setattr(parameter_shard, "RETURN_S", 0.2)
    mode = ("backup", 1)
    with cluster(1, 3, own_workers=1) as made:
        strategy = made.strategy(0, mode=mode)
        model, status = build(strategy, adam), strategy.shard_status()
        with tf.Session(made.masters[0], config=strategy.update_config_proto(tf.ConfigProto())) as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])

            def step(number):
                session.run(model.train, {model.inputs: batch(0, number)})

            with endless_worker(made, 1, mode) as one:
                with endless_worker(made, 2, mode) as two:
                    assert [each.stdout.readline() for each in (one, two)] == ["session\n"] * 2
                    for number in range(3):
                        step(number)
                    assert two.stdout.readline()
                (before,) = session.run(status)
                for number in range(3, 13):
                    step(number)
                (after,) = session.run(status)
            assert after[-3] == 13
            assert after[VERSION] > before[VERSION]
            lost = r"lost worker 1 \(at clock \d+\).*, worker 2 \(at clock \d+\)"
            with pytest.raises(tf.errors.DeadlineExceededError, match=lost):  # noqa: PT012
                for number in range(13, 100):
                    step(number)


class endless_worker:
    """A worker's process, which is killed at the end. ``steps``: see its module."""

    def __init__(self, made, worker, mode="async", *steps):
        module = "tests.distribute.parameter_server.endless_worker"
        cluster = json.dumps(made.spec.as_dict())
        self._command = [sys.executable, "-m", module, cluster, str(worker), json.dumps(mode), *steps]

    def __enter__(self):
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        return self._process

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(SOON_S)
        self._process.stdout.close()
