"""A plan: what a run of certain fetches with feeds of certain shapes compiles to, and its use.

`flowrt.executor.compile_step` goes from the graph to a placed subgraph. A `Plan` cuts that into partitions
and schedules them. `Plan.run` takes an instance (the partitions bound to buffers) from a
pool, drives its programs and gives it back. Steps that run at once use an instance each. An instance that
failed is thrown away, with whatever its rendezvous still held; one that is idle goes when a device of the
plan runs out of memory.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from operator import call
from typing import Any, TypeAlias, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.host import HostExecutor, HostStream
from flowrt.errors import OpError, ResourceExhaustedError
from flowrt.executor.bind import Binder, Partition, compile_partition
from flowrt.executor.compile_times import CompileTimes
from flowrt.executor.cost import total_cost, waits_outside
from flowrt.executor.feeds import direct_put
from flowrt.executor.group_steps import end_groups, ranks_in
from flowrt.executor.host_kernels import LOOP_KERNELS
from flowrt.executor.iterated_program import is_scalar_loop
from flowrt.executor.program import Program, cause
from flowrt.executor.recent_steps import recent_steps
from flowrt.executor.relay import Ended, Relay
from flowrt.executor.runner import Running, StepControl, run_inline, run_seeded, run_threaded
from flowrt.executor.schedule import schedule_parts
from flowrt.executor.step_stats import StepRecorder
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.step import step_scope
from flowrt.rendezvous import InlineRendezvous, LocalRendezvous

THREADED_COST = 4e6
"""Floating-point operations or elements a device must have for a thread of its own: a hand-over between
threads costs about 50 us, in which a core does this much arithmetic on small arrays."""


@final
class Plan:
    """The compiled partitions of a placed subgraph, by device. ``seed`` makes the runs interleave
    instructions in a seeded order (for tests), ``controlled`` gives every run a `StepControl`, ``fuses``
    has groups of operations computed by compiled loops. ``is_shared``: it is one task's part of a step, so
    every run is given the step's rendezvous.
    """

    def __init__(
        self,
        placed: Subgraph,
        devices: Mapping[str, Device],
        resource: Callable[[Device, Node], Any],
        inline: bool,
        seed: int | None,
        controlled: bool,
        fuses: bool,
        times: CompileTimes | None = None,
        is_shared: bool = False,
    ) -> None:
        times = times or CompileTimes()
        streams = {name: device.num_streams for name, device in devices.items()}
        fusing = [name for name, device in devices.items() if fuses and device.executor.compiles_loops()]
        scheduled = schedule_parts(placed, streams, fusing, times)
        with times.phase("lay out"):
            self.partitions = {
                name: compile_partition(
                    part, schedule, devices[name], functools.partial(resource, devices[name]), fuses
                )
                for name, (part, schedule) in scheduled.items()
            }
        self.placed = placed
        self._ranks = ranks_in(placed)
        """Of groups that other sessions have ranks of."""
        self.has_loops = any(_has_loops(part) for part in self.partitions.values())
        """Whether compiled loops are a part of it."""
        self.runs_to_compile = 0
        """How many runs from now its loops are compiled; 0: they are not, or will be soon."""
        self.with_loops: Callable[[], Plan] | None = None
        """Makes the plan with compiled loops."""
        self._resource, self._seed = resource, seed
        self._is_shared = is_shared
        self._inline = seed is not None or not _needs_threads(self.partitions.values(), inline)
        subgraphs = [part.subgraph for part in self.partitions.values()]
        self._fed = [placed.nodes[name] for name in placed.feeds]
        self._fetched = [placed.nodes[name] for name, _ in placed.fetches]
        self._feed_order = _order(placed.feeds, [s.feeds for s in subgraphs])
        self._fetch_order = _order(placed.fetches, _fetches_by_device(placed, list(self.partitions)))
        self._idle: list[Instance] = []
        self._closed = False
        self._remote_devices = [p.device for p in self.partitions.values() if p.device.is_remote]
        try:
            with self._on_devices(), times.phase("bind"):
                first = self._new_instance()
        except ResourceExhaustedError as error:
            raise _without_frames(error) from error.__cause__
        programs = first.programs
        self._recent = recent_steps()
        is_free = seed is None and not controlled and not is_shared and self._recent is None
        self.is_straight = len(programs) == 1 and programs[0].is_straight and is_free
        """Whether a step is one stretch on one device: nothing in it waits, so nothing can end it early."""
        self.is_direct = self.is_straight and first.direct_puts is not None
        """Whether `run_direct` can run it."""
        self.is_single = len(programs) == 1 and not programs[0].device.is_remote
        """Whether it is one program on the host, which `relay` can run."""
        self._idle.append(first)
        for part in self.partitions.values():
            part.device.pool.add_cache(self)
        times.log(len(self.partitions))

    def run(
        self,
        feeds: Sequence[Any],
        control: StepControl | None,
        recorder: StepRecorder | None = None,
        rendezvous: LocalRendezvous | None = None,
    ) -> list[Any]:
        """One step: the fetches' values, in order. ``control`` None: the step cannot be ended from outside.
        ``rendezvous``: the step's, of a plan that is shared.

        Raises what ends the step. The memory that it took is free then, even while the error of a step that
        ran out of memory is handled.
        """
        try:
            if not self._remote_devices:
                return self._run(feeds, control, recorder, rendezvous)
            with self._on_devices():
                return self._run(feeds, control, recorder, rendezvous)
        except ResourceExhaustedError as error:
            raise _without_frames(error) from error.__cause__

    @contextlib.contextmanager
    def _on_devices(self) -> Iterator[None]:
        """A step on those that work by themselves."""
        with contextlib.ExitStack() as stack:
            for device in self._remote_devices:
                stack.enter_context(device.step())
            try:
                yield
            except BaseException:
                for device in self._remote_devices:
                    device.replace_failed_streams()
                raise

    def run_straight(self, feeds: Sequence[Any]) -> list[Any]:
        """`run` of a plan that is straight: without what only other plans need."""
        values = self._run_straight(self._put, feeds)
        assert values is not None
        return values

    def run_direct(self, values: Iterable[Any]) -> list[Any] | None:
        """`run_straight` of values as they were given, of a plan with all feeds in buffers. None, and nothing
        has run, if one of them needs a conversion.
        """
        return self._run_straight(_put_directly, values)

    def _run_straight(self, put: Callable[[Instance, Any], bool], values: Iterable[Any]) -> list[Any] | None:
        instance: Instance | None = None
        try:
            try:
                instance = self._idle.pop()
            except IndexError:
                instance = self._new_instance()
            if not put(instance, values):
                self._idle.append(instance)
                return None
            instance.run_straight()
            return self.finish(instance)
        except ResourceExhaustedError as error:
            instance = None  # the error keeps this frame
            raise _without_frames(error) from error.__cause__

    def _run(
        self,
        feeds: Sequence[Any],
        control: StepControl | None,
        recorder: StepRecorder | None,
        rendezvous: LocalRendezvous | None,
    ) -> list[Any]:
        instance = self.begin(feeds, rendezvous)
        control = control or StepControl()
        try:
            instance.run(control, self._recorder(recorder), self._seed)
        except BaseException as error:
            end_groups(self._ranks, error, control)
            raise
        return self.finish(instance)

    def relay(
        self,
        feeds: Sequence[Any],
        control: StepControl,
        rendezvous: LocalRendezvous,
        ended: Ended,
    ) -> None:
        """`run` without a thread that waits, of a plan of one program, on the host: ``ended`` is told what
        `run` returns or raises. Raises what it raises before the program begins, and tells nothing then.
        """

        def tell(values: Sequence[Any], error: BaseException | None) -> None:
            ended(values, _without_frames(error) if isinstance(error, ResourceExhaustedError) else error)

        instance = self.begin(feeds, rendezvous)
        running = instance.running(self._recorder(None))[0]
        Relay(running, control, rendezvous, functools.partial(self.finish, instance), tell).start()

    def _recorder(self, given: StepRecorder | None) -> StepRecorder | None:
        """Of a step that is traced, or kept."""
        return self._recent.begin() if given is None and self._recent is not None else given

    def begin(self, feeds: Sequence[Any], rendezvous: LocalRendezvous | None = None) -> Instance:
        """One step's programs with its values in them, for who drives them. He gives them to `finish` when
        all have ended well, and to nobody when one has failed.
        """
        instance = self._take_instance()
        self._put(instance, feeds)
        instance.meet(rendezvous)
        return instance

    def _put(self, instance: Instance, feeds: Sequence[Any]) -> bool:
        puts = instance.puts
        try:
            for put, value in zip(puts, feeds):  # noqa: B905 (to say strict takes as long as to put a scalar)
                put(value)
        except (MemoryError, ResourceExhaustedError) as error:
            raise located(self._fed[puts.index(put)], error) from cause(error)
        return True

    def finish(self, instance: Instance) -> list[Any]:
        """The fetches of a step that has ended well, after which others may use its instance."""
        values: list[Any] = []
        try:
            for take in instance.fetches:
                values.append(take())  # noqa: PERF401 (their number says which one failed)
        except (MemoryError, ResourceExhaustedError) as error:
            raise located(self._fetched[len(values)], error) from cause(error)
        instance.reset()
        self._idle.append(instance)
        if self._closed:
            self.close()
        return values

    def _take_instance(self) -> Instance:
        """An idle one, or a new one: one that is bound to streams that have failed is of no use."""
        try:
            while (instance := self._idle.pop()).is_stale:
                pass
        except IndexError:
            return self._new_instance()
        return instance

    def _new_instance(self) -> Instance:
        rendezvous: InlineRendezvous | LocalRendezvous | StepRendezvous
        if self._is_shared:
            rendezvous = StepRendezvous()
            ends: Ends = rendezvous.send, rendezvous.take, rendezvous.fail
        elif self._inline:
            rendezvous = InlineRendezvous()
            ends = rendezvous.send, rendezvous.take, raise_error
        else:
            rendezvous = LocalRendezvous()
            ends = rendezvous.send, rendezvous.try_recv, rendezvous.abort
        programs: list[Program] = []
        for part in self.partitions.values():
            resource = functools.partial(self._resource, part.device)
            programs += Binder(part, resource, *ends).bind()
        return Instance(programs, rendezvous, self._feed_order, self._fetch_order)

    @property
    def subgraphs(self) -> list[Subgraph]:
        """The partitions."""
        return [part.subgraph for part in self.partitions.values()]

    @property
    def programs(self) -> list[Program]:
        """Programs of this plan, for those who look at them."""
        if not self._idle:
            self._idle.append(self._new_instance())
        return self._idle[-1].programs

    def close(self) -> None:
        """Keep no instance from now on. Runs that have begun go on."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        """Drop the idle instances with their memory, in any thread. The next run makes a new one."""
        with contextlib.suppress(IndexError):  # a run may take one meanwhile
            while True:
                self._idle.pop()


def _without_frames(error: ResourceExhaustedError) -> ResourceExhaustedError:
    """``error`` without the calls that it came through: whoever keeps it would keep them, and they the memory
    of the step. The next step, a smaller one, is often tried while it is handled.
    """
    error.__context__ = None  # what it was before it named the operation
    if error.__cause__ is not None:
        error.__cause__.__traceback__ = None
    return error.with_traceback(None)


Ends: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Callable[[OpError], object]]
"""Of a rendezvous, as a `Binder` takes them: send, take, fail."""


def raise_error(error: OpError) -> None:
    """How a step on one thread fails: at once."""
    raise error


@final
class StepRendezvous:
    """What the programs of a shared plan are bound to: the rendezvous of the step that they run."""

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
    ) -> None:
        self.programs, self._rendezvous = programs, rendezvous
        feeds = [feed for program in programs for feed in program.feeds]
        fetches = [fetch for program in programs for fetch in program.fetches]
        ordered = [feeds[position] for position in feed_order]
        self.puts = [feed.put for feed in ordered]
        arrays = [feed.array for feed in ordered if feed.array is not None]
        self.direct_puts = [direct_put(array) for array in arrays] if len(arrays) == len(ordered) else None
        """What takes values as they are given, if all feeds are in buffers."""
        self.fetches = [fetches[position] for position in fetch_order]
        self._with_registers = [program for program in programs if program.registers]
        self._streams_of = {p.device: p.device.streams for p in programs if p.device.is_remote}
        nodes = [node for p in programs for segment in p.segments for node in segment.nodes]
        calls_python = any(node.op.effect is Effect.STATEFUL for node in nodes)
        is_empty = not any(s.stretch or s.key or s.control for p in programs for s in p.segments)
        self.run_straight = _do_nothing if is_empty else _quietly(programs[0].run_straight, calls_python)
        """One step of a plan that is straight."""

    @property
    def is_stale(self) -> bool:
        """Whether a device has other streams by now."""
        return any(device.streams is not streams for device, streams in self._streams_of.items())

    def meet(self, shared: LocalRendezvous | None) -> None:
        """Take part in a step that other tasks have parts of: ``shared`` is its rendezvous."""
        if isinstance(self._rendezvous, StepRendezvous):
            self._rendezvous.current = shared

    def run(self, control: StepControl, recorder: StepRecorder | None, seed: int | None) -> None:
        """One step, driven as its size asks for. Raises what ends the step; the instance must then be thrown
        away.
        """
        with np.errstate(all="ignore"), step_scope(control):  # as in TensorFlow: 0/0 is nan, without a word
            self._drive(control, recorder, seed)
        if not isinstance(self._rendezvous, StepRendezvous):
            self._rendezvous.check_empty()

    def _drive(self, control: StepControl, recorder: StepRecorder | None, seed: int | None) -> None:
        if seed is not None:
            run_seeded([p.run_stepwise() for p in self.programs], control, seed)
            return
        if recorder is None and control.has_deadline:  # looked at after each instruction
            running = [p.run_stepwise() for p in self.programs]
        else:
            running = self.running(recorder)
        if isinstance(self._rendezvous, InlineRendezvous):
            run_inline(running, control)
            return
        rendezvous = self._rendezvous
        step = rendezvous.current if isinstance(rendezvous, StepRendezvous) else rendezvous
        run_threaded(running, control, step, self._streams)

    def running(self, recorder: StepRecorder | None) -> list[Running]:
        """The programs as generators; ``recorder`` hears of each instruction."""
        if recorder is None:
            return [p.run() for p in self.programs]
        return [p.run_traced(time.time_ns, recorder) for p in self.programs]

    @functools.cached_property
    def _streams(self) -> list[HostStream]:
        """A thread for each program but the first, which the caller's thread runs."""
        host = HostExecutor("threads")
        return [host.create_stream(p.name, threaded=True) for p in self.programs[1:]]

    def reset(self) -> None:
        for program in self._with_registers:
            program.reset()


