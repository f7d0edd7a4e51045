"""Executable requests of a cluster session, sent to its master.

ClusterStep   a callable, in place of a plan: RunStep
RemoteCalls   a step in several calls: PartialRun
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, final
from weakref import finalize

from flowrt.distribute.machines.session_graph import named
from flowrt.distribute.wire.messages import Message, encode_status
from flowrt.distribute.wire.peer import Reply
from flowrt.errors import CancelledError, OpError
from flowrt.executor.bind.bind_fetches import scalar_or_array
from flowrt.executor.ends.config import RunOptions
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.program.runner import StepControl
from flowrt.executor.session.local_runtime import Run
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.protos import cluster_pb2 as pb

CHECK_S = 1.0

Bring: TypeAlias = Callable[[Any, Sequence[Any]], Sequence[Any]]


class MasterLink(Protocol):
    """The way to a master. Any thread may call anything."""

    def new_reply(self) -> Reply:
        """A reply with the number of the next request."""

    def ask(self, message: Message, reply: Reply) -> None:
        """Send a request; the answer settles ``reply``."""

    def check(self) -> None:
        """Give up a master that has been silent so long that it must be gone: all replies are then settled.
        To be called each `CHECK_S` seconds of a wait.
        """

    def close(self) -> None: ...


def run_remotely(link: MasterLink, message: Message, control: StepControl) -> Message:
    """The reply to a request that runs a step. ``control``, or an interrupt, ends the step in all tasks."""
    reply = link.new_reply()

    def cancel(error: OpError) -> None:
        status = encode_status(error, "the client")
        request = pb.CancelStep(request_id=reply.request_id, status=status)
        link.ask(Message(request), link.new_reply())

    control.wake_by(cancel)
    try:
        link.ask(message, reply)
        while not reply.is_there(CHECK_S):
            link.check()
    except BaseException as error:  # Ctrl-C: the step must not continue without the caller
        if not isinstance(error, OpError):
            cancel(CancelledError(f"the step was interrupted by {type(error).__name__}"))
        raise
    return reply.open()


def timeout_ms_of(control: StepControl) -> int:
    """Remaining time of a step, in a request's encoding: 0 for no limit."""
    remaining = control.remaining_s()
    return 0 if remaining is None else max(1, round(remaining * 1000))


@final
class ClusterStep:
    """A request that the master has as ``callable``: a session uses it like a
    `flowrt.executor.plan.plan.Plan`. ``gone(callable)`` is called when it is no longer used.
    """

    is_straight = is_direct = False
    next_tier = size_feeds = None

    def __init__(
        self, session: str, link: MasterLink, subgraph: Subgraph, callable: int, gone: Callable[[int], object]
    ) -> None:
        self.placed = subgraph
        self._session, self._link, self._callable = session, link, callable
        self._gone = finalize(self, gone, callable)
        self._gone.atexit = False

    @property
    def subgraphs(self) -> list[Subgraph]:
        """The graph before it was placed: its parts are in other tasks."""
        return [self.placed]

    def run(
        self, feeds: Sequence[Any], control: StepControl, recorder: StepRecorder | None = None
    ) -> list[Any]:
        """Run one step; returns the fetched values. Raises the root cause of a failure."""
        body = pb.RunStep(
            session=self._session,
            callable=self._callable,
            timeout_ms=timeout_ms_of(control),
            trace_level=RunOptions.NO_TRACE if recorder is None else RunOptions.FULL_TRACE,
        )
        answer = run_remotely(self._link, Message(body, feeds), control)
        if recorder is not None:
            recorder.recorded += answer.body.step_stats
        return [scalar_or_array(value) for value in answer.tensors]

    def let_go(self) -> None:
        """No-op: the memory belongs to the tasks."""

    def close(self) -> None:
        """Release it; it will not run again."""
        self._gone()


@final
class RemoteCalls:
    """The calls of a step that the master has as ``partial_run``: see
    `flowrt.executor.partial.partial_run.Calls`. ``bring``: see
    `flowrt.executor.session.local_runtime.Runtime`; ``run_controlled`` is the session's.
    """

    def __init__(
        self, session: str, link: MasterLink, partial_run: int, bring: Bring, run_controlled: Run
    ) -> None:
        self._session, self._link, self.partial_run = session, link, partial_run
        self._bring, self._run_controlled = bring, run_controlled

    def call(
        self, given: Mapping[Tensor, Any], tensors: Sequence[Tensor], targets: Sequence[Operation]
    ) -> list[Any]:
        """See `flowrt.executor.partial.partial_run.Calls`."""
        body = pb.PartialRun(
            session=self._session,
            partial_run=self.partial_run,
            fed=[named(tensor.ref) for tensor in given],
            fetches=[named(tensor.ref) for tensor in tensors],
            targets=[operation.name for operation in targets],
        )
        feeds = self._bring(None, list(given.values()))
        return self._run_controlled(_RemoteCall(self._link, body), feeds, None, None)


@final
class _RemoteCall:
    """One call, as a session runs a plan."""

    def __init__(self, link: MasterLink, body: Any) -> None:
        self._link, self._body = link, body

    def run(
        self, feeds: Sequence[Any], control: StepControl, recorder: StepRecorder | None = None
    ) -> list[Any]:
        """Run the call; returns the fetched values. Raises the root cause of a failure."""
        self._body.timeout_ms = timeout_ms_of(control)
        answer = run_remotely(self._link, Message(self._body, feeds), control)
        return [scalar_or_array(value) for value in answer.tensors]
