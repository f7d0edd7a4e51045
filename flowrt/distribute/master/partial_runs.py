"""`PartialRuns`: a master's part of `Session.partial_run`, one step in several calls.

    client              master                                                workers
    PartialRunSetup  -> the feeds and fetches: a handle
    PartialRun       -> CutGraph, RegisterGraph, once for equal calls
                        RunGraph with the part's feeds, one per task       -> keep tensors for later calls
                        after the last, or a failure: ForgetPartialRuns    -> the tasks that keep something

Rules of this file:
  1. An invalid call has no effect on the run.
  2. Any other failure ends the run, since the call's effects are unknown. Later calls are rejected.
  3. One call of a run at a time.
  4. Kept tensors of a run are released when all was fetched, when it has failed, when the client has released
     it, and with the session.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar, final

from flowrt.distribute.machines.events import Answer, GraphCut, MasterAction, Tell
from flowrt.distribute.master.master_session import MasterSession, MasterSessions, RegisteredStep, closed
from flowrt.distribute.master.partial_stages import PreparedCall, Stage, begin_stage, key_of, prepare, refs
from flowrt.distribute.master.pending_replies import Round
from flowrt.distribute.master.registered_steps import RegisteredSteps, result_of
from flowrt.distribute.wire.messages import Message
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, OpError, ResourceExhaustedError
from flowrt.executor.bind.bind_fetches import copied
from flowrt.executor.partial.partial_step import failed_before
from flowrt.graph.node import Ref
from flowrt.protos import cluster_pb2 as pb

MAX_RUNS = 1024
"""Maximum per session: each may keep tensors, here and in its tasks."""

MAX_SETUPS = 64
"""Maximum number of cached setups per session: their names, not their results."""

MAX_CALLS = 256
"""Maximum number of registered calls per session: as many as the plans of a session in this process."""

_T = TypeVar("_T")


class _Run:
    """``values``: the client's feeds that later calls read. ``holders``: the tasks that keep tensors."""

    __slots__ = ("failure", "holders", "is_running", "number", "stage", "values")

    def __init__(self, number: int, stage: Stage) -> None:
        self.number, self.stage = number, stage
        self.values: dict[Ref, Any] = {}
        self.holders: dict[str, None] = {}
        self.is_running = False
        self.failure: OpError | None = None


class _Call(NamedTuple):
    """One that is registered, and the stage after it."""

    prepared: PreparedCall
    step: RegisteredStep
    after: Stage


