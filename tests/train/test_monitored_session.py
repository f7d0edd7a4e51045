"""Training loops: they begin ready, run hooks, and go on after a task of the cluster was lost."""

from __future__ import annotations

import threading

import pytest

import flowrt as tf
from flowrt.errors import (
    AbortedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    UnavailableError,
)
from flowrt.summary.writer import FileWriterCache
from flowrt.train import (
    CheckpointSaverHook,
    ChiefSessionCreator,
    FeedFnHook,
    FinalOpsHook,
    MonitoredSession,
    MonitoredTrainingSession,
    Scaffold,
    SessionCreator,
    SessionRunArgs,
    SessionRunHook,
    SingularMonitoredSession,
    StopAtStepHook,
    WorkerSessionCreator,
)
from flowrt.train.sessions import monitored_session
from tests.train.counting_job import between_graph, counting
from tests.train.server_process import free_cluster, server_process, servers

END_S = 60.0
"""No wait of these tests is longer."""


@pytest.fixture(autouse=True)
def quick_recovery(monkeypatch):
    monkeypatch.setattr(monitored_session, "RETRY_S", 0.05)
    yield
    FileWriterCache.clear()


def loop(session, op):
    values = []
    while not session.should_stop():
        values.append(float(session.run(op)))
    return values


class Failing(SessionRunHook):
    """Raises ``errors`` one after the other, before the runs that `at` names; counts sessions and ends."""

    def __init__(self, *errors, at=()):
        self.errors, self.at = list(errors), set(at)
        self.runs = self.sessions = self.ends = 0

    def after_create_session(self, session, coord):
        self.sessions += 1

    def before_run(self, run_context):
        self.runs += 1
        if self.errors and (not self.at or self.runs in self.at):
            raise self.errors.pop(0)

    def end(self, session):
        self.ends += 1


# --- one process


def test_training_goes_on_from_the_checkpoint_of_the_last_loop(tmp_path):
    for last_step, expected in [(3, [1, 2, 3]), (3, []), (5, [4, 5])]:
        tf.reset_default_graph()
        op, _ = counting()
        hooks = [StopAtStepHook(last_step=last_step)]
        with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=hooks) as session:
            assert loop(session, op) == expected


def test_the_graph_is_frozen_meanwhile_only():
    op, _ = counting()
    with MonitoredTrainingSession(hooks=[StopAtStepHook(1)]) as session:
        assert session.graph is op.graph
        with pytest.raises(FailedPreconditionError, match="the graph is finalized"):
            tf.constant(1)
    tf.constant(1)


def test_hooks_are_called_in_order_around_runs():
    heard = []

    class Hook(SessionRunHook):
        def __init__(self, name):
            self.name = name

        def begin(self):
            heard.append(f"{self.name} begin")

        def after_create_session(self, session, coord):
            heard.append(f"{self.name} session")

        def before_run(self, run_context):
            heard.append(f"{self.name} before")

        def after_run(self, run_context, run_values):
            heard.append(f"{self.name} after")

        def end(self, session):
            heard.append(f"{self.name} end")

    with MonitoredSession(hooks=[Hook("a"), Hook("b")]) as session:
        session.run([])
    events = ("begin", "session", "before", "after", "end")
    assert heard == [f"{name} {event}" for event in events for name in "ab"]


def test_the_chiefs_hooks_are_those_of_its_intervals(tmp_path):
    counting()
    mine, chiefs = Failing(), Failing()
    with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), hooks=[mine], chief_only_hooks=[chiefs]) as s:
        names = [type(hook).__name__ for hook in s._hooks]
    assert names == ["Failing", "StepCounterHook", "SummarySaverHook", "CheckpointSaverHook", "Failing"]
    arguments = {"save_checkpoint_secs": None, "save_summaries_steps": 0, "log_step_count_steps": 0}
    tf.reset_default_graph()
    counting()
    with MonitoredTrainingSession(checkpoint_dir=str(tmp_path), **arguments) as session:
        assert session._hooks == []


def test_the_end_of_data_and_stop_iteration_end_the_loop_well():
    item = tf.data.make_one_shot_iterator(tf.data.Dataset.range(3)).get_next()
    hook, values = Failing(), []
    with MonitoredSession(hooks=[hook]) as session:
        while not session.should_stop():
            values.append(int(session.run(item)))
    assert values == [0, 1, 2]
    assert hook.ends == 1
    hook = Failing()
    with MonitoredSession(hooks=[hook]) as session:
        session.run_step_fn(lambda step_context: step_context.request_stop())
    assert hook.ends == 1


