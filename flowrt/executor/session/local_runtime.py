"""`LocalRuntime`: the back end of a `Session` in this process: its devices, its variables, its plans.

A session parses and caches requests; its runtime compiles them and manages devices and state. The other
runtime is a cluster's (`flowrt.distribute.client.cluster_runtime`).
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final
from weakref import ref

from flowrt.base.progress import Progress
from flowrt.device.device import Device
from flowrt.device.device_kinds import reasons
from flowrt.device.host.host_blas import limit_blas_threads, shorten_blas_spins
from flowrt.device.llvm.host_pool import set_num_threads
from flowrt.device.local_devices import local_devices
from flowrt.errors import FailedPreconditionError
from flowrt.executor.ends.config import ConfigProto, OptimizerOptions, device_request
from flowrt.executor.ends.feeds import Array, GpuFeed, bring
from flowrt.executor.ends.fetches import Fetches
from flowrt.executor.lower.schedule import loop_compilers
from flowrt.executor.observe.compile_times import CompileTimes
from flowrt.executor.observe.placement_log import log_placement
from flowrt.executor.partial.partial_run import Calls, LocalCalls
from flowrt.executor.plan.plan import Plan, StepMode
from flowrt.executor.plan.size_feeds import SizeFeeds, Values, find_size_feeds, num_unknown, with_known_feeds
from flowrt.executor.plan.tiers import Jit, NextTier, jit_mode
from flowrt.executor.session.request import Request
from flowrt.executor.session.session_variables import (
    Place,
    StoredShard,
    assign_variables,
    new_resource,
    read_variables,
)
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.construction.graph_extension import Extension, extension
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.layouts.variable_shards import VariableShard, shards_of
from flowrt.graph.passes.pipeline import UNOBSERVED, CompileOptions, Observer, compile_step
from flowrt.graph.passes.placement.place import place
from flowrt.graph.passes.prepare.extend import MAX_REMEMBERED, Recent
from flowrt.graph.passes.prepare.prune import StepRequest, extract
from flowrt.graph.shapes import Shape
from flowrt.graph.source import user_line

Run = Callable[..., Any]
"""A session's `run`."""


class Runtime(Protocol):
    """Interface of a session's back end. All methods are thread-safe."""

    target: str
    devices: Sequence[Device]
    """Devices of this process: feeds are prepared there, and a local session runs on them."""

    def compile(self, graph: Graph, request: Request, shapes: Sequence[Shape]) -> Any:
        """A `Plan` of the request for feeds of these shapes, or an equivalent."""

    def compile_options(self) -> CompileOptions:
        """The current compile options of plans that have run for a while."""

    def bring(self, plan: Any, arrays: Sequence[Any]) -> Sequence[Array | Any]:
        """Feeds in a GPU's memory, as the plan's readers take them."""

    def begin_partial_run(self, session: Any, fetches: Fetches, feeds: Sequence[Tensor]) -> Calls:
        """The executor of the calls of a partial run of ``session``."""

    def list_devices(self) -> Sequence[tuple[str, str, int | None]]:
        """(name, type, bytes of memory) of all devices."""

    def variable_values(self, variables: Sequence[Any], run: Run) -> list[Any]: ...

    def assign_variables(self, values: Mapping[Any, Any], run: Run) -> None: ...

    def variable_shards(self, variables: Sequence[Any], run: Run) -> list[list[StoredShard]]: ...

    def forget(self) -> None:
        """The graph was changed, not only extended."""

    def close(self) -> None: ...


def limit_threads(config: ConfigProto) -> None:
    """Limit the threads of this process's products and loops according to ``config``, if it sets a limit."""
    shorten_blas_spins()
    if threads := config.intra_op_parallelism_threads:
        limit_blas_threads(threads)
        set_num_threads(threads)


