"""`Steps`: the steps that run in one task, and the tensors that they have of other tasks and give to them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, final

from flowrt.device.deadline import deadline
from flowrt.distribute.flight_recorder import What
from flowrt.distribute.links import Links, task_of
from flowrt.distribute.messages import Message, derived
from flowrt.distribute.observer import Observer
from flowrt.distribute.peer import Peer
from flowrt.distribute.worker import EndStep, ServeTensors, StartStep, StepEnded
from flowrt.errors import CancelledError, InvalidArgumentError, OpError, UnknownError
from flowrt.executor.config import RunOptions
from flowrt.executor.runner import StepControl
from flowrt.executor.step_stats import StepRecorder
from flowrt.protos import cluster_pb2 as pb
from flowrt.protos.step_stats_pb2 import StepStats
from flowrt.rendezvous.remote import RemoteRendezvous, source_task


@final
class Steps:
    """``ended`` hears of every step's end, ``observer`` of what happens until then. Any thread may call
    anything.
    """

    def __init__(
        self, task: str, links: Links, ended: Callable[[StepEnded], object], observer: Observer
    ) -> None:
        self._task, self._links, self._ended, self._observer = task, links, ended, observer
        self._controls: dict[int, StepControl] = {}

    def new_rendezvous(self, step: int) -> RemoteRendezvous:
        rendezvous: RemoteRendezvous

        def request(task: str, keys: Sequence[str]) -> None:
            dones = [functools.partial(self._arrived, step, rendezvous, key) for key in keys]
            for key in keys:
                self._observer.note(What.ASKED, step, key, task)
            self._links.ask(task, Message(pb.RecvTensor(step=step, keys=keys)), dones)

        rendezvous = RemoteRendezvous(self._task, request)
        return rendezvous

    # --- running

    def prepare(self, start: StartStep) -> Callable[[], None]:
        """What runs the step. It can be ended from now on."""
        return functools.partial(self._run, start, self.begin(start))

    def _run(self, start: StartStep, control: StepControl) -> None:
        recorder = StepRecorder() if start.trace_level != RunOptions.NO_TRACE else None
        try:
            start.rendezvous.ask(start.part.keys)
            with deadline(control.remaining_s()):
                values = start.part.run(start.feeds, control, recorder, start.rendezvous)
            self.finish(start, values, b"" if recorder is None else _stats(recorder))
        except BaseException as failure:
            self.fail(start, control, failure)
            if not isinstance(failure, Exception):
                raise

    def begin(self, start: StartStep) -> StepControl:
        """What ends the step from outside, from now on. Who drives its programs says the end, by `finish` or
        `fail`.
        """
        control = StepControl(start.timeout_ms / 1000 if start.timeout_ms else None)
        self._controls[start.step] = control
        self._observer.note(What.STARTED, start.step)
        return control

    def finish(self, start: StartStep, values: Sequence[Any], stats: bytes = b"") -> None:
        """The step's programs have ended well; it ends when what they made for others has left."""
        ended = StepEnded(start.step, values, None, stats)
        start.rendezvous.end(functools.partial(self._end, ended))

    def fail(self, start: StartStep, control: StepControl, failure: BaseException) -> None:
        """The step's programs have ended with ``failure``, or with what it was ended with from outside."""
        error = as_op_error(failure)
        if control.cancelled is not None and isinstance(failure, OpError):
            error = control.cancelled
        self._end(StepEnded(start.step, (), error))

    def _end(self, ended: StepEnded) -> None:
        self._controls.pop(ended.step, None)
        if ended.error is None:
            self._observer.note(What.ENDED, ended.step)
        self._ended(ended)

    def end(self, action: EndStep) -> None:
        """Make the step end with an error."""
        control = self._controls.get(action.step)
        if control is not None:
            control.cancel(action.error)
        action.rendezvous.abort(action.error)
        self._observer.aborted(action.step, action.error)

    # --- tensors of others

    def _arrived(
        self,
        step: int,
        rendezvous: RemoteRendezvous,
        key: str,
        message: Message | None,
        error: OpError | None,
    ) -> None:
        if message is None or len(message.tensors) != 1:
            failure = error or InvalidArgumentError(f"{key}: expected one tensor as the answer")
            self.end(EndStep(step, rendezvous, failure))
            return
        self._observer.note(What.ARRIVED, step, key, source_task(key))
        with suppress(OpError):  # the step has ended meanwhile
            rendezvous.arrived(key, message.tensors[0])

    # --- tensors for others

    def serve(self, serve: ServeTensors) -> None:
        """Answer with each tensor when it is there."""
        for i, key in enumerate(serve.keys):
            self._observer.note(What.REQUESTED, serve.step, key, task_of(serve.peer))
            serve.rendezvous.serve(key, functools.partial(self._send, serve, i))

    def _send(self, serve: ServeTensors, i: int, value: Any, error: OpError | None) -> None:
        peer, delivered = self._links.find(serve.peer), serve.rendezvous.delivered
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
            peer.answer(request_id, Message(pb.Done(), (value,)), None, serve.rendezvous.delivered)
            self._observer.note(What.SENT, serve.step, serve.keys[i], peer.name)
        except OpError as failure:  # it cannot travel
            self.end(EndStep(serve.step, serve.rendezvous, failure))
            peer.answer(request_id, None, derived(failure, self._task))


def as_op_error(error: BaseException) -> OpError:
    """``error`` as one that has a code."""
    if isinstance(error, OpError):
        return error
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return CancelledError(f"the step was interrupted by {type(error).__name__}")
    return UnknownError(f"{type(error).__name__}: {error}")


def _stats(recorder: StepRecorder) -> bytes:
    stats = StepStats()
    recorder.fill(stats)
    return stats.SerializeToString()
