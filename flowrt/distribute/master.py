"""`Master`: what a task does for its clients, as a pure state machine.

    client           master                                           workers
    CreateSession -> CreateWorkerSession                           -> every task that the filters let through
    ExtendSession -> ExtendGraph: what the session's graph lacks
    MakeCallable  -> CutGraph: place, cut by task; RegisterGraph   -> the tasks that have a part
    RunStep       -> RunGraph with the part's feeds, one a task    -> the same; fetches come back
    CloseSession  -> DeleteWorkerSession                           -> every task of the session

    handle(event) -> actions, see `flowrt.distribute.events`

All of these ask several tasks and wait for all their answers: a `_Round`. A step's round ends in its fetches,
or in one error, the root cause: the first that is not the consequence of another. The other parts are aborted
and waited for, so that when the client hears of it no part of the step is running any more.

Rules of this file:
  1. A step is asked for once. What fails is never tried again: its updates may have been made.
  2. Every request of a client has one answer.
  3. What a client began ends with the client.
  4. A graph is extended from the version that the client knows; of two extensions at once one is refused.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, final

from flowrt.distribute.events import (
    Answer,
    Answered,
    Ask,
    Asked,
    CutGraph,
    ExtendGraph,
    GraphCut,
    GraphExtended,
    MasterAction,
    MasterEvent,
    PeerLost,
    Tell,
    Ticked,
    unknown,
)
from flowrt.distribute.messages import Message, decode_status, encode_status
from flowrt.distribute.sent_constants import SentConstants
from flowrt.distribute.session_graph import SessionGraph
from flowrt.distribute.waits import CONNECT_S
from flowrt.errors import (
    AbortedError,
    CancelledError,
    DeadlineExceededError,
    InvalidArgumentError,
    OpError,
    UnavailableError,
)
from flowrt.protos import cluster_pb2 as pb

GRACE_S = 5.0
"""How long a step that failed is waited for in the tasks that still run it."""

LATE_S = 1.0
"""How much later than its deadline a step is ended from here; the tasks have the deadline too."""

# --- state


class _Registered(NamedTuple):
    """A part that its task knows as ``graph``, and the numbers of its large constants."""

    task: str
    graph: int
    feeds: tuple[int, ...]
    fetches: tuple[int, ...]
    constants: Sequence[int]


class _Callable(NamedTuple):
    parts: Sequence[_Registered]
    num_feeds: int
    num_fetches: int


_RELEASED = _Callable((), 0, 0)


class _Session:
    def __init__(self, client: str, tasks: Sequence[str], options: Any) -> None:
        self.client, self.tasks, self.options = client, tasks, options
        self.devices: list[Any] = []
        self.graph = SessionGraph()
        self.constants = {task: SentConstants() for task in tasks}
        self.placement: dict[str, str] = {}
        self.callables: dict[int, _Callable] = {}


class _Round:
    """Requests to several tasks whose answers belong together, for ``client``'s request."""

    def __init__(
        self, client: str, request_id: int, session: str, end: Callable[[_Round], list[MasterAction]]
    ) -> None:
        self.client, self.request_id, self.session, self.end = client, request_id, session, end
        self.waiting: dict[int, str] = {}
        """The task that each token's answer comes from."""
        self.answers: dict[str, Message] = {}
        self.errors: list[tuple[str, OpError]] = []
        self.step = 0
        self.callable = 0
        self.deadline: float | None = None
        self.is_ending = False

    @property
    def error(self) -> OpError | None:
        """The root cause, if something failed."""
        found = [error for _, error in self.errors]
        roots = [error for error in found if error.origin is None or not error.origin.is_derived]
        return next(iter(roots or found), None)


