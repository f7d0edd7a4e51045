"""Each hook in a real loop on one device."""

from __future__ import annotations

import json
import resource
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import (
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
)
from flowrt.summary.writer import FileWriterCache
from flowrt.train import (
    CheckpointSaverHook,
    CheckpointSaverListener,
    FeedFnHook,
    FinalOpsHook,
    GlobalStepWaiterHook,
    LoggingTensorHook,
    NanLossDuringTrainingError,
    NanTensorHook,
    ProfilerHook,
    Scaffold,
    SecondOrStepTimer,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    StepCounterHook,
    StopAtStepHook,
    SummarySaverHook,
)


@pytest.fixture
def step():
    return tf.train.get_or_create_global_step()


@pytest.fixture
def train_op(step):
    return tf.assign_add(step, 1)


@pytest.fixture(autouse=True)
def closed_writers():
    yield
    FileWriterCache.clear()


def run(op, hooks, times=None):
    """The values of ``op`` in a loop that ends by itself, or after so many runs."""
    values = []
    with SingularMonitoredSession(hooks) as session:
        while not session.should_stop() and len(values) != times:
            values.append(session.run(op))
    return values


def events(directory):
    (path,) = directory.glob("events.*")
    return list(tf.train.summary_iterator(str(path)))


# --- the timer


def test_a_timer_of_steps():
    timer = SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(5)
    assert timer.update_last_triggered_step(5) == (None, None)
    assert [s for s in range(5, 12) if timer.should_trigger_for_step(s)] == [8, 9, 10, 11]
    assert timer.update_last_triggered_step(8)[1] == 3
    assert timer.last_triggered_step() == 8


def test_a_timer_of_seconds():
    timer = SecondOrStepTimer(every_secs=3600.0)
    timer.update_last_triggered_step(1)
    assert not timer.should_trigger_for_step(1000)
    timer = SecondOrStepTimer(every_secs=0.0)
    timer.update_last_triggered_step(1)
    assert timer.should_trigger_for_step(2)
    assert not timer.should_trigger_for_step(1)


@pytest.mark.parametrize("intervals", [{}, {"every_secs": 1.0, "every_steps": 1}])
def test_a_timer_has_one_interval(intervals):
    with pytest.raises(InvalidArgumentError, match="expected either seconds or steps"):
        SecondOrStepTimer(**intervals)


# --- watching and stopping


def test_stop_at_the_last_step_or_after_a_number_of_steps(train_op, step):
    assert len(run(train_op, [StopAtStepHook(last_step=4)])) == 4
    start_at_2 = Scaffold(init_fn=lambda scaffold, session: step.load(2, session))
    with SingularMonitoredSession([StopAtStepHook(num_steps=3)], start_at_2) as session:
        values = []
        while not session.should_stop():
            values.append(int(session.run(train_op)))
    assert values == [3, 4, 5]


def test_runs_that_do_not_count_do_not_stop(train_op, step):
    hooks = [StopAtStepHook(last_step=1)]
    with SingularMonitoredSession(hooks) as session:
        for _ in range(3):
            session.run(step)
            assert not session.should_stop()
        session.run(train_op)
        assert session.should_stop()


def test_a_session_that_begins_at_its_last_step_runs_nothing(train_op, step):
    finished = Scaffold(init_fn=lambda scaffold, session: step.load(4, session))
    with SingularMonitoredSession([StopAtStepHook(last_step=4)], finished) as session:
        assert session.should_stop()


def test_logging_says_tags_and_values(train_op, step, caplog):
    caplog.set_level("INFO", "flowrt.train")
    run(train_op, [LoggingTensorHook({"step": step}, every_n_iter=2), StopAtStepHook(5)])
    lines = [r.getMessage().split(" (")[0] for r in caplog.records]
    assert lines == ["step = 1", "step = 3", "step = 5"]


def test_logging_at_the_end_with_a_format(train_op, step, caplog):
    caplog.set_level("INFO", "flowrt.train")
    hook = LoggingTensorHook([step.name], at_end=True, formatter=lambda values: f"{[*values.items()]}")
    run(train_op, [hook, StopAtStepHook(3)])
    assert [r.getMessage() for r in caplog.records] == ["[('global_step:0', np.int64(3))]"]


