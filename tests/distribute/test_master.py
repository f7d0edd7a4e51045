"""The master's state machine: an event in, the actions out, as text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.distribute.machines import events as ev
from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.master import master as m
from flowrt.distribute.master.pending_replies import GRACE_S, LATE_S, TURN_S
from flowrt.distribute.wire.messages import Message, derived, encode_status, lost
from flowrt.errors import (
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    Origin,
    UnavailableError,
)
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import op_def
from flowrt.graph.passes.prepare.prune import feed_node
from flowrt.protos import cluster_pb2 as pb

PS, FIRST, SECOND = "/job:ps/replica:0/task:0", "/job:worker/replica:0/task:0", "/job:worker/replica:0/task:1"
SHORT = {PS: "ps", FIRST: "w0", SECOND: "w1"}
TASKS = [PS, FIRST, SECOND]
CLIENT = "client#1"
GRAPH = Subgraph({}, ("a", "b"), (("x", 0), ("y", 0), ("z", 0)))
PARTS = {
    PS: ev.Part(GRAPH, (0,), (2,)),
    FIRST: ev.Part(GRAPH, (), (0, 1)),
    SECOND: ev.Part(GRAPH, (1, 0), ()),
}
FETCHES = {PS: ["z"], FIRST: ["x", "y"], SECOND: []}


class Conversation:
    """The master in worker 0, what it is told, and what it does about it.

    What it asks the tasks is a line ``w1 <- RunGraph(a)``, and waits in `asked` until `answer` or `fail`.
    What it tells them is ``w1 <~ CleanupGraph``.
    """

    def __init__(self) -> None:
        self.master = m.Master(FIRST, TASKS, random.Random(1))
        self.asked: dict[str, list[int]] = {task: [] for task in TASKS}
        self.messages: list[Message] = []
        """Those of the last event: what tasks were asked and told, and what the client was answered."""
        self.error: OpError | None = None
        self.session = ""
        self.callable = 0
        self.cut = self.extending = 0
        self._serial = 0

    def ask(self, body: Any, tensors: Sequence[Any] = (), graph: Any = None, peer: str = CLIENT) -> list[str]:
        self._serial += 1
        return self.tell(ev.Asked(peer, self._serial, Message(body, tensors, graph)))

    def answer(self, task: str, body: Any, tensors: Sequence[Any] = ()) -> list[str]:
        return self.tell(ev.Answered(self.asked[task].pop(0), Message(body, tensors), None))

    def fail(self, task: str, error: OpError) -> list[str]:
        return self.tell(ev.Answered(self.asked[task].pop(0), None, error))

    def tell(self, event: Any) -> list[str]:
        self.error, self.messages = None, []
        return [self._text(action) for action in self.master.handle(event)]

    def _text(self, action: Any) -> str:
        match action:
            case ev.Ask(task, token, message, connects):
                self.asked[task].append(token)
                self.messages.append(message)
                given = f"({', '.join(map(str, message.tensors))})" if message.tensors else ""
                return f"{SHORT[task]} <- {name_of(message)}{given}{' waits for it' if connects else ''}"
            case ev.Tell(task, message):
                self.messages.append(message)
                return f"{SHORT[task]} <~ {name_of(message)}"
            case ev.CutGraph(token, client, graph):
                self.cut = token
                return f"cut version {graph.version} for {client}"
            case ev.ExtendGraph(token, graph):
                self.extending = token
                return f"extend version {graph.version}"
            case ev.Answer(peer, request_id, message, None):
                self.messages.append(message)
                return (
                    f"answer {peer} {request_id}: {name_of(message)}({', '.join(map(str, message.tensors))})"
                )
            case ev.Answer(peer, request_id, None, error):
                self.error = error
                return f"answer {peer} {request_id}: {type(error).__name__}"
        raise AssertionError(f"unknown action {action}")

    # --- on the way to a step

    def create(self, *filters: str) -> None:
        self.ask(pb.CreateSession(device_filters=filters))
        for task in TASKS:
            while self.asked[task]:
                self.answer(task, pb.DeviceList(devices=[pb.DeviceAttributes(name=task)]))
        self.session = self.messages[-1].body.session

    def make(self) -> None:
        self.ask(self.wanted())
        self.tell(ev.GraphCut(self.cut, PARTS, {"v": PS}, None))
        for i, task in enumerate(PARTS):
            self.answer(task, pb.GraphHandle(graph=10 + i))
        self.callable = self.messages[-1].body.callable

    def wanted(self) -> Any:
        """The request for a callable with two feeds and three fetches."""
        fed, fetches = [[pb.TensorName(op=name) for name in names] for names in ("ab", "xyz")]
        return pb.MakeCallable(session=self.session, fed=fed, fetches=fetches)

    def run(self, **options: Any) -> list[str]:
        return self.ask(pb.RunStep(session=self.session, callable=self.callable, **options), ["a", "b"])

    def finish(self, task: str) -> list[str]:
        return self.answer(task, pb.StepResult(), FETCHES[task])


def name_of(message: Message) -> str:
    return type(message.body).__name__


@pytest.fixture
def master() -> Conversation:
    return Conversation()


@pytest.fixture
def ready(master: Conversation) -> Conversation:
    """With a session and a callable that has a part in every task."""
    master.create()
    master.make()
    return master


def is_idle(master: m.Master) -> bool:
    return not master._sessions and not master._pending


# --- sessions


def test_a_session_is_made_in_all_tasks(master: Conversation) -> None:
    assert master.ask(pb.CreateSession()) == [
        f"{task} <- CreateWorkerSession waits for it" for task in ("ps", "w0", "w1")
    ]
    for task in (SECOND, PS):
        assert master.answer(task, pb.DeviceList(devices=[pb.DeviceAttributes(name=task)])) == []
    done = master.answer(FIRST, pb.DeviceList(devices=[pb.DeviceAttributes(name=FIRST)]))
    assert done == ["answer client#1 1: SessionHandle()"]
    assert [device.name for device in master.messages[0].body.devices] == TASKS


@pytest.mark.parametrize(
    "filters, tasks",
    [
        (["/job:ps"], [PS, FIRST]),
        (["/job:ps", "/job:worker/task:1"], TASKS),
        (["/job:worker/replica:0/task:1"], [FIRST, SECOND]),
        (["/job:worker/task:1/device:CPU:0"], [FIRST, SECOND]),
        (["/job:worker"], [FIRST, SECOND]),
        (["/job:work"], [FIRST]),
        (["/job:worker/task:10"], [FIRST]),
        ([], TASKS),
    ],
)
def test_device_filters_name_jobs_and_tasks(
    master: Conversation, filters: list[str], tasks: list[str]
) -> None:
    lines = master.ask(pb.CreateSession(device_filters=filters))
    assert lines == [f"{SHORT[task]} <- CreateWorkerSession waits for it" for task in tasks]


def test_a_cluster_that_is_not_complete_has_no_session(master: Conversation) -> None:
    master.ask(pb.CreateSession())
    master.answer(PS, pb.DeviceList())
    master.fail(SECOND, UnavailableError("connection refused"))
    assert master.answer(FIRST, pb.DeviceList()) == [
        "ps <~ DeleteWorkerSession",
        "w0 <~ DeleteWorkerSession",
        "answer client#1 1: UnavailableError",
    ]
    assert master.error is not None
    assert f"{SECOND}: connection refused" in master.error.message
    assert is_idle(master.master)


@pytest.mark.parametrize(
    "forged",
    [
        lambda name, made: pb.ExtendSession(session=name, graph=b"%evil = NoOp()", positions=[0]),
        lambda name, made: pb.MakeCallable(session=name, targets=["evil"]),
        lambda name, made: pb.RunStep(session=name, callable=made),
        lambda name, made: pb.PartialRunSetup(session=name),
        lambda name, made: pb.PartialRun(session=name),
        lambda name, made: pb.ReleaseCallable(session=name, callable=made),
        lambda name, made: pb.ListDevices(session=name),
        lambda name, made: pb.CloseSession(session=name),
    ],
)
def test_requests_of_another_connection_do_nothing(ready: Conversation, forged: Any) -> None:
    """They are forged, or were recorded and are played again."""
    lines = ready.ask(forged(ready.session, ready.callable), ["a", "b"], peer="client#2")
    assert [line.rpartition(" ")[2] for line in lines] == ["PermissionDeniedError"]
    assert ready.error is not None
    assert "from the client that created session" in ready.error.message
    assert len(ready.run()) == 3, "the session and its callable are as they were"


@pytest.mark.parametrize("version", [1, 2, 1 << 30])
def test_an_extension_that_comes_again_is_refused(ready: Conversation, version: int) -> None:
    """Such as one that was recorded and comes again after it was done."""
    body = pb.ExtendSession(session=ready.session, version=version, graph=b"%a = NoOp()", positions=[0])
    assert ready.ask(body)[0].endswith("AbortedError")


def test_a_client_that_goes_before_its_session_is_there_leaves_nothing(master: Conversation) -> None:
    master.ask(pb.CreateSession())
    master.answer(PS, pb.DeviceList())
    lines = master.tell(ev.PeerLost(CLIENT, UnavailableError("gone")))
    assert lines == [f"{task} <~ DeleteWorkerSession" for task in ("ps", "w0", "w1")]
    master.fail(FIRST, UnavailableError("gone"))
    assert master.answer(SECOND, pb.DeviceList()) == [  # it may have come after what it was told
        "ps <~ DeleteWorkerSession",
        "w1 <~ DeleteWorkerSession",
        "answer client#1 1: CancelledError",
    ]
    assert is_idle(master.master)


def test_closing_a_session_closes_it_everywhere(ready: Conversation) -> None:
    assert ready.ask(pb.CloseSession(session=ready.session)) == [
        *[f"{task} <~ DeleteWorkerSession" for task in ("ps", "w0", "w1")],
        "answer client#1 3: Done()",
    ]
    assert is_idle(ready.master)


@pytest.mark.parametrize(
    "body",
    [
        pb.RunStep(session="s"),
        pb.ExtendSession(session="s"),
        pb.MakeCallable(session="s"),
        pb.ListDevices(session="s"),
    ],
)
def test_an_unknown_session_is_refused(master: Conversation, body: Any) -> None:
    assert master.ask(body) == ["answer client#1 1: AbortedError"]
    assert "Create a new Session" in str(master.error)


def test_devices_are_those_of_the_sessions_tasks(ready: Conversation) -> None:
    ready.ask(pb.ListDevices(session=ready.session))
    assert [device.name for device in ready.messages[0].body.devices] == TASKS


def test_a_reset_is_done_when_all_tasks_have_done_it(master: Conversation) -> None:
    lines = master.ask(pb.Reset(containers=["c"]))
    assert lines == [f"{task} <- ResetContainers waits for it" for task in ("ps", "w0", "w1")]
    master.answer(PS, pb.Done())
    master.answer(FIRST, pb.Done())
    assert master.answer(SECOND, pb.Done()) == ["answer client#1 1: Done()"]


def test_a_message_that_is_a_workers_is_refused(master: Conversation) -> None:
    assert master.ask(pb.RunGraph()) == ["answer client#1 1: UnimplementedError"]


@pytest.mark.parametrize("body", [pb.PartialRunSetup(session="s"), pb.PartialRun(session="s")])
def test_a_partial_run_of_an_unknown_session_is_refused(master: Conversation, body: Any) -> None:
    assert master.ask(body) == ["answer client#1 1: AbortedError"]


# --- the session's graph


def extension(master: Conversation, version: int) -> list[str]:
    return master.ask(pb.ExtendSession(session=master.session, version=version))


def extended(master: Conversation, version: int) -> list[str]:
    """The end of the last extension, which makes ``version``."""
    return master.tell(ev.GraphExtended(master.extending, SessionGraph(version), None))


def test_a_graph_is_extended_version_by_version(master: Conversation) -> None:
    master.create()
    for version in range(3):
        assert extension(master, version) == [f"extend version {version}"]
        assert extended(master, version + 1) == [f"answer client#1 {version + 2}: GraphVersion()"]
        assert master.messages[0].body.version == version + 1
    assert master.ask(master.wanted()) == ["cut version 3 for client#1"]


def test_an_extension_of_another_version_is_refused(master: Conversation) -> None:
    master.create()
    assert extension(master, 1) == ["answer client#1 2: AbortedError"]
    assert "expected an extension of version 0" in str(master.error)


def test_of_two_extensions_at_once_one_is_refused(master: Conversation) -> None:
    master.create()
    extension(master, 0)
    first = master.extending
    assert extension(master, 0) == ["extend version 0"]
    extended(master, 1)
    late = ev.GraphExtended(first, SessionGraph(1), None)
    assert master.tell(late) == ["answer client#1 2: AbortedError"]
    assert extension(master, 1) == ["extend version 1"]


def test_an_extension_that_cannot_be_read_changes_nothing(master: Conversation) -> None:
    master.create()
    extension(master, 0)
    failed = ev.GraphExtended(master.extending, None, InvalidArgumentError("no such op"))
    assert master.tell(failed) == ["answer client#1 2: InvalidArgumentError"]
    assert extension(master, 0) == ["extend version 0"]


def test_a_session_closed_while_its_graph_is_extended(master: Conversation) -> None:
    master.create()
    extension(master, 0)
    master.ask(pb.CloseSession(session=master.session))
    assert extended(master, 1) == ["answer client#1 2: CancelledError"]
    assert is_idle(master.master)


# --- constants


def make_with(master: Conversation, **constants: list[Any]) -> list[Any]:
    """A callable whose parts have these constants, by task. What the tasks are asked to register."""
    names = {short: task for task, short in SHORT.items()}
    parts = {names[name]: ev.Part(GRAPH, (), (), arrays) for name, arrays in constants.items()}
    master.ask(master.wanted())
    master.tell(ev.GraphCut(master.cut, parts, {}, None))
    return master.messages


def numbers_of(message: Any) -> tuple[list[int], list[int]]:
    """(those of the graph, those that go with it)."""
    assert len(message.tensors) == len(message.body.carried)
    return list(message.body.constants), list(message.body.carried)


A, B = np.zeros(1000), np.ones(1000)


def test_a_constant_goes_to_a_task_once(master: Conversation) -> None:
    master.create()
    at_ps, at_first = make_with(master, ps=[A, B, A], w0=[A])
    assert numbers_of(at_ps) == ([1, 2, 1], [1, 2])
    assert [tensor is array for tensor, array in zip(at_ps.tensors, [A, B], strict=True)] == [True, True]
    assert numbers_of(at_first) == ([1], [1])
    for task in (PS, FIRST):
        master.answer(task, pb.GraphHandle(graph=1))
    (again,) = make_with(master, ps=[B])
    assert numbers_of(again) == ([2], [])


def test_a_constant_on_its_way_is_not_relied_on(master: Conversation) -> None:
    """The second graph may be there before the first."""
    master.create()
    make_with(master, ps=[A])
    (second,) = make_with(master, ps=[A])
    assert numbers_of(second) == ([1], [1])


def test_a_constant_is_forgotten_with_the_last_graph_that_has_it(master: Conversation) -> None:
    master.create()
    callables = []
    for arrays in ([A, B], [A]):
        make_with(master, ps=arrays)
        master.answer(PS, pb.GraphHandle(graph=5 + len(callables)))
        callables.append(master.messages[-1].body.callable)
    forgotten = []
    for number in callables:
        master.ask(pb.ReleaseCallable(session=master.session, callable=number))
        forgotten.append((list(master.messages[0].body.graphs), list(master.messages[0].body.constants)))
    assert forgotten == [([5], [2]), ([6], [1])]
    (anew,) = make_with(master, ps=[A])
    assert numbers_of(anew) == ([3], [3])


def test_constants_of_a_part_that_failed_are_forgotten(master: Conversation) -> None:
    master.create()
    make_with(master, ps=[A], w0=[B])
    master.answer(PS, pb.GraphHandle(graph=5))
    assert master.fail(FIRST, InvalidArgumentError("no kernel")) == [
        "ps <~ DeregisterGraph",
        "w0 <~ DeregisterGraph",
        "answer client#1 2: InvalidArgumentError",
    ]
    told = [(list(message.body.graphs), list(message.body.constants)) for message in master.messages]
    assert told == [([5], [1]), ([], [1])]


# --- callables


def test_a_callable_is_cut_and_registered_where_it_has_a_part(master: Conversation) -> None:
    master.create()
    assert master.ask(master.wanted()) == ["cut version 0 for client#1"]
    registered = master.tell(ev.GraphCut(master.cut, PARTS, {"v": PS}, None))
    assert registered == [f"{task} <- RegisterGraph" for task in ("ps", "w0", "w1")]
    master.answer(PS, pb.GraphHandle(graph=1))
    master.answer(FIRST, pb.GraphHandle(graph=1))
    assert master.answer(SECOND, pb.GraphHandle(graph=1)) == ["answer client#1 2: CallableHandle()"]
    assert dict(master.messages[0].body.placement) == {"v": PS}


def test_a_graph_that_cannot_be_cut_is_refused(master: Conversation) -> None:
    master.create()
    master.ask(master.wanted())
    failed = ev.GraphCut(master.cut, {}, {}, InvalidArgumentError("no such device"))
    assert master.tell(failed) == ["answer client#1 2: InvalidArgumentError"]


def test_a_part_that_does_not_compile_takes_the_others_with_it(master: Conversation) -> None:
    master.create()
    master.ask(master.wanted())
    master.tell(ev.GraphCut(master.cut, PARTS, {}, None))
    master.answer(PS, pb.GraphHandle(graph=5))
    assert master.fail(FIRST, InvalidArgumentError("no kernel")) == []
    assert master.answer(SECOND, pb.GraphHandle(graph=6)) == [
        "ps <~ DeregisterGraph",
        "w1 <~ DeregisterGraph",
        "answer client#1 2: InvalidArgumentError",
    ]
    assert [list(message.body.graphs) for message in master.messages] == [[5], [6]]


def test_a_session_closed_while_its_graph_is_cut_or_registered(master: Conversation) -> None:
    master.create()
    master.ask(master.wanted())
    first = master.cut
    master.ask(master.wanted())
    master.tell(ev.GraphCut(master.cut, {PS: PARTS[PS]}, {}, None))
    master.ask(pb.CloseSession(session=master.session))
    assert master.tell(ev.GraphCut(first, PARTS, {}, None)) == ["answer client#1 2: CancelledError"]
    assert master.answer(PS, pb.GraphHandle(graph=1)) == ["answer client#1 3: CancelledError"]
    assert is_idle(master.master)


def test_a_callable_is_released_in_its_tasks(ready: Conversation) -> None:
    body = pb.ReleaseCallable(session=ready.session, callable=ready.callable)
    deregistered = [f"{task} <~ DeregisterGraph" for task in ("ps", "w0", "w1")]
    assert ready.ask(body) == [*deregistered, "answer client#1 3: Done()"]
    assert ready.ask(body) == ["answer client#1 4: Done()"]
    assert ready.run() == ["answer client#1 5: AbortedError"]


# --- steps


def test_a_step_is_one_message_a_task_and_the_own_part_is_last(ready: Conversation) -> None:
    assert ready.run(timeout_ms=70) == ["ps <- RunGraph(a)", "w1 <- RunGraph(b, a)", "w0 <- RunGraph"]
    assert {message.body.step for message in ready.messages} == {ready.messages[0].body.step}
    assert [message.body.timeout_ms for message in ready.messages] == [70, 70, 70]
    assert ready.finish(SECOND) == ready.finish(PS) == []
    assert ready.finish(FIRST) == ["answer client#1 3: StepResult(x, y, z)"]


def test_a_step_with_the_wrong_number_of_feeds_is_refused_and_nobody_is_asked(ready: Conversation) -> None:
    body = pb.RunStep(session=ready.session, callable=ready.callable)
    assert ready.ask(body, ["a"]) == ["answer client#1 3: InvalidArgumentError"]
    assert not ready.master._pending


def test_steps_have_different_numbers(ready: Conversation) -> None:
    numbers = set()
    for _ in range(20):
        ready.run()
        numbers.add(ready.messages[0].body.step)
    assert len(numbers) == 20


def test_a_part_that_fails_ends_the_others_and_the_client_hears_of_it_when_none_runs(
    ready: Conversation,
) -> None:
    ready.run()
    assert ready.fail(PS, InvalidArgumentError("planted")) == ["w1 <~ CleanupGraph", "w0 <~ CleanupGraph"]
    status = ready.messages[0].body.status
    assert status.is_derived
    assert status.message == "planted"
    assert ready.fail(SECOND, CancelledError("as told")) == []
    assert ready.finish(FIRST) == ["answer client#1 3: InvalidArgumentError"]


def test_the_error_is_the_root_cause_whoever_was_first(ready: Conversation) -> None:
    ready.run()
    ready.fail(FIRST, derived(InvalidArgumentError("planted"), PS))
    ready.fail(SECOND, lost(PS, "reset"))
    ready.fail(PS, InvalidArgumentError("planted"))
    assert isinstance(ready.error, UnavailableError)
    assert ready.error.origin == Origin(PS, False)


def test_a_lost_worker_is_the_error_of_its_part(ready: Conversation) -> None:
    ready.run()
    ready.fail(SECOND, lost(SECOND, "reset"))
    ready.finish(PS)
    assert ready.finish(FIRST) == ["answer client#1 3: UnavailableError"]


def test_a_step_that_fails_is_not_sent_again(ready: Conversation) -> None:
    ready.run()
    for task in TASKS:
        lines = ready.fail(task, UnavailableError("gone"))
        assert not [line for line in lines if "RunGraph" in line]


def test_a_client_may_give_a_step_up(ready: Conversation) -> None:
    ready.run()
    body = pb.CancelStep(request_id=3, status=encode_status(CancelledError("enough"), "client"))
    aborts = ["ps <~ CleanupGraph", "w1 <~ CleanupGraph", "w0 <~ CleanupGraph"]
    assert ready.ask(body, peer="client#2") == ["answer client#2 4: Done()"]  # not another's step
    assert ready.ask(body) == [*aborts, "answer client#1 5: Done()"]
    for task in (PS, FIRST):
        ready.fail(task, derived(CancelledError("enough"), FIRST))
    assert ready.finish(SECOND) == ["answer client#1 3: CancelledError"]
    assert ready.ask(body) == ["answer client#1 6: Done()"]  # too late


def test_a_step_that_is_over_at_its_deadline_is_not_aborted(ready: Conversation) -> None:
    ready.tell(ev.Ticked(100.0))
    ready.run(timeout_ms=1000)
    for task in TASKS:
        ready.finish(task)
    assert ready.tell(ev.Ticked(200.0)) == []


def test_tasks_that_miss_the_deadline_are_ended_and_then_left(ready: Conversation) -> None:
    ready.tell(ev.Ticked(100.0))
    ready.run(timeout_ms=1000)
    ready.finish(PS)
    assert ready.tell(ev.Ticked(101.0 + LATE_S)) == []
    assert ready.tell(ev.Ticked(101.1 + LATE_S)) == ["w1 <~ CleanupGraph", "w0 <~ CleanupGraph"]
    assert ready.tell(ev.Ticked(101.0 + LATE_S + GRACE_S)) == []
    assert ready.finish(FIRST) == []
    late = ready.tell(ev.Ticked(101.2 + LATE_S + GRACE_S))
    assert late == ["answer client#1 3: DeadlineExceededError"]
    assert isinstance(ready.error, DeadlineExceededError)
    assert ready.finish(SECOND) == []  # nobody waits for it any more


def test_who_does_not_end_a_failed_step_is_waited_for_only_so_long(ready: Conversation) -> None:
    ready.tell(ev.Ticked(50.0))
    ready.run()
    ready.fail(PS, InvalidArgumentError("planted"))
    assert ready.tell(ev.Ticked(50.0 + GRACE_S)) == []
    assert ready.tell(ev.Ticked(50.1 + GRACE_S)) == ["answer client#1 3: InvalidArgumentError"]


def test_a_step_without_a_deadline_may_take_any_time(ready: Conversation) -> None:
    ready.run()
    assert ready.tell(ev.Ticked(1e6)) == []


def test_a_session_closed_while_a_step_runs_ends_it(ready: Conversation) -> None:
    ready.run()
    ready.ask(pb.CloseSession(session=ready.session))
    for task in (PS, FIRST):
        ready.fail(task, CancelledError("the session was closed"))
    assert ready.fail(SECOND, CancelledError("the session was closed")) == [
        "answer client#1 3: CancelledError"
    ]
    assert is_idle(ready.master)


def test_what_a_client_began_ends_with_it(ready: Conversation) -> None:
    ready.run()
    lines = ready.tell(ev.PeerLost(CLIENT, UnavailableError("gone")))
    assert lines == [f"{task} <~ DeleteWorkerSession" for task in ("ps", "w0", "w1")]
    assert ready.tell(ev.PeerLost(CLIENT, UnavailableError("gone"))) == []


def test_a_callable_without_parts_is_there_at_once(master: Conversation) -> None:
    master.create()
    master.ask(master.wanted())
    assert master.tell(ev.GraphCut(master.cut, {}, {}, None)) == ["answer client#1 2: CallableHandle()"]
    master.callable = master.messages[0].body.callable
    assert master.run()[0].startswith("answer client#1 3: StepResult")


# --- gang-scheduled steps


@pytest.fixture
def gang(master: Conversation) -> Conversation:
    """With a callable whose parts in the workers have collectives of a group that both have joined."""
    devices = {task: (f"{task}/device:CPU:0",) for task in (FIRST, SECOND)}
    parts = {task: part._replace(gang=devices.get(task, ())) for task, part in PARTS.items()}
    master.create()
    master.ask(master.wanted())
    master.tell(ev.GraphCut(master.cut, parts, {"v": PS}, None))
    for task in parts:
        master.answer(task, pb.GraphHandle(graph=1))
    master.callable = master.messages[-1].body.callable
    return master


RUNS = ["ps <- RunGraph(a)", "w1 <- RunGraph(b, a)", "w0 <- RunGraph"]


def test_a_gang_scheduled_step_begins_when_its_turn_has_come_and_ends_it(gang: Conversation) -> None:
    assert gang.run(timeout_ms=70) == ["ps <- TakeTurn"]
    asked = gang.messages[0].body
    assert list(asked.devices) == [f"{FIRST}/device:CPU:0", f"{SECOND}/device:CPU:0"]
    assert gang.answer(PS, pb.Done()) == RUNS
    assert {message.body.step for message in gang.messages} == {asked.step}
    assert {message.body.timeout_ms for message in gang.messages} == {0}  # the master's, which lets it end
    gang.finish(SECOND)
    gang.finish(PS)
    assert gang.finish(FIRST) == ["answer client#1 3: StepResult(x, y, z)", "ps <~ EndTurn"]
    assert gang.messages[-1].body.step == asked.step


def test_a_step_that_is_given_up_before_its_turn_does_not_begin(gang: Conversation) -> None:
    gang.run()
    body = pb.CancelStep(request_id=3, status=encode_status(CancelledError("enough"), "client"))
    assert gang.ask(body) == ["ps <~ CleanupGraph", "answer client#1 4: Done()"]
    assert gang.fail(PS, CancelledError("enough")) == ["answer client#1 3: CancelledError", "ps <~ EndTurn"]


def test_a_turn_that_comes_after_the_step_was_given_up_is_given_back(gang: Conversation) -> None:
    gang.run()
    body = pb.CancelStep(request_id=3, status=encode_status(CancelledError("enough"), "client"))
    gang.ask(body)
    assert gang.answer(PS, pb.Done()) == ["answer client#1 3: CancelledError", "ps <~ EndTurn"]


def test_a_step_that_is_given_up_in_its_turn_may_end(gang: Conversation) -> None:
    gang.run()
    gang.answer(PS, pb.Done())
    body = pb.CancelStep(request_id=3, status=encode_status(CancelledError("enough"), "client"))
    assert gang.ask(body) == ["answer client#1 4: Done()"]
    gang.finish(PS)
    gang.finish(FIRST)
    assert gang.finish(SECOND) == ["answer client#1 3: CancelledError", "ps <~ EndTurn"]


def test_a_step_that_is_given_up_in_its_turn_and_does_not_end_is_ended(gang: Conversation) -> None:
    gang.tell(ev.Ticked(50.0))
    gang.run()
    gang.answer(PS, pb.Done())
    gang.ask(pb.CancelStep(request_id=3, status=encode_status(CancelledError("enough"), "client")))
    gang.finish(PS)
    assert gang.tell(ev.Ticked(50.0 + TURN_S)) == []
    assert gang.tell(ev.Ticked(50.1 + TURN_S)) == ["w1 <~ CleanupGraph", "w0 <~ CleanupGraph"]
    gang.fail(FIRST, CancelledError("as told"))
    lines = gang.fail(SECOND, CancelledError("as told"))
    assert lines == ["answer client#1 3: CancelledError", "ps <~ EndTurn"]


def test_a_step_ends_before_the_session_of_a_client_that_is_gone(gang: Conversation) -> None:
    """Its parts would otherwise be ended between two collectives, and the group with them."""
    gang.run()
    gang.answer(PS, pb.Done())
    gang.run()
    assert gang.tell(ev.PeerLost(CLIENT, UnavailableError("gone"))) == []
    for task in (PS, FIRST):
        gang.finish(task)
    closed = [f"{task} <~ DeleteWorkerSession" for task in ("ps", "w0", "w1")]
    lines = gang.finish(SECOND)
    assert lines == ["answer client#1 3: CancelledError", "ps <~ EndTurn", *closed]
    late = gang.answer(PS, pb.Done())  # the turn of the step that waited
    assert late == ["answer client#1 4: CancelledError", "ps <~ EndTurn"]
    assert is_idle(gang.master)


def test_a_part_that_fails_ends_the_turn_when_no_other_part_runs(gang: Conversation) -> None:
    gang.run()
    gang.answer(PS, pb.Done())
    assert gang.fail(FIRST, InvalidArgumentError("planted")) == ["ps <~ CleanupGraph", "w1 <~ CleanupGraph"]
    gang.finish(PS)
    lines = gang.fail(SECOND, CancelledError("as told"))
    assert lines == ["answer client#1 3: InvalidArgumentError", "ps <~ EndTurn"]


def test_no_turn_without_the_task_that_keeps_them(gang: Conversation) -> None:
    gang.run()
    lines = gang.fail(PS, lost(PS, "reset"))
    assert lines == ["answer client#1 3: UnavailableError", "ps <~ EndTurn"]


# --- partial runs


def step_in_parts() -> tuple[SessionGraph, Subgraph]:
    """``y = exp(a)`` on the ps, ``z = y * b`` on worker 1; and the feeds of ``a`` and ``b``."""
    with tf.Graph() as graph:
        a, b = (tf.placeholder(tf.float32, [], name=name) for name in "ab")
        y = tf.exp(a, name="y")
        tf.multiply(y, b, name="z")
    feeds = [feed_node(tensor, ()) for tensor in (a, b)]
    nodes = {op.name: op.node for op in graph.get_operations() if op.type != "Placeholder"}
    return SessionGraph(1, nodes), Subgraph({node.name: node for node in feeds}, ("a", "b"))


def names(*refs: str) -> list[Any]:
    return [pb.TensorName(op=ref) for ref in refs]


@pytest.fixture
def parts(master: Conversation) -> Conversation:
    """With a partial run that will fetch ``y`` and ``z``."""
    master.create()
    extension(master, 0)
    graph, feeds = step_in_parts()
    master.tell(ev.GraphExtended(master.extending, graph, None))
    body = pb.PartialRunSetup(session=master.session, fed=names("a", "b"), fetches=names("y", "z"))
    (line,) = master.ask(body, graph=feeds)
    assert line.startswith("answer client#1 3: PartialRunHandle")
    master.callable = master.messages[0].body.partial_run
    return master


def call(master: Conversation, fed: str, fetches: str) -> list[str]:
    body = pb.PartialRun(
        session=master.session, partial_run=master.callable, fed=names(*fed), fetches=names(*fetches)
    )
    return master.ask(body, [np.float32(ord(name)) for name in fed])


def cut_parts(master: Conversation, task: str, feeds: int, fetches: int) -> list[str]:
    """What was to be cut is one part, of ``task``."""
    node = Node("p", op_def("_Feed"), (), (), {}, f"{task}/device:CPU:0", None, (TensorSpec(tf.float32, ()),))
    subgraph = Subgraph({"p": node}, ("p",) * feeds, (("p", 0),) * fetches)
    part = ev.Part(subgraph, tuple(range(feeds)), tuple(range(fetches)))
    return master.tell(ev.GraphCut(master.cut, {task: part}, {}, None))


def first_call(master: Conversation) -> None:
    """``y`` is fetched, and kept in the ps for ``z``."""
    assert call(master, "a", "y") == ["cut version 1 for client#1"]
    assert cut_parts(master, PS, 1, 2) == ["ps <- RegisterGraph"]
    assert (list(master.messages[0].body.taken), list(master.messages[0].body.keeps)) == ([], [1])
    assert master.answer(PS, pb.GraphHandle(graph=4)) == ["ps <- RunGraph(97.0)"]
    assert master.messages[0].body.partial_run == master.callable
    assert master.answer(PS, pb.StepResult(), ["the value of y"]) == [
        "answer client#1 4: StepResult(the value of y)"
    ]


def test_a_call_is_cut_registered_and_run_and_what_is_read_later_stays_there(parts: Conversation) -> None:
    first_call(parts)
    assert call(parts, "b", "z") == ["cut version 1 for client#1"]
    assert cut_parts(parts, PS, 2, 1) == ["ps <- RegisterGraph"]
    assert (list(parts.messages[0].body.taken), list(parts.messages[0].body.keeps)) == ([1, 0], [])
    assert parts.answer(PS, pb.GraphHandle(graph=5)) == ["ps <- RunGraph(98.0)"]
    assert parts.answer(PS, pb.StepResult(), ["the value of z"]) == [
        "ps <~ ForgetPartialRuns",
        "answer client#1 5: StepResult(the value of z)",
    ]
    assert call(parts, "", "z") == ["answer client#1 6: InvalidArgumentError"]


def test_of_two_calls_at_once_one_is_refused(parts: Conversation) -> None:
    call(parts, "a", "y")
    assert call(parts, "b", "z") == ["answer client#1 5: FailedPreconditionError"]
    assert "one call at a time" in str(parts.error)
    cut_parts(parts, PS, 1, 2)
    parts.answer(PS, pb.GraphHandle(graph=4))
    assert call(parts, "b", "z") == ["answer client#1 6: FailedPreconditionError"]


def test_a_call_that_is_cancelled_before_it_runs_does_not_run(parts: Conversation) -> None:
    call(parts, "a", "y")
    body = pb.CancelStep(request_id=4, status=encode_status(CancelledError("enough"), "client"))
    assert parts.ask(body) == ["answer client#1 5: Done()"]
    assert cut_parts(parts, PS, 1, 2) == ["answer client#1 4: CancelledError"]
    assert call(parts, "a", "y") == ["answer client#1 6: FailedPreconditionError"]


def test_a_call_whose_task_is_lost_ends_the_run_and_names_the_task(parts: Conversation) -> None:
    first_call(parts)
    call(parts, "b", "z")
    cut_parts(parts, PS, 2, 1)
    parts.answer(PS, pb.GraphHandle(graph=5))
    assert parts.fail(PS, lost(PS, "reset")) == [
        "ps <~ ForgetPartialRuns",
        "answer client#1 5: UnavailableError",
    ]
    assert call(parts, "b", "z") == ["answer client#1 6: FailedPreconditionError"]
    assert PS in str(parts.error)


def test_a_session_closed_while_a_call_is_cut_registered_or_run(parts: Conversation) -> None:
    first_call(parts)
    call(parts, "b", "z")
    parts.ask(pb.CloseSession(session=parts.session))
    assert cut_parts(parts, PS, 2, 1) == ["answer client#1 5: CancelledError"]
    assert call(parts, "b", "z") == ["answer client#1 7: AbortedError"]
    assert is_idle(parts.master)


def test_what_is_kept_of_a_run_that_is_let_go_of_is_forgotten(parts: Conversation) -> None:
    first_call(parts)
    _, feeds = step_in_parts()
    body = pb.PartialRunSetup(
        session=parts.session, fed=names("a", "b"), fetches=names("y"), released=[parts.callable, 99]
    )
    assert parts.ask(body, graph=feeds) == [
        "ps <~ ForgetPartialRuns",
        "answer client#1 5: PartialRunHandle()",
    ]


def test_a_run_that_is_let_go_of_while_it_is_called_is_forgotten_then(parts: Conversation) -> None:
    call(parts, "a", "y")
    cut_parts(parts, PS, 1, 2)
    parts.answer(PS, pb.GraphHandle(graph=4))
    _, feeds = step_in_parts()
    body = pb.PartialRunSetup(session=parts.session, fed=names("a", "b"), released=[parts.callable])
    assert parts.ask(body, graph=feeds) == ["answer client#1 5: PartialRunHandle()"]
    assert parts.answer(PS, pb.StepResult(), ["y"]) == [
        "ps <~ ForgetPartialRuns",
        "answer client#1 4: CancelledError",
    ]