@final
class Master:
    """The state machine of the master in ``task``. ``tasks`` are all of the cluster, ``rng`` draws the
    numbers of sessions and steps.
    """

    def __init__(self, task: str, tasks: Sequence[str], rng: random.Random) -> None:
        self.task, self._tasks, self._rng = task, list(tasks), rng
        self._sessions: dict[str, _Session] = {}
        self._rounds: dict[int, _Round] = {}
        """By the tokens of their requests."""
        self._works: dict[int, tuple[_Round, Message]] = {}
        """Graphs that are extended and cut, by the tokens of these actions."""
        self._last_token = self._last_callable = 0
        self._now = 0.0

    def serves(self, client: str) -> bool:
        """Whether a session of ``client`` is open."""
        return any(session.client == client for session in self._sessions.values())

    def handle(self, event: MasterEvent) -> list[MasterAction]:
        match event:
            case Asked(peer, request_id, message):
                handler = _HANDLERS.get(type(message.body))
                return handler(self, peer, request_id, message) if handler else [unknown(event, self.task)]
            case Answered(token, message, error):
                return self._take(token, message, error)
            case GraphExtended():
                return self._extended(event)
            case GraphCut():
                return self._register(event)
            case PeerLost(peer, _):
                return self._lose(peer)
            case Ticked(now):
                return self._tick(now)

    @staticmethod
    def knows(body: Any) -> bool:
        """Whether a master answers messages like ``body``."""
        return type(body) in _HANDLERS

    # --- rounds

    def _ask(self, round_: _Round, task: str, message: Message, wait_s: float = 0.0) -> MasterAction:
        self._last_token += 1
        round_.waiting[self._last_token] = task
        self._rounds[self._last_token] = round_
        return Ask(task, self._last_token, message, wait_s)

    def _take(self, token: int, message: Message | None, error: OpError | None) -> list[MasterAction]:
        round_ = self._rounds.pop(token, None)
        if round_ is None:
            return []
        task = round_.waiting.pop(token)
        if error is not None or message is None:
            round_.errors.append((task, error or UnavailableError(f"task {task}: no answer")))
            actions = self._abort(round_) if round_.step else []
        else:
            round_.answers[task], actions = message, []
        return actions if round_.waiting else [*actions, *round_.end(round_)]

    def _refuse(self, round_: _Round, error: OpError) -> list[MasterAction]:
        return [Answer(round_.client, round_.request_id, None, error)]

    def _find(self, name: str) -> _Session:
        session = self._sessions.get(name)
        if session is None:
            message = (
                f"master {self.task} knows no session {name!r}: it was closed, or the master was restarted"
            )
            raise AbortedError(f"{message}. Make a new Session")
        return session

    # --- sessions

    def _create(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        options = message.body
        tasks = _filtered(self._tasks, options.device_filters, self.task)
        name = f"{self._rng.getrandbits(64):016x}"
        round_ = _Round(client, request_id, name, self._created)
        self._sessions[name] = _Session(client, tasks, options)
        body = pb.CreateWorkerSession(session=name, is_isolated=options.is_isolated)
        return [
            self._ask(round_, task, Message(body), options.connect_timeout_ms / 1000 or CONNECT_S)
            for task in tasks
        ]

    def _created(self, round_: _Round) -> list[MasterAction]:
        session = self._sessions.get(round_.session)
        close = Message(pb.DeleteWorkerSession(session=round_.session))
        closing: list[MasterAction] = [Tell(task, close) for task in round_.answers]
        if session is None:
            gone = CancelledError("the client went before its session was there")
            return closing + self._refuse(round_, gone)
        if round_.errors:
            del self._sessions[round_.session]
            return closing + self._refuse(round_, _not_formed(round_, session.tasks))
        for task in session.tasks:
            session.devices += round_.answers[task].body.devices
        handle = pb.SessionHandle(session=round_.session, devices=session.devices)
        return [Answer(round_.client, round_.request_id, Message(handle))]

    def _close(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        return [*self._forget(message.body.session), Answer(client, request_id, Message(pb.Done()))]

    def _forget(self, name: str) -> list[MasterAction]:
        session = self._sessions.pop(name, None)
        if session is None:
            return []
        close = Message(pb.DeleteWorkerSession(session=name))
        return [Tell(task, close) for task in session.tasks]

    def _list(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        try:
            devices = self._find(message.body.session).devices
        except AbortedError as error:
            return [Answer(client, request_id, None, error)]
        return [Answer(client, request_id, Message(pb.DeviceList(devices=devices)))]

    def _reset(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        round_ = _Round(client, request_id, "", self._all_done)
        body = pb.ResetContainers(containers=message.body.containers)
        return [self._ask(round_, task, Message(body), CONNECT_S) for task in self._tasks]

    def _all_done(self, round_: _Round) -> list[MasterAction]:
        if round_.error is not None:
            return self._refuse(round_, round_.error)
        return [Answer(round_.client, round_.request_id, Message(pb.Done()))]

    # --- graphs and callables

    def _extend(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        round_ = _Round(client, request_id, message.body.session, self._all_done)
        try:
            graph = self._find(round_.session).graph
            _check_version(message, graph)
        except AbortedError as error:
            return self._refuse(round_, error)
        return [ExtendGraph(self._work(round_, message), graph, message)]

    def _extended(self, extended: GraphExtended) -> list[MasterAction]:
        round_, message = self._works.pop(extended.token)
        session = self._sessions.get(round_.session)
        if session is None:
            return self._refuse(round_, _closed())
        if extended.error is not None or extended.graph is None:
            return self._refuse(round_, extended.error or InvalidArgumentError("extend_session: no graph"))
        try:
            _check_version(message, session.graph)
        except AbortedError as error:
            return self._refuse(round_, error)
        session.graph = extended.graph
        version = pb.GraphVersion(version=session.graph.version)
        return [Answer(round_.client, round_.request_id, Message(version))]

    def _make(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        round_ = _Round(client, request_id, message.body.session, self._registered)
        try:
            session = self._find(round_.session)
        except AbortedError as error:
            return self._refuse(round_, error)
        token, placement = self._work(round_, message), dict(session.placement)
        return [CutGraph(token, client, session.graph, message, session.options, session.devices, placement)]

    def _work(self, round_: _Round, message: Message) -> int:
        self._last_token += 1
        self._works[self._last_token] = round_, message
        return self._last_token

    def _register(self, cut: GraphCut) -> list[MasterAction]:
        round_, message = self._works.pop(cut.token)
        session = self._sessions.get(round_.session)
        if session is None:
            return self._refuse(round_, _closed())
        if cut.error is not None:
            return self._refuse(round_, cut.error)
        session.placement.update(cut.placement)
        self._last_callable += 1
        round_.callable = self._last_callable
        parts: list[_Registered] = []
        actions: list[MasterAction] = []
        for task, part in cut.parts.items():
            numbers, carried = session.constants[task].hold(part.constants)
            parts.append(_Registered(task, 0, part.feeds, part.fetches, numbers))
            body = pb.RegisterGraph(session=round_.session, constants=numbers, carried=carried)
            body.optimises = session.options.optimises
            sent = Message(body, session.constants[task].arrays(carried), part.subgraph)
            actions.append(self._ask(round_, task, sent))
        num_feeds, num_fetches = len(message.body.fed), len(message.body.fetches)
        session.callables[round_.callable] = _Callable(parts, num_feeds, num_fetches)
        return actions or self._registered(round_)

    def _registered(self, round_: _Round) -> list[MasterAction]:
        session = self._sessions.get(round_.session)
        if session is None:
            return self._refuse(round_, _closed())
        found = session.callables.pop(round_.callable, _RELEASED)
        parts = [
            part._replace(graph=round_.answers[part.task].body.graph)
            for part in found.parts
            if part.task in round_.answers
        ]
        for part in parts:
            session.constants[part.task].have_come(part.constants)
        if round_.error is not None:
            failed = [part for part in found.parts if part.task not in round_.answers]
            return [*self._drop(round_.session, [*parts, *failed]), *self._refuse(round_, round_.error)]
        session.callables[round_.callable] = found._replace(parts=parts)
        handle = pb.CallableHandle(callable=round_.callable, placement=session.placement)
        return [Answer(round_.client, round_.request_id, Message(handle))]

    def _drop(self, name: str, parts: Sequence[_Registered]) -> list[MasterAction]:
        """Have the tasks forget ``parts``, and the constants that no other part has."""
        actions: list[MasterAction] = []
        for part in parts:
            constants = self._sessions[name].constants[part.task].let_go(part.constants)
            graphs = [part.graph] if part.graph else []
            if graphs or constants:
                body = pb.DeregisterGraph(session=name, graphs=graphs, constants=constants)
                actions.append(Tell(part.task, Message(body)))
        return actions

    def _release(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        done = Answer(client, request_id, Message(pb.Done()))
        session = self._sessions.get(message.body.session)
        found = None if session is None else session.callables.pop(message.body.callable, None)
        return [*self._drop(message.body.session, [] if found is None else found.parts), done]

    # --- steps

    def _run(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        body, round_ = message.body, _Round(client, request_id, message.body.session, self._ended)
        try:
            found = self._find(body.session).callables.get(body.callable)
        except AbortedError as error:
            return self._refuse(round_, error)
        if found is None:
            return self._refuse(round_, AbortedError(f"master {self.task} knows no callable {body.callable}"))
        if len(message.tensors) != found.num_feeds:
            fed = f"run_step: expected {found.num_feeds} fed tensors; got {len(message.tensors)}"
            return self._refuse(round_, InvalidArgumentError(fed))
        round_.step, round_.callable = self._rng.getrandbits(63) | 1, body.callable
        if body.timeout_ms:
            round_.deadline = self._now + body.timeout_ms / 1000 + LATE_S
        # its own part last: the shell may run it at once, when the others are on their way
        ordered = sorted(found.parts, key=lambda part: part.task == self.task)
        actions = [self._ask(round_, part.task, self._part(round_, part, message)) for part in ordered]
        return actions or self._ended(round_)

    def _part(self, round_: _Round, part: _Registered, message: Message) -> Message:
        body = pb.RunGraph(
            graph=part.graph,
            step=round_.step,
            timeout_ms=message.body.timeout_ms,
            trace_level=message.body.trace_level,
        )
        return Message(body, [message.tensors[i] for i in part.feeds])

    def _ended(self, round_: _Round) -> list[MasterAction]:
        if round_.error is not None:
            return self._refuse(round_, round_.error)
        session = self._sessions.get(round_.session)
        if session is None or round_.callable not in session.callables:
            return self._refuse(round_, CancelledError("the session was closed while this step ran"))
        found, result = session.callables[round_.callable], pb.StepResult()
        values: list[Any] = [None] * found.num_fetches
        for part in found.parts:
            answer = round_.answers[part.task]
            result.step_stats.extend(answer.body.step_stats)
            for position, value in zip(part.fetches, answer.tensors, strict=True):
                values[position] = value
        return [Answer(round_.client, round_.request_id, Message(result, values))]

    def _abort(self, round_: _Round) -> list[MasterAction]:
        """Have the parts end that still run; they are waited for a while."""
        error = round_.error
        if round_.is_ending or error is None:
            return []
        round_.is_ending, round_.deadline = True, self._now + GRACE_S
        body = pb.CleanupGraph(step=round_.step, status=encode_status(error, self.task))
        body.status.is_derived = True
        return [Tell(task, Message(body)) for task in round_.waiting.values()]

    def _cancel(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        done = Answer(client, request_id, Message(pb.Done()))
        wanted = client, message.body.request_id
        for round_ in self._rounds.values():
            if (round_.client, round_.request_id) == wanted and round_.step:
                round_.errors.append((self.task, decode_status(message.body.status)))
                return [*self._abort(round_), done]
        return [done]

    # --- what may happen at any time

    def _lose(self, peer: str) -> list[MasterAction]:
        actions: list[MasterAction] = []
        for name in [name for name, session in self._sessions.items() if session.client == peer]:
            actions += self._forget(name)
        return actions

    def _tick(self, now: float) -> list[MasterAction]:
        self._now = now
        rounds = dict.fromkeys(self._rounds.values())
        actions: list[MasterAction] = []
        for round_ in [r for r in rounds if r.deadline is not None and now > r.deadline]:
            if not round_.is_ending:
                error = DeadlineExceededError("the step did not end within its deadline")
                round_.errors.append((self.task, error))
                actions += self._abort(round_)
                continue
            for token in list(round_.waiting):  # they had their time
                del self._rounds[token], round_.waiting[token]
            actions += round_.end(round_)
        return actions


def _filtered(tasks: Sequence[str], filters: Sequence[str], own: str) -> list[str]:
    """The tasks that a session with these device filters sees: its master's, and those that one of them
    names.
    """
    if not filters:
        return list(tasks)
    patterns = [text.replace("/replica:0", "") for text in filters]
    return [
        task
        for task in tasks
        if task == own or any(_is_within(task.replace("/replica:0", ""), pattern) for pattern in patterns)
    ]


def _is_within(task: str, pattern: str) -> bool:
    """Whether ``/job:a/task:1`` is one that ``/job:a``, or ``/job:a/task:1/device:CPU:0`` means."""
    pattern = pattern.split("/device:")[0].split("/cpu:")[0].split("/gpu:")[0]
    return fnmatchcase(task, pattern) or task.startswith(pattern + "/")


def _check_version(message: Message, graph: SessionGraph) -> None:
    if message.body.version != graph.version:
        raise AbortedError(
            f"extend_session: expected an extension of version {graph.version} of the session's graph; got "
            f"{message.body.version}: somebody else has extended it. Make a new Session"
        )


def _closed() -> OpError:
    return CancelledError("the session was closed")


def _not_formed(round_: _Round, tasks: Sequence[str]) -> OpError:
    """Who is missing, and why."""
    if len(round_.errors) == 1 and not isinstance(round_.errors[0][1], UnavailableError):
        return round_.errors[0][1]
    missing = "; ".join(f"{task}: {error.message}" for task, error in round_.errors)
    return UnavailableError(
        f"the session needs {len(tasks)} tasks, of which {len(round_.errors)} did not answer: {missing}"
    )


_HANDLERS: dict[type, Callable[[Master, str, int, Message], list[MasterAction]]] = {
    pb.CreateSession: Master._create,
    pb.CloseSession: Master._close,
    pb.ListDevices: Master._list,
    pb.ExtendSession: Master._extend,
    pb.MakeCallable: Master._make,
    pb.ReleaseCallable: Master._release,
    pb.RunStep: Master._run,
    pb.CancelStep: Master._cancel,
    pb.Reset: Master._reset,
}
