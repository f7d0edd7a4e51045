"""`CompiledPart`: one task's part of a callable, ready to run; and the cut that makes the parts.

subgraph --cut_by_task--> a part a task --(register_graph)--> CompiledPart: cut by device, bound, run
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from flowrt.device.device import Device
from flowrt.device.device_kinds import reasons
from flowrt.device.spec import parse_device
from flowrt.distribute.machines.events import Part
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.executor.analysis.cost import may_block, total_cost
from flowrt.executor.lower.schedule import loop_compilers
from flowrt.executor.observe.placement_log import log_placement
from flowrt.executor.observe.step_stats import StepRecorder
from flowrt.executor.plan.plan import Plan, StepMode
from flowrt.executor.plan.tiers import Jit, NextTier, jit_mode
from flowrt.executor.program.continuation import Ended
from flowrt.executor.program.edge_keys import remote_keys
from flowrt.executor.program.group_steps import gang_in
from flowrt.executor.program.runner import StepControl
from flowrt.graph.construction.detached import detach_constants
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.transfer import recv_op, send_op
from flowrt.graph.passes.pipeline import CompileOptions, compile_step, stages_from
from flowrt.graph.passes.placement.partition import partition, task_of
from flowrt.graph.shapes import num_elements
from flowrt.rendezvous.matching.local import LocalRendezvous


def cut_by_task(
    subgraph: Subgraph,
    devices: Mapping[str, int],
    placement: Mapping[str, str],
    *,
    soft_placement: bool,
    optimises: bool,
    logs_placement: bool,
) -> tuple[dict[str, Part], dict[str, str]]:
    """``subgraph`` placed on ``devices``, {full name: incarnation of its task}, as a part a task; and the
    devices of the operations that name resources. ``logs_placement``: whether each operation's
    device is printed. Raises as placement and the passes do.
    """
    options = CompileOptions(
        devices=[parse_device(name) for name in devices],
        assigned=placement,
        soft_placement=soft_placement,
        optimises=optimises,
        part_of=task_of,
        why_none=reasons(),
    )
    placed = compile_step(subgraph, options)
    if logs_placement:
        log_placement(placed)
    gang = gang_in(placed)
    handles = {node.name: node.device for node in placed if node.op.effect is Effect.HANDLE}
    parts = {}
    for task, part in partition(placed, task_of).items():
        detached, constants = detach_constants(_with_lives(part, devices))
        feeds = tuple(placed.feeds.index(name) for name in part.feeds)
        fetches = tuple(
            i for i, (name, _) in enumerate(placed.fetches) if task_of(placed.nodes[name].device) == task
        )
        devices_here = tuple(sorted(device for device in gang if task_of(device) == task))
        parts[task] = Part(detached, feeds, fetches, constants, devices_here)
    return parts, handles


def _with_lives(part: Subgraph, devices: Mapping[str, int]) -> Subgraph:
    """``part`` with the incarnation of the sender's task in its sends and receives."""

    def with_life(node: Node) -> Node:
        if node.op.effect is Effect.NESTED:
            return with_functions(node, functools.partial(_with_lives, devices=devices))
        if node.op is not send_op and node.op is not recv_op:
            return node
        life = devices[node.attrs["send_device"]]
        signed = life - (1 << 64) if life >> 63 else life  # as an attribute has it
        return node.replace(attrs={**node.attrs, "send_device_incarnation": signed})

    return part.with_nodes([with_life(node) for node in part])


SHORT_COST = 1e5
"""Maximum work, in elements or floating-point operations, of a part that runs on the receiving thread: a
hand-over to another thread takes about 50 us.
"""
SHORT_NODES = 1000
"""Each costs at least 0.5 us."""


def _is_short(part: Subgraph) -> bool:
    """Whether it is known to take no time, but for its receives."""
    return len(part.nodes) <= SHORT_NODES and all(map(_is_known, part)) and total_cost(part) < SHORT_COST


