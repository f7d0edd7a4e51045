"""`Worker`: one task's part in steps, as a pure state machine.

    handle(event) -> actions        see `flowrt.distribute.machines.events`

Life cycle of a step in a task: a request for one of its tensors may arrive before the step does, so the first
of them creates its rendezvous. `RunGraph` starts its programs. It ends when they have ended and its sends are
complete, or with the first error; then its number is remembered, and late requests are rejected instead of
waiting for a step that will not start.

Rules of this file:
  1. A step number starts once; a step that was aborted before its start does not start.
  2. A peer's sessions, graphs and steps end with the peer.
  3. Tensors kept by a partial run are released with it, at the latest with its session.
  4. A request for an earlier incarnation of this task is rejected with an `AbortedError`.
  5. The first task of a cluster also keeps the turns of gang-scheduled steps: see `GangTurns`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.distribute.machines import events as ev
from flowrt.distribute.wire.messages import Message, decode_status, derived, restarted
from flowrt.distribute.worker.gang_turns import GangTurns, Turn
from flowrt.distribute.worker.kept_tensors import KeptTensors
from flowrt.errors import (
    AbortedError,
    CancelledError,
    InvalidArgumentError,
    OpError,
    Origin,
    UnavailableError,
    copy_to_raise,
    without_frames,
)
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.matching.key import FORMAT
from flowrt.rendezvous.remote import RemoteRendezvous

MAX_REMEMBERED_STEPS = 4096
"""Numbers of steps that are over, 110 bytes each: of a step as old as that no message is on its way any more.
If one were, it would wait `EARLY_S` for nothing and then be refused.
"""

EARLY_S = 60.0
"""Time that requests wait for a step that is unknown to this task."""

# --- state


class _Session:
    """``peers``: the links over which its master created it. A request is repeated over a new link when one
    was lost, and may arrive before the loss, or before the lost link's own request. ``constants``: the large
    ones of its graphs, under their master's numbers; ``kept``: tensors of its partial runs.
    """

    __slots__ = ("constants", "kept", "peers")

    def __init__(self) -> None:
        self.peers: set[str] = set()
        self.constants: dict[int, Any] = {}
        self.kept = KeptTensors()


class _Graph:
    """``taken``, ``keeps``: see `RegisterGraph`."""

    __slots__ = ("keeps", "part", "peer", "request_id", "session", "taken")

    def __init__(self, session: str, peer: str, request_id: int, body: Any) -> None:
        self.session, self.peer, self.request_id = session, peer, request_id
        self.taken, self.keeps = tuple(body.taken), tuple(body.keeps)
        self.part: Any = None


class _Step:
    """``owner``: the requester, (peer, request id); None while only tensors were requested. ``keeps``: the
    numbers of its last fetches, which ``partial_run`` keeps.
    """

    __slots__ = ("error", "heard_at", "keeps", "owner", "partial_run", "rendezvous", "session")

    def __init__(self, rendezvous: RemoteRendezvous, now: float) -> None:
        self.rendezvous, self.heard_at = rendezvous, now
        self.owner: tuple[str, int] | None = None
        self.session = ""
        self.partial_run = 0
        self.keeps: tuple[int, ...] = ()
        self.error: OpError | None = None


@final
class Worker:
    """The state machine of ``task`` in its life ``incarnation``. ``new_rendezvous(step)`` makes a step's
    rendezvous; ``devices`` describes the task's devices.
    """

    def __init__(
        self,
        task: str,
        incarnation: int,
        version: str,
        devices: Sequence[Any],
        new_rendezvous: Callable[[int], RemoteRendezvous],
    ) -> None:
        self.task, self.incarnation, self.version, self.devices = task, incarnation, version, devices
        self.is_draining = False
        self._new_rendezvous = new_rendezvous
        self._now = 0.0
        self._sessions: dict[str, _Session] = {}
        self._graphs: dict[int, _Graph] = {}
        self._last_graph = incarnation % 2**31 << 32
        """Graph numbers differ between incarnations, so an earlier registration cannot pass for a new one."""
        self._steps: dict[int, _Step] = {}
        self._turns = GangTurns()
        self._over: OrderedDict[int, OpError | None] = OrderedDict()

    def handle(self, event: ev.WorkerEvent) -> list[ev.WorkerAction]:
        match event:
            case ev.Asked(peer, request_id, message):
                handler = _HANDLERS.get(type(message.body))
                return handler(self, peer, request_id, message) if handler else [ev.unknown(event, self.task)]
            case ev.StepEnded():
                return self._end_step(event)
            case ev.GraphCompiled(number, part, error):
                return self._keep_graph(number, part, error)
            case ev.PeerLost(peer, error):
                return self._lose(peer, error)
            case ev.Ticked(now):
                return self._tick(now)

    @property
    def num_running(self) -> int:
        return sum(step.owner is not None for step in self._steps.values())

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    def serves(self, peer: str) -> bool:
        """Whether a session of ``peer`` is open."""
        return any(peer in session.peers for session in self._sessions.values())

    def rendezvous(self, step: int) -> RemoteRendezvous | None:
        """Rendezvous of a step that has not ended."""
        found = self._steps.get(step)
        return None if found is None else found.rendezvous

    def running(self) -> list[tuple[int, RemoteRendezvous]]:
        """The running steps, for checks of their waits."""
        return [(number, step.rendezvous) for number, step in self._steps.items() if step.owner is not None]

    # --- sessions and graphs

    def _status(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        status = pb.TaskStatus(
            task=self.task,
            incarnation=self.incarnation,
            version=self.version,
            is_draining=self.is_draining,
            sessions=len(self._sessions),
            running_steps=self.num_running,
            devices=self.devices,
        )
        return [ev.Answer(peer, request_id, Message(status))]

    def _drain(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        started: list[ev.WorkerAction] = [] if self.is_draining else [ev.StartDraining()]
        self.is_draining = True
        return [*self._status(peer, request_id, message), *started]

    def _beat(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        return [_done(peer, request_id)]

    def _create_session(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        body = message.body
        if self.is_draining:
            return [ev.Answer(peer, request_id, None, self._leaving())]
        listed = ev.Answer(peer, request_id, Message(pb.DeviceList(devices=self.devices)))
        is_new = body.session not in self._sessions
        self._sessions.setdefault(body.session, _Session()).peers.add(peer)
        opened = [ev.OpenWorkerSession(body.session, body.is_isolated)] if is_new else []
        return [*opened, listed]

    def _delete_session(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        reason = CancelledError("the session was closed while this step ran")
        return [*self._close(message.body.session, reason), _done(peer, request_id)]

    def _close(self, session: str, reason: OpError, lost: OpError | None = None) -> list[ev.WorkerAction]:
        if self._sessions.pop(session, None) is None:
            return []
        actions: list[ev.WorkerAction] = []
        for number, step in list(self._steps.items()):
            if step.session == session:
                actions += self._abort(number, reason)
        gone = [number for number, graph in self._graphs.items() if graph.session == session]
        graphs = [self._graphs.pop(number) for number in gone]
        actions += [ev.Answer(g.peer, g.request_id, None, reason) for g in graphs if g.part is None]
        parts = [graph.part for graph in graphs if graph.part is not None]
        return [*actions, ev.ForgetParts(parts), ev.CloseWorkerSession(session, lost)]

    def _register(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        body = message.body
        session = self._sessions.get(body.session)
        if session is None:
            return [ev.Answer(peer, request_id, None, self._unknown("session", body.session))]
        try:
            session.constants.update(zip(body.carried, message.tensors, strict=True))
            constants = [session.constants[number] for number in body.constants]
        except (KeyError, ValueError):
            got = f"{list(body.constants)}, {len(message.tensors)} of them in the message"
            error = InvalidArgumentError(f"register_graph: expected constants of this session; got {got}")
            return [ev.Answer(peer, request_id, None, error)]
        number = self._last_graph = self._last_graph + 1
        self._graphs[number] = _Graph(body.session, peer, request_id, body)
        return [ev.CompileGraph(number, body.session, peer, message, constants, body.optimises)]

    def _keep_graph(self, number: int, part: Any, error: OpError | None) -> list[ev.WorkerAction]:
        graph = self._graphs.get(number)
        if graph is None:  # its session was closed meanwhile
            return [] if part is None else [ev.ForgetParts([part])]
        if error is not None:
            del self._graphs[number]
            return [ev.Answer(graph.peer, graph.request_id, None, error)]
        graph.part = part
        return [ev.Answer(graph.peer, graph.request_id, Message(pb.GraphHandle(graph=number)))]

    def _describe(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        parts = [graph.part for graph in self._graphs.values() if graph.part is not None]
        return [ev.DescribeParts(peer, request_id, parts)]

    def _deregister(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        session = self._sessions.get(message.body.session)
        if session is not None:
            for number in message.body.constants:
                session.constants.pop(number, None)
        found = [self._graphs.pop(number, None) for number in message.body.graphs]
        parts = [graph.part for graph in found if graph is not None and graph.part is not None]
        return [ev.ForgetParts(parts), _done(peer, request_id)]

    def _reset(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        """Reset containers; compiled parts are bound to their variables, so all sessions end."""
        reason = AbortedError(f"the containers of {self.task} were reset")
        actions: list[ev.WorkerAction] = []
        for session in list(self._sessions):
            actions += self._close(session, reason)
        return [*actions, ev.ClearContainers(list(message.body.containers)), _done(peer, request_id)]

    # --- steps

    def _run(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        body, step = message.body, self._steps.get(message.body.step)
        if step is not None and step.owner is not None:
            return [
                ev.Answer(peer, request_id, None, AbortedError(f"step {body.step:x} runs in {self.task}"))
            ]
        try:
            graph, feeds = self._admitted(message)
        except OpError as refusal:
            refusal.origin = refusal.origin or Origin(self.task, False)
            ended = [] if body.step in self._over else self._abort(body.step, refusal)
            return [*ended, ev.Answer(peer, request_id, None, refusal)]
        step = self._step(body.step)
        step.owner, step.session = (peer, request_id), graph.session
        step.partial_run, step.keeps = body.partial_run, graph.keeps
        return [
            ev.StartStep(
                body.step, graph.part, feeds, step.rendezvous, body.timeout_ms, body.trace_level, peer
            )
        ]

    def _admitted(self, message: Message) -> tuple[_Graph, Sequence[Any]]:
        """The graph to run, and its feeds. Raises an error if the step is rejected."""
        body = message.body
        if body.step in self._over:
            raise copy_to_raise(self._too_late(body.step))
        graph = self._graphs.get(body.graph)
        if graph is None or graph.part is None:
            raise self._unknown("graph", str(body.graph))
        if self.is_draining:
            raise self._leaving()
        kept = self._sessions[graph.session].kept
        return graph, kept.feeds(body.partial_run, graph.taken, message.tensors)

    def _forget_partial_runs(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        session = self._sessions.get(message.body.session)
        if session is not None:
            session.kept.forget(message.body.partial_runs)
        return [_done(peer, request_id)]

    def _serve(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        body = message.body
        try:
            life = _life(body.keys)
            if body.step in self._over:
                raise derived(self._too_late(body.step), self.task)
            if life != self.incarnation:
                raise restarted(self.task, life, self.incarnation)
        except OpError as error:
            return [ev.Answer(peer, request_id + i, None, error) for i in range(len(body.keys))]
        return [
            ev.ServeTensors(body.step, self._step(body.step).rendezvous, peer, request_id, list(body.keys))
        ]

    def _step(self, number: int) -> _Step:
        step = self._steps.get(number)
        if step is None:
            step = self._steps[number] = _Step(self._new_rendezvous(number), self._now)
        return step

    def _end_step(self, ended: ev.StepEnded) -> list[ev.WorkerAction]:
        step = self._steps.pop(ended.step, None)
        if step is None or step.owner is None:
            return []
        error = step.error or ended.error
        self._remember(ended.step, error)
        peer, request_id = step.owner
        if error is not None and error.origin is None:
            error.origin = Origin(self.task, False)
        if error is None:
            body = pb.StepResult(step_stats=[ended.step_stats] if ended.step_stats else [])
            kept = self._sessions[step.session].kept
            values = kept.keep(step.partial_run, step.keeps, ended.values)
            return [ev.Answer(peer, request_id, Message(body, values))]
        end = ev.EndStep(ended.step, step.rendezvous, derived(error, self.task))
        return [end, ev.Answer(peer, request_id, None, error)]

    def _cleanup(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        step, reason = message.body.step, decode_status(message.body.status)
        waiting = self._turns.withdraw(step)
        refused = [] if waiting is None else [ev.Answer(waiting.peer, waiting.request_id, None, reason)]
        return [*refused, *self._abort(step, reason), _done(peer, request_id)]

    def _abort(self, number: int, error: OpError) -> list[ev.WorkerAction]:
        step = self._steps.get(number)
        if step is None:
            self._remember(number, error)
            return []
        if step.owner is None:
            del self._steps[number]
            self._remember(number, error)
        step.error = step.error or error
        return [ev.EndStep(number, step.rendezvous, step.error)]

    def _remember(self, number: int, error: OpError | None) -> None:
        self._over[number] = None if error is None else without_frames(error)
        if len(self._over) > MAX_REMEMBERED_STEPS:
            self._over.popitem(last=False)

    # --- turns of the steps of all masters

    def _take_turn(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        if self.is_draining:
            return [ev.Answer(peer, request_id, None, self._leaving())]
        body = message.body
        turn = Turn(body.step, body.session, frozenset(body.devices), peer, request_id)
        return _begun(self._turns.take(turn))

    def _end_turn(self, peer: str, request_id: int, message: Message) -> list[ev.WorkerAction]:
        return [*_begun(self._turns.end(message.body.step)), _done(peer, request_id)]

    # --- events at any time

    def _lose(self, peer: str, error: OpError) -> list[ev.WorkerAction]:
        actions = _begun(self._turns.lose(peer))
        for name, session in [item for item in self._sessions.items() if peer in item[1].peers]:
            session.peers.discard(peer)
            if not session.peers:
                actions += self._close(name, error, lost=error)
        return actions

    def _tick(self, now: float) -> list[ev.WorkerAction]:
        self._now = now
        late = [n for n, s in self._steps.items() if s.owner is None and now - s.heard_at > EARLY_S]
        actions: list[ev.WorkerAction] = []
        for number in late:
            message = (
                f"step {number:x}: {self.task} received requests for its tensors but never one to run it"
            )
            actions += self._abort(number, UnavailableError(message))
        return actions

    # --- errors

    def _too_late(self, number: int) -> OpError:
        error = self._over.get(number)
        return error if error is not None else AbortedError(f"step {number:x} is over in {self.task}")

    def _leaving(self) -> OpError:
        return UnavailableError(f"task {self.task} is draining: it accepts no new work")

    def _unknown(self, what: str, name: str) -> OpError:
        return AbortedError(
            f"task {self.task} has no {what} {name}: it was restarted or reset, or the session was closed. "
            "Create a new Session"
        )


def _done(peer: str, request_id: int) -> ev.Answer:
    return ev.Answer(peer, request_id, Message(pb.Done()))


def _begun(turns: Sequence[Turn]) -> list[ev.WorkerAction]:
    return [_done(turn.peer, turn.request_id) for turn in turns]


def _life(keys: Sequence[str]) -> int:
    """The producer's life that the keys of a request are of."""
    try:
        return int(keys[0].split(";", 2)[1], 16)
    except (IndexError, ValueError):
        raise InvalidArgumentError(f"recv_tensor: expected keys, {FORMAT}; got {keys[:1]}") from None


_HANDLERS: dict[type, Callable[[Worker, str, int, Message], list[ev.WorkerAction]]] = {
    pb.GetStatus: Worker._status,
    pb.Drain: Worker._drain,
    pb.Heartbeat: Worker._beat,
    pb.CreateWorkerSession: Worker._create_session,
    pb.DeleteWorkerSession: Worker._delete_session,
    pb.RegisterGraph: Worker._register,
    pb.DeregisterGraph: Worker._deregister,
    pb.DescribeGraphs: Worker._describe,
    pb.RunGraph: Worker._run,
    pb.ForgetPartialRuns: Worker._forget_partial_runs,
    pb.CleanupGraph: Worker._cleanup,
    pb.TakeTurn: Worker._take_turn,
    pb.EndTurn: Worker._end_turn,
    pb.RecvTensor: Worker._serve,
    pb.ResetContainers: Worker._reset,
}