@final
class PartialRuns:
    """Partial runs of ``sessions``, which run as ``steps``."""

    def __init__(self, sessions: MasterSessions, steps: RegisteredSteps) -> None:
        self._sessions, self._steps = sessions, steps
        self._last = 0

    def set_up(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        """A `PartialRunSetup`. Raises as `begin_stage`, `AbortedError` for a session that is not there,
        `ResourceExhaustedError` for one that has too many.
        """
        session = self._sessions.find(message.body.session)
        table = session.partial_runs
        actions: list[MasterAction] = []
        for number in message.body.released:
            run = table.runs.pop(number, None)
            if run is not None and not run.is_running:  # else when its call has ended
                actions += self._let_go(message.body.session, run)
        try:
            if len(table.runs) >= MAX_RUNS:
                raise ResourceExhaustedError(
                    f"partial_run_setup: expected at most {MAX_RUNS} partial runs per session; got one more"
                )
            stage = _stage_of(session, message)
        except OpError as error:
            return [*actions, Answer(client, request_id, None, error)]
        self._last += 1
        table.runs[self._last] = _Run(self._last, stage)
        handle = pb.PartialRunHandle(partial_run=self._last)
        return [*actions, Answer(client, request_id, Message(handle))]

    def call(self, client: str, request_id: int, message: Message) -> list[MasterAction]:
        """A `PartialRun`. Raises `InvalidArgumentError` for a run that the session does not have, and as
        `prepare`; `FailedPreconditionError` for a run that has failed, or has a call already.
        """
        body = message.body
        session = self._sessions.find(body.session)
        run = _run_of(session, body.partial_run)
        key = key_of(run.stage, message)
        known: _Call | None = session.partial_runs.calls.get(key)
        prepared = prepare(key, message.tensors) if known is None else known.prepared
        run.is_running = True
        round_ = Round(client, request_id, body.session)
        if known is not None:
            session.partial_runs.calls.move_to_end(key)
            return self._run(run, known, message, round_)

        def made(round_: Round, step: RegisteredStep | None, cut: GraphCut) -> list[MasterAction]:
            if step is None:
                return self._fail(run, round_)
            calls = session.partial_runs.calls
            call = calls.get(key)
            needless = step.parts if call is not None else ()  # another run has had it registered meanwhile
            if call is None:
                call = _Call(prepared, step, prepared.after(cut.parts.values()))
                gone = _remember(calls, key, call, MAX_CALLS)
                needless = () if gone is None else gone.step.parts
            dropped = self._steps.drop(body.session, needless)
            return [*dropped, *self._run(run, call, message, Round(client, request_id, body.session))]

        wanted = prepared.wanted(body.session)
        return self._steps.make(round_, session, run.stage.graph, wanted, made, prepared.kept_by)

    def _run(self, run: _Run, call: _Call, message: Message, round_: Round) -> list[MasterAction]:
        prepared, body = call.prepared, message.body
        values = {**run.values, **dict(zip(refs(body.fed), message.tensors, strict=True))}
        feeds = [values.get(ref) for ref in prepared.fed]
        for part in call.step.parts:
            if part.fetches and part.fetches[-1] >= len(prepared.asked):
                run.holders[part.task] = None
        round_.end = functools.partial(self._ended, run, call, values, refs(body.fetches))
        options = pb.RunGraph(timeout_ms=body.timeout_ms, partial_run=run.number)
        return self._steps.run(round_, call.step, feeds, options)

    def _ended(
        self, run: _Run, call: _Call, values: dict[Ref, Any], fetches: Sequence[Ref], round_: Round
    ) -> list[MasterAction]:
        session = self._sessions.get(round_.session)
        if session is None or run.number not in session.partial_runs.runs:
            round_.errors = round_.errors or [("", closed())]
        if round_.errors:
            return self._fail(run, round_)
        result, tensors = result_of(round_, call.step)[:2]
        values.update(zip(call.prepared.asked, tensors, strict=False))  # kept tensors come last
        known, kept = call.after.step.known, call.after.kept
        run.stage, run.is_running = call.after, False
        given = call.prepared.given  # a caller in this process may modify them
        run.values = {
            ref: copied(value) if ref in given else value
            for ref, value in values.items()
            if ref in known and ref not in kept
        }
        over = self._let_go(round_.session, run) if run.stage.step.is_over else []
        return [*over, *round_.answer(Message(result, [values[ref] for ref in fetches]))]

    def _fail(self, run: _Run, round_: Round) -> list[MasterAction]:
        error = round_.error or closed()
        run.failure, run.is_running = error, False
        return [*self._let_go(round_.session, run), *round_.refuse(error)]

    def _let_go(self, name: str, run: _Run) -> list[MasterAction]:
        """Release kept tensors in the tasks; those of a closed session are already released."""
        holders, run.holders, run.values = run.holders, {}, {}
        if name not in self._sessions:
            return []
        forget = Message(pb.ForgetPartialRuns(session=name, partial_runs=[run.number]))
        return [Tell(task, forget) for task in holders]


def _run_of(session: MasterSession, number: int) -> _Run:
    """A run that may be called."""
    run: _Run | None = session.partial_runs.runs.get(number)
    if run is None:
        raise InvalidArgumentError(f"partial_run: expected a handle of this session; got {number}")
    if run.failure is not None:
        raise failed_before(run.failure)
    if run.is_running:
        raise FailedPreconditionError(
            "partial_run: expected one call at a time; got one during another. Wait for its end"
        )
    return run


def _stage_of(session: MasterSession, message: Message) -> Stage:
    """The first stage of a setup: shared by equal setups."""
    body, setups = message.body, session.partial_runs.setups
    feeds = message.graph.nodes.values() if message.graph is not None else ()
    shapes = tuple([node.outputs[0] for node in feeds]) or body.feeds
    key = refs(body.fed), refs(body.fetches), tuple(body.targets), shapes
    stage = setups.get(key)
    if stage is None or not stage.is_of(session.graph):
        stage = begin_stage(session.graph, message)
    _remember(setups, key, stage, MAX_SETUPS)
    return stage


def _remember(table: OrderedDict[Any, _T], key: Any, value: _T, limit: int) -> _T | None:
    """Insert as the most recently used entry; returns the evicted value, if any."""
    table[key] = value
    table.move_to_end(key)
    return table.popitem(last=False)[1] if len(table) > limit else None
