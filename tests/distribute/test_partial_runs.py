"""`Session.partial_run` of a session of this process, and of one of a cluster: the same tests for both."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.client import cluster_runtime
from flowrt.distribute.launch.local_cluster import ReservedPorts
from flowrt.distribute.master import partial_runs
from flowrt.distribute.wire.messages import Message
from flowrt.protos import cluster_pb2 as pb
from tests.contracts.check_transport import wait_until

DEADLINE_S = 60.0


class Place(NamedTuple):
    """Where a test runs: a target, two devices, and the servers if there are any."""

    target: str
    here: str
    there: str
    servers: list[tf.train.Server]


def start_cluster() -> tuple[ReservedPorts, list[tf.train.Server]]:
    reserved = ReservedPorts(2)
    spec = tf.train.ClusterSpec({"worker": [f"127.0.0.1:{port}" for port in reserved.ports]})
    return reserved, [tf.train.Server(spec, "worker", index) for index in range(2)]


@pytest.fixture
def cluster() -> Iterator[Place]:
    """Two tasks, and their first one's master."""
    reserved, servers = start_cluster()
    with reserved:
        yield Place(servers[0].target, "/job:worker/task:0", "/job:worker/task:1", servers)
        for server in servers:
            server.stop()


@pytest.fixture(params=["local", "own master", "by a connection"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Each of the ways to a session. By a connection: as from another process."""
    if request.param == "local":
        return Place("", "/cpu:0", "/cpu:0", [])
    if request.param == "by a connection":
        monkeypatch.setattr(cluster_runtime, "server_of", lambda target: None)
    return request.getfixturevalue("cluster")


def kept(place: Place) -> list[int]:
    """How many partial runs each task keeps tensors of."""
    counts = []
    for server in place.servers:
        sessions = list(server._worker._sessions.values())
        counts.append(sum(len(list(session.kept)) for session in sessions))
    return counts


def runs(place: Place) -> list[Any]:
    """What the master has."""
    return [run for s in place.servers[0]._master._sessions.values() for run in s.partial_runs.runs.values()]


def test_a_step_is_run_in_parts(place: Place) -> None:
    a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
    with tf.device(place.there):
        first = a + b
    with tf.device(place.here):
        second = first * c
    with tf.Session(place.target) as session:
        for start in (1.0, 5.0):  # the second time nothing is compiled
            handle = session.partial_run_setup([first, second], [a, b, c])
            assert session.partial_run(handle, first, {a: start, b: 2.0}) == start + 2
            temporary = first * 17.0
            assert session.run(temporary, {first: 1.0}) == 17.0  # other runs go between
            assert session.partial_run(handle, second, {c: 10.0}) == 10 * start + 20


def test_operations_run_once_in_the_whole_step(place: Place) -> None:
    x = tf.placeholder(tf.float32, [])
    with tf.device(place.there):
        counter = tf.Variable(0.0)
        count = counter.assign_add(1.0, read_value=False)
        with tf.control_dependencies([count]):
            noted = tf.identity(x)
    with tf.device(place.here):
        first, second = noted + 1.0, noted * 2.0
        left, right = tf.split(tf.stack([noted, noted * 5.0]), 2)
    with tf.Session(place.target) as session:
        session.run(counter.initializer)
        handle = session.partial_run_setup([first, second, left, right, count], [x])
        assert session.partial_run(handle, first, {x: 3.0}) == 4.0
        assert session.partial_run(handle, [second]) == [6.0]
        assert session.partial_run(handle, left).tolist() == [3.0]
        assert session.partial_run(handle, {"r": right, "c": count})["r"].tolist() == [15.0]
        assert session.run(counter) == 1.0


def test_random_operations_draw_once_in_the_whole_step(place: Place) -> None:
    with tf.device(place.there):
        draw = tf.random_uniform([3])
    with tf.device(place.here):
        shifted = draw + 1.0
    with tf.Session(place.target) as session:
        handle = session.partial_run_setup([draw, shifted], [])
        first = session.partial_run(handle, draw)
        first_value = first.copy()
        first[...] = 0  # the caller's
        np.testing.assert_array_equal(session.partial_run(handle, shifted), first_value + 1)


def test_tensors_of_any_size_and_type_are_kept(place: Place) -> None:
    n, text = tf.placeholder(tf.int32, []), tf.placeholder(tf.string, [None])
    with tf.device(place.there):
        large = tf.ones([n, 1000]) * tf.cast(n, tf.float32)
        words = tf.string_join([text, text])
        ends = tf.TensorArray(tf.float32, 2).unstack(tf.stack([large[0, 0], large[1, 1]]))
    with tf.device(place.here):
        total = tf.reduce_sum(large)
        both = tf.string_join([words, text], separator=" ")
    with tf.device(place.there):
        last = ends.read(1) + total
    with tf.Session(place.target) as session:
        handle = session.partial_run_setup([large, words, total, both, last], [n, text])
        got = session.partial_run(handle, [large, words], {n: 300, text: ["a", "b\0"]})
        assert (got[0].shape, got[0][0, 0], got[1].tolist()) == ((300, 1000), 300.0, [b"aa", b"b\0b\0"])
        assert session.partial_run(handle, total) == 300.0 * 300 * 1000
        assert session.partial_run(handle, both).tolist() == [b"aa a", b"b\0b\0 b\0"]
        assert session.partial_run(handle, last) == 300.0 + 300 * 300 * 1000


def test_wrong_uses_of_a_partial_run_are_typed_errors(place: Place) -> None:
    a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
    with tf.device(place.there):
        first, second, other = a + 1, (a + 1) * b, a * 3
    with tf.Session(place.target) as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match="placeholder"):
            session.partial_run_setup([second], [a])
        handle = session.partial_run_setup([first, second], [a, b])
        with pytest.raises(tf.errors.InvalidArgumentError, match="'b:0', which has not been fed"):
            session.partial_run(handle, second, {a: 1.0})
        assert session.partial_run(handle, first, {a: 1.0}) == 2.0  # the failed call took nothing
        for fetch, feed in ((first, {}), (other, {}), (second, {a: 1.0}), (second, {c: 1.0})):
            with pytest.raises(tf.errors.InvalidArgumentError, match="announced"):
                session.partial_run(handle, fetch, feed)
        with pytest.raises(tf.errors.InvalidArgumentError, match="shape"):
            session.partial_run(handle, second, {b: [1.0, 2.0]})
        assert session.partial_run(handle, second, {b: 4.0}) == 8.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="announced"):
            session.partial_run(handle, second)
        with pytest.raises(TypeError, match="expected a handle of partial_run_setup; got 'xx'"):
            session.partial_run("xx", second)  # type: ignore[arg-type]


def test_a_fed_tensor_may_be_fetched_when_it_has_come(place: Place) -> None:
    a = tf.placeholder(tf.float32, [2])
    with tf.device(place.there):
        twice = a * 2
        more = twice + a
    with tf.Session(place.target) as session:
        handle = session.partial_run_setup([twice, more], [a, twice])
        with pytest.raises(tf.errors.InvalidArgumentError, match="has not been fed"):
            session.partial_run(handle, twice)
        assert session.partial_run(handle, [], {a: [1.0, 2.0]}) == []
        assert session.partial_run(handle, more, {twice: [5.0, 5.0]}).tolist() == [6.0, 7.0]
        assert session.partial_run(handle, [twice, twice])[1].tolist() == [5.0, 5.0]


def test_a_fed_array_may_be_changed_between_two_calls(place: Place) -> None:
    """A reader fills one buffer again and again."""
    a, b = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.float32, [3])
    with tf.device(place.there):
        first, second = a + 1.0, a * b
    buffer = np.float32([1, 2, 3])
    with tf.Session(place.target) as session:
        handle = session.partial_run_setup([first, second], [a, b])
        assert session.partial_run(handle, first, {a: buffer}).tolist() == [2, 3, 4]
        buffer[:] = 100
        assert session.partial_run(handle, second, {b: [1, 1, 1]}).tolist() == [1, 2, 3]


def test_a_call_that_fails_ends_the_step(place: Place) -> None:
    i, j = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])
    with tf.device(place.there):
        counter = tf.Variable(0)
        with tf.control_dependencies([counter.assign_add(1)]):
            first = tf.identity(i)
    with tf.device(place.here):
        bad = tf.constant([1.0, 2.0])[first + j]
    with tf.Session(place.target) as session:
        session.run(counter.initializer)
        handle = session.partial_run_setup([first, bad], [i, j])
        assert session.partial_run(handle, first, {i: 1}) == 1
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of bounds"):
            session.partial_run(handle, bad, {j: 5})
        with pytest.raises(tf.errors.FailedPreconditionError, match=r"got a failed one: .*out of bounds"):
            session.partial_run(handle, bad, {j: 0})
        assert session.run(counter) == 1
        if place.servers:
            wait_until(lambda: kept(place) == [0, 0], "nothing is kept of it", DEADLINE_S)


def test_a_partial_run_ends_with_its_session(place: Place) -> None:
    a = tf.placeholder(tf.float32, [])
    with tf.device(place.there):
        y = a + 1
        z = y * 2
    session = tf.Session(place.target)
    handle = session.partial_run_setup([y, z], [a])
    assert session.partial_run(handle, y, {a: 1.0}) == 2.0
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.partial_run(handle, [], {})
    with pytest.raises(RuntimeError, match="closed"):
        session.partial_run_setup([a + 1], [a])
    if place.servers:
        wait_until(lambda: kept(place) == [0, 0], "nothing is kept of it", DEADLINE_S)


def test_partial_runs_go_on_side_by_side(place: Place) -> None:
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    with tf.device(place.there):
        first = a * 2.0
        second = first + b
    with tf.Session(place.target) as session:
        handles = [session.partial_run_setup([first, second], [a, b]) for _ in range(5)]
        assert [session.partial_run(h, first, {a: i}) for i, h in enumerate(handles)] == [0, 2, 4, 6, 8]
        assert [session.partial_run(h, second, {b: 1}) for h in reversed(handles)] == [9, 7, 5, 3, 1]
        other = session.partial_run_setup([first, second], [a, b])
        results: list[Any] = []
        calls = [
            threading.Thread(target=lambda: results.append(session.partial_run(other, first, {a: 1.0}))),
            threading.Thread(target=lambda: results.append(session.partial_run_setup([first], [a]))),
        ]
        for call in calls:
            call.start()
        for call in calls:
            call.join(DEADLINE_S)
        assert len(results) == 2


# --- of a cluster


def test_what_later_calls_read_stays_in_the_task_that_made_it(cluster: Place) -> None:
    a, b = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        large = tf.exp(a)
        first = tf.reduce_sum(large)
        second = tf.reduce_max(large) + b
    with tf.Session(cluster.target) as session:
        handle = session.partial_run_setup([first, second], [a, b])
        assert session.partial_run(handle, first, {a: np.zeros(50_000, np.float32)}) == 50_000.0
        assert kept(cluster) == [0, 1]
        (run,) = runs(cluster)
        assert (list(run.holders), run.values) == (["/job:worker/replica:0/task:1"], {})
        assert session.partial_run(handle, second, {b: 2.0}) == 3.0
        wait_until(lambda: kept(cluster) == [0, 0], "all was fetched", DEADLINE_S)


def test_calls_that_are_alike_are_registered_once(cluster: Place) -> None:
    a, b = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    with tf.device(cluster.there):
        first = a * 2
        second = first + b
    with tf.Session(cluster.target) as session:
        for size in (1, 2, 1, 2, 1):
            handle = session.partial_run_setup([first, second], [a, b])
            session.partial_run(handle, first, {a: np.ones(size)})
            np.testing.assert_array_equal(
                session.partial_run(handle, second, {b: np.ones(size)}), [3.0] * size
            )
        (sessions,) = cluster.servers[0]._master._sessions.values()
        assert len(sessions.partial_runs.calls) == 4
        assert len(cluster.servers[1]._worker._graphs) == 4


def test_a_handle_that_nobody_has_is_let_go_of_by_the_next_setup(cluster: Place) -> None:
    a = tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        first = a * 2
        second = first + 1
    with tf.Session(cluster.target) as session:
        for _ in range(4):
            handle = session.partial_run_setup([first, second], [a])
            session.partial_run(handle, first, {a: 1.0})
            handle = None
            gc.collect()
        assert len(runs(cluster)) == 1
        wait_until(lambda: kept(cluster) == [0, 1], "of the others nothing is kept", DEADLINE_S)


def test_a_session_has_so_many_partial_runs(cluster: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_runs, "MAX_RUNS", 2)
    a = tf.placeholder(tf.float32, [])
    y = a * 2
    with tf.Session(cluster.target) as session:
        handles = [session.partial_run_setup([y], [a]) for _ in range(2)]
        with pytest.raises(tf.errors.ResourceExhaustedError, match="at most 2 partial runs"):
            session.partial_run_setup([y], [a])
        assert [session.partial_run(handle, y, {a: 1.0}) for handle in handles] == [2.0, 2.0]


def test_calls_that_are_forgotten_are_made_again(cluster: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_runs, "MAX_CALLS", 1)
    monkeypatch.setattr(partial_runs, "MAX_SETUPS", 1)
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        first = a * 2
        second = first + b
    with tf.Session(cluster.target) as session:
        for _ in range(3):
            handle = session.partial_run_setup([first, second], [a, b])
            assert session.partial_run(handle, first, {a: 1.0}) == 2.0
            assert session.partial_run(session.partial_run_setup([first], [a]), first, {a: 2.0}) == 4.0
            assert session.partial_run(handle, second, {b: 1.0}) == 3.0
        worker = cluster.servers[1]._worker
        wait_until(lambda: len(worker._graphs) == 1, "the others are forgotten", DEADLINE_S)


def test_a_lost_task_is_named(cluster: Place) -> None:
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        first = a * 2
        second = first + b
    with tf.Session(cluster.target) as session:
        handle = session.partial_run_setup([first, second], [a, b])
        assert session.partial_run(handle, first, {a: 1.0}) == 2.0
        cluster.servers[1].stop()
        with pytest.raises(tf.errors.UnavailableError, match="task:1"):
            session.partial_run(handle, second, {b: 1.0})
        with pytest.raises(tf.errors.FailedPreconditionError, match="task:1"):
            session.partial_run(handle, second, {b: 1.0})


def test_a_reset_between_two_calls_ends_the_step(cluster: Place) -> None:
    a, b = tf.placeholder(tf.float32, []), tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        first = a * 2
        second = first + b
    with tf.Session(cluster.target) as session:
        handle = session.partial_run_setup([first, second], [a, b])
        session.partial_run(handle, first, {a: 1.0})
        tf.Session.reset(cluster.target)
        with pytest.raises(tf.errors.AbortedError, match=r"task:1.*reset"):
            session.partial_run(handle, second, {b: 1.0})


def test_closing_the_session_ends_a_call(cluster: Place) -> None:
    a = tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        first = a * 2
        endless = tf.while_loop(lambda i: i >= 0.0, lambda i: tf.abs(i) + 1.0, [first])
    session = tf.Session(cluster.target)
    handle = session.partial_run_setup([first, endless], [a])
    assert session.partial_run(handle, first, {a: 1.0}) == 2.0
    raised: list[Exception] = []

    def call() -> None:
        try:
            session.partial_run(handle, endless)
        except Exception as error:  # noqa: BLE001 (looked at below)
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    wait_until(lambda: cluster.servers[1].num_running_steps == 1, "the call runs", DEADLINE_S)
    session.close()
    thread.join(DEADLINE_S)
    assert [type(error) for error in raised] == [tf.errors.CancelledError]


def test_a_deadline_ends_a_call(cluster: Place) -> None:
    a = tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        endless = tf.while_loop(lambda i: i >= 0.0, lambda i: tf.abs(i) + 1.0, [a])
    config = tf.ConfigProto(operation_timeout_in_ms=500)
    with tf.Session(cluster.target, config=config) as session:
        handle = session.partial_run_setup([endless], [a])
        with pytest.raises(tf.errors.DeadlineExceededError):
            session.partial_run(handle, endless, {a: 1.0})


def test_operations_with_privileges_are_refused(monkeypatch: pytest.MonkeyPatch, cluster: Place) -> None:
    monkeypatch.setattr(cluster_runtime, "server_of", lambda target: None)
    a = tf.placeholder(tf.float32, [])
    with tf.device(cluster.there):
        written = tf.print(a, output_stream="file:///dev/null")
    with tf.Session(cluster.target) as session:
        handle = session.partial_run_setup([written], [a])
        with pytest.raises(tf.errors.PermissionDeniedError, match="PrintV2"):
            session.partial_run(handle, written, {a: 1.0})


A = pb.TensorName(op="a")


@pytest.mark.parametrize(
    "body, tensors, message",
    [
        (pb.PartialRun(partial_run=9), [], "expected a handle of this session; got 9"),
        (pb.PartialRun(fed=[A]), [], "expected one value per fed tensor"),
        (pb.PartialRun(fed=[A, A]), [2.0, 2.0], "expected one value per fed tensor"),
        (pb.PartialRun(fed=[pb.TensorName(op="b")]), [2.0], "announced"),
        (pb.PartialRun(fed=[A]), [[2.0]], r"'a:0': expected float32\[\]; got float32\[1\]"),
        (pb.PartialRun(fed=[A]), [1], r"expected float32\[\]; got int32"),
        (pb.PartialRun(fetches=[pb.TensorName(op="y", output=7)]), [], "announced"),
        (pb.PartialRun(targets=["y"]), [], "announced"),
    ],
)
def test_calls_that_are_not_well_formed_take_nothing(
    cluster: Place, body: Any, tensors: list[Any], message: str
) -> None:
    a = tf.placeholder(tf.float32, [], name="a")
    y = tf.add(a, 1, name="y")
    with tf.Session(cluster.target) as session:
        handle = session.partial_run_setup([y], [a])
        runtime: Any = session._runtime
        asked = pb.PartialRun(session=runtime.session, partial_run=runs(cluster)[0].number)
        asked.MergeFrom(body)
        arrays = [np.array(value, np.int32 if value == 1 else np.float32) for value in tensors]
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            runtime.ask(Message(asked, arrays))
        assert session.partial_run(handle, y, {a: 1.0}) == 2.0


def test_a_handle_of_another_session_is_refused(cluster: Place) -> None:
    a = tf.placeholder(tf.float32, [])
    y = a + 1
    with tf.Session(cluster.target) as first, tf.Session(cluster.target) as second:
        handle = first.partial_run_setup([y], [a])
        number = runs(cluster)[0].number
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected a handle of this session"):
            second._runtime.ask(Message(pb.PartialRun(session=second._runtime.session, partial_run=number)))
        assert first.partial_run(handle, y, {a: 1.0}) == 2.0
