"""The older way to a ready session, with threads that save."""

from __future__ import annotations

import time

import pytest

import flowrt as tf
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from flowrt.train import Supervisor
from tests.train.counting_job import between_graph, counting
from tests.train.server_process import servers

END_S = 30.0


def wait_for_checkpoint(prefix, directory):
    end = time.monotonic() + END_S
    while tf.train.latest_checkpoint(directory) != prefix and time.monotonic() < end:
        time.sleep(0.005)
    assert tf.train.latest_checkpoint(directory) == prefix


def test_a_loop_that_saves_on_threads_and_goes_on(tmp_path):
    for expected in (5, 10):
        tf.reset_default_graph()
        op, total = counting()
        tf.summary.scalar("counted", tf.cast(total, tf.float32))
        sv = Supervisor(logdir=str(tmp_path), save_model_secs=0.01, save_summaries_secs=0.01)
        with sv.managed_session() as session:
            for _ in range(5):
                session.run(op)
            prefix = f"{sv.save_path}-{expected}"
            wait_for_checkpoint(prefix, str(tmp_path))
        assert sv.should_stop()
        assert tf.train.load_variable(prefix, "total") == expected
    found = [e for path in tmp_path.glob("events.*") for e in tf.train.summary_iterator(str(path))]
    assert {value.tag for event in found for value in event.summary.value} == {"counted"}
    assert (tmp_path / "graph.pbtxt").exists()


def test_errors_of_the_loop_are_raised_and_the_end_of_data_is_none():
    op, _ = counting()
    sv = Supervisor()
    with pytest.raises(InvalidArgumentError, match="mine"), sv.managed_session() as session:
        raise InvalidArgumentError("mine")
    with sv.managed_session() as session:
        raise OutOfRangeError("end")
    with pytest.raises(FailedPreconditionError, match="the session is closed"):
        session.run(op)


def test_an_error_of_a_thread_stops_the_loop():
    op, _ = counting()
    sv = Supervisor()

    def fail():
        raise ValueError("in the thread")

    session = sv.prepare_or_wait_for_session()
    sv.loop(60.0, fail)
    while not sv.should_stop():
        session.run(op)
    with pytest.raises(ValueError, match="in the thread"):
        sv.stop()
    session.close()


def test_what_is_none_is_not_made():
    counting()
    sv = Supervisor(saver=None, summary_op=None, init_op=tf.no_op(), ready_op=None)
    assert (sv.saver, sv.summary_op, sv.ready_op, sv.summary_writer) == (None, None, None, None)
    with pytest.raises(FailedPreconditionError, match="uninitialized: global_step, total"):
        sv.prepare_or_wait_for_session()
    with pytest.raises(FailedPreconditionError, match="got no writer"):
        sv.summary_computed(None, b"")


def test_a_worker_waits_for_the_chief():
    with servers(ps=1, worker=2) as (_, *workers):
        supervisors, ops = [], []
        for task, server in enumerate(workers):
            with tf.Graph().as_default():
                ops.append(between_graph(server.cluster, task)[0])
                supervisors.append(Supervisor(is_chief=task == 0))
        chief = supervisors[0].prepare_or_wait_for_session(workers[0].target)
        worker = supervisors[1].prepare_or_wait_for_session(workers[1].target, max_wait_secs=END_S)
        assert [chief.run(ops[0]), worker.run(ops[1])] == [1.0, 2.0]
        with pytest.raises(FailedPreconditionError, match="expected the chief to call it"):
            supervisors[1].start_standard_services(worker)
        for supervisor, session in zip(supervisors, (chief, worker), strict=True):
            supervisor.stop()
            session.close()