@final
class LocalRuntime:
    """The runtime of this process. ``seed``: see `flowrt.executor.session.session.BaseSession`."""

    target = ""

    def __init__(self, config: ConfigProto, seed: int | None) -> None:
        self._config, self._seed = config, seed
        self.devices: Sequence[Device] = local_devices(device_request(config))
        self._by_name = {device.name: device for device in self.devices}
        self._lock = threading.RLock()
        self._resources: dict[tuple[str, str], Any] = {}
        self._assigned: dict[str, str] = {}
        """The device of each variable that was placed: it stays there."""
        self._recent = Recent()
        self._plans: deque[ref[Plan]] = deque(maxlen=MAX_REMEMBERED)
        self._jit = jit_mode()
        self._closed = False
        limit_threads(config)

    # --- plans

    def compile(self, graph: Graph, request: Request, shapes: Sequence[Shape]) -> Plan:
        """See `Runtime`. Raises errors of the passes and the binder."""
        with Progress("compiling") as progress:
            times = CompileTimes(begin=functools.partial(progress.update, 0))
            return self._compile(graph, request, shapes, times)

    def _compile(self, graph: Graph, request: Request, shapes: Sequence[Shape], times: CompileTimes) -> Plan:
        fuses = self._jit is Jit.EAGER
        placed = self._placed(graph, request, shapes, self._options(fuses, times))
        if self._config.log_device_placement:
            log_placement(placed)
        earlier = None if fuses else self._plan_before(placed)
        plan = self._new_plan(placed, self._options(fuses, times), earlier)
        times.log(len({program.device.name for program in plan.programs}))
        self._add_next_tier(plan)
        positions = find_size_feeds(placed)
        if positions:
            asked = self._asked(graph, request, shapes)
            make = functools.partial(self._plan_for_sizes, asked, positions, num_unknown(placed))
            plan.size_feeds = SizeFeeds(positions, make)
        return plan

    def _plan_for_sizes(
        self, asked: StepRequest, positions: Sequence[int], before: int, values: Values
    ) -> Plan | None:
        """The plan of ``asked`` for certain ``values`` of the feeds at ``positions``. None if as many shapes
        as ``before`` are unknown then. Raises as `compile`.
        """
        fuses = self._jit is Jit.EAGER
        step = with_known_feeds(extract(*asked), positions, values)
        placed = compile_step(step, self._options(fuses))
        if num_unknown(placed) >= before:
            return None
        plan = self._new_plan(placed, self._options(fuses))
        self._add_next_tier(plan)
        return plan

    def _add_next_tier(self, plan: Plan) -> None:
        if self._has_next_tier():
            plan.next_tier = NextTier(functools.partial(self._plan_with_loops, plan.placed), len(plan.placed))

    def compile_settled(self, graph: Graph, request: Request, shapes: Sequence[Shape]) -> Plan:
        """The plan that takes the place of that of `compile` after some runs; that of `compile` if none does.
        Raises as `compile`.
        """
        if not self._has_next_tier():
            return self.compile(graph, request, shapes)
        return self._plan_with_loops(self._placed(graph, request, shapes, self._options(fuses=False)))

    def _has_next_tier(self) -> bool:
        return self._jit is Jit.BACKGROUND and self._optimises() and self._seed is None

    def _placed(
        self, graph: Graph, request: Request, shapes: Sequence[Shape], options: CompileOptions
    ) -> Subgraph:
        """The subgraph of ``request`` on its devices, where its variables then stay."""
        placed = compile_step(self._asked(graph, request, shapes), options, self._recent)
        handles = [node for node in placed if node.op.effect is Effect.HANDLE]
        self._assigned.update([(node.name, node.device) for node in handles])
        return placed

    def _asked(self, graph: Graph, request: Request, shapes: Sequence[Shape]) -> StepRequest:
        fetches, feeds = request.fetches, dict(zip(request.feeds, shapes, strict=True))
        return StepRequest(graph, fetches.tensors, fetches.targets, feeds, request.done)

    def _new_plan(
        self,
        placed: Subgraph,
        options: CompileOptions,
        earlier: tuple[Plan, Extension] | None = None,
        awaits_loops: bool = False,
    ) -> Plan:
        config = self._config
        mode = StepMode(
            inline=config.inter_op_parallelism_threads == 1,
            seed=self._seed,
            controlled=bool(config.operation_timeout_in_ms),
            awaits_loops=awaits_loops,
        )
        plan = Plan(placed, self._by_name, self._resource, options, mode, earlier)
        self._plans.append(ref(plan))
        return plan

    def _plan_with_loops(self, placed: Subgraph) -> Plan:
        """Compile on a compiling thread, unless the session was closed meanwhile."""
        if self._closed:
            raise closed()
        return self._new_plan(placed, self._options(fuses=True), awaits_loops=True)

    def _plan_before(self, placed: Subgraph) -> tuple[Plan, Extension] | None:
        """The plan from which one of ``placed`` may grow: of the last few, that with the least to change."""
        made = list(self._plans)  # in one piece: a compiling thread may add to it
        alive = [plan for of_plan in made if (plan := of_plan()) is not None]
        grown = [(plan, extension(plan.placed, placed)) for plan in alive]
        found = [(plan, change) for plan, change in grown if change is not None]
        return min(found, key=lambda pair: sum(map(len, pair[1])), default=None)

    def compile_options(self) -> CompileOptions:
        """See `Runtime`."""
        return self._options(fuses=self._jit is not Jit.OFF and self._seed is None)

    def _options(self, fuses: bool, observer: Observer = UNOBSERVED) -> CompileOptions:
        """``fuses``: with loops on the devices that compile them."""
        fuses = fuses and self._optimises()
        return CompileOptions(
            devices=[device.spec for device in self.devices],
            assigned=dict(self._assigned),
            soft_placement=self._config.allow_soft_placement,
            optimises=self._optimises(),
            streams={device.name: device.num_streams for device in self.devices},
            loops=loop_compilers(d.spec for d in self.devices if fuses and d.executor.compiles_loops()),
            memory={device.name: device.pool.stats().bytes_limit for device in self.devices},
            why_none=reasons(),
            observer=observer,
        )

    def _optimises(self) -> bool:
        return bool(self._config.graph_options.optimizer_options.opt_level != OptimizerOptions.L0)

    def bring(self, plan: Plan, arrays: Sequence[Any]) -> Sequence[Any]:
        """See `Runtime`."""
        if GpuFeed not in map(type, arrays):
            return arrays
        readers = [plan.placed.nodes[name].device for name in plan.placed.feeds]
        return bring(arrays, [self._by_name[name] for name in readers], self.devices)

    def forget(self) -> None:
        """See `Runtime`."""
        self._recent = Recent()

    # --- state

    def _resource(self, device: Device, node: Node) -> Any:
        """The session's object of a stateful node, created on first use."""
        key = (device.name, node.name)
        with self._lock:
            if self._closed:
                raise closed()
            if key not in self._resources:
                self._resources[key] = new_resource(device, node, self._resource)
            return self._resources[key]

    def variable_values(self, variables: Sequence[Any], run: Run) -> list[Any]:
        """See `flowrt.executor.session.session.BaseSession.variable_values`."""
        if any(map(_is_in_parts, variables)):
            return list(run(list(variables)))
        return read_variables(variables, self._places(variables, run))

    def assign_variables(self, values: Mapping[Any, Any], run: Run) -> None:
        """See `flowrt.executor.session.session.BaseSession.assign_variables`."""
        if in_parts := {v: value for v, value in values.items() if _is_in_parts(v)}:
            run([v.initializer for v in in_parts], {v.initializer.inputs[1]: x for v, x in in_parts.items()})
        whole = {v: value for v, value in values.items() if v not in in_parts}
        assign_variables(whole, self._places(list(whole), run), self.devices)

    def _places(self, variables: Sequence[Any], run: Run) -> list[Place]:
        if any(v.op.name not in self._assigned for v in variables):
            run([v.is_initialized() for v in variables])  # places them, all in one plan
        devices = [self._by_name[self._assigned[v.op.name]] for v in variables]
        return [(d, self._resource(d, v.op.node)) for d, v in zip(devices, variables, strict=True)]

    def variable_shards(self, variables: Sequence[Any], run: Run) -> list[list[StoredShard]]:
        """See `flowrt.executor.session.session.BaseSession.variable_shards`."""
        found = {
            v: shards_of(v.op.node, [d.spec for d in self.devices]) for v in variables if _is_in_parts(v)
        }
        self._place([shard for shards in found.values() for shard in shards])
        whole = [v for v in variables if v not in found]
        stored = {v: [self._stored(shard) for shard in shards] for v, shards in found.items()}
        for v, where in zip(whole, self._places(whole, run), strict=True):
            stored[v] = [StoredShard(tuple(slice(0, size) for size in v.shape.as_list()), 0, 0, where)]
        return [stored[v] for v in variables]

    def _place(self, shards: Sequence[VariableShard]) -> None:
        """Place the handles of ``shards`` as the first step that has them would."""
        handles = [shard.handle for shard in shards if shard.handle is not None]
        nodes = {handle.name: handle for handle in handles if handle.name not in self._assigned}
        options = self._options(fuses=False)
        placed = place(
            Subgraph(nodes, (), (), ()), options.devices, assigned=self._assigned, soft=options.soft_placement
        )
        self._assigned.update([(node.name, node.device) for node in placed])

    def _stored(self, shard: VariableShard) -> StoredShard:
        where = None
        if shard.handle is not None:
            device = self._by_name[self._assigned[shard.handle.name]]
            where = device, self._resource(device, shard.handle)
        return StoredShard(shard.slices, shard.place, shard.task, where, shard.is_copy)

    def begin_partial_run(self, session: Any, fetches: Fetches, feeds: Sequence[Tensor]) -> Calls:
        """See `Runtime`."""
        return LocalCalls(session.run_part, session.graph, fetches.tensors, fetches.targets, feeds)

    def list_devices(self) -> Sequence[tuple[str, str, int | None]]:
        """See `Runtime`."""
        return [(d.name, d.device_type, d.pool.stats().bytes_limit) for d in self.devices]

    def close(self) -> None:
        """Release the variables and the devices."""
        with self._lock:
            self._closed = True
            resources = list(self._resources.values())
            self._resources.clear()
        for resource in resources:  # not under the lock: a resource may wait for something that needs it
            if close := getattr(resource, "close", None):
                close()
        for device in self.devices:
            device.close()


def _is_in_parts(variable: Any) -> bool:
    """Whether ``variable`` has a layout over a mesh: steps alone know its parts."""
    return MESH in variable.op.node.attrs


def closed() -> FailedPreconditionError:
    """The error of a closed session."""
    message = "expected an open session; the session is closed. Create a new Session"
    return FailedPreconditionError(message, source=user_line())
