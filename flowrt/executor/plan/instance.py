"""An instance of a plan: its programs on their own buffers, for one step at a time.

Concurrent steps use separate instances. If a plan extends another (`flowrt.executor.bind.extend_program`),
their instances share an arena: one of them is active, and the others wait.
"""

from __future__ import annotations

import contextvars
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from operator import call
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from flowrt.device.host.host import HostExecutor, HostStream
from flowrt.errors import OpError
from flowrt.executor.bind.extend_program import Bound, extend_program
from flowrt.executor.ends.feeds import direct_put
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.program.program import Program
from flowrt.executor.program.runner import Running, StepControl, run_inline, run_seeded, run_threaded
from flowrt.graph.construction.graph_extension import Extension
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.resources.step_context import step_scope
from flowrt.rendezvous import InlineRendezvous, LocalRendezvous


@final
class StepRendezvous:
    """Proxy to which the programs of a shared plan are bound, for the rendezvous of the current step."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current: Any = None

    def send(self, key: str, value: Any) -> None:
        self.current.send(key, value)

    def take(self, key: str, default: Any) -> Any:
        return self.current.try_recv(key, default)

    def fail(self, error: OpError) -> None:
        self.current.abort(error)


@final
class Instance:
    """The programs of one step at a time, on their own buffers, with their rendezvous."""

    def __init__(
        self,
        programs: list[Program],
        rendezvous: InlineRendezvous | LocalRendezvous | StepRendezvous,
        feed_order: Sequence[int],
        fetch_order: Sequence[int],
        bound: Bound | None = None,
        whole: Program | None = None,
    ) -> None:
        """``whole``: a single program equivalent to all ``programs``, if there is one."""
        self.programs, self._rendezvous = programs, rendezvous
        feeds = [feed for program in programs for feed in program.feeds]
        fetches = [fetch for program in programs for fetch in program.fetches]
        ordered = [feeds[position] for position in feed_order]
        self.puts = [feed.put for feed in ordered]
        arrays = [feed.array for feed in ordered if feed.array is not None]
        self.direct_puts = [direct_put(array) for array in arrays] if len(arrays) == len(ordered) else None
        """Functions that accept unconverted values, if all feeds are in buffers."""
        self.fetches = [fetches[position] for position in fetch_order]
        self._with_registers = [program for program in programs if program.registers]
        self._streams_of = {p.device: p.device.streams for p in programs if p.device.is_asynchronous}
        self._driven = programs if whole is None else [whole]
        self.is_straight = all(p.is_straight for p in self._driven) and len(self._driven) <= 1
        """Whether a step is one basic block, or none: nothing in it waits."""
        self.run_straight = _straight_run(self._driven[0]) if self._driven else _do_nothing
        """One step, if it is straight."""
        self._bound = bound
        self._others: WeakKeyDictionary[Any, Instance] = WeakKeyDictionary()
        """Inactive instances on the same memory, by their plans."""

    def extend(
        self, placed: Subgraph, extension: Extension, feed_order: Sequence[int], fetch_order: Sequence[int]
    ) -> Instance | None:
        """The instance of ``placed``, on the same memory; None if it cannot be."""
        found = (
            None if self._bound is None else extend_program(self.programs[0], self._bound, placed, extension)
        )
        if found is None:
            return None
        program, bound = found
        return Instance([program], self._rendezvous, feed_order, fetch_order, bound)

    def take_memory(self, other: Instance, plan: Any) -> None:
        """Activate this instance on the shared memory; ``other``, of ``plan``, becomes inactive."""
        self._others, other._others = other._others, WeakKeyDictionary()
        self._others[plan] = other
        self.reset()

    def give_memory(self, plan: Any, to: Any) -> Instance | None:
        """The instance of the plan ``to`` on the same memory, if it has one; this one, of ``plan``, waits."""
        other = self._others.pop(to, None)
        if other is not None:
            other.take_memory(self, plan)
        return other

    @property
    def is_stale(self) -> bool:
        """Whether a device has other streams by now."""
        return any(device.streams is not streams for device, streams in self._streams_of.items())

    def join_step(self, shared: LocalRendezvous | None) -> None:
        """Take part in a step that other tasks have parts of: ``shared`` is its rendezvous."""
        if isinstance(self._rendezvous, StepRendezvous):
            self._rendezvous.current = shared

    def run(self, control: StepControl, recorder: StepRecorder | None, seed: int | None) -> None:
        """Run one step, with the driver that suits its size. Raises the error that ends the step; the
        instance must then be discarded.
        """
        with np.errstate(all="ignore"), step_scope(control):  # as in TensorFlow: 0/0 is nan, without a word
            control.operation = self._current_operation
            try:
                self._drive(control, recorder, seed)
            finally:
                del control.operation  # it keeps the step's memory
        if not isinstance(self._rendezvous, StepRendezvous):
            self._rendezvous.check_empty()

    def _drive(self, control: StepControl, recorder: StepRecorder | None, seed: int | None) -> None:
        if seed is not None:
            run_seeded([p.run_stepwise() for p in self.programs], control, seed)
            return
        if recorder is None and control.has_deadline:  # checked after each instruction
            running = [p.run_stepwise() for p in self.programs]
        else:
            running = self.running(recorder)
        if isinstance(self._rendezvous, InlineRendezvous):
            run_inline(running, control)
            return
        rendezvous = self._rendezvous
        step = rendezvous.current if isinstance(rendezvous, StepRendezvous) else rendezvous
        run_threaded(running, control, step, self._streams)

    def _current_operation(self) -> Node | None:
        """An operation that the step is at, if it is at one."""
        programs = {*self.programs, *self._driven}
        return next((node for program in programs if (node := program.current_operation)), None)

    def running(self, recorder: StepRecorder | None) -> list[Running]:
        """The programs as generators; ``recorder`` is notified of each instruction."""
        if recorder is None:
            return [p.run() for p in self._driven]
        return [p.run_traced(time.time_ns, recorder) for p in self.programs]

    @functools.cached_property
    def _streams(self) -> list[HostStream]:
        """A thread for each program but the first, which the caller's thread runs."""
        host = HostExecutor("threads")
        return [host.create_stream(p.name, threaded=True) for p in self.programs[1:]]

    def reset(self) -> None:
        for program in self._with_registers:
            program.reset()


def put_directly(instance: Instance, values: Iterable[Any]) -> bool:
    """Whether each value could be put where it is read as it is."""
    return all(map(call, instance.direct_puts or (), values))


def _straight_run(program: Program) -> Callable[[], None]:
    """One step of ``program``, if it is straight, with NumPy's warnings disabled: 0/0 is silently nan, as in
    TensorFlow. Running in a separate context costs 0.1 us, entering ``errstate`` 0.6. Programs that call
    Python functions, which may read the caller's context variables, are not straight: they pause after them.
    """
    segment = program.segments[0]
    if not (segment.instructions or segment.key or segment.control):
        return _do_nothing
    return functools.partial(contextvars.Context().run(_quiet_context).run, program.run_straight)


def _do_nothing() -> None:
    """A step without instructions."""


def _quiet_context() -> contextvars.Context:
    with np.errstate(all="ignore"):
        return contextvars.copy_context()
