"""A plan: the compiled form of a run with given fetches and feed shapes, and its execution.

`flowrt.graph.passes.pipeline.compile_step` converts the graph to a placed subgraph. A `Plan` partitions and
schedules it. `Plan.run` takes an instance (the partitions bound to buffers) from a pool, drives its programs
and returns it. Concurrent steps use separate instances. A failed instance is discarded, with the contents of
its rendezvous; an idle one is freed when a device of the plan runs out of memory.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final
from weakref import ref

from flowrt.device.device import Device
from flowrt.errors import InternalError, OpError, ResourceExhaustedError
from flowrt.executor.bind.awaited_loops import Awaited, AwaitedLoops
from flowrt.executor.bind.bind import Binder, Partition, compile_partition
from flowrt.executor.bind.bind_transfer import new_ends
from flowrt.executor.bind.extend_program import Bound, bound_from
from flowrt.executor.kernels.host_kernels import LOOP_KERNELS
from flowrt.executor.lower.schedule import schedule_parts
from flowrt.executor.observe.recent_steps import recent_steps
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.observe.step_watch import step_watch
from flowrt.executor.plan.instance import Instance, StepRendezvous, put_directly
from flowrt.executor.plan.size_feeds import SizeFeeds
from flowrt.executor.plan.tiers import NextTier
from flowrt.executor.program.continuation import Continuation, Ended
from flowrt.executor.program.group_steps import end_groups, ranks_in
from flowrt.executor.program.interleave import interleaved
from flowrt.executor.program.program import Program, cause
from flowrt.executor.program.runner import StepControl
from flowrt.executor.verify.node_accesses import Layer
from flowrt.executor.verify.verify_program import is_checking, verify_program
from flowrt.graph.construction.graph_extension import Extension
from flowrt.graph.evaluate import located
from flowrt.graph.layouts.attributes import UNIT
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.pipeline import UNOBSERVED, CompileOptions, Observer
from flowrt.rendezvous import InlineRendezvous, LocalRendezvous

THREADED_COST = 4e6
"""Minimum work of a device, in floating-point operations or elements, for a separate thread: a hand-over
between threads costs about 50 us, in which a core does this much arithmetic on small arrays.
"""

INTERLEAVED_COST = 1e7
"""Work, in the same units, below which the programs of several devices are one: some milliseconds, in which
no other step is waited for.
"""


@dataclass(frozen=True)
class StepMode:
    """The execution mode of a plan's steps. ``inline``: on one thread, if the step allows it. ``seed``:
    instructions of several programs interleave in an order derived from it (for tests). ``controlled``: every
    run has a `StepControl`. ``is_shared``: the plan is one task's part of a step, so every run is given the
    step's rendezvous. ``awaits_loops``: steps run plain kernels until `Plan.compile_loops` has compiled the
    loops that take their place.
    """

    inline: bool = False
    seed: int | None = None
    controlled: bool = False
    is_shared: bool = False
    awaits_loops: bool = False


@final
class Plan:
    """The compiled partitions of a placed subgraph, by device. ``resource(device, node)`` is the object
    behind a stateful node. ``earlier``: a plan of what ``placed`` has grown from, and how; where it can be,
    this one's first instance grows from one of its. Raises as the binder does.
    """

    def __init__(
        self,
        placed: Subgraph,
        devices: Mapping[str, Device],
        resource: Callable[[Device, Node], Any],
        options: CompileOptions,
        mode: StepMode,
        earlier: tuple[Plan, Extension] | None = None,
    ) -> None:
        self.placed = placed
        self._devices, self._resource = devices, resource
        self._options, self._mode = replace(options, observer=UNOBSERVED), mode
        self._recent = recent_steps()
        self._watch = None if mode.is_shared else step_watch()
        is_watched = mode.controlled or mode.is_shared or self._recent or self._watch
        self._is_free = not is_watched and mode.seed is None
        """Whether a step is not observed between its instructions."""
        self.next_tier: NextTier[Plan] | None = None
        """The plan with compiled loops that replaces this one after some runs."""
        self.size_feeds: SizeFeeds[Plan] | None = None
        """The feeds that decide shapes, if plans for certain values of them may take this one's place."""
        self._fed = [placed.nodes[name] for name in placed.feeds]
        self._fetched = [placed.nodes[name] for name, _ in placed.fetches]
        self._idle: list[Instance] = []
        self._closed = False
        self._awaited: deque[AwaitedLoops] = deque()
        """Loops of the instances that wait for them."""
        self._has_compiled = False
        """Whether the loops were compiled: then instances take them when they are bound."""
        self._arena_sharers: list[ref[Plan]] = []
        """The plans with instances that may share an arena with this one's."""
        first = None if earlier is None else self._extend(*earlier, options.observer)
        if first is None:
            first = self._compile(options)
        programs = first.programs
        self.is_straight = first.is_straight and self._is_free
        """Whether a step is one basic block of one thread, or nothing at all: nothing in it waits, so nothing
        can end it early.
        """
        self.is_direct = self.is_straight and first.direct_puts is not None
        """Whether `run_direct` can run it."""
        self.is_single = len(programs) == 1 and not programs[0].device.is_asynchronous
        """Whether it is one program on the host, which `run_async` can run."""
        self._idle.append(first)
        for program in programs:
            program.device.pool.add_cache(self)

    # --- compiling

    def _compile(self, options: CompileOptions) -> Instance:
        """The first instance, from nothing."""
        placed = self.placed
        self.partitions = self._cut(options)
        self._ranks = ranks_in(placed)
        """Ranks in groups that span several sessions."""
        parts = self.partitions.values()
        self.has_loops = any(part.has_loops and _can_have_loops(part.subgraph) for part in parts)
        """Whether compiled loops are a part of it."""
        costs = [sum(part.costs) for part in parts]
        self._inline = self._mode.seed is not None or not _needs_threads(parts, costs, self._mode.inline)
        subgraphs = self.subgraphs
        self._is_short = len(subgraphs) > 1 and sum(costs) < INTERLEAVED_COST
        """Whether several devices together have little to do."""
        self._feed_order = _order(placed.feeds, [s.feeds for s in subgraphs])
        by_device = [[f for f in placed.fetches if placed.nodes[f[0]].device == d] for d in self.partitions]
        self._fetch_order = _order(placed.fetches, by_device)  # as they were called before fusion
        self._asynchronous_devices = [p.device for p in self.partitions.values() if p.device.is_asynchronous]
        try:
            with self._on_devices(), options.observer.phase("bind"):
                return self._bind()
        except ResourceExhaustedError as error:
            raise self._out_of_memory(error) from error.__cause__

    @functools.cached_property
    def partitions(self) -> dict[str, Partition]:
        """Partitions by device. For a plan that extends another, they are created on demand."""
        return self._cut(self._options)

    def _cut(self, options: CompileOptions) -> dict[str, Partition]:
        scheduled = schedule_parts(self.placed, options)
        devices = self._devices
        with options.observer.phase("lay out"):
            found: dict[str, Partition] = {}
            classes: list[Partition] = []
            for name, (part, schedule) in scheduled.items():
                device, has_loops = devices[name], name in options.loops
                alike = (c.of_class(part, device) for c in classes if c.has_loops == has_loops)
                partition = next(filter(None, alike), None)
                if partition is None:
                    resource = self._resource_on(device)
                    partition = compile_partition(part, schedule, device, resource, has_loops)
                    classes.append(partition)
                found[name] = partition
            return found

    def _resource_on(self, device: Device) -> Callable[[Node], Any]:
        return functools.partial(self._resource, device)

    def _extend(self, earlier: Plan, extension: Extension, observer: Observer) -> Instance | None:
        """The first instance, grown from one of ``earlier``; None if that cannot be."""
        instance = earlier._take_idle()
        if instance is None:
            return None
        self.has_loops, self._asynchronous_devices = earlier.has_loops, []
        self._inline, self._is_short = earlier._inline, earlier._is_short
        self._ranks = ranks_in(self.placed) if earlier._ranks else frozenset()
        self._feed_order = list(range(len(self.placed.feeds)))
        self._fetch_order = list(range(len(self.placed.fetches)))
        try:
            with observer.phase("extend program"):
                grown = instance.extend(self.placed, extension, self._feed_order, self._fetch_order)
        except InternalError:  # of `verify_program`
            raise
        except OpError:  # compiling the whole raises the same error, or avoids it
            grown = None
        if grown is None:
            earlier._give_back(instance)
            return None
        grown.take_memory(instance, earlier)
        self._share_arena(earlier)
        return grown

    def run(
        self,
        feeds: Sequence[Any],
        control: StepControl | None,
        recorder: StepRecorder | None = None,
        rendezvous: LocalRendezvous | None = None,
    ) -> list[Any]:
        """Run one step; returns the fetched values, in order. ``control`` None: the step cannot be cancelled.
        ``rendezvous``: the step's, for a shared plan.

        Raises the error that ends the step. The step's memory is free then, even while the error of a step
        that ran out of memory is handled.
        """
        try:
            if not self._asynchronous_devices:
                return self._run(feeds, control, recorder, rendezvous)
            with self._on_devices():
                return self._run(feeds, control, recorder, rendezvous)
        except ResourceExhaustedError as error:
            raise self._out_of_memory(error) from error.__cause__

    @contextlib.contextmanager
    def _on_devices(self) -> Iterator[None]:
        """A step on those that work by themselves."""
        with contextlib.ExitStack() as stack:
            for device in self._asynchronous_devices:
                stack.enter_context(device.step())
            try:
                yield
            except BaseException:
                for device in self._asynchronous_devices:
                    device.replace_failed_streams()
                raise

    def run_straight(self, feeds: Sequence[Any]) -> list[Any]:
        """`run` for a straight plan, without the overhead of other plans."""
        values = self._run_straight(self._put, feeds)
        assert values is not None
        return values

    def run_direct(self, values: Iterable[Any]) -> list[Any] | None:
        """`run_straight` of values as they were given, of a plan with all feeds in buffers. None, and nothing
        has run, if one of them needs a conversion.
        """
        return self._run_straight(put_directly, values)

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
            raise self._out_of_memory(error) from error.__cause__

    def _run(
        self,
        feeds: Sequence[Any],
        control: StepControl | None,
        recorder: StepRecorder | None,
        rendezvous: LocalRendezvous | None,
    ) -> list[Any]:
        if self._watch is None:
            return self._run_programs(feeds, control, recorder, rendezvous)
        step, is_ok = self._watch.begin(), False
        try:
            values = self._run_programs(feeds, control, recorder or step.recorder, rendezvous)
            is_ok = True
        finally:
            step.ended(is_ok)
        return values

    def _run_programs(
        self,
        feeds: Sequence[Any],
        control: StepControl | None,
        recorder: StepRecorder | None,
        rendezvous: LocalRendezvous | None,
    ) -> list[Any]:
        instance = self.begin(feeds, rendezvous)
        control = control or StepControl()
        try:
            instance.run(control, self._recorder(recorder), self._mode.seed)
        except BaseException as error:
            end_groups(self._ranks, error, control)
            raise
        return self.finish(instance)

    def run_async(
        self, feeds: Sequence[Any], control: StepControl, rendezvous: LocalRendezvous, ended: Ended
    ) -> None:
        """`run` without a blocked thread, for a plan of one program on the host: ``ended`` is called with the
        result or error of `run`. Errors before the program begins are raised, without calling it.
        """

        def tell(values: Sequence[Any], error: BaseException | None) -> None:
            ended(values, self._out_of_memory(error) if isinstance(error, ResourceExhaustedError) else error)

        instance = self.begin(feeds, rendezvous)
        running = instance.running(self._recorder(None))[0]
        Continuation(running, control, rendezvous, functools.partial(self.finish, instance), tell).start()

    def _recorder(self, given: StepRecorder | None) -> StepRecorder | None:
        """The recorder of a step that is traced or kept."""
        return self._recent.begin() if given is None and self._recent is not None else given

    def begin(self, feeds: Sequence[Any], rendezvous: LocalRendezvous | None = None) -> Instance:
        """The programs of one step with its feeds set, for an external driver. The driver passes them to
        `finish` if all end successfully, and discards them after a failure.
        """
        instance = self._take_instance()
        self._put(instance, feeds)
        instance.join_step(rendezvous)
        return instance

    def _put(self, instance: Instance, feeds: Sequence[Any]) -> bool:
        puts = instance.puts
        try:
            for put, value in zip(puts, feeds):  # noqa: B905 (passing strict takes as long as storing a scalar)
                put(value)
        except (MemoryError, ResourceExhaustedError) as error:
            raise located(self._fed[puts.index(put)], error) from cause(error)
        return True

    def finish(self, instance: Instance) -> list[Any]:
        """The fetches of a step that has ended well, after which others may use its instance."""
        values: list[Any] = []
        try:
            for take in instance.fetches:
                values.append(take())  # noqa: PERF401 (their number identifies the failed one)
        except (MemoryError, ResourceExhaustedError) as error:
            raise located(self._fetched[len(values)], error) from cause(error)
        instance.reset()
        self._idle.append(instance)  # `_give_back`, without the call
        if self._closed:
            self.close()
        return values

    def _share_arena(self, earlier: Plan) -> None:
        """Join the plans that share an arena with ``earlier``."""
        if not earlier._arena_sharers:
            earlier._arena_sharers.append(ref(earlier))
        self._arena_sharers = earlier._arena_sharers
        alive = [sharer for sharer in self._arena_sharers if sharer() is not None]
        self._arena_sharers[:] = [*alive, ref(self)]

    def _give_back(self, instance: Instance) -> None:
        self._idle.append(instance)
        if self._closed:
            self.close()

    def _take_instance(self) -> Instance:
        """An idle one, or a new one: one that is bound to streams that have failed is of no use."""
        try:
            while (instance := self._idle.pop()).is_stale:
                pass
        except IndexError:
            return self._new_instance()
        return instance

    def _take_idle(self) -> Instance | None:
        try:
            return self._idle.pop()
        except IndexError:
            return self._take_from_sharer()

    def _new_instance(self) -> Instance:
        return self._take_from_sharer() or self._bind()

    def _take_from_sharer(self) -> Instance | None:
        """An instance on shared memory that is idle because the other plans are not running."""
        sharers = [sharer() for sharer in self._arena_sharers]
        for plan in [plan for plan in sharers if plan is not None and plan is not self]:
            with contextlib.suppress(IndexError):
                instance = plan._idle.pop()
                own = instance.give_memory(plan, self)
                if own is not None:
                    return own
                plan._give_back(instance)
        return None

    def _bind(self) -> Instance:
        rendezvous: InlineRendezvous | LocalRendezvous | StepRendezvous
        if self._mode.is_shared:
            rendezvous = StepRendezvous()
            ends = new_ends(rendezvous.send, rendezvous.take, rendezvous.fail)
        elif self._inline:
            rendezvous = InlineRendezvous()
            ends = new_ends(rendezvous.send, rendezvous.take, raise_error)
        else:
            rendezvous = LocalRendezvous()
            ends = new_ends(rendezvous.send, rendezvous.try_recv, rendezvous.abort)
        programs: list[Program] = []
        bound: Bound | None = None
        layers: list[Layer] = []
        awaited: list[Awaited] = []
        for part in self.partitions.values():
            resource = self._resource_on(part.device)
            awaits_loops = self._mode.awaits_loops and not (self._is_short or part.device.is_asynchronous)
            binder = Binder(part, resource, ends, awaits_loops=awaits_loops)
            of_part = binder.bind()
            programs += of_part
            if awaits_loops:
                awaited.append(Awaited(of_part, binder.layer))
            layers.append(binder.layer)
            bound = bound_from(part, resource, ends, binder.layer)
        can_grow = len(programs) == 1 and self._mode.seed is None and not self._mode.is_shared
        bound = bound if can_grow else None
        can_interleave = isinstance(rendezvous, InlineRendezvous) and self._is_free and self._is_short
        whole = interleaved(programs) if can_interleave else None
        if whole is not None and is_checking():
            fetches = [ref for layer in layers for ref in layer.subgraph.fetches]
            verify_program(layers, fetches, [whole.segments])
        if awaited:
            self._awaited.append(AwaitedLoops(awaited))
            if self._has_compiled:
                self._compile_awaited()
        return Instance(programs, rendezvous, self._feed_order, self._fetch_order, bound, whole)

    def compile_loops(self) -> Iterator[None]:
        """Compile the loops that the plan's instances wait for. Yields each time steps use more of them.
        Stops early if the plan is closed.
        """
        if self._awaited:  # those of the first instance; others wait for the same
            for _ in self._awaited.popleft().compile():
                yield
                if self._closed:
                    return
        self._has_compiled = True
        self._compile_awaited()

    def _compile_awaited(self) -> None:
        """Compile what other instances wait for, which takes no time when the first one has the loops."""
        with contextlib.suppress(IndexError):  # another thread may take it
            while True:
                for _ in self._awaited.popleft().compile():
                    pass

    @property
    def subgraphs(self) -> list[Subgraph]:
        """The partitions."""
        return [part.subgraph for part in self.partitions.values()]

    def _out_of_memory(self, error: ResourceExhaustedError) -> ResourceExhaustedError:
        """``error`` as the script gets it: with what else helps if variables are in parts."""
        if any(UNIT in node.attrs for subgraph in self.subgraphs for node in subgraph):
            error.message += "\nVariables are in parts: a higher stage, smaller units, or offload takes less"
            error.args = (error.message,)
        return _without_frames(error)

    @property
    def programs(self) -> list[Program]:
        """Programs of this plan, for inspection."""
        if not self._idle:
            self._idle.append(self._new_instance())
        return self._idle[-1].programs

    def close(self) -> None:
        """Release all instances and keep none from now on. Active runs continue."""
        self._closed = True
        self.let_go()

    def let_go(self) -> None:
        """Drop the idle instances with their memory, in any thread. The next run makes a new one."""
        with contextlib.suppress(IndexError):  # a run may take one meanwhile
            while True:
                self._idle.pop()