def _put_directly(instance: Instance, values: Iterable[Any]) -> bool:
    """Whether each value could be put where it is read as it is."""
    return all(map(call, instance.direct_puts or (), values))


def _do_nothing() -> None:
    """A step without instructions."""


def _quietly(run: Callable[[], None], calls_python: bool) -> Callable[[], None]:
    """``run`` while NumPy says nothing: 0/0 is nan, without a word, as in TensorFlow. To run in a context of
    its own costs 0.1 us, to enter ``errstate`` 0.6; but the context has the caller's context variables not,
    which Python functions may ask for.
    """
    if not calls_python:
        return functools.partial(contextvars.Context().run(_quiet_context).run, run)

    def run_quietly() -> None:
        with np.errstate(all="ignore"):
            run()

    return run_quietly


def _quiet_context() -> contextvars.Context:
    with np.errstate(all="ignore"):
        return contextvars.copy_context()


def _has_loops(part: Partition) -> bool:
    return part.has_loops and _can_have_loops(part.subgraph)


def _can_have_loops(subgraph: Subgraph) -> bool:
    return any(
        "group" in node.attrs
        or node.op.name in LOOP_KERNELS
        or is_scalar_loop(node)
        or (node.op.effect is Effect.WRITE and node.op.loop)
        or any(_can_have_loops(function) for function in owned_subgraphs(node.attrs))
        for node in subgraph
    )


def _fetches_by_device(placed: Subgraph, devices: Sequence[str]) -> list[list[Ref]]:
    """The fetches on each of ``devices``, as they were called before fusion."""
    return [[f for f in placed.fetches if placed.nodes[f[0]].device == device] for device in devices]


def _order(wanted: Sequence[Any], parts: Sequence[Sequence[Any]]) -> list[int]:
    """For each of ``wanted`` its position in the parts laid end to end."""
    position = {item: i for i, item in enumerate(item for part in parts for item in part)}
    return [position[item] for item in wanted]


def _needs_threads(partitions: Collection[Partition], inline: bool) -> bool:
    """Whether the programs run on a thread each: streams of the host do, a remote device's tensors arrive
    when they do, and who waits for another step may not keep this one's programs; otherwise it takes two
    devices with enough to do, and a session that allows it.
    """
    if any(p.schedule.count > 1 and not p.device.is_remote for p in partitions):
        return True
    if len(partitions) < 2:
        return False
    if any(waits_outside(p.subgraph) for p in partitions):
        return True
    if any(p.device.is_remote and p.device.executor.computes for p in partitions):
        return True
    return not inline and sorted(total_cost(p.subgraph) for p in partitions)[-2] >= THREADED_COST