def _is_known(node: Node) -> bool:
    """Whether all that a node does is in its shapes: a loop may not end, and a user's function may wait."""
    asks_for = node.op.privilege
    if node.op.effect is Effect.NESTED or may_block(node) or (asks_for and asks_for(node.attrs)):
        return False
    return all(num_elements(spec.shape) is not None for spec in node.outputs)


def _check_devices(part: Subgraph, devices: Collection[str]) -> None:
    for node in part:
        if node.device not in devices:
            here = ", ".join(devices)
            raise InvalidArgumentError(
                f"graph: node {node.name!r}: expected a device of this task ({here}); got {node.device!r}"
            )


@final
class CompiledPart:
    """Runs ``part`` on this task's ``devices``. ``resource(device, node)``: the object of a stateful node.

    Raises `InvalidArgumentError` for a node on a device that this task does not have.
    """

    def __init__(
        self,
        part: Subgraph,
        devices: Mapping[str, Device],
        resource: Callable[[Device, Node], Any],
        optimises: bool,
    ) -> None:
        _check_devices(part, devices)
        self.keys = remote_keys(part)
        """Keys received from other tasks in every step."""
        self._devices, self._resource = devices, resource
        jit = jit_mode() if optimises else Jit.OFF
        options = self._options(jit is Jit.EAGER)
        placed = compile_step(part, options, pipeline=stages_from("split"))
        self._plan = self._new_plan(placed, options)
        self.is_short = self._plan.is_single and _is_short(part)
        """Whether it costs less than a hand-over to another thread: `run_async` runs it."""
        self._lock = threading.Lock()
        self._is_closed = False
        if jit is Jit.BACKGROUND:
            make = functools.partial(self._plan_with_loops, placed)
            self._plan.next_tier = NextTier(make, len(placed))

    def _options(self, fuses: bool) -> CompileOptions:
        devices = self._devices.values()
        return CompileOptions(
            devices=[device.spec for device in devices],
            streams={device.name: device.num_streams for device in devices},
            loops=loop_compilers(d.spec for d in devices if fuses and d.executor.compiles_loops()),
        )

    def _new_plan(self, placed: Subgraph, options: CompileOptions, awaits_loops: bool = False) -> Plan:
        mode = StepMode(controlled=True, is_shared=True, awaits_loops=awaits_loops)
        return Plan(placed, self._devices, self._resource, options, mode)

    def _plan_with_loops(self, placed: Subgraph) -> Plan:
        """Compile the plan with loops; runs on a compiling thread."""
        if self._is_closed:
            raise FailedPreconditionError("the part was let go of: no loops are compiled for it")
        return self._new_plan(placed, self._options(fuses=True), awaits_loops=True)

    def run(
        self,
        feeds: Sequence[Any],
        control: StepControl,
        recorder: StepRecorder | None,
        rendezvous: LocalRendezvous,
    ) -> list[Any]:
        """Run one step; returns the fetched values. Raises the error that ends it."""
        return self._counted().run(feeds, control, recorder, rendezvous)

    def run_async(
        self, feeds: Sequence[Any], control: StepControl, rendezvous: LocalRendezvous, ended: Ended
    ) -> None:
        """`run` of a short part, on this thread and on those that receive them. See `Plan.run_async`."""
        self._counted().run_async(feeds, control, rendezvous, ended)

    def _counted(self) -> Plan:
        plan = self._plan
        tier = plan.next_tier  # read once: the compiling thread removes it
        if tier is not None:
            tier.count_run(self._replace)
        return plan

    @property
    def plan(self) -> Plan:
        """Plan of its next step."""
        return self._plan

    @property
    def subgraphs(self) -> list[Subgraph]:
        """The partitions, by device."""
        return self._plan.subgraphs

    def close(self) -> None:
        """Release its memory. Active runs continue."""
        with self._lock:
            self._is_closed = True
            self._plan.close()

    def _replace(self, better: Plan | None) -> None:
        with self._lock:
            replaced, self._plan.next_tier = self._plan, None
            if better is None:
                return
            if self._is_closed:
                replaced = better
            else:
                self._plan = better
        replaced.close()
