"""`RegisteredSteps`: a master's placement, partitioning, registration, execution and release of steps.

    make   CutGraph; RegisterGraph to the tasks that have a part     -> made(round, step)
    run    RunGraph with the part's feeds, one message per task      -> the round's answers
           around it TakeTurn and EndTurn, if the step is gang scheduled
    drop   DeregisterGraph

Used by `Master` for callables, and by `PartialRuns` for the calls of a partial run.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

from flowrt.distribute.machines.events import CutGraph, GraphCut, MasterAction, Part, Tell
from flowrt.distribute.machines.session_graph import SessionGraph
from flowrt.distribute.master.master_session import (
    MasterSession,
    MasterSessions,
    Registered,
    RegisteredStep,
    closed,
)
from flowrt.distribute.master.pending_replies import LATE_S, End, PendingReplies, Round
from flowrt.distribute.wire.messages import Message
from flowrt.graph.construction.constant import feed_op
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.ops.collective.transfer import SENDS, recv_op
from flowrt.protos import cluster_pb2 as pb

Made = Callable[[Round, RegisteredStep | None, GraphCut], list[MasterAction]]
"""``made(round, None, cut)``: it was not, for the round's error."""

Kept = Callable[[Part], tuple[Sequence[int], Sequence[int]]]
"""Tensors that a part takes from earlier calls and keeps for later ones: see `RegisterGraph`."""


class _Making(NamedTuple):
    message: Message
    made: Made
    kept: Kept | None