def test_logging_needs_to_know_when(step):
    with pytest.raises(InvalidArgumentError, match="expected either seconds or steps"):
        LoggingTensorHook([step])
    with pytest.raises(InvalidArgumentError, match="expected every_n_iter > 0; got 0"):
        LoggingTensorHook([step], every_n_iter=0)


def test_a_nan_ends_the_loop(train_op, step):
    loss = tf.log(2.0 - tf.cast(train_op, tf.float32))  # 0, -inf, nan
    with pytest.raises(NanLossDuringTrainingError, match="NaN loss during training"):
        run(loss, [NanTensorHook(loss)])
    assert len(run(loss, [NanTensorHook(loss, fail_on_nan_loss=False)])) == 3


def test_final_ops_run_when_the_loop_has_ended(train_op, step):
    x = tf.placeholder(tf.int64, [])
    hook = FinalOpsHook({"total": step + x}, {x: 10})
    run(train_op, [hook, StopAtStepHook(3)])
    assert hook.final_ops_values == {"total": 13}


def test_feeds_come_from_a_function(step):
    x = tf.placeholder(tf.float32, [])
    values = iter([1.0, 2.0, 3.0])
    assert run(x * 2.0, [FeedFnHook(lambda: {x: next(values)})], times=3) == [2.0, 4.0, 6.0]


def test_a_late_worker_waits_for_the_global_step(train_op, step):
    """The wait sees what another thread counts in the same session."""
    hook = GlobalStepWaiterHook(3, max_wait_secs=30.0)
    counters = []

    class CountMeanwhile(SessionRunHook):
        def after_create_session(self, session, coord):
            counters.append(threading.Thread(target=lambda: [session.run(train_op) for _ in range(3)]))
            counters[0].start()

    assert run(step, [CountMeanwhile(), hook], times=1) == [3]
    counters[0].join(30.0)
    with pytest.raises(DeadlineExceededError, match=r"expected global step 3 within 0 s; got 0\."):
        run(step, [GlobalStepWaiterHook(3, max_wait_secs=0.0)], times=1)


def test_hooks_that_count_need_a_global_step(tmp_path):
    for hook in (
        StopAtStepHook(1),
        GlobalStepWaiterHook(1),
        CheckpointSaverHook(str(tmp_path), save_steps=1),
    ):
        with pytest.raises(FailedPreconditionError, match="expected a global step in the graph; got none"):
            SingularMonitoredSession([hook])


# --- writing


class Listener(CheckpointSaverListener):
    def __init__(self, stop_at=None):
        self.heard, self.stop_at = [], stop_at

    def begin(self):
        self.heard.append("begin")

    def before_save(self, session, global_step_value):
        self.heard.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.heard.append(("after", global_step_value))
        return global_step_value == self.stop_at

    def end(self, session, global_step_value):
        self.heard.append(("end", global_step_value))


def test_checkpoints_at_the_beginning_by_steps_and_at_the_end(train_op, tmp_path):
    listener = Listener()
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])
    run(train_op, [hook, StopAtStepHook(5)])
    saved = [(when, step) for step in (0, 2, 4, 5) for when in ("before", "after")]
    assert listener.heard == ["begin", *saved, ("end", 5)]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [p.rpartition("-")[2] for p in state.all_model_checkpoint_paths] == ["0", "2", "4", "5"]
    assert tf.train.load_variable(str(tmp_path), "global_step") == 5
    assert (tmp_path / "graph.pbtxt").exists()
    logged = [e.step for e in events(tmp_path) if e.session_log.status == tf.SessionLog.CHECKPOINT]
    assert logged == [0, 2, 4, 5]


