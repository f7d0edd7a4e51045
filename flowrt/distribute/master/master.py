"""`Master`: a task's service for its clients, as a pure state machine.

    client           master                                           workers
    CreateSession -> CreateWorkerSession                           -> every task that the filters let through
    ExtendSession -> ExtendGraph: missing nodes of the session's graph
    MakeCallable  -> CutGraph: place, cut by task; RegisterGraph   -> the tasks that have a part
    RunStep       -> RunGraph with the part's feeds, one per task  -> the same; returns fetches
                     before it TakeTurn, after it EndTurn          -> the first task, for steps in groups
    PartialRun    -> both, see `flowrt.distribute.master.partial_runs`
    CloseSession  -> DeleteWorkerSession                           -> every task of the session

    handle(event) -> actions, see `flowrt.distribute.machines.events`

All of these send requests to several tasks and wait for all answers: a `Round`, which for a step ends in its
fetches or in one error (`flowrt.distribute.master.pending_replies`).

Rules of this file:
  1. A step is requested once. Failures are never retried: updates may have been applied.
  2. Every request of a client has one answer.
  3. Sessions, steps and graphs of a client end with the client.
  4. A graph is extended from the client's version; one of two concurrent extensions is rejected.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.distribute.cluster.timeouts import CONNECT_S
from flowrt.distribute.machines import events as ev
from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.master.master_session import (
    MasterSession,
    MasterSessions,
    RegisteredStep,
    closed,
    filtered,
)
from flowrt.distribute.master.partial_runs import PartialRuns
from flowrt.distribute.master.pending_replies import PendingReplies, Round
from flowrt.distribute.master.registered_steps import RegisteredSteps, result_of
from flowrt.distribute.wire.messages import Message, decode_status
from flowrt.errors import (
    AbortedError,
    CancelledError,
    InvalidArgumentError,
    OpError,
    PermissionDeniedError,
    UnavailableError,
)
from flowrt.protos import cluster_pb2 as pb


@final
class Master:
    """The state machine of the master in ``task``. ``tasks`` are all of the cluster, ``rng`` draws the
    numbers of sessions and steps.
    """

    def __init__(self, task: str, tasks: Sequence[str], rng: random.Random) -> None:
        self.task, self._tasks, self._rng = task, list(tasks), rng
        self._sessions = MasterSessions(task)
        self._pending = PendingReplies(task)
        self._steps = RegisteredSteps(self._pending, self._sessions, rng, turn_keeper=self._tasks[0])
        self._partial_runs = PartialRuns(self._sessions, self._steps)
        self._last_callable = 0

    def serves(self, client: str) -> bool:
        """Whether a session of ``client`` is open."""
        return any(session.client == client for session in self._sessions.values())

    def handle(self, event: ev.MasterEvent) -> list[ev.MasterAction]:
        match event:
            case ev.Asked():
                return self._asked(event)
            case ev.Answered(token, message, error):
                return self._pending.take(token, message, error)
            case ev.GraphExtended():
                return self._extended(event)
            case ev.GraphCut():
                return self._steps.register(event)
            case ev.PeerLost(peer, _):
                return self._lose(peer)
            case ev.Ticked(now):
                return self._pending.tick(now)

    @staticmethod
    def knows(body: Any) -> bool:
        """Whether a master answers messages like ``body``."""
        return type(body) in _HANDLERS

    def _asked(self, asked: ev.Asked) -> list[ev.MasterAction]:
        peer, request_id, message = asked
        handler = _HANDLERS.get(type(message.body))
        if handler is None:
            return [ev.unknown(asked, self.task)]
        try:
            self._check_owner(peer, message.body)
            return handler(self, peer, request_id, message)
        except OpError as error:
            return [ev.Answer(peer, request_id, None, error)]

    def _check_owner(self, client: str, body: Any) -> None:
        """A session is its client's: a peer that guesses its name, or repeats requests that were recorded on
        another connection, gets nothing. Raises `PermissionDeniedError`.
        """
        session = self._sessions.get(getattr(body, "session", ""))
        if session is not None and session.client != client:
            raise PermissionDeniedError(
                f"master {self.task}: expected {type(body).__name__} from the client that created session "
                f"{body.session!r}; got it from another one"
            )

    # --- sessions

    def _create(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        options = message.body
        tasks = filtered(self._tasks, options.device_filters, self.task)
        name = f"{self._rng.getrandbits(64):016x}"
        round_ = Round(client, request_id, name, self._created)
        self._sessions[name] = MasterSession(client, tasks, options)
        body = pb.CreateWorkerSession(session=name, is_isolated=options.is_isolated)
        return [
            self._pending.ask(round_, task, Message(body), options.connect_timeout_ms / 1000 or CONNECT_S)
            for task in tasks
        ]

    def _created(self, round_: Round) -> list[ev.MasterAction]:
        session = self._sessions.get(round_.session)
        close = Message(pb.DeleteWorkerSession(session=round_.session))
        closing: list[ev.MasterAction] = [ev.Tell(task, close) for task in round_.answers]
        if session is None:
            gone = CancelledError("the client disconnected before its session was created")
            return closing + round_.refuse(gone)
        if round_.errors:
            del self._sessions[round_.session]
            return closing + round_.refuse(_not_formed(round_, session.tasks))
        for task in session.tasks:
            session.devices += round_.answers[task].body.devices
        handle = pb.SessionHandle(session=round_.session, devices=session.devices)
        return round_.answer(Message(handle))

    def _close(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        return [*self._forget(message.body.session), ev.Answer(client, request_id, Message(pb.Done()))]

    def _forget(self, name: str) -> list[ev.MasterAction]:
        session = self._sessions.pop(name, None)
        if session is None:
            return []
        close = Message(pb.DeleteWorkerSession(session=name))
        return self._steps.after_turns(name, [ev.Tell(task, close) for task in session.tasks])

    def _list(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        devices = self._sessions.find(message.body.session).devices
        return [ev.Answer(client, request_id, Message(pb.DeviceList(devices=devices)))]

    def _reset(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        round_ = Round(client, request_id, "", self._all_done)
        body = pb.ResetContainers(containers=message.body.containers)
        return [self._pending.ask(round_, task, Message(body), CONNECT_S) for task in self._tasks]

    def _all_done(self, round_: Round) -> list[ev.MasterAction]:
        if round_.error is not None:
            return round_.refuse(round_.error)
        return round_.answer(Message(pb.Done()))

    # --- graphs and callables

    def _extend(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        round_ = Round(client, request_id, message.body.session, self._all_done)
        graph = self._sessions.find(round_.session).graph
        _check_version(message, graph)
        return [ev.ExtendGraph(self._pending.begin_work(round_, message), graph, message)]

    def _extended(self, extended: ev.GraphExtended) -> list[ev.MasterAction]:
        round_, message = self._pending.end_work(extended.token)
        session = self._sessions.get(round_.session)
        if session is None:
            return round_.refuse(closed())
        if extended.error is not None or extended.graph is None:
            return round_.refuse(extended.error or InvalidArgumentError("extend_session: no graph"))
        try:
            _check_version(message, session.graph)
        except AbortedError as error:
            return round_.refuse(error)
        session.graph = extended.graph
        version = pb.GraphVersion(version=session.graph.version)
        return round_.answer(Message(version))

    def _make(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        session = self._sessions.find(message.body.session)
        round_ = Round(client, request_id, message.body.session)
        return self._steps.make(round_, session, session.graph, message, self._made)

    def _made(self, round_: Round, step: RegisteredStep | None, cut: ev.GraphCut) -> list[ev.MasterAction]:
        if step is None:
            return round_.refuse(round_.error or closed())
        session = self._sessions[round_.session]
        self._last_callable += 1
        session.callables[self._last_callable] = step
        handle = pb.CallableHandle(callable=self._last_callable, placement=session.placement)
        return round_.answer(Message(handle))

    def _release(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        done = ev.Answer(client, request_id, Message(pb.Done()))
        session = self._sessions.get(message.body.session)
        found = None if session is None else session.callables.pop(message.body.callable, None)
        return [*self._steps.drop(message.body.session, () if found is None else found.parts), done]

    # --- steps

    def _run(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        body = message.body
        found = self._sessions.find(body.session).callables.get(body.callable)
        if found is None:
            raise AbortedError(f"master {self.task} has no callable {body.callable}")
        if len(message.tensors) != found.num_feeds:
            got = f"expected {found.num_feeds} fed tensors; got {len(message.tensors)}"
            raise InvalidArgumentError(f"run_step: {got}")
        round_ = Round(client, request_id, body.session, functools.partial(self._ended, found))
        options = pb.RunGraph(timeout_ms=body.timeout_ms, trace_level=body.trace_level)
        return self._steps.run(round_, found, message.tensors, options)

    def _ended(self, step: RegisteredStep, round_: Round) -> list[ev.MasterAction]:
        if round_.error is not None:
            return round_.refuse(round_.error)
        if round_.session not in self._sessions:
            return round_.refuse(CancelledError("the session was closed while this step ran"))
        return round_.answer(result_of(round_, step))

    def _cancel(self, client: str, request_id: int, message: Message) -> list[ev.MasterAction]:
        error = decode_status(message.body.status)
        ended = self._pending.cancel(client, message.body.request_id, error)
        return [*ended, ev.Answer(client, request_id, Message(pb.Done()))]

    # --- events at any time

    def _lose(self, peer: str) -> list[ev.MasterAction]:
        self._pending.leave(peer)
        actions: list[ev.MasterAction] = []
        for name in [name for name, session in self._sessions.items() if session.client == peer]:
            actions += self._forget(name)
        return actions


def _check_version(message: Message, graph: SessionGraph) -> None:
    if message.body.version != graph.version:
        raise AbortedError(
            f"extend_session: expected an extension of version {graph.version} of the session's graph; got "
            f"{message.body.version}: another client has extended it. Create a new Session"
        )


def _not_formed(round_: Round, tasks: Sequence[str]) -> OpError:
    """The error for a session with missing tasks, with the reasons."""
    if len(round_.errors) == 1 and not isinstance(round_.errors[0][1], UnavailableError):
        return round_.errors[0][1]
    missing = "; ".join(f"{task}: {error.message}" for task, error in round_.errors)
    return UnavailableError(
        f"the session needs {len(tasks)} tasks; {len(round_.errors)} of them did not answer: {missing}"
    )


_HANDLERS: dict[type, Callable[[Master, str, int, Message], list[ev.MasterAction]]] = {
    pb.CreateSession: Master._create,
    pb.CloseSession: Master._close,
    pb.ListDevices: Master._list,
    pb.ExtendSession: Master._extend,
    pb.MakeCallable: Master._make,
    pb.ReleaseCallable: Master._release,
    pb.RunStep: Master._run,
    pb.CancelStep: Master._cancel,
    pb.Reset: Master._reset,
    pb.PartialRunSetup: lambda master, *asked: master._partial_runs.set_up(*asked),
    pb.PartialRun: lambda master, *asked: master._partial_runs.call(*asked),
}