def test_another_error_is_the_loops_and_no_end_for_hooks():
    hook = Failing(InvalidArgumentError("mine"))
    with pytest.raises(InvalidArgumentError, match="mine"), MonitoredSession(hooks=[hook]) as session:
        session.run([])
    assert (hook.sessions, hook.ends) == (1, 0)


def test_after_a_stop_and_after_closing_nothing_runs():
    op, _ = counting()
    with MonitoredSession(hooks=[StopAtStepHook(1)]) as session:
        session.run(op)
        with pytest.raises(FailedPreconditionError, match="was asked to stop"):
            session.run(op)
    assert session.should_stop()
    with pytest.raises(FailedPreconditionError, match="is closed"):
        session.run(op)
    session.close()


def test_an_error_of_a_hooks_thread_ends_the_loop():
    op, _ = counting()

    class WithThread(SessionRunHook):
        def after_create_session(self, session, coord):
            thread = threading.Thread(target=coord.request_stop, args=(ValueError("in the thread"),))
            coord.register_thread(thread)
            thread.start()

    with pytest.raises(ValueError, match="in the thread"), MonitoredSession(hooks=[WithThread()]) as session:
        loop(session, op)


def test_a_step_function_runs_with_and_without_hooks():
    op, total = counting()
    hook = Failing()

    def step_fn(step_context):
        assert step_context.session.run(total) == 0
        return step_context.run_with_hooks(op)

    with MonitoredSession(hooks=[hook]) as session:
        assert session.run_step_fn(step_fn) == 1.0
        with pytest.raises(
            InvalidArgumentError, match=r"expected a function of step_context; got one of \['x'\]"
        ):
            session.run_step_fn(lambda x: None)
    assert hook.runs == 1


def test_a_tensor_is_fed_once():
    x = tf.placeholder(tf.float32, [])
    twice = x * 2.0
    with MonitoredSession(hooks=[FeedFnHook(lambda: {x: 1.0})]) as session:
        with pytest.raises(InvalidArgumentError, match="expected each tensor to be fed once"):
            session.run(twice, {x: 2.0})
        assert session.run(twice) == 2.0


def test_options_of_all_hooks_are_joined():
    class Traced(SessionRunHook):
        def __init__(self, **options):
            self.options = tf.RunOptions(**options)

        def before_run(self, run_context):
            return SessionRunArgs(None, options=self.options)

        def after_run(self, run_context, run_values):
            self.seen = run_values.options, run_values.run_metadata

    hooks = [Traced(trace_level=tf.RunOptions.FULL_TRACE), Traced(timeout_in_ms=60_000)]
    op = tf.random.normal([2])
    with MonitoredSession(hooks=hooks) as session:
        session.run(op)
    options, metadata = hooks[1].seen
    assert (options.trace_level, options.timeout_in_ms) == (tf.RunOptions.FULL_TRACE, 60_000)
    assert metadata.step_stats.dev_stats


def test_hooks_are_hooks():
    with pytest.raises(tf.errors.DTypeError, match="hooks: expected SessionRunHook objects; got 3"):
        MonitoredSession(hooks=[3])


# --- recovery, with errors as they come from a cluster


@pytest.mark.parametrize("error", [AbortedError, UnavailableError])
def test_a_lost_session_is_made_anew_from_the_last_checkpoint(error, tmp_path):
    op, total = counting()
    hook = Failing(error("gone"), error("again"), at=(4, 5))
    saver = CheckpointSaverHook(str(tmp_path), save_steps=2)
    creator = ChiefSessionCreator(scaffold := Scaffold(), checkpoint_dir=str(tmp_path))
    saver._scaffold = scaffold
    with MonitoredSession(creator, [saver, hook, StopAtStepHook(last_step=6)]) as session:
        assert loop(session, op) == [1, 2, 3, 3, 4, 5, 6]
    assert hook.sessions == 3
    assert tf.train.load_variable(str(tmp_path), total.op.name) == 6