@contextmanager
def disk_of(nbytes):
    """A context in which no file of this process may be larger: that is reported as a full disk is."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_ends_no_training_before_its_last_checkpoint(train_op, tmp_path, caplog):
    tf.get_variable("large", [1 << 18])
    saver = CheckpointSaverHook(str(tmp_path), save_steps=2)
    with SingularMonitoredSession([saver]) as session:
        with disk_of(1 << 18):
            for _ in range(4):
                session.run(train_op)
        missing = [m for m in caplog.messages if m.startswith("training goes on without")]
        assert len(missing) == 2
        assert "without a checkpoint of step 4; the last is of step 0: " in missing[1]
        assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-0")
    assert tf.train.latest_checkpoint(str(tmp_path)) == str(tmp_path / "model.ckpt-4")


def test_a_last_checkpoint_that_does_not_fit_is_an_error(train_op, tmp_path):
    tf.get_variable("large", [1 << 18])
    session = SingularMonitoredSession([CheckpointSaverHook(str(tmp_path), save_steps=10)])
    session.run(train_op)
    with disk_of(1 << 18), pytest.raises(ResourceExhaustedError, match="File too large"):
        session.close()


def test_a_listener_can_stop_the_loop(train_op, tmp_path):
    hook = CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[Listener(stop_at=2)])
    assert len(run(train_op, [hook])) == 2


def test_a_checkpoint_hook_has_one_saver(tmp_path, step):
    with pytest.raises(InvalidArgumentError, match="expected a saver or a scaffold; got both"):
        CheckpointSaverHook(str(tmp_path), save_steps=1, saver=tf.train.Saver(), scaffold=Scaffold())


def test_summaries_of_the_first_run_and_by_steps(train_op, step, tmp_path):
    op = tf.summary.scalar("twice", tf.cast(step, tf.float32) * 2.0)
    run(train_op, [SummarySaverHook(3, output_dir=str(tmp_path), summary_op=op), StopAtStepHook(8)])
    found = [(e.step, e.summary.value[0].simple_value) for e in events(tmp_path) if e.summary.value]
    assert found == [(1, 2.0), (4, 8.0), (7, 14.0)]
    with pytest.raises(InvalidArgumentError, match="expected either a scaffold or a summary_op"):
        SummarySaverHook(3)


def test_steps_a_second_are_logged_and_written(train_op, tmp_path, caplog):
    caplog.set_level("INFO", "flowrt.train")
    run(train_op, [StepCounterHook(2, output_dir=str(tmp_path)), StopAtStepHook(5)])
    FileWriterCache.clear()
    found = [e for e in events(tmp_path) if e.summary.value]
    assert [e.step for e in found] == [3, 5]
    assert {v.tag for e in found for v in e.summary.value} == {"global_step/sec"}
    assert all(v.simple_value > 0 for e in found for v in e.summary.value)
    assert caplog.text.count("global_step/sec: ") == 2


def test_profiles_are_traces_of_single_runs(train_op, tmp_path):
    run(train_op, [ProfilerHook(save_steps=2, output_dir=str(tmp_path)), StopAtStepHook(4)])
    (path,) = tmp_path.glob("timeline-*.json")
    assert path.name == "timeline-3.json"
    trace = json.loads(path.read_text())["traceEvents"]
    assert {e["ph"] for e in trace} == {"M", "X", "b", "e"}
    assert "AssignAddVariableOp" in {e.get("cat") for e in trace}
    FileWriterCache.clear()
    assert [e.tagged_run_metadata.tag for e in events(tmp_path)][-1] == "step_3"


def test_a_profile_shows_memory_where_that_is_asked_for(train_op, tmp_path):
    hook = ProfilerHook(save_steps=2, output_dir=str(tmp_path), show_memory=True)
    run(train_op, [hook, StopAtStepHook(4)])
    FileWriterCache.clear()
    trace = json.loads((tmp_path / "timeline-3.json").read_text())["traceEvents"]
    assert "C" in {e["ph"] for e in trace}


# --- hooks of one's own


def test_a_hook_of_ones_own_gets_what_it_asked_for(train_op, step):
    x = tf.placeholder(tf.float32, [])

    class Own(SessionRunHook):
        def before_run(self, run_context):
            assert run_context.original_args == SessionRunArgs({"a": train_op}, {x: 1.0}, None)
            return SessionRunArgs([step, {"x": x}])

        def after_run(self, run_context, run_values):
            self.results = run_values.results
            assert run_values.run_metadata is None
            run_context.request_stop()

    own, idle = Own(), SessionRunHook()
    with SingularMonitoredSession([idle, own]) as session:
        assert session.run({"a": train_op}, {x: 1.0}) == {"a": 1}
        assert session.should_stop()
    np.testing.assert_equal(own.results, [1, {"x": 1.0}])
