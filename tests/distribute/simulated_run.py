"""The programs of one step in one task of the simulated cluster, a segment at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.distribute.machines.events import StartStep
from flowrt.distribute.worker.steps import Steps
from flowrt.errors import AbortedError, DeadlineExceededError, OpError
from flowrt.executor.program.control_flow import PAUSE
from flowrt.graph.resources.step_context import step_scope


def late() -> OpError:
    return DeadlineExceededError("the step did not end within its virtual deadline")


class Run:
    """The programs of one step in one task; what `run_threaded` does with threads, a segment at a time."""

    def __init__(
        self,
        start: StartStep,
        steps: Steps,
        now: Callable[[], float],
        delivered: Callable[[int, str], object],
        over: Callable[[Run], object],
    ) -> None:
        """``delivered(step, key)`` hears of each value that a program gets, ``over(run)`` of the end."""
        self.start, self._steps, self._delivered, self._over = start, steps, delivered, over
        self.control = steps.begin(start)
        self.until = now() + start.timeout_ms / 1000 if start.timeout_ms else None
        self.asked_for: dict[int, str] = {}
        """The key that each program waits for."""
        self._values: dict[int, Any] = {}
        self._errors: list[BaseException] = []
        self._instance: Any = None
        self._programs: dict[int, Any] | None = None

    @property
    def movable(self) -> list[int]:
        """The programs that can go on."""
        if not self._programs:
            return [0]  # to begin, or to end
        return [number for number in self._programs if number not in self.asked_for]

    def advance(self, number: int) -> None:
        """Let a program go on to its next wait or pause."""
        try:
            with np.errstate(all="ignore"), step_scope(self.control):
                if self._programs is None:
                    self._begin()
                elif self._programs:
                    self._go_on(number)
        except Exception as error:  # noqa: BLE001 (it is the step's)
            self._fail(number, error)
        if not self._programs:
            self._end()

    def be_late(self) -> None:
        """The deadline has passed."""
        self.control.cancel(late())

    def _begin(self) -> None:
        self._programs = {}
        self.control.wake_by(self.start.rendezvous.abort)
        self.start.rendezvous.ask(self.start.part.keys)
        self.control.check()
        self._instance = self.start.part.plan.begin(self.start.feeds, self.start.rendezvous)
        self._programs = {i: program.run_stepwise() for i, program in enumerate(self._instance.programs)}

    def _go_on(self, number: int) -> None:
        assert self._programs is not None
        self.control.check()
        try:
            key = self._programs[number].send(self._values.pop(number, None))
        except StopIteration:
            del self._programs[number]
            return
        if key is not PAUSE:
            self.asked_for[number] = key
            self.start.rendezvous.recv_async(key, functools.partial(self._arrived, number, key))

    def _arrived(self, number: int, key: str, value: Any, error: OpError | None) -> None:
        assert self.asked_for.pop(number, None) == key, f"{key} was settled twice"
        if error is not None:
            self._fail(number, error)
            return
        self._delivered(self.start.step, key)
        self._values[number] = value

    def _fail(self, number: int, error: Exception) -> None:
        assert self._programs is not None
        self._programs.pop(number, None)
        self._errors.append(error)
        known = error if isinstance(error, OpError) else AbortedError(f"another device failed: {error!r}")
        self.control.cancel(known)

    def _end(self) -> None:
        self._over(self)
        try:
            if self._errors:
                raise self._errors[0]
            self.control.check()
            self._steps.finish(self.start, self.start.part.plan.finish(self._instance))
        except Exception as failure:  # noqa: BLE001 (it is the step's)
            self._steps.fail(self.start, self.control, failure)