def _without_frames(error: ResourceExhaustedError) -> ResourceExhaustedError:
    """``error`` without its traceback, which would keep the step's memory alive. The next, smaller step is
    often tried while it is handled.
    """
    error.__context__ = None  # its form before it named the operation
    if error.__cause__ is not None:
        error.__cause__.__traceback__ = None
    return error.with_traceback(None)


def raise_error(error: OpError) -> None:
    """Failure handler of a step on one thread: raises immediately."""
    raise error


def _can_have_loops(subgraph: Subgraph) -> bool:
    return any(
        "group" in node.attrs
        or node.op in LOOP_KERNELS
        or (node.op.effect is Effect.WRITE and node.op.loop)
        or any(_can_have_loops(function) for function in owned_subgraphs(node.attrs))
        for node in subgraph
    )


def _order(wanted: Sequence[Any], parts: Sequence[Sequence[Any]]) -> list[int]:
    """The position of each of ``wanted`` in the concatenated parts."""
    position = {item: i for i, item in enumerate(item for part in parts for item in part)}
    return [position[item] for item in wanted]


def _needs_threads(partitions: Collection[Partition], costs: Sequence[float], inline: bool) -> bool:
    """Whether each program needs its own thread: for host streams, for asynchronous devices, and for programs
    that may block on another step; otherwise only if two partitions have enough work, by their ``costs``, and
    the session allows it.
    """
    if any(p.schedule.count > 1 and not p.device.is_asynchronous for p in partitions):
        return True
    if len(partitions) < 2:
        return False
    if any(p.waits_outside for p in partitions):
        return True
    if any(p.device.is_asynchronous and p.device.executor.computes for p in partitions):
        return True
    return not inline and sorted(costs)[-2] >= THREADED_COST
