"""Tiered compilation: a plan first runs its operations' own kernels; a plan with loops takes its place as
soon as those that save a fifth of the time are compiled in the background, and gets the others as they become
ready (`flowrt.executor.bind.awaited_loops`).

`FLOWRT_JIT` selects when: ``background`` (the default), ``eager`` (before the first step) or ``off``. A step
that runs once, such as an initializer, is not worth it: compiling begins with the third run, and for a large
plan when its steps have taken about as long as compiling will. A separate thread compiles large plans, so
that small ones do not wait for them.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import Enum
from queue import SimpleQueue
from typing import Generic, Protocol, TypeVar, final

from flowrt.errors import FailedPreconditionError, InvalidArgumentError, ResourceExhaustedError

LOGGER = logging.getLogger(__name__)

RUNS_BEFORE_COMPILING = 3
"""The run with which compiling begins. It slows down the runs beside it: on 2 cores a step of BERT-tiny takes
190 to 240 ms instead of 120, for eight steps, and then 82.
"""

SWITCH_S = 0.0005
"""The interpreter's switch interval while loops are compiled. LLVM is called without the GIL, some hundred
times; reacquiring it takes this long each time while another thread runs steps. With the default of 5 ms the
first loop is ready after 0.64 s instead of 0.2.
"""

LARGE, RUNS_BEFORE_LARGE = 20_000, 500
"""Minimum number of nodes of a large plan, and its number of runs before compiling: while steps of 100,000
small ops run, that takes 17 s, as long as 600 of them, and makes 0.1 ms of their 25.
"""


class Jit(Enum):
    """Time at which loops are compiled."""

    OFF = "off"
    EAGER = "eager"
    BACKGROUND = "background"


def jit_mode() -> Jit:
    """The current value of ``FLOWRT_JIT``. Raises `InvalidArgumentError`."""
    name = os.environ.get("FLOWRT_JIT") or Jit.BACKGROUND.value
    try:
        return Jit(name)
    except ValueError:
        choices = ", ".join(mode.value for mode in Jit)
        raise InvalidArgumentError(f"FLOWRT_JIT: expected one of {choices}; got {name!r}") from None


@final
class _Background:
    """A thread that executes work items one after another, each inside a ``turns`` context."""

    def __init__(self, name: str, turns: Callable[[], AbstractContextManager[None]]) -> None:
        self._name, self._turns = name, turns
        self.begin()

    def begin(self) -> None:
        """Be new, without a thread: in a fork's child, too."""
        self._lock = threading.Lock()
        self._work: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, work: Callable[[], object]) -> None:
        with self._lock:
            self._work.put(work)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._run_next()

    def _run_next(self) -> None:
        """Run one item, in a separate function so that its end releases the item."""
        work = self._work.get()
        try:
            with self._turns():
                work()
        except Exception:
            LOGGER.exception("loops were not compiled: the operations' own kernels remain in use")


@contextmanager
def _short_turns() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(min(interval, SWITCH_S))
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


_background = _Background("flowrt compiler", _short_turns)
_background_of_large = _Background("flowrt compiler of large plans", nullcontext)
os.register_at_fork(after_in_child=_background.begin)
os.register_at_fork(after_in_child=_background_of_large.begin)


def compile_beside(work: Callable[[], object], nodes: int) -> None:
    """Have ``work()``, which compiles so many nodes, done by another thread. What it raises is logged."""
    (_background_of_large if nodes > LARGE else _background).submit(work)


class Compiled(Protocol):
    """The part of `flowrt.executor.plan.plan.Plan` that its tier uses."""

    has_loops: bool

    def compile_loops(self) -> Iterator[None]: ...

    def close(self) -> None: ...


P = TypeVar("P", bound=Compiled)


@final
class NextTier(Generic[P]):
    """The plan with compiled loops that takes the place of one of ``nodes`` nodes after some runs.

    ``make()`` makes it, and its `compile_loops` compiles the loops. If ``make()`` raises
    `FailedPreconditionError`, because the session was closed meanwhile, or `ResourceExhaustedError`, because
    two plans do not fit into memory, the first plan stays.
    """

    def __init__(self, make: Callable[[], P], nodes: int) -> None:
        self.make, self._nodes = make, nodes
        self._last = RUNS_BEFORE_LARGE if nodes > LARGE else RUNS_BEFORE_COMPILING
        self._runs = itertools.count(1)  # threads draw each number once

    def count_run(self, take: Callable[[P | None], None]) -> None:
        """Count a run. The last one has another thread make the plan, compile its first loops, call
        ``take`` with it, and compile the others; with None if there is no plan or it has no loop.
        """
        if next(self._runs) == self._last:
            compile_beside(lambda: self._compile(take), self._nodes)

    def _compile(self, take: Callable[[P | None], None]) -> None:
        plan: P | None = None
        try:
            plan = self._made()
            loops = iter(()) if plan is None else plan.compile_loops()
            next(loops, None)  # steps use the plan from its first loops on
        finally:
            take(plan)
        for _ in loops:
            pass

    def _made(self) -> P | None:
        try:
            plan = self.make()
        except (FailedPreconditionError, ResourceExhaustedError):
            return None
        if plan.has_loops:
            return plan
        plan.close()
        return None
