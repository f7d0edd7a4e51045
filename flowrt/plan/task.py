"""`Task`: a recorded step, a cluster and the costs of its devices: what ``flowrt plan`` answers from."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, cached_property
from typing import NamedTuple, final

from flowrt.dtypes import FLOATING
from flowrt.errors import InvalidArgumentError, OpError, ResourceExhaustedError
from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.cluster.host_speed import measure_host
from flowrt.plan.compiled_costs import CompiledCosts
from flowrt.plan.least_seconds import least_seconds
from flowrt.plan.machine import ClusterMachine, rates_of
from flowrt.plan.model import Model, model_of
from flowrt.plan.planning import Candidate, Planned, plan_on
from flowrt.plan.player import Player
from flowrt.plan.replay.step_times import Played
from flowrt.plan.shared_layers import SharedLayers
from flowrt.plan.stage_search import REPLAYED, Estimate, Found, Shared, describe, divisors, estimate, search
from flowrt.plan.step.applied import applied
from flowrt.plan.step.costs import Costs, demand
from flowrt.plan.step.device_parts import DevicePart, parts_of
from flowrt.plan.step.fewer_blocks import EqualBlocks
from flowrt.plan.step.measure import load_table, measure, save_table, table_path
from flowrt.plan.step.recorded import Recorded
from flowrt.plan.step.stage_room import room_of

COMPILED = 4
"""The number of equal blocks that are compiled for estimates."""

LIMIT_OF_CHOICE_S = 3.0
"""Seconds for running the programs of a choice."""

_FLOATS = frozenset(dtype.name for dtype in FLOATING)


class Scaled(NamedTuple):
    """The best choice for a number of devices, and its speed-up over one: with the same batch, and with one
    that grows with the devices.
    """

    devices: int
    best: Estimate
    strong: float
    weak: float


class Scaling(NamedTuple):
    """The best choices for some numbers of devices, and why there is none for the others."""

    rows: Sequence[Scaled]
    left_out: Sequence[tuple[int, str]]


@final
class Task:
    """Finds choices for ``recorded`` on ``cluster``. ``fixed`` are sizes that are given. ``measured`` is what
    this host measures, if the cluster is its processes: then what is played is measured, too.
    """

    def __init__(
        self,
        recorded: Recorded,
        cluster: Cluster,
        costs: Costs,
        fixed: Mapping[str, int] = {},
        measured: Measured | None = None,
    ) -> None:
        self.recorded, self.cluster, self.machine = recorded, cluster, ClusterMachine(cluster)
        self._costs, self._fixed, self._is_measured = costs, fixed, measured is not None
        if measured is None:
            self._player = Player(recorded, cluster, lambda _: costs)
        else:
            self._player = Player(recorded, cluster, measured.costs, measured.speed)

    @cache  # noqa: B019 (there is one in a program)
    @paused_collector()
    def model(self, stages: int) -> Model:
        """The model in ``stages``."""
        return model_of(self.recorded, stages, self._took)

    @cache  # noqa: B019
    @paused_collector()
    def cut_to_fit(self, choice: Choice) -> Model:
        """The model in the stages of ``choice``, which fit in its memory. Raises as `cut_stages`."""
        room = room_of(self.recorded, choice)
        return model_of(self.recorded, choice.stages, self._took, room)

    @cached_property
    def _blocks(self) -> EqualBlocks:
        return EqualBlocks(self.recorded.step(has_parts=False))

    @cached_property
    def _took(self) -> CompiledCosts:
        """The times of operations, by which choices are estimated."""
        return CompiledCosts(self._blocks.fewer(COMPILED), self._costs)

    @cache  # noqa: B019
    @paused_collector()
    def shared(self) -> dict[int, Shared]:
        """The ways to share layers, by the number of devices of a host that share them: all at which that
        takes less than if each computed all, or the one that is given.

        Raises `InvalidArgumentError` for a given ``tp`` that does not divide the devices of a host.
        """
        given, most = self._fixed.get("tp"), self.machine.devices_per_host
        if given is not None and most % given:
            raise InvalidArgumentError(f"tp={given}: expected a divisor of the {most} devices of a host")
        sizes = divisors(math.gcd(most, self.machine.devices)) if given is None else [given]
        found = {1: Shared()} if 1 in sizes else {}
        if sizes != [1]:
            layers = SharedLayers(self.recorded, self._blocks, self.cluster, self._costs.rates, self._took)
            found |= {size: layers.among(size) for size in sizes if size > 1}
        return {size: way for size, way in found.items() if size in (1, given) or way.layouts}

    def _check_batch(self) -> None:
        """Raise `InvalidArgumentError` if only the batch could be divided, and it is a constant."""
        found = self.recorded
        if found.batch < found.samples and self.machine.devices > self._fixed.get("tp", 1):
            raise InvalidArgumentError(
                f"plan: expected a batch that is fed, or of a dataset; got a constant of {found.samples} "
                "samples, which no strategy divides among devices"
            )

    def estimates(self) -> Found:
        """All choices, by estimates. Raises as `search`."""
        self._check_batch()
        samples = self.recorded.batch
        return search(self.machine, samples, self.shared(), self.model, self._fixed, self.cut_to_fit)

    def planned(self, count: int = REPLAYED) -> Planned:
        """The best ``count`` choices, played. Raises as `plan_on`."""
        began = time.process_time()
        self._check_batch()
        samples, shared = self.recorded.batch, self.shared()
        return plan_on(
            self.machine, samples, shared, self.model, self._player, self._fixed, count, self.cut_to_fit,
            (lambda choice: 0.0) if self._is_measured else self.least_seconds, began,
        )  # fmt: skip

    def least_seconds(self, choice: Choice) -> float:
        """The seconds that a step takes at least under ``choice``, one of those that are searched."""
        model = self.model(choice.stages) if choice.memory is None else self.cut_to_fit(choice)
        return least_seconds(choice, model, self.shared()[choice.tp], self.machine, self.recorded.batch)

    def given(self, choice: Choice) -> Planned:
        """``choice`` alone, played without a search.

        Raises `InvalidArgumentError` if it has other devices than the cluster, if the batch cannot be divided
        as it says, and if it cannot be lowered, and `ResourceExhaustedError` if it does not fit.
        """
        parts, samples = choice.dp * choice.micro_batches, self.recorded.batch
        if choice.devices != self.machine.devices or samples % parts:
            raise InvalidArgumentError(
                f"simulate: expected dp x tp x pp = {self.machine.devices}, all of the cluster, and a batch "
                f"of {samples} that dp x micro_batches divides; got {describe(choice)}"
            )
        shared = self.shared() if choice.tp > 1 and not choice.layouts else {choice.tp: Shared()}
        choice = choice if choice.layouts else replace(choice, layouts=shared[choice.tp].layouts)
        model = self.model(choice.stages) if choice.memory is None else self.cut_to_fit(choice)
        found = estimate(choice, model, shared[choice.tp], self.machine, samples)
        candidate = Candidate(found, *self._player(choice))
        if candidate.nbytes > self.machine.memory:
            raise ResourceExhaustedError(
                f"simulate: expected a choice that needs at most {self.machine.memory:,} bytes of a device; "
                f"{describe(choice)} needs {candidate.nbytes:,}"
            )
        return Planned((candidate,), (), (), 0)

    def detailed(self, choice: Choice) -> Played:
        """The step under ``choice``, with the times of all works."""
        return self._player(choice, is_detailed=True)[1]

    def sweep(self, sizes: Sequence[int]) -> Scaling:
        """The best estimates for each number of devices that the batch can be divided among, and that the
        cluster can have. They are held against one device, on which the model need not fit.

        Raises `InvalidArgumentError` if there is none.
        """
        one = self._with_larger_batch(1)
        found: list[Scaled] = []
        left_out: list[tuple[int, str]] = []
        for size in sizes:
            try:
                best = self._best(size)
            except OpError as error:
                left_out.append((size, error.message))
                continue
            weak = size * one.seconds / self._with_larger_batch(size).seconds
            found.append(Scaled(size, best, one.seconds / best.seconds, weak))
        if not found:
            raise InvalidArgumentError(
                f"sweep: expected numbers of devices among which a batch of {self.recorded.batch} can be "
                f"divided; got {', '.join(map(str, sizes))}"
            )
        return Scaling(found, left_out)

    def on_fewer(self) -> Estimate | None:
        """The best estimate for fewer devices, half as many each time; None if there is none."""
        sizes = [1 << k for k in range(self.machine.devices.bit_length()) if 1 << k < self.machine.devices]
        found = list[Estimate]()
        for size in sizes:
            with suppress(OpError):  # the batch, a host or the memory of a device does not allow it
                found.append(self._best(size))
        return min(found, key=lambda each: each.seconds, default=None)

    def _best(self, size: int) -> Estimate:
        machine = ClusterMachine(resized(self.cluster, size))
        return search(machine, self.recorded.batch, {1: Shared()}, self.model, self._fixed).fitting[0]

    def _with_larger_batch(self, size: int) -> Estimate:
        """Data parallelism with ``size`` batches; one device for 1."""
        machine = ClusterMachine(resized(self.cluster, size))
        model = self.model(1)
        (stage,) = model.stages
        larger = stage._replace(
            forward=stage.forward._replace(work=stage.forward.work * size),
            backward=stage.backward._replace(work=stage.backward.work * size),
        )
        samples = self.recorded.batch * size
        return estimate(Choice(dp=size), model._replace(stages=(larger,)), Shared(), machine, samples)


def resized(cluster: Cluster, devices: int) -> Cluster:
    """``cluster`` with as many hosts as ``devices`` need; with fewer devices than a host has, one such host.

    Raises `InvalidArgumentError` for devices that do not fill their hosts.
    """
    host = cluster.host
    if devices <= host.devices:
        one = replace(cluster.rack, hosts=1)
        return replace(cluster, host=replace(host, devices=devices), rack=one, racks=1, speeds=())
    hosts, rest = divmod(devices, host.devices)
    racks, left = divmod(hosts, cluster.rack.hosts)
    if rest or (racks and left):
        raise InvalidArgumentError(f"cluster: expected whole hosts and racks; got {devices} devices")
    rack = cluster.rack if racks else replace(cluster.rack, hosts=hosts)
    return replace(cluster, rack=rack, racks=max(racks, 1), speeds=())


def costs_of(recorded: Recorded, cluster: Cluster) -> Costs:
    """The seconds of nodes by the rates of the cluster's devices.

    Raises `InvalidArgumentError` if the step computes in a floating dtype without flops of the devices.
    """
    kind, step = cluster.host.kind, recorded.step(has_parts=False)
    for dtype in dict.fromkeys(demand(step, node).rate for node in step if node.op.cost is not None):
        if dtype in _FLOATS:
            kind.flops_reached(dtype)  # or an error that names the dtypes which have flops
    return Costs(rates_of(kind))


@final
class Measured:
    """Measurements of this host: the costs of parts, together with what was measured before, and the speed of
    ``processes`` beside each other.

    Raises `UnavailableError` if the processes cannot be measured.
    """

    def __init__(self, processes: int) -> None:
        self.speed, self._processes = measure_host(processes), processes
        self._path = table_path(processes)
        self._table = load_table(self._path)

    def costs(self, parts: Sequence[DevicePart]) -> Costs:
        """The costs of ``parts``, of which the programs are run, unless all in them is known."""
        table = measure(parts, self._table, LIMIT_OF_CHOICE_S, self._processes)
        if table is not self._table:
            self._table = table
            save_table(table, self._path)
        return table.costs()

    def costs_of_one(self, recorded: Recorded) -> Costs:
        """The costs of the step on one device, by which choices are estimated."""
        return self.costs(parts_of(applied(recorded, Choice())))