@final
class RegisteredSteps:
    """``rng`` draws the numbers of steps. The task ``turn_keeper`` gives gang-scheduled steps their turns."""

    def __init__(
        self, pending: PendingReplies, sessions: MasterSessions, rng: random.Random, turn_keeper: str
    ) -> None:
        self._pending, self._sessions, self._rng = pending, sessions, rng
        self._turn_keeper = turn_keeper
        self._put_off: dict[str, list[MasterAction]] = {}
        """Actions that wait for the turns of a session's steps."""

    # --- making

    def make(
        self,
        round_: Round,
        session: MasterSession,
        graph: SessionGraph,
        message: Message,
        made: Made,
        kept: Kept | None = None,
    ) -> list[MasterAction]:
        """Register the request ``message``, a `MakeCallable`, for ``graph`` in the session's tasks."""
        token = self._pending.begin_work(round_, _Making(message, made, kept))
        options, placement = session.options, dict(session.placement)
        return [CutGraph(token, round_.client, graph, message, options, session.devices, placement)]

    def register(self, cut: GraphCut) -> list[MasterAction]:
        """A step was cut."""
        round_, making = self._pending.end_work(cut.token)
        session = self._sessions.get(round_.session)
        error = closed() if session is None else cut.error
        if error is not None:
            round_.errors.append((self._pending.task, error))
        if session is None or round_.errors:
            return list(making.made(round_, None, cut))
        session.placement.update(cut.placement)
        parts: list[Registered] = []
        actions: list[MasterAction] = []
        for task, part in cut.parts.items():
            numbers, carried = session.constants[task].hold(part.constants)
            taken, keeps = making.kept(part) if making.kept is not None else ((), ())
            awaited = _awaited(part.subgraph)
            parts.append(Registered(task, 0, part.feeds, part.fetches, numbers, taken, awaited))
            body = pb.RegisterGraph(
                session=round_.session, constants=numbers, carried=carried, taken=taken, keeps=keeps
            )
            body.optimises = session.options.optimises
            sent = Message(body, session.constants[task].arrays(carried), part.subgraph)
            actions.append(self._pending.ask(round_, task, sent))
        round_.end = functools.partial(self._registered, making, parts, cut)
        return actions or round_.end(round_)

    def _registered(
        self, making: _Making, sent: Sequence[Registered], cut: GraphCut, round_: Round
    ) -> list[MasterAction]:
        session = self._sessions.get(round_.session)
        if session is None:
            round_.errors = [(self._pending.task, closed())]
            return making.made(round_, None, cut)
        answers = round_.answers
        parts = [part._replace(graph=answers[part.task].body.graph) for part in sent if part.task in answers]
        for part in parts:
            session.constants[part.task].have_come(part.constants)
        if round_.error is not None:
            failed = [part for part in sent if part.task not in answers]
            return [*self.drop(round_.session, [*parts, *failed]), *making.made(round_, None, cut)]
        body = making.message.body
        gang = [device for part in cut.parts.values() for device in part.gang]
        return making.made(round_, RegisteredStep(parts, len(body.fed), len(body.fetches), gang), cut)

    def drop(self, name: str, parts: Sequence[Registered]) -> list[MasterAction]:
        """Have the tasks forget ``parts``, and the constants that no other part has."""
        actions: list[MasterAction] = []
        for part in parts:
            constants = self._sessions[name].constants[part.task].let_go(part.constants)
            graphs = [part.graph] if part.graph else []
            if graphs or constants:
                body = pb.DeregisterGraph(session=name, graphs=graphs, constants=constants)
                actions.append(Tell(part.task, Message(body)))
        return actions

    # --- running

    def run(
        self, round_: Round, step: RegisteredStep, feeds: Sequence[Any], options: pb.RunGraph
    ) -> list[MasterAction]:
        """Run a step with ``feeds``, ignoring those taken from earlier calls. ``options``: for all tasks."""
        round_.step = self._rng.getrandbits(63) | 1
        round_.awaited = {part.task: part.awaited for part in step.parts if part.awaited is not None}
        if options.timeout_ms:
            round_.deadline = self._pending.now + options.timeout_ms / 1000 + LATE_S
        if not step.gang:
            return self._start(round_, step, feeds, options)
        round_.end = functools.partial(self._begin_turn, step, feeds, options, round_.end)
        body = pb.TakeTurn(step=round_.step, session=round_.session, devices=step.gang)
        return [self._pending.ask(round_, self._turn_keeper, Message(body))]

    def _start(
        self, round_: Round, step: RegisteredStep, feeds: Sequence[Any], options: pb.RunGraph
    ) -> list[MasterAction]:
        # its own part last: the caller may run it at once, when the others are in flight
        ordered = sorted(step.parts, key=lambda part: part.task == self._pending.task)
        actions = [
            self._pending.ask(round_, part.task, _part(part, feeds, round_.step, options)) for part in ordered
        ]
        return actions or round_.end(round_)

    # --- gang scheduling: see `flowrt.distribute.worker.gang_turns`

    def _begin_turn(
        self, step: RegisteredStep, feeds: Sequence[Any], options: pb.RunGraph, end: End, round_: Round
    ) -> list[MasterAction]:
        """The step's turn has come, or it was ended while it waited."""
        round_.answers.clear()
        round_.end = functools.partial(self._end_turn, end)
        if round_.session not in self._sessions:
            round_.errors.append((self._pending.task, closed()))
        if round_.errors:
            return round_.end(round_)
        round_.has_turn = True
        unlimited = pb.RunGraph(trace_level=options.trace_level, partial_run=options.partial_run)
        return self._start(round_, step, feeds, unlimited)  # the deadline is kept here: see `Round.has_turn`

    def _end_turn(self, end: End, round_: Round) -> list[MasterAction]:
        over = Tell(self._turn_keeper, Message(pb.EndTurn(step=round_.step)))
        actions = [*end(round_), over]
        if not self._pending.has_turn(round_.session):
            actions += self._put_off.pop(round_.session, [])
        return actions

    def after_turns(self, session: str, actions: list[MasterAction]) -> list[MasterAction]:
        """``actions``, now or when the steps of ``session`` that have a turn have ended."""
        if not self._pending.has_turn(session):
            return actions
        self._put_off[session] = actions
        return []


def _awaited(part: Subgraph) -> Node | None:
    """The last operation of the script in ``part`` with a result that another task or the client gets, or
    else the last one; None if the script has none there.
    """
    wanted = {ref[0] for node in part if node.op in SENDS for ref in node.inputs}
    wanted.update(ref[0] for ref in part.fetches)
    between = {*SENDS, recv_op, feed_op}
    of_script = [node for node in part if node.source is not None and node.op not in between]
    return next(iter([node for node in reversed(of_script) if node.name in wanted] + of_script[-1:]), None)


def _part(part: Registered, feeds: Sequence[Any], step: int, options: pb.RunGraph) -> Message:
    body = pb.RunGraph(
        graph=part.graph,
        step=step,
        timeout_ms=options.timeout_ms,
        trace_level=options.trace_level,
        partial_run=options.partial_run,
    )
    taken = part.taken or [0] * len(part.feeds)
    return Message(body, [feeds[i] for i, kept in zip(part.feeds, taken, strict=True) if not kept])


def result_of(round_: Round, step: RegisteredStep) -> Message:
    """The answer to a successful step; kept tensors are None."""
    result = pb.StepResult()
    values: list[Any] = [None] * step.num_fetches
    for part in step.parts:
        answer = round_.answers[part.task]
        result.step_stats.extend(answer.body.step_stats)
        for position, value in zip(part.fetches, answer.tensors, strict=False):  # the last may be kept
            values[position] = value
    return Message(result, values)
