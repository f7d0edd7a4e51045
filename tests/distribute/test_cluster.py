"""Sessions of a cluster whose tasks are servers of this process; between the tasks the frames are real."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.client.cluster_runtime import ClusterRuntime
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.wire import messages, peer
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.wire.peer import Reply
from flowrt.distribute.worker.worker import EARLY_S
from flowrt.executor.session import session as session_module
from flowrt.protos import cluster_pb2 as pb
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import dial_as_client

DEADLINE_S = 60.0


@pytest.fixture
def cluster() -> Iterator[list[tf.train.Server]]:
    """Two workers of two CPUs each."""
    config = tf.ConfigProto(device_count={"CPU": 2})
    with ReservedPorts(2) as reserved:
        spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
        servers = [tf.train.Server(spec, "worker", index, config=config) for index in range(2)]
        yield servers
        for server in servers:
            server.stop()


@pytest.fixture
def target(cluster: list[tf.train.Server]) -> str:
    return cluster[0].target


def on(task: int, cpu: int = 0) -> str:
    return f"/job:worker/task:{task}/cpu:{cpu}"


def options(timeout_s: float = DEADLINE_S) -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(timeout_s * 1000))


def test_a_step_spans_tasks_and_their_devices(target: str) -> None:
    with tf.Graph():
        x = tf.placeholder(tf.float32, [None])
        y = x
        for task, cpu in [(0, 0), (1, 0), (1, 1), (0, 1), (1, 0)]:
            with tf.device(on(task, cpu)):
                y = y * 2 + 1
        with tf.Session(target) as session:
            got = session.run([y, x], {x: [1.0, 2.0]}, options())
    np.testing.assert_array_equal(got[0], [63.0, 95.0])
    np.testing.assert_array_equal(got[1], [1.0, 2.0])


def test_devices_are_those_of_all_tasks(target: str) -> None:
    with tf.Graph(), tf.Session(target) as session:
        names = [device.name for device in session.list_devices()]
    assert names == [f"/job:worker/replica:0/task:{t}/device:CPU:{c}" for t in range(2) for c in range(2)]


def _train(target: str, devices: tuple[str, str]) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(64, 8)).astype("f"), rng.integers(0, 3, 64)
    with tf.Graph():
        with tf.device(devices[0]):
            w1 = tf.get_variable("w1", initializer=rng.normal(size=(8, 16)).astype("f"))
            w2 = tf.get_variable("w2", initializer=rng.normal(size=(16, 3)).astype("f"))
        with tf.device(devices[1]):
            hidden = tf.nn.relu(tf.matmul(features, w1))
            loss = tf.losses.sparse_softmax_cross_entropy(labels, tf.matmul(hidden, w2))
            step = tf.train.AdamOptimizer(0.01).minimize(loss, colocate_gradients_with_ops=True)
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            losses = [session.run([loss, step])[0] for _ in range(20)]
            return [np.array(losses), *session.run([w1, w2])]


def test_training_across_tasks_gives_the_bits_of_one_process(target: str) -> None:
    here = _train("", ("/cpu:0", "/cpu:0"))
    there = _train(target, (on(1), on(0, 1)))
    for ours, theirs in zip(here, there, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_loop_across_tasks(target: str) -> None:
    with tf.Graph():
        x = tf.placeholder(tf.float32, [])

        def body(i: tf.Tensor, a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.device(on(1)):
                a = a + b
            with tf.device(on(0, 1)):
                b = b * 1.5 - a
            return i + 1, a, b

        with tf.device(on(0)):
            _, a, b = tf.while_loop(lambda i, a, b: i < 7, body, [0, x, x])
        grad = tf.gradients(a + b, x)[0]
        with tf.Session(target) as session:
            there = session.run([a, b, grad], {x: 2.0}, options())
        with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
            with pytest.raises(tf.errors.InvalidArgumentError, match="worker"):  # no such job here
                session.run(a, {x: 2.0})
    a0, b0 = 2.0, 2.0
    for _ in range(7):
        a0, b0 = a0 + b0, b0 * 1.5 - (a0 + b0)
    np.testing.assert_allclose(there[:2], [a0, b0], rtol=1e-6)
    np.testing.assert_allclose(there[2], (a0 + b0) / 2.0, rtol=1e-5)  # it is linear in x


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_on_another_task_runs_if_it_is_taken(target: str, taken: bool) -> None:
    with tf.Graph():
        p = tf.placeholder(tf.bool, [])
        with tf.device(on(1)):
            count = tf.get_variable("count", initializer=0.0)

        def there() -> tf.Tensor:
            with tf.device(on(1)):
                return count.assign_add(1.0) * 10

        with tf.device(on(0)):
            y = tf.cond(p, there, lambda: tf.constant(-1.0))
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            got = session.run(y, {p: taken}, options())
            assert (got, session.run(count)) == ((10.0, 1.0) if taken else (-1.0, 0.0))


def test_sessions_share_variables_unless_they_are_isolated(cluster: list[tf.train.Server]) -> None:
    def session_of(server: tf.train.Server, **fields: bool) -> tuple[tf.Session, tf.Variable]:
        with tf.Graph() as graph, tf.device(on(1)):
            v = tf.get_variable("v", initializer=3.0)
            graph.v = v.assign_add(1.0)
        return tf.Session(server.target, graph=graph, config=tf.ConfigProto(**fields)), v

    (one, v1), (two, _), (alone, v3) = (
        session_of(cluster[0]),
        session_of(cluster[1]),
        session_of(cluster[0], isolate_session_state=True),
    )
    one.run(v1.initializer)
    assert two.run(two.graph.v) == 4.0
    assert one.run(one.graph.v) == 5.0
    with pytest.raises(tf.errors.FailedPreconditionError, match="'v' has no value"):
        alone.run(alone.graph.v)
    alone.run(v3.initializer)
    assert alone.run(alone.graph.v) == 4.0
    one.close()
    assert two.run(two.graph.v) == 6.0  # it outlives the session that made it
    tf.Session.reset(cluster[0].target)
    with pytest.raises(tf.errors.AbortedError, match="reset"):
        two.run(two.graph.v)
    with tf.Session(cluster[0].target, graph=one.graph) as anew:
        with pytest.raises(tf.errors.FailedPreconditionError, match="'v' has no value"):
            anew.run(one.graph.v)
    two.close()
    alone.close()


def test_the_graph_may_grow_between_runs(target: str) -> None:
    with tf.Graph(), tf.Session(target) as session:
        with tf.device(on(1)):
            x = tf.constant([1.0, 2.0])
        assert session.run(tf.reduce_sum(x)) == 3.0
        with tf.device(on(0)):
            y = x * 2
        assert session.run(tf.reduce_sum(y)) == 6.0


def test_a_large_graph_is_sent_once_and_forgotten_with_its_session(
    cluster: list[tf.train.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 steps of a table of 4 MB: what goes to the other task is one table."""
    sent: list[int] = []

    def counted(*arguments: Any, **keywords: Any) -> messages.Frame:
        frame = messages.encode(*arguments, **keywords)
        sent.append(len(frame.header) + sum(part.nbytes for part in frame.payload))
        return frame

    monkeypatch.setattr(peer, "encode", counted)
    with tf.Graph():
        table = np.arange(1_000_000, dtype=np.float32)
        with tf.device(on(1)):
            row = tf.placeholder(tf.int32, [])
            rows = [tf.gather(tf.constant(table), row) + float(i) for i in range(20)]
            shared = tf.constant(table[::-1].copy())
            rows += [tf.gather(shared, row) * float(i) for i in range(20)]
        with tf.Session(cluster[0].target) as session:
            for i in range(20):
                assert session.run(rows[20 + i], {row: 10}) == table[-11] * i
            assert sum(sent) < 1.2 * table.nbytes
            (held,) = cluster[1]._worker._sessions.values()
            assert [value.nbytes for value in held.constants.values()] == [table.nbytes]
            for i in range(2):  # a table each, which is another array
                assert session.run(rows[i], {row: 10}) == 10 + i
            assert 3 * table.nbytes < sum(sent) < 3.2 * table.nbytes
        wait_until(lambda: not cluster[1]._worker._sessions, "the session's end")


