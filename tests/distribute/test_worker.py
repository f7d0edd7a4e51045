"""The worker's state machine: an event in, the actions out, as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from flowrt.distribute.machines import events as ev
from flowrt.distribute.wire.messages import Message, encode_status
from flowrt.distribute.worker import worker as w
from flowrt.errors import CancelledError, InvalidArgumentError, OpError, Origin, UnavailableError
from flowrt.graph.node import Subgraph
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.remote import RemoteRendezvous

TASK = "/job:worker/replica:0/task:1"
OTHER = "/job:worker/replica:0/task:0"
LIFE = 0xABC
MASTER, CONSUMER = "master#1", "consumer#2"
KEY = f"{TASK}/device:CPU:0;{LIFE:016x};{OTHER}/device:CPU:0;x:0;0:0"
GRAPH = Subgraph({})


class Conversation:
    """A worker, what it is told, and what it does about it."""

    def __init__(self) -> None:
        self.worker = w.Worker(
            TASK, LIFE, "1.0", [pb.DeviceAttributes(name=f"{TASK}/device:CPU:0")], self._new
        )
        self.made: dict[int, RemoteRendezvous] = {}
        self._serial = 0
        self.errors: list[OpError] = []
        """Those that the last event was answered with."""

    def _new(self, step: int) -> RemoteRendezvous:
        self.made[step] = RemoteRendezvous(TASK, lambda task, keys: None)
        return self.made[step]

    def ask(self, body: Any, tensors: Sequence[Any] = (), graph: Any = None, peer: str = MASTER) -> list[str]:
        self._serial += 1
        return self.tell(ev.Asked(peer, self._serial, Message(body, tensors, graph)))

    def tell(self, event: Any) -> list[str]:
        self.errors = []
        return [self._text(action) for action in self.worker.handle(event)]

    def _text(self, action: Any) -> str:
        match action:
            case ev.Answer(peer, request_id, message, None):
                return f"answer {peer} {request_id}: {type(message.body).__name__}"
            case ev.Answer(peer, request_id, None, error):
                self.errors.append(error)
                return f"answer {peer} {request_id}: {type(error).__name__}"
            case ev.CompileGraph(_, session, peer, message, constants):
                assert message.graph is GRAPH
                return f"compile for {session} of {peer}, with {list(constants)}"
            case ev.StartStep(step, part, feeds, rendezvous, timeout_ms):
                assert rendezvous is self.made[step]
                return f"start {step}: {part}({', '.join(map(str, feeds))}) in {timeout_ms} ms"
            case ev.EndStep(step, rendezvous, error):
                assert rendezvous is self.made[step]
                self.errors.append(error)
                return f"end {step}: {type(error).__name__}"
            case ev.ServeTensors(step, rendezvous, peer, request_id, keys):
                assert rendezvous is self.made[step]
                return f"serve {peer} {request_id}: {len(keys)} of {step}"
            case _:
                return " ".join([type(action).__name__, *map(str, action)])


@pytest.fixture
def worker() -> Conversation:
    return Conversation()


@pytest.fixture
def ready(worker: Conversation) -> Conversation:
    """With session "s" of the master, and its graph."""
    worker.ask(pb.CreateWorkerSession(session="s"))
    register(worker)
    return worker


def register(worker: Conversation, session: str = "s", part: Any = "part") -> int:
    (compiling,) = worker.worker.handle(
        ev.Asked(MASTER, 99, Message(pb.RegisterGraph(session=session), graph=GRAPH))
    )
    number = int(compiling.graph)
    worker.tell(ev.GraphCompiled(number, part, None))
    return number


def graph_of(worker: Conversation) -> int:
    return next(iter(worker.worker._graphs))


def run(worker: Conversation, step: int = 7, peer: str = MASTER, **options: Any) -> list[str]:
    return worker.ask(pb.RunGraph(graph=graph_of(worker), step=step, **options), ["a"], peer=peer)


def recv(worker: Conversation, step: int = 7, key: str = KEY) -> list[str]:
    return worker.ask(pb.RecvTensor(step=step, keys=[key, key]), peer=CONSUMER)


def ended(step: int = 7, error: OpError | None = None) -> ev.StepEnded:
    return ev.StepEnded(step, ("value",), error)


def aborted(step: int = 7, task: str = OTHER) -> pb.CleanupGraph:
    status = encode_status(InvalidArgumentError("planted"), task)
    status.is_derived = True
    return pb.CleanupGraph(step=step, status=status)


# --- sessions and graphs


def test_a_session_has_the_devices_of_the_task(worker: Conversation) -> None:
    assert worker.ask(pb.CreateWorkerSession(session="s", is_isolated=True)) == [
        "OpenWorkerSession s True",
        "answer master#1 1: DeviceList",
    ]


@pytest.mark.parametrize("links", [["master#1", "master#2"], ["master#2", "master#1"]])
def test_a_session_lives_until_all_links_that_created_it_are_lost(
    worker: Conversation, links: list[str]
) -> None:
    """The master repeats its request when a link is lost; the two requests arrive in either order."""
    create, lost = pb.CreateWorkerSession(session="s"), UnavailableError("gone")
    first, second = (worker.ask(create, peer=link) for link in links)
    assert first == ["OpenWorkerSession s False", f"answer {links[0]} 1: DeviceList"]
    assert second == [f"answer {links[1]} 2: DeviceList"]
    assert worker.tell(ev.PeerLost("master#1", lost)) == []
    assert worker.worker.serves("master#2")
    assert worker.tell(ev.PeerLost("master#2", lost)) == ["ForgetParts []", "CloseWorkerSession s gone"]


def test_a_graph_is_compiled_and_has_a_handle(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    assert worker.ask(pb.RegisterGraph(session="s"), graph=GRAPH) == ["compile for s of master#1, with []"]
    assert worker.tell(ev.GraphCompiled(graph_of(worker), "part", None)) == ["answer master#1 2: GraphHandle"]
    assert worker.ask(pb.DeregisterGraph(graphs=[graph_of(worker)])) == [
        "ForgetParts ['part']",
        "answer master#1 3: Done",
    ]


def test_a_graph_that_does_not_compile_is_forgotten(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    worker.ask(pb.RegisterGraph(session="s"), graph=GRAPH)
    failed = ev.GraphCompiled(graph_of(worker), None, InvalidArgumentError("no kernel"))
    assert worker.tell(failed) == ["answer master#1 2: InvalidArgumentError"]
    assert not worker.worker._graphs


def test_a_graph_of_an_unknown_session_is_refused(worker: Conversation) -> None:
    assert worker.ask(pb.RegisterGraph(session="s"), graph=GRAPH) == ["answer master#1 1: AbortedError"]
    assert "Create a new Session" in worker.errors[0].message


def test_constants_stay_until_they_are_forgotten(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))

    def register_with(numbers: list[int], carried: dict[int, str]) -> list[str]:
        body = pb.RegisterGraph(session="s", constants=numbers, carried=list(carried))
        return worker.ask(body, list(carried.values()), GRAPH)

    assert register_with([1, 2, 1], {1: "a", 2: "b"}) == ["compile for s of master#1, with ['a', 'b', 'a']"]
    assert register_with([2, 3], {3: "c"}) == ["compile for s of master#1, with ['b', 'c']"]
    worker.ask(pb.DeregisterGraph(session="s", constants=[2]))
    assert register_with([3, 1], {}) == ["compile for s of master#1, with ['c', 'a']"]
    assert register_with([2], {}) == ["answer master#1 6: InvalidArgumentError"]
    assert register_with([4], {4: "d"} | {5: "e"}) == ["compile for s of master#1, with ['d']"]


def test_constants_that_nothing_announces_are_refused(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    lines = worker.ask(pb.RegisterGraph(session="s"), ["a"], GRAPH)
    assert lines == ["answer master#1 2: InvalidArgumentError"]
    assert not worker.worker._graphs


def test_constants_end_with_their_session(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    worker.ask(pb.RegisterGraph(session="s", constants=[1], carried=[1]), ["a"], GRAPH)
    worker.ask(pb.DeleteWorkerSession(session="s"))
    worker.ask(pb.CreateWorkerSession(session="s"))
    lines = worker.ask(pb.RegisterGraph(session="s", constants=[1]), [], GRAPH)
    assert lines == ["answer master#1 5: InvalidArgumentError"]


def test_a_session_closed_while_its_graph_compiles(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    worker.ask(pb.RegisterGraph(session="s"), graph=GRAPH)
    number = graph_of(worker)
    assert worker.ask(pb.DeleteWorkerSession(session="s")) == [
        "answer master#1 2: CancelledError",
        "ForgetParts []",
        "CloseWorkerSession s None",
        "answer master#1 3: Done",
    ]
    assert worker.tell(ev.GraphCompiled(number, "part", None)) == ["ForgetParts ['part']"]


def test_a_session_closed_twice_is_closed_once(ready: Conversation) -> None:
    ready.ask(pb.DeleteWorkerSession(session="s"))
    assert ready.ask(pb.DeleteWorkerSession(session="s")) == ["answer master#1 3: Done"]


def test_graphs_of_two_lives_have_different_numbers(ready: Conversation) -> None:
    again = Conversation()
    again.worker = w.Worker(TASK, LIFE + 1, "1.0", [], again._new)
    again.ask(pb.CreateWorkerSession(session="s"))
    assert register(again) != graph_of(ready)


def test_a_reset_ends_all_sessions(ready: Conversation) -> None:
    run(ready)
    assert ready.ask(pb.ResetContainers(containers=["c"])) == [
        "end 7: AbortedError",
        "ForgetParts ['part']",
        "CloseWorkerSession s None",
        "ClearContainers ['c']",
        "answer master#1 3: Done",
    ]


# --- a step


def test_a_step_runs_and_its_values_are_the_answer(ready: Conversation) -> None:
    assert run(ready, timeout_ms=500) == ["start 7: part(a) in 500 ms"]
    assert ready.worker.num_running == 1
    assert ready.tell(ended()) == ["answer master#1 2: StepResult"]
    assert ready.worker.num_running == 0


def test_a_step_is_started_once(ready: Conversation) -> None:
    run(ready)
    assert run(ready) == ["answer master#1 3: AbortedError"]
    assert ready.tell(ended()) == ["answer master#1 2: StepResult"]
    assert run(ready) == ["answer master#1 4: AbortedError"]


def test_a_step_of_an_unknown_graph_is_refused_and_so_is_who_asks_for_its_tensors(
    ready: Conversation,
) -> None:
    recv(ready)
    assert ready.ask(pb.RunGraph(graph=12345, step=7)) == [
        "end 7: AbortedError",
        "answer master#1 3: AbortedError",
    ]
    assert ready.errors[1].origin == Origin(TASK, False)
    assert recv(ready)[0] == "answer consumer#2 4: AbortedError"


def test_a_graph_that_still_compiles_runs_nothing(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    worker.ask(pb.RegisterGraph(session="s"), graph=GRAPH)
    assert run(worker) == ["answer master#1 3: AbortedError"]


def test_an_error_names_this_task_and_reaches_the_others_as_derived(ready: Conversation) -> None:
    run(ready)
    error = InvalidArgumentError("planted")
    assert ready.tell(ended(error=error)) == [
        "end 7: InvalidArgumentError",
        "answer master#1 2: InvalidArgumentError",
    ]
    assert [e.origin for e in ready.errors] == [Origin(TASK, True), Origin(TASK, False)]


def test_a_step_that_ends_after_it_was_aborted_ends_with_the_reason(ready: Conversation) -> None:
    run(ready)
    assert ready.ask(aborted()) == ["end 7: InvalidArgumentError", "answer master#1 3: Done"]
    assert ready.tell(ended()) == ["end 7: InvalidArgumentError", "answer master#1 2: InvalidArgumentError"]
    assert ready.errors[1].origin == Origin(OTHER, True)


def test_a_second_abort_does_not_change_the_reason(ready: Conversation) -> None:
    run(ready)
    ready.ask(aborted())
    ready.ask(pb.CleanupGraph(step=7, status=encode_status(CancelledError("later"), OTHER)))
    assert ready.tell(ended())[1] == "answer master#1 2: InvalidArgumentError"


def test_a_step_aborted_before_it_came_does_not_start(ready: Conversation) -> None:
    assert ready.ask(aborted()) == ["answer master#1 2: Done"]
    assert run(ready) == ["answer master#1 3: InvalidArgumentError"]
    assert ready.worker.num_running == 0


def test_a_deadline_is_an_error_of_the_step_as_any_other(ready: Conversation) -> None:
    run(ready, timeout_ms=10)
    assert ready.tell(ended(error=CancelledError("late")))[1] == "answer master#1 2: CancelledError"


def test_closing_its_session_ends_a_step_which_still_answers(ready: Conversation) -> None:
    run(ready)
    assert ready.ask(pb.DeleteWorkerSession(session="s")) == [
        "end 7: CancelledError",
        "ForgetParts ['part']",
        "CloseWorkerSession s None",
        "answer master#1 3: Done",
    ]
    assert ready.tell(ended()) == ["end 7: CancelledError", "answer master#1 2: CancelledError"]


# --- tensors


def test_a_request_for_tensors_before_the_step_waits_for_it(ready: Conversation) -> None:
    assert recv(ready) == ["serve consumer#2 2: 2 of 7"]
    assert run(ready) == ["start 7: part(a) in 0 ms"]
    assert len(ready.made) == 1
    assert ready.worker.rendezvous(7) is ready.made[7]


def test_a_request_for_tensors_after_the_end_is_refused_key_by_key(ready: Conversation) -> None:
    run(ready)
    ready.tell(ended(error=InvalidArgumentError("planted")))
    assert recv(ready) == [f"answer consumer#2 {3 + i}: InvalidArgumentError" for i in range(2)]
    assert [e.origin for e in ready.errors] == [Origin(TASK, True)] * 2


def test_a_request_for_another_life_is_refused(ready: Conversation) -> None:
    assert recv(ready, key=KEY.replace(f"{LIFE:016x}", f"{LIFE + 1:016x}"))[0] == (
        "answer consumer#2 2: AbortedError"
    )
    assert "was restarted" in ready.errors[0].message
    assert not ready.made


@pytest.mark.parametrize("key", ["", "x", ";;", "a;zz;b;c;0:0"])
def test_what_is_no_key_is_refused(ready: Conversation, key: str) -> None:
    assert recv(ready, key=key)[0] == "answer consumer#2 2: InvalidArgumentError"


def test_requests_for_a_step_that_never_comes_end(ready: Conversation) -> None:
    ready.tell(ev.Ticked(100.0))
    recv(ready)
    assert ready.tell(ev.Ticked(100.0 + w.EARLY_S)) == []
    assert ready.tell(ev.Ticked(100.5 + w.EARLY_S)) == ["end 7: UnavailableError"]
    assert run(ready) == ["answer master#1 3: UnavailableError"]


def test_a_step_that_runs_is_not_ended_by_time(ready: Conversation) -> None:
    run(ready)
    assert ready.tell(ev.Ticked(10 * w.EARLY_S)) == []


def test_only_so_many_steps_are_remembered(ready: Conversation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w, "MAX_REMEMBERED_STEPS", 2)
    for step in (1, 2, 3):
        ready.ask(aborted(step))
    assert run(ready, step=1) == ["start 1: part(a) in 0 ms"]
    assert run(ready, step=3)[0].endswith("InvalidArgumentError")


# --- what may happen at any time


def test_what_a_peer_began_ends_with_it(ready: Conversation) -> None:
    run(ready)
    assert ready.worker.serves(MASTER)
    assert ready.tell(ev.PeerLost(MASTER, UnavailableError("gone"))) == [
        "end 7: UnavailableError",
        "ForgetParts ['part']",
        "CloseWorkerSession s gone",
    ]
    assert not ready.worker.serves(MASTER)


def test_the_loss_of_another_peer_changes_nothing(ready: Conversation) -> None:
    run(ready)
    assert ready.tell(ev.PeerLost(CONSUMER, UnavailableError("gone"))) == []


def test_a_task_that_drains_takes_no_new_work_and_ends_what_it_has(ready: Conversation) -> None:
    run(ready)
    assert ready.ask(pb.Drain(), peer=CONSUMER) == ["answer consumer#2 3: TaskStatus", "StartDraining"]
    assert ready.ask(pb.CreateWorkerSession(session="t")) == ["answer master#1 4: UnavailableError"]
    assert run(ready, step=8) == ["answer master#1 5: UnavailableError"]
    assert recv(ready) == ["serve consumer#2 6: 2 of 7"]
    assert ready.tell(ended()) == ["answer master#1 2: StepResult"]


def test_a_task_drains_once(ready: Conversation) -> None:
    ready.ask(pb.Drain())
    assert ready.ask(pb.Drain()) == ["answer master#1 3: TaskStatus"]


def test_it_says_how_it_is(ready: Conversation) -> None:
    run(ready)
    (answer,) = ready.worker.handle(ev.Asked(MASTER, 1, Message(pb.GetStatus())))
    body = answer.message.body
    assert (body.task, body.incarnation, body.sessions, body.running_steps) == (TASK, LIFE, 1, 1)
    assert ready.ask(pb.Heartbeat()) == ["answer master#1 3: Done"]


def test_a_message_that_is_a_masters_is_refused(worker: Conversation) -> None:
    assert worker.ask(pb.RunStep()) == ["answer master#1 1: UnimplementedError"]


def test_an_end_that_nobody_waits_for_is_nothing(worker: Conversation) -> None:
    assert worker.tell(ended()) == []


# --- turns of gang-scheduled steps


def take(worker: Conversation, step: int, session: str = "s", peer: str = MASTER) -> list[str]:
    return worker.ask(pb.TakeTurn(step=step, session=session, devices=["cpu"]), peer=peer)


def test_a_turn_is_answered_when_it_begins(worker: Conversation) -> None:
    assert take(worker, 1) == ["answer master#1 1: Done"]
    assert take(worker, 2, "t", "master#2") == []
    assert worker.ask(pb.EndTurn(step=1)) == ["answer master#2 2: Done", "answer master#1 3: Done"]


def test_a_step_that_is_ended_while_it_waits_for_its_turn_does_not_begin(worker: Conversation) -> None:
    take(worker, 1)
    take(worker, 2, "t", "master#2")
    lines = worker.ask(aborted(2), peer="master#2")
    assert lines == ["answer master#2 2: InvalidArgumentError", "answer master#2 3: Done"]
    assert worker.ask(pb.EndTurn(step=1)) == ["answer master#1 4: Done"]


def test_the_end_of_a_step_in_its_turn_does_not_end_the_turn(worker: Conversation) -> None:
    """Other parts of it may still run: its master says when it is over."""
    take(worker, 1)
    take(worker, 2, "t", "master#2")
    assert worker.ask(aborted(1)) == ["answer master#1 3: Done"]


def test_turns_of_a_master_that_is_lost_go_on(worker: Conversation) -> None:
    take(worker, 1)
    take(worker, 2)
    take(worker, 3, "t", "master#2")
    assert worker.tell(ev.PeerLost(MASTER, UnavailableError("gone"))) == ["answer master#2 3: Done"]


def test_a_task_that_drains_gives_no_turns(worker: Conversation) -> None:
    worker.ask(pb.Drain())
    assert take(worker, 1) == ["answer master#1 2: UnavailableError"]


# --- partial runs


def test_what_a_call_keeps_is_fed_to_the_next_and_goes_with_its_run(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    numbers = []
    for ends in ({"keeps": [1, 2]}, {"taken": [2, 0, 1]}):
        worker.ask(pb.RegisterGraph(session="s", **ends), graph=GRAPH)
        numbers.append(max(worker.worker._graphs))
        worker.tell(ev.GraphCompiled(numbers[-1], "part", None))
    first, second = (pb.RunGraph(graph=number, step=7 + i, partial_run=5) for i, number in enumerate(numbers))
    worker.ask(first, ["a"])
    (answer,) = worker.worker.handle(ev.StepEnded(7, ("fetched", "x", "y"), None))
    assert answer.message.tensors == ("fetched",)
    assert worker.ask(second, ["b"]) == ["start 8: part(y, b, x) in 0 ms"]
    other = pb.RunGraph(graph=numbers[1], step=9, partial_run=6)
    assert worker.ask(other, ["b"])[-1].endswith("InvalidArgumentError")
    worker.ask(pb.ForgetPartialRuns(session="s", partial_runs=[5, 6]))
    again = pb.RunGraph(graph=numbers[1], step=10, partial_run=5)
    assert worker.ask(again, ["b"])[-1].endswith("InvalidArgumentError")


def test_a_call_that_fails_keeps_nothing(worker: Conversation) -> None:
    worker.ask(pb.CreateWorkerSession(session="s"))
    worker.ask(pb.RegisterGraph(session="s", keeps=[1]), graph=GRAPH)
    worker.tell(ev.GraphCompiled(graph_of(worker), "part", None))
    run(worker, partial_run=5)
    worker.ask(aborted())
    worker.tell(ev.StepEnded(7, ("x",), None))
    assert not list(worker.worker._sessions["s"].kept)
