"""Who has the way in to a real worker and does harm there: frames that were recorded and are sent again,
requests for the session of another, graphs that are none.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from random import Random
from typing import Any, NamedTuple

import pytest

import flowrt as tf
from flowrt.distribute import server
from flowrt.distribute.client import cluster_runtime
from flowrt.distribute.wire.messages import Message
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.channel.channel import Bytes, Connection, Listener, Receiver, Sent, Transport
from flowrt.rendezvous.transport import new_transport
from tests.contracts.check_transport import wait_until
from tests.distribute.processes import SOON_S, Cluster, cluster, dial_as_client
from tests.fuzz import damaged


def on(task: int) -> str:
    return f"/job:worker/task:{task}"


def options() -> tf.RunOptions:
    return tf.RunOptions(timeout_in_ms=int(SOON_S * 1000))


class Counter:
    """A variable of the last task."""

    def __init__(self, task: int) -> None:
        with tf.device(on(task)):
            self.value = tf.get_variable("count", initializer=0.0)
            self.add = self.value.assign_add(1.0)

    def commit(self, session: tf.Session, steps: int) -> None:
        session.run(self.value.initializer)
        for _ in range(steps):
            session.run(self.add, options=options())

    def read(self, target: str) -> float:
        with tf.Session(target, graph=self.value.graph) as session:
            return float(session.run(self.value))


# --- what was said is said again (16)


class Said(NamedTuple):
    """A frame that left."""

    header: bytes
    payload: list[bytes]


class Recorder(Transport):
    """``inner``, which keeps what its dialled connections send: a list for each in ``said``."""

    def __init__(self, inner: Transport) -> None:
        self._inner, self.said = inner, list[list[Said]]()

    def listen(self, address: str, accept: Any, is_serving: Any = None) -> Listener:
        return self._inner.listen(address, accept, is_serving)

    def connect(self, address: str, timeout_s: float) -> Connection:
        connected = _Recorded(self._inner.connect(address, timeout_s), said := [])
        self.said.append(said)
        return connected


class _Recorded(Connection):
    def __init__(self, inner: Connection, said: list[Said]) -> None:
        self._inner, self._said, self.peer, self.kind = inner, said, inner.peer, inner.kind

    def send(self, header: bytes, payload: Sequence[Bytes] = (), sent: Sent = None) -> None:
        self._said.append(Said(header, [bytes(each) for each in payload]))
        self._inner.send(header, payload, sent)

    def start(self, receiver: Receiver) -> None:
        self._inner.start(_Passed(self, receiver))

    def close(self) -> None:
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()


class _Passed(NamedTuple):
    """A `Receiver` that knows the connection by its recorder."""

    connection: Connection
    receiver: Receiver

    def on_frame(self, _: Connection, header: bytes, payload: list[Bytes]) -> None:
        self.receiver.on_frame(self.connection, header, payload)

    def on_lost(self, _: Connection, error: Any) -> None:
        self.receiver.on_lost(self.connection, error)


class Answers:
    """A `Receiver` that counts what comes back."""

    def __init__(self) -> None:
        self.count, self.is_lost = 0, False

    def on_frame(self, _: Connection, header: bytes, payload: list[Bytes]) -> None:
        self.count += 1

    def on_lost(self, _: Connection, error: Any) -> None:
        self.is_lost = True


def replay(said: Sequence[Said], address: str) -> None:
    """Send all of it on a connection of its own, and wait until it was answered or refused."""
    connection = new_transport().connect(address, SOON_S)
    answers = Answers()
    connection.start(answers)
    with suppress(tf.errors.UnavailableError):  # it was refused
        for frame in said:
            connection.send(frame.header, frame.payload)
    asked = [frame for frame in said if not pb.Envelope.FromString(frame.header).is_answer]
    wait_until(lambda: answers.is_lost or answers.count >= len(asked) // 2, "answers", SOON_S)
    connection.close()


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    """Of what this process says: its task to other tasks, and its sessions to their masters."""
    made = Recorder(new_transport())
    monkeypatch.setattr(server, "with_faults", lambda inner, describe: made)
    monkeypatch.setattr(cluster_runtime, "new_transport", lambda security: made)
    return made


@contextmanager
def master_and_worker() -> Iterator[tuple[Cluster, Counter]]:
    """Task 0 is here and has the session; the worker has the variable."""
    with cluster(1, 1) as tasks, tf.Graph():
        yield tasks, Counter(1)


@contextmanager
def client_and_master() -> Iterator[tuple[Cluster, Counter]]:
    with cluster(0, 1, "--no-exit-with-job") as tasks, tf.Graph():
        yield tasks, Counter(0)


@pytest.mark.parametrize("steps", [3, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("between", [master_and_worker, client_and_master])
def test_frames_that_come_again_change_nothing(recorder: Recorder, between: Any, steps: int) -> None:
    """While their session is open, and after it. Of 5,000 steps a worker does not remember the first."""
    with between() as (tasks, counter):
        worker = tasks.workers[0]
        with tf.Session(tasks.target) as session:
            counter.commit(session, 1)
            (said,) = recorder.said
            hello, start = said[0], len(said)
            for _ in range(steps):
                session.run(counter.add, options=options())
            recorded = [hello, *said[start:]]
            assert len(recorded) > steps
            replay(recorded, worker.address)
            assert session.run(counter.value) == steps + 1
            session.run(counter.add, options=options())
            assert session.run(counter.value) == steps + 2
        replay(recorded, worker.address)
        assert counter.read(tasks.target) == steps + 2
        assert not worker.has_ended


def test_frames_for_the_life_before_change_nothing_in_the_next(recorder: Recorder) -> None:
    with client_and_master() as (tasks, counter):
        worker = tasks.workers[0]
        with tf.Session(tasks.target) as session:
            counter.commit(session, 3)
        worker.end(signal.SIGKILL)
        worker.start()
        with tf.Session(tasks.target) as session:
            session.run(counter.value.assign(50.0))  # by another connection than the recorded ones
            replay(recorder.said[0], worker.address)
            assert session.run(counter.value) == 50.0
        assert not worker.has_ended


# --- requests for the session of another


@pytest.mark.parametrize(
    "forged",
    [
        lambda name: pb.ExtendSession(session=name, version=1, graph=b"%evil = NoOp()", positions=[0]),
        lambda name: pb.ExtendSession(session=name, version=2, graph=b"%evil = NoOp()", positions=[0]),
        lambda name: pb.RunStep(session=name, callable=1),
        lambda name: pb.CloseSession(session=name),
    ],
    ids=["extend", "extend again", "run", "close"],
)
def test_a_stranger_does_nothing_to_a_session(forged: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even one who knows its name."""
    with client_and_master() as (tasks, counter), tf.Session(tasks.target) as session:
        counter.commit(session, 3)
        name = session._runtime._session
        stranger = dial_as_client(tasks.workers[0].address)
        with pytest.raises(tf.errors.PermissionDeniedError, match="from the client that created session"):
            stranger.wait_for(Message(forged(name)), SOON_S)
        stranger.close("it has asked")
        session.run(counter.add, options=options())
        assert session.run(counter.value) == 4


