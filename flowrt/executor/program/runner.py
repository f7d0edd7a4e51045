"""Drivers of programs: interleaved on the calling thread, one thread each, or in a seeded order.

All of them drive the same generators (`Program.run`), and the result does not depend on the choice.

    run_inline    small work: the programs are interleaved; a program is left when the tensor it needs has not
                  been sent
    run_threaded  large work, and several streams: NumPy releases the interpreter lock in its kernels, so the
                  devices work in parallel
    run_seeded    tests: after every single instruction a seeded generator chooses the next program

`flowrt.executor.program.continuation` drives one program without a blocked thread.
"""

from __future__ import annotations

import inspect
import itertools
import random
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.device.deadline import deadline
from flowrt.device.host.host import HostStream
from flowrt.errors import AbortedError, CancelledError, DeadlineExceededError, InternalError, OpError
from flowrt.executor.program.control_flow import PAUSE
from flowrt.graph.node import Node
from flowrt.graph.resources.step_context import step_scope
from flowrt.rendezvous import LocalRendezvous

Running: TypeAlias = Generator[str, Any, None]

_numbers = itertools.count()


@final
class StepControl:
    """Ends a step from outside: a deadline (seconds from now, or None), or `cancel` from another thread.
    ``number``: the step's in its cluster; by default, one that this process has not used.
    """

    operation: Callable[[], Node | None]
    """The operation that the step is at, or None where it waits; there while its programs run."""

    __slots__ = ("__weakref__", "_cancelled", "_deadline", "_on_cancel", "_timeout_s", "number", "operation")

    def __init__(self, timeout_s: float | None = None, number: int | None = None) -> None:
        self.number = next(_numbers) if number is None else number
        self._timeout_s = timeout_s
        self._deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._cancelled: OpError | None = None
        self._on_cancel: Callable[[OpError], None] | None = None

    def cancel(self, error: OpError) -> None:
        """Make the step end with ``error`` at its next pause or wait."""
        self._cancelled = self._cancelled or error
        if self._on_cancel is not None:
            self._on_cancel(error)

    def wake_by(self, wake: Callable[[OpError], None]) -> None:
        """Register the function with which `cancel` wakes waiting threads."""
        self._on_cancel = wake

    @property
    def has_deadline(self) -> bool:
        return self._deadline is not None

    @property
    def cancelled(self) -> OpError | None:
        """The first error passed to `cancel`."""
        return self._cancelled

    def check(self) -> None:
        """Raises the reason when the step must end."""
        if self._cancelled is not None:
            raise self._cancelled
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise self.too_late()

    def too_late(self) -> DeadlineExceededError:
        return DeadlineExceededError(f"the step did not end within {(self._timeout_s or 0) * 1000:.0f} ms")

    def remaining_s(self) -> float | None:
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())


def run_inline(running: Sequence[Running], control: StepControl) -> None:
    """Interleave the programs until all are done: each runs in turn, to its next wait. Raises `InternalError`
    if all wait for unsent tensors.
    """
    _interleave(running, control, turn=list)


def run_seeded(running: Sequence[Running], control: StepControl, seed: int) -> None:
    """Interleave single instructions in an order drawn from ``seed``. Raises as `run_inline`."""
    rng = random.Random(seed)
    _interleave(running, control, turn=lambda left: [rng.choice(list(left))])


def _interleave(
    running: Sequence[Running], control: StepControl, turn: Callable[[Iterable[Running]], Sequence[Running]]
) -> None:
    """Resume the programs that ``turn`` chooses among those that are left, again and again."""
    last: dict[Running, str | None] = dict.fromkeys(running)
    stuck: set[Running] = set()
    """Programs that wait as before, since one has moved."""
    while last:
        for program in turn(last):
            key = next(program, None)
            if key is None or key is PAUSE or key != last[program]:
                stuck.clear()
            else:
                stuck.add(program)
            if key is None:
                del last[program]
            else:
                last[program] = key
        _check(control, last)
        if last and len(stuck) == len(last):
            raise _stuck(last)


def _check(control: StepControl, running: Iterable[Running]) -> None:
    """Raises the reason when the step must end, with the operation that the first program was at."""
    try:
        control.check()
    except OpError as error:
        for program in itertools.islice(running, 1):
            if inspect.getgeneratorstate(program) == inspect.GEN_SUSPENDED:
                program.throw(error)  # it raises the error again, with the location
        raise


def _stuck(last: Mapping[Running, str | None]) -> InternalError:
    return InternalError(f"the step cannot continue: no sender for {', '.join(map(str, last.values()))}")


def run_threaded(
    running: Sequence[Running],
    control: StepControl,
    rendezvous: LocalRendezvous,
    streams: Sequence[HostStream],
) -> None:
    """Run the first program on the calling thread, each other on its own stream. The first error ends all of
    them and is raised; errors of the others are its consequences.
    """
    errors: list[BaseException] = []
    control.wake_by(rendezvous.abort)
    try:
        for stream, program in zip(streams, running[1:], strict=True):
            stream.executor.launch(stream, _drive, program, control, rendezvous, errors)
        _drive(running[0], control, rendezvous, errors)
        _wait(streams)
    except BaseException as error:  # Ctrl-C: the step must not continue without the caller
        control.cancel(CancelledError(f"the step was interrupted by {type(error).__name__}"))
        _wait(streams)
        raise
    try:
        if errors:
            raise next((e for e in errors if not isinstance(e, Exception)), errors[0])  # Ctrl-C first
    finally:
        errors.clear()  # each holds its frames, they the list, and all of them the step's memory
    control.check()


def _wait(streams: Sequence[HostStream]) -> None:
    for stream in streams:
        stream.executor.block_host_until_done(stream)


def _drive(
    program: Running, control: StepControl, rendezvous: LocalRendezvous, errors: list[BaseException]
) -> None:
    """Run to the end, blocking where a tensor has not arrived. An error is noted, and wakes the others."""
    try:
        control.check()
        # all three are the thread's own
        with np.errstate(all="ignore"), step_scope(control), deadline(control.remaining_s()):
            key = next(program, None)
            while key is not None:
                _check(control, [program])
                if key is PAUSE:
                    key = next(program, None)
                    continue
                try:
                    value = rendezvous.recv(key, control.remaining_s())
                except DeadlineExceededError as error:
                    raise control.too_late() from error
                key = resume(program, value)
    except BaseException as error:  # noqa: BLE001 (raised by `run_threaded`)
        errors.append(error)  # before the others are notified: their errors come later
        control.cancel(_known(error))  # wakes kernels that wait, and by `wake_by` the rendezvous


def resume(program: Running, value: Any) -> str | None:
    """Resume ``program`` with the value it waited for (None at its beginning, and to check again); returns
    the next key that it waits for, None at its end.
    """
    try:
        return program.send(value)
    except StopIteration:
        return None


def _known(error: BaseException) -> OpError:
    """``error``, typed. A function: a local name in the thread's frame would keep the error and its step."""
    return error if isinstance(error, OpError) else AbortedError(f"another device failed: {error!r}")