def test_a_singular_session_is_not_made_anew():
    op, _ = counting()
    session = SingularMonitoredSession([Failing(AbortedError("gone"))])
    assert session.raw_session().run(op) == 1
    with pytest.raises(AbortedError, match="gone"):
        session.run(op)
    session.close()
    with pytest.raises(FailedPreconditionError, match="is closed"):
        session.raw_session()


def test_recovery_ends_when_no_run_succeeds(monkeypatch):
    hook = Failing(*[UnavailableError("task 7 is gone")] * 1000)
    with pytest.raises(DeadlineExceededError, match=r"no run has succeeded for 0\.2 s.*task 7 is gone"):
        with MonitoredSession(hooks=[hook], max_wait_secs=0.2) as session:
            session.run([])
    assert 1 < hook.sessions < 10


def test_a_run_that_succeeds_begins_the_time_anew():
    hook = Failing(*[UnavailableError("gone")] * 3, at=(1, 3, 5))
    with MonitoredSession(hooks=[hook], max_wait_secs=0.0) as session:
        for _ in range(3):
            session.run([])
    assert hook.sessions == 4


def test_a_run_that_fails_because_a_thread_lost_its_task_is_repeated():
    unfed = tf.placeholder(tf.float32, [])

    class WithThread(Failing):
        def after_create_session(self, session, coord):
            super().after_create_session(session, coord)
            self.coord = coord

        def before_run(self, run_context):
            if self.sessions == 1:
                self.coord.request_stop(UnavailableError("gone"))

    hook = WithThread()
    with MonitoredSession(hooks=[hook]) as session, pytest.raises(InvalidArgumentError, match="feed"):
        session.run(unfed)
    assert hook.sessions == 2


def test_a_creator_is_asked_again_when_a_task_is_missing():
    class Unsteady(SessionCreator):
        asked = 0

        def create_session(self):
            self.asked += 1
            if self.asked < 3:
                raise UnavailableError("not yet")
            return tf.Session()

    creator = Unsteady()
    with MonitoredSession(creator) as session:
        assert session.run([]) == []
    assert creator.asked == 3


def test_a_thread_that_lost_its_task_makes_a_session_anew():
    op, _ = counting()
    reports = [UnavailableError("gone")]

    class WithThread(Failing):
        def after_create_session(self, session, coord):
            super().after_create_session(session, coord)
            if reports:
                coord.request_stop(reports.pop())

    hook = WithThread()
    with MonitoredSession(hooks=[hook, StopAtStepHook(last_step=2)]) as session:
        assert loop(session, op) == [1, 2]
    assert hook.sessions == 2


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_session_that_was_lost_after_its_last_step_makes_none_more(in_a_thread, tmp_path):
    op, _ = counting()

    class LostAfterRun(SessionRunHook):
        def after_create_session(self, session, coord):
            self.coord = coord

        def after_run(self, run_context, run_values):
            if run_context.session.run(tf.train.get_global_step()) < 3 or lost:
                return
            lost.append(UnavailableError("gone"))
            if not in_a_thread:
                raise lost[0]
            self.coord.request_stop(lost[0])

    lost = []
    arguments = {"checkpoint_dir": str(tmp_path), "save_checkpoint_steps": 1}
    hooks = [LostAfterRun(), StopAtStepHook(last_step=3)]
    with MonitoredTrainingSession(hooks=hooks, **arguments) as session:
        loop(session, op)
    assert lost
    assert tf.train.load_variable(str(tmp_path), "total") == 3


# --- clusters


class Together(SessionRunHook):
    """Nobody begins before all have a session."""

    def __init__(self, barrier):
        self._barrier = barrier

    def after_create_session(self, session, coord):
        self._barrier.wait(END_S)