# --- graphs that are none (15)

HERE = b"  @/job:worker/replica:0/task:0/device:CPU:0"
LINES = (
    b"%x = Const() {value=f32[2](1.0, 2.0)} : f32[2]",
    b"%y = Square(%x) : f32[2]",
    b"%z = AddV2(%x, %y) : f32[2]",
)
TEXT = b"\n".join(line + HERE for line in LINES)


def refuses(stranger: Any, graph: bytes) -> bool:
    """Whether it is refused with an error that is no accident."""
    try:
        stranger.wait_for(Message(pb.RegisterGraph(session="a stranger's", graph=graph)), SOON_S)
    except (tf.errors.UnknownError, tf.errors.InternalError, tf.errors.UnavailableError):
        raise
    except tf.errors.DeadlineExceededError:
        raise
    except tf.errors.OpError:
        return True
    return False


MALFORMED = {
    "noise": b"\xff\x00{" * 100,
    "no device": b"%a = NoOp()",
    "a device of another task": b"%a = NoOp()  @/job:worker/replica:0/task:7/device:CPU:0",
    "a cycle": b"%a = Square(%b) : f32[2]\n%b = Square(%a) : f32[2]",
    "itself": b"%a = Square(%a) : f32[2]",
    "one name twice": b"%a = NoOp()\n%a = NoOp()",
    "an input that is not there": b"%a = Square(%nobody) : f32[2]",
    "an output that is not there": TEXT + b"\n%b = Square(%y:7) : f32[2]",
    "no such op": b"%a = Evil() : f32[2]",
    "a negative dimension": b"%a = Placeholder() {dtype=f32} : f32[-7]",
    "a huge constant": b"%a = Const() {value=f32[99999999999](splat 1.0)} : f32[99999999999]",
    "a wrong dtype": b"%a = Const() {value=f32[2](1.0, 2.0)} : f32[2]\n%b = MatMul(%a, %a) : i64[2]",
    "a name of another place": b"%../../etc/passwd = NoOp()",
    "a function of Python": b'%a = PyFunc() {token="os.system", Tout=[f32]} : f32[2]',
    "a deep nest": b"%a = Const() {value=" + b"[" * 100_000 + b"} : f32[2]",
}


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_malformed_graphs_are_refused_by_a_worker_which_works_on() -> None:
    with client_and_master() as (tasks, counter), tf.Session(tasks.target) as session:
        counter.commit(session, 3)
        worker = tasks.workers[0]
        stranger = dial_as_client(worker.address)
        stranger.wait_for(Message(pb.CreateWorkerSession(session="a stranger's")), SOON_S)
        assert not refuses(stranger, TEXT)
        taken = [what for what, graph in MALFORMED.items() if not refuses(stranger, graph)]
        assert not taken
        random, before, refused = Random(15), 0, 0
        for number in range(600):
            if number == 100:
                before = resident_bytes(worker.pid)
            refused += refuses(stranger, damaged(TEXT, TEXT, random))
            if number % 50 == 0:
                session.run(counter.add, options=options())
        assert 300 < refused < 600
        assert resident_bytes(worker.pid) - before < 16 << 20
        stranger.close("it has said enough")
        assert session.run(counter.value) == 15
        wait_until(lambda: worker.status().sessions == 1, "the stranger's session is closed", SOON_S)
