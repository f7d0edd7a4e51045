"""`Steps`: the steps running in one task, and the tensors that they exchange with other tasks."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

from flowrt.device.deadline import deadline
from flowrt.distribute.connection_manager import ConnectionManager, task_of
from flowrt.distribute.machines.events import EndStep, ServeTensors, StartStep, StepEnded
from flowrt.distribute.observe.flight_recorder import What
from flowrt.distribute.observe.observer import Observer
from flowrt.distribute.observe.stalls import MAX_REPORTED_KEYS
from flowrt.distribute.wire.clock import offset_of
from flowrt.distribute.wire.coalescing import CoalescedAnswers
from flowrt.distribute.wire.messages import Message, derived
from flowrt.distribute.wire.peer import Peer
from flowrt.distribute.worker.step_profiles import StepProfiles
from flowrt.distribute.worker.step_progress import StepProgress
from flowrt.distribute.worker.step_trace import StepTrace
from flowrt.errors import CancelledError, InternalError, InvalidArgumentError, OpError, UnknownError
from flowrt.executor.ends.config import RunOptions
from flowrt.executor.program.runner import StepControl
from flowrt.protos import cluster_pb2 as pb
from flowrt.rendezvous.remote import RemoteRendezvous, source_task


@final
class Steps:
    """``ended`` is called at every step's end, ``observer`` with events until then. Thread-safe."""

    def __init__(
        self,
        task: str,
        connections: ConnectionManager,
        ended: Callable[[StepEnded], object],
        observer: Observer,
    ) -> None:
        self._task, self._connections, self._ended, self._observer = task, connections, ended, observer
        self._counts = observer.counts
        self._progress = StepProgress()
        self._coalesced = CoalescedAnswers()
        self._controls: dict[int, StepControl] = {}
        self._traces: dict[int, StepTrace] = {}
        self.profiles = StepProfiles()

    def new_rendezvous(self, step: int) -> RemoteRendezvous:
        rendezvous: RemoteRendezvous

        def request(task: str, keys: Sequence[str]) -> None:
            self._counts.asked(task, len(keys))
            dones = [functools.partial(self._arrived, step, rendezvous, task, key) for key in keys]
            for key in keys:
                self._note(What.ASKED, step, key, task)
            self._connections.ask(task, Message(pb.RecvTensor(step=step, keys=keys)), dones)

        rendezvous = RemoteRendezvous(self._task, request)
        return rendezvous

    # --- running

    def run_async(self, start: StartStep) -> None:
        """Run a step with a short part, on this thread and on those that receive its tensors. Not a traced
        one: at its end it waits, for the requester's clock.
        """
        control = self.begin(start)
        holds_back = self._coalesced.begin()

        def ended(values: Sequence[Any], failure: BaseException | None) -> None:
            if failure is None:
                try:
                    self.finish(start, values)
                except InternalError as error:
                    failure = error
            if failure is not None:
                self.fail(start, control, failure)

        try:
            start.rendezvous.ask(start.part.keys)
            start.part.run_async(start.feeds, control, start.rendezvous, ended)
        except Exception as failure:  # noqa: BLE001 (raised by the step)
            self.fail(start, control, failure)
        finally:
            if holds_back:
                self._coalesced.end()

    def prepare(self, start: StartStep) -> Callable[[], None]:
        """The function that runs the step, which can be ended from now on."""
        control = self.begin(start)
        if self.profiles.takes(start.step):
            self._traces.setdefault(start.step, StepTrace(is_for_client=False))
        return functools.partial(self._run, start, control)

    def _run(self, start: StartStep, control: StepControl) -> None:
        trace = self._traces.get(start.step)
        try:
            start.rendezvous.ask(start.part.keys)
            with deadline(control.remaining_s()):
                values = start.part.run(start.feeds, control, trace and trace.recorder, start.rendezvous)
            if trace is not None and trace.is_for_client:
                peer = self._connections.find(start.peer)
                trace.shift_ns = trace.shift_ns if peer is None else offset_of(peer)
            self.finish(start, values)
        except BaseException as failure:
            self.fail(start, control, failure)
            if not isinstance(failure, Exception):
                raise

    def begin(self, start: StartStep) -> StepControl:
        """The control by which the step can be ended from outside, from now on. Its driver reports the end,
        by `finish` or `fail`.
        """
        control = StepControl(start.timeout_ms / 1000 if start.timeout_ms else None, start.step)
        self._controls[start.step] = control
        if start.trace_level != RunOptions.NO_TRACE:
            self._traces[start.step] = StepTrace(is_for_client=True)
        self._progress.begin(start.step, control, start.rendezvous)
        self._counts.step_began(start.step)
        self._observer.note(What.STARTED, start.step)
        return control

    def finish(self, start: StartStep, values: Sequence[Any]) -> None:
        """Report that the step's programs have succeeded; it ends when its sends are complete, or with the
        error that makes them vain.
        """
        start.rendezvous.end(functools.partial(self._drained, start.step, values))

    def _drained(self, step: int, values: Sequence[Any]) -> None:
        error = self._controls[step].cancelled
        self._end(StepEnded(step, values if error is None else (), error))

    def fail(self, start: StartStep, control: StepControl, failure: BaseException) -> None:
        """Report that the step's programs have ended with ``failure``, or with an external error."""
        error = as_op_error(failure)
        if control.cancelled is not None and isinstance(failure, OpError):
            error = control.cancelled
        self._end(StepEnded(start.step, (), error))

    @property
    def num_running(self) -> int:
        """Number of steps without a reported end."""
        return len(self._controls)

    def _end(self, ended: StepEnded) -> None:
        self._progress.end(ended.step)
        self._counts.step_ended(ended.step, ended.error is None)
        trace = self._traces.pop(ended.step, None)
        if trace is not None:
            self.profiles.ended(ended.step, trace)
            if trace.is_for_client:
                ended = ended._replace(step_stats=trace.encode(trace.shift_ns))
        if ended.error is None:
            self._observer.note(What.ENDED, ended.step)
        try:
            self._ended(ended)
        finally:
            self._controls.pop(ended.step, None)

    def end(self, action: EndStep) -> None:
        """Make the step end with an error."""
        self._counts.step_failing(action.step)
        control = self._controls.get(action.step)
        if control is not None:
            control.cancel(action.error)
        action.rendezvous.abort(action.error)
        self._observer.aborted(action.step, action.error)

    def watch(self, now: float, running: Sequence[tuple[int, RemoteRendezvous]]) -> None:
        """`end_late`, end late profiles, and report those of ``running`` that have waited too long at ``now``
        of the monotonic clock, including the activity of the tasks that they wait for.
        """
        self.end_late(running)
        self.profiles.expire(now)
        for stall in self._observer.look(now, running):
            for task in sorted({source_task(key) for key in stall.keys[:MAX_REPORTED_KEYS]}):
                heard = functools.partial(self._observer.heard_progress, stall.step, task)
                self._connections.ask(task, Message(pb.GetProgress(step=stall.step)), [heard])

    def tell_progress(self, token: str, request_id: int, message: Message) -> None:
        """Answer the peer ``token`` with the current activity of the requested step."""
        peer = self._connections.find(token)
        if peer is not None:
            text = self._progress.describe(message.body.step)
            peer.answer(request_id, Message(pb.Progress(text=text)), None)

    def end_late(self, running: Iterable[tuple[int, RemoteRendezvous]]) -> None:
        """End those of ``running`` that are past their deadline. A step that waits on a thread checks it
        itself; a relayed one has no such thread.
        """
        for step, rendezvous in running:
            control = self._controls.get(step)
            if control is not None and control.has_deadline and not control.remaining_s():
                self.end(EndStep(step, rendezvous, control.too_late()))

    # --- tensors of others

    def _arrived(
        self,
        step: int,
        rendezvous: RemoteRendezvous,
        task: str,
        key: str,
        message: Message | None,
        error: OpError | None,
    ) -> None:
        tensor = message.tensors[0] if message is not None and len(message.tensors) == 1 else None
        self._counts.answered(task, getattr(tensor, "nbytes", 0))
        if tensor is None:
            failure = error or InvalidArgumentError(f"{key}: expected one tensor as the answer")
            self.end(EndStep(step, rendezvous, failure))
            return
        self._note(What.ARRIVED, step, key, task, tensor)
        holds_back = self._coalesced.begin()
        try:
            rendezvous.arrived(key, tensor)
        except OpError:  # the step has ended meanwhile
            pass
        finally:
            if holds_back:
                self._coalesced.end()

    # --- tensors for others

    def serve(self, serve: ServeTensors) -> None:
        """Answer with each tensor when it is there."""
        asker, holds_back = task_of(serve.peer), self._coalesced.begin()
        try:
            for i, key in enumerate(serve.keys):
                self._observer.note(What.REQUESTED, serve.step, key, asker)
                serve.rendezvous.serve(key, functools.partial(self._send, serve, i))
        finally:
            if holds_back:
                self._coalesced.end()

    def _send(self, serve: ServeTensors, i: int, value: Any, error: OpError | None) -> None:
        peer, delivered = self._connections.find(serve.peer), serve.rendezvous.delivered
        if error is not None:
            if peer is not None:
                peer.answer(serve.request_id + i, None, derived(error, self._task))
        elif peer is None:
            delivered()
        else:
            self._send_value(peer, serve, i, value)

    def _send_value(self, peer: Peer, serve: ServeTensors, i: int, value: Any) -> None:
        request_id = serve.request_id + i
        try:
            self._note(What.SENT, serve.step, serve.keys[i], peer.name, value)
            self._counts.sent(peer.name, getattr(value, "nbytes", 0))
            if not self._coalesced.add(peer, request_id, value, serve.rendezvous.delivered):
                peer.answer(request_id, Message(pb.Done(), (value,)), None, serve.rendezvous.delivered)
        except OpError as failure:  # it cannot travel
            self.end(EndStep(serve.step, serve.rendezvous, failure))
            peer.answer(request_id, None, derived(failure, self._task))

    # ---

    def _note(self, what: What, step: int, key: str, peer: str, value: Any = None) -> None:
        self._observer.note(what, step, key, peer)
        if self._traces and (trace := self._traces.get(step)) is not None:
            trace.note(what, key, value)


def as_op_error(error: BaseException) -> OpError:
    """``error`` as one that has a code."""
    if isinstance(error, OpError):
        return error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return CancelledError(f"the step was interrupted by {type(error).__name__}")
    return UnknownError(f"{type(error).__name__}: {error}")