def test_workers_of_a_cluster_share_variables_and_steps():
    """Between-graph: the chief initializes, the other waits; together they count to the last step."""
    counted, totals, barrier = {0: 0, 1: 0}, [], threading.Barrier(2)

    def work(task, server):
        with tf.Graph().as_default():
            op, total = between_graph(server.cluster, task)
            hooks = [Together(barrier), StopAtStepHook(last_step=40), last := FinalOpsHook(total)]
            with MonitoredTrainingSession(
                server.target, task == 0, hooks=hooks, max_wait_secs=END_S
            ) as session:
                counted[task] = len(loop(session, op))
            totals.append(last.final_ops_values)

    with servers(ps=1, worker=2) as (_, *workers):
        threads = [threading.Thread(target=work, args=item) for item in enumerate(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(END_S)
    assert sum(counted.values()) == max(totals)
    assert 40 <= max(totals) <= 42  # two may begin before the last step and see its end in their next
    assert all(counted.values())


def test_a_worker_says_what_the_chief_has_not_initialized():
    with servers(ps=1, worker=1) as (_, worker):
        between_graph(worker.cluster, 0)
        with pytest.raises(
            DeadlineExceededError, match=r"still uninitialized: global_step, total\. Is the chief running"
        ):
            MonitoredTrainingSession(worker.target, is_chief=False, max_wait_secs=0.1)
        creator = WorkerSessionCreator(master=worker.target, max_wait_secs=0.1)
        with pytest.raises(DeadlineExceededError, match=r"variables within 0\.1 s"):
            creator.create_session()


def test_a_killed_parameter_server_comes_back_and_every_step_counts_once(tmp_path):
    """SIGKILL in the middle of the loop, a new life on the same port: the chief restores and goes on."""
    with free_cluster(ps=1, worker=1) as cluster, server_process(cluster, "ps", 0) as ps:
        server = tf.train.Server(cluster, "worker", 0)
        op, _ = between_graph(cluster, 0)
        arguments = {"checkpoint_dir": str(tmp_path), "save_checkpoint_steps": 5, "max_wait_secs": END_S}
        values = []
        try:
            hooks = [StopAtStepHook(last_step=20)]
            with MonitoredTrainingSession(server.target, hooks=hooks, **arguments) as session:
                while not session.should_stop():
                    values.append(float(session.run(op)))
                    if len(values) == 8:
                        ps.kill()
                        ps.start()
        finally:
            server.stop()
    assert values == [*range(1, 9), *range(6, 21)]
    assert tf.train.load_variable(str(tmp_path), "total") == 20
    assert tf.train.load_variable(str(tmp_path), "global_step") == 20


@pytest.mark.slow
def test_without_a_way_back_the_loop_ends_and_says_who_is_missing(monkeypatch):
    """After ``max_wait_secs``, however much longer a new session would wait for its tasks."""
    monkeypatch.setattr("flowrt.distribute.cluster.timeouts.DIAL_S", 0.3)
    with free_cluster(ps=1, worker=1) as cluster, server_process(cluster, "ps", 0) as ps:
        server = tf.train.Server(cluster, "worker", 0)
        op, _ = between_graph(cluster, 0)
        try:
            session = MonitoredTrainingSession(server.target, max_wait_secs=0.5)
            session.run(op)
            ps.kill()
            missing = r"no run has succeeded for 0\.5 s.*did not answer: /job:ps/replica:0/task:0"
            with pytest.raises(DeadlineExceededError, match=missing):
                loop(session, op)
            session.close()
        finally:
            server.stop()


@pytest.mark.parametrize("is_chief", [True, False])
def test_a_job_that_never_forms_says_who_is_missing(monkeypatch, is_chief):
    """After what a session waits for its tasks, however long ``max_wait_secs`` is."""
    monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "0.3")
    monkeypatch.setattr("flowrt.distribute.cluster.timeouts.DIAL_S", 0.3)
    with free_cluster(ps=1, worker=1) as cluster:
        server = tf.train.Server(cluster, "worker", 0)
        between_graph(cluster, 0)
        try:
            with pytest.raises(UnavailableError, match=r"did not answer: /job:ps/replica:0/task:0"):
                MonitoredTrainingSession(server.target, is_chief)
        finally:
            server.stop()


@pytest.mark.slow
def test_a_task_may_be_away_for_longer_than_a_session_waits_for_it(monkeypatch):
    attempts = []
    with free_cluster(ps=1, worker=1) as cluster, server_process(cluster, "ps", 0) as ps:
        server = tf.train.Server(cluster, "worker", 0)
        op, _ = between_graph(cluster, 0)
        create = ChiefSessionCreator(master=server.target).create_session

        class Creator:
            def create_session(self):
                attempts.append(None)
                if len(attempts) == 3:
                    ps.start()
                return create()

        try:
            with MonitoredSession(Creator(), max_wait_secs=END_S) as session:
                session.run(op)
                monkeypatch.setenv("FLOWRT_CONNECT_TIMEOUT", "0.5")
                ps.kill()
                session.run(op)
        finally:
            server.stop()
    assert len(attempts) >= 3