def test_what_a_session_has_forgotten_the_tasks_forget(
    cluster: list[tf.train.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request every time, as scripts do that build lists of fetches."""
    monkeypatch.setattr(session_module, "MAX_REQUESTS", 2)
    with tf.Graph(), tf.device("/task:1"):
        tensors = [tf.constant(float(i)) * 2 for i in range(6)]
        with tf.Session(cluster[0].target) as session:
            kept = session.make_callable(tensors[0])
            for _ in range(2):
                assert [session.run(tensor) for tensor in tensors] == [2.0 * i for i in range(6)]
            wait_until(lambda: len(cluster[1]._worker._graphs) <= 4, "what two requests and a callable need")
            assert kept() == 0.0


def test_an_interrupted_extension_is_heard_of_before_the_next(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while the master takes the graph: it has it, and the session goes on."""
    with tf.Graph():
        x = tf.constant(2.0)
        y, z = x * 3.0, x * 5.0
        with tf.Session(target) as session:
            session.list_devices()
            with monkeypatch.context() as patch:
                patch.setattr(Reply, "is_there", interrupt)
                with pytest.raises(KeyboardInterrupt):
                    session.run(y)
            assert session.run([y, z]) == [6.0, 10.0]


def interrupt(*_: object) -> bool:
    raise KeyboardInterrupt


def test_large_constants_and_feeds_and_strings_travel(target: str) -> None:
    large = np.random.default_rng(0).normal(size=(300, 500)).astype("f")
    with tf.Graph():
        x = tf.placeholder(tf.float32, [None, 500])
        with tf.device(on(1)):
            y = x + tf.constant(large)
            names = tf.identity(tf.constant(["a", "bc"]))
        with tf.device(on(0)):
            z, copies = y * 1, tf.identity(names)
        with tf.Session(target) as session:
            got, texts = session.run([z, copies], {x: large}, options())
    np.testing.assert_array_equal(got, large + large)
    assert texts.tolist() == [b"a", b"bc"]


def test_scalars_of_another_task_come_as_those_of_this_process(target: str) -> None:
    with tf.Graph():
        text = tf.placeholder(tf.string, [])
        with tf.device(on(1)):
            fetched = [tf.constant(7) + 1, tf.strings.join([text, "\0"]), tf.constant([1.0]) * 2]
            summary = tf.summary.scalar("loss", tf.constant(0.5))
        with tf.Session(target) as session:
            number, longer, array = session.run(fetched, {text: "a"}, options())
            assert isinstance(number, np.int32)
            assert (number, longer, array.tolist()) == (8, b"a\0", [2.0])
            handle = session.partial_run_setup(fetched[1], [text])
            assert session.partial_run(handle, fetched[1], {text: "b"}) == b"b\0"
            assert isinstance(session.run(summary), bytes)


def test_a_failing_kernel_of_another_task_is_one_typed_error_with_the_users_line(target: str) -> None:
    with tf.Graph():
        i = tf.placeholder(tf.int32, [])
        with tf.device(on(1)):
            bad = tf.constant([1.0, 2.0])[i]  # the line of the error
        with tf.device(on(0)):
            y = bad + 1
        with tf.Session(target) as session:
            line = r"test_cluster.py:\d+.*out of bounds"
            with pytest.raises(tf.errors.InvalidArgumentError, match=line) as info:
                session.run(y, {i: 5}, options())
            assert info.value.origin.task == "/job:worker/replica:0/task:1"
            assert session.run(y, {i: 1}, options()) == 3.0  # the session is as before


def test_a_deadline_ends_all_parts(target: str) -> None:
    with tf.Graph():
        with tf.device(on(1)):
            endless = tf.while_loop(lambda i: i >= 0.0, lambda i: tf.abs(i) + 1.0, [0.0])
        with tf.device(on(0)):
            y = tf.identity(endless) + 1
        with tf.Session(target) as session:
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(y, options=options(0.3))
            assert session.run(tf.constant(1.0) + 1) == 2.0


def test_closing_a_session_cancels_its_step(cluster: list[tf.train.Server]) -> None:
    with tf.Graph():
        with tf.device(on(1)):
            endless = tf.while_loop(lambda i: i >= 0.0, lambda i: tf.abs(i) + 1.0, [0.0])
        session = tf.Session(cluster[0].target)
        raised: list[BaseException] = []

        def run() -> None:
            try:
                session.run(endless)
            except tf.errors.OpError as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        end = time.monotonic() + DEADLINE_S
        while not cluster[1].num_running_steps and time.monotonic() < end:
            thread.join(0.01)
        session.close()
        thread.join(DEADLINE_S)
    assert [type(error) for error in raised] == [tf.errors.CancelledError]


def test_a_session_closed_while_it_is_created_leaves_nothing_in_the_tasks(
    cluster: list[tf.train.Server], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step of one thread creates it at the master; another thread closes it then."""
    ask = ClusterRuntime.ask

    def close_and_ask(runtime: ClusterRuntime, message: Message) -> Message:
        if isinstance(message.body, pb.CreateSession):
            session.close()
        return ask(runtime, message)

    monkeypatch.setattr(ClusterRuntime, "ask", close_and_ask)
    with tf.Graph():
        x = tf.constant(1.0)
        session = tf.Session(target)
        with pytest.raises(tf.errors.FailedPreconditionError, match="the session is closed"):
            session.run(x)
    held = [tables for server in cluster for tables in (server._master._sessions, server._worker._sessions)]
    wait_until(lambda: not any(held), "the tasks have no session")


def test_callables_and_partial_runs(target: str) -> None:
    with tf.Graph():
        a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
        with tf.device(on(1)):
            c = a * 2
        with tf.device(on(0)):
            d = c + b
        with tf.Session(target) as session:
            call = session.make_callable(d, [a, b])
            assert [call(1.0, 2.0), call(3.0, 4.0)] == [4.0, 10.0]
            handle = session.partial_run_setup([c, d], [a, b])
            assert session.partial_run(handle, c, {a: 1.0}) == 2.0
            assert session.partial_run(handle, d, {b: 5.0}) == 7.0


def test_a_trace_has_the_slices_of_all_tasks(target: str) -> None:
    with tf.Graph():
        with tf.device(on(1)):
            x = tf.random_uniform([4])
        with tf.device(on(0)):
            y = x * 2
        with tf.Session(target) as session:
            metadata = tf.RunMetadata()
            session.run(y, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=metadata)
    traced = {stats.device for stats in metadata.step_stats.dev_stats}
    assert traced == {f"/job:worker/replica:0/task:{t}/device:CPU:0" for t in range(2)}


def test_variables_are_saved_and_restored(target: str, tmp_path: object) -> None:
    with tf.Graph():
        with tf.device(on(1)):
            v = tf.get_variable("v", initializer=[1.0, 2.0])
        with tf.device(on(0)):
            w = tf.get_variable("w", initializer=5.0)
        saver = tf.train.Saver()
        with tf.Session(target) as session:
            session.run(tf.global_variables_initializer())
            path = saver.save(session, f"{tmp_path}/model")
            session.run([v.assign([0.0, 0.0]), w.assign(0.0)])
            saver.restore(session, path)
            np.testing.assert_array_equal(session.run(v), [1.0, 2.0])
            assert session.run(w) == 5.0


def test_filters_hide_tasks(cluster: list[tf.train.Server]) -> None:
    cluster[1].stop()  # and a session that does not need it need not know
    config = tf.ConfigProto(device_filters=["/job:worker/task:0"])
    with tf.Graph(), tf.Session(cluster[0].target, config=config) as session:
        assert {device.name.split("/")[3] for device in session.list_devices()} == {"task:0"}
        assert session.run(tf.constant(2.0) * 2) == 4.0
        with tf.device(on(1)):
            hidden = tf.constant(1.0) + 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="task:1"):
            session.run(hidden)


def test_targets_that_are_none() -> None:
    with tf.Graph():
        for bad in ("localhost:2222", "http://localhost:1", "grpc://", "grpc://localhost"):
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"grpc://host:port|host:port"):
                tf.Session(bad)


def test_a_local_server() -> None:
    server = tf.train.Server.create_local_server()
    with tf.Graph(), tf.Session(server.target) as session:
        assert session.run(tf.constant(20) + 1) == 21
        assert session.list_devices()[0].name == "/job:localhost/replica:0/task:0/device:CPU:0"
    server.stop()
    assert server.join(DEADLINE_S)


def test_a_cluster_logs_where_operations_run(
    cluster: list[tf.train.Server], capfd: pytest.CaptureFixture[str]
) -> None:
    with tf.Graph().as_default():
        with tf.device("/task:1"):
            y = tf.negative(tf.placeholder_with_default(2.0, [], "x"), name="y")
        for logs in (True, False):
            with tf.Session(cluster[0].target, config=tf.ConfigProto(log_device_placement=logs)) as session:
                assert session.run(y) == -2.0
            is_there = "y: (Neg): /job:worker/replica:0/task:1/device:CPU:0\n" in capfd.readouterr().err
            assert is_there == logs


def test_connections_are_closed_before_their_calls_end(
    cluster: list[tf.train.Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else peers would take who stops for one that died: a listener that closes ends every call of gRPC's."""
    closed: list[str] = []
    for what in ("_connections", "_listener"):
        part = getattr(cluster[1], what)

        def close(*arguments: Any, what: str = what, really: Any = part.close) -> None:
            closed.append(what)
            really(*arguments)

        monkeypatch.setattr(part, "close", close)
    cluster[1].stop()
    assert closed == ["_connections", "_listener"]


def test_a_server_of_no_such_task() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="job"):
        tf.train.Server({"worker": ["127.0.0.1:0"]}, "ps", 0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="task"):
        tf.train.Server({"worker": ["127.0.0.1:0"]}, "worker", 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="task_index"):
        tf.train.Server({"worker": ["127.0.0.1:0", "127.0.0.1:1"]}, "worker")


def test_two_servers_cannot_have_one_port() -> None:
    first = tf.train.Server.create_local_server()
    with pytest.raises(tf.errors.AlreadyExistsError, match=first.address):
        tf.train.Server({"localhost": [first.address]})
    first.stop()


def test_a_task_ends_with_the_job_only_when_its_program_waits_for_that(
    cluster: list[tf.train.Server],
) -> None:
    """Task 1's program has had sessions at task 0, and ends while that of task 0 is still in one."""
    first, second = cluster
    with tf.Graph():
        with tf.device(on(0)):
            v = tf.Variable(0.0, name="v")
            step = v.assign_add(1.0)
        with tf.Session(second.target) as session:
            session.run(tf.global_variables_initializer())
        with tf.Session(first.target, config=tf.ConfigProto(device_filters=["/job:worker/task:0"])) as own:
            second.stop()
            wait_until(lambda: first._job_end, "the job's end is noticed")
            assert own.run(step) == 1.0
    assert first.join(DEADLINE_S)


@pytest.fixture
def no_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes when a test says so; who is silent meanwhile is not given up."""
    monkeypatch.setattr(tf.train.Server, "_tick", lambda server: None)
    monkeypatch.setenv("FLOWRT_LOST_AFTER", "1000")


@pytest.mark.usefixtures("no_ticks")
def test_time_in_which_a_task_stood_still_counts_for_no_deadline() -> None:
    """An early request for a tensor waits `EARLY_S` for its step, however long the task slept meanwhile."""
    task = tf.train.Server.create_local_server()
    client = dial_as_client(task.address)
    now, answers = time.monotonic(), list[Any]()
    key = f"/job:localhost/task:0/cpu:0;{task.incarnation:016x};/job:localhost/task:0/cpu:0;x;0:0"
    client.ask(Message(pb.RecvTensor(step=7, keys=[key])), lambda message, error: answers.append(error))
    client.wait_for(Message(pb.GetStatus()), DEADLINE_S)  # what it was asked before has arrived
    now += 10 * EARLY_S
    task.tick(now)
    client.wait_for(Message(pb.GetStatus()), DEADLINE_S)
    assert not answers
    for _ in range(2):
        now += 0.6 * EARLY_S
        task.tick(now)
    wait_until(lambda: answers, "the answer")
    assert "never one to run it" in str(answers[0])
    client.close("the test ends")
    task.stop()
