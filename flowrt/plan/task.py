"""`Task`: a recorded step, a cluster and the costs of its devices: what ``flowrt plan`` answers from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple, final

from flowrt.dtypes import FLOATING
from flowrt.errors import InvalidArgumentError, OpError
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.machine import ClusterMachine, rates_of, took_by
from flowrt.plan.model import Model, model_of
from flowrt.plan.planning import Planned, plan_on
from flowrt.plan.player import Player
from flowrt.plan.shared_layers import SharedLayers
from flowrt.plan.stage_search import REPLAYED, Estimate, Found, Shared, divisors, estimate, search
from flowrt.plan.step.applied import applied
from flowrt.plan.step.costs import Costs, demand
from flowrt.plan.step.device_parts import parts_of
from flowrt.plan.step.measure import load_table, measure, save_table, table_path
from flowrt.plan.step.recorded import Recorded

_FLOATS = frozenset(dtype.name for dtype in FLOATING)


class Scaled(NamedTuple):
    """The best choice for a number of devices, and its speed-up over one: with the same batch, and with one
    that grows with the devices.
    """

    devices: int
    best: Estimate
    strong: float
    weak: float


@final
class Task:
    """Finds choices for ``recorded`` on ``cluster``. ``fixed`` are sizes that are given."""

    def __init__(
        self, recorded: Recorded, cluster: Cluster, costs: Costs, fixed: Mapping[str, int] = {}
    ) -> None:
        self.recorded, self.cluster, self.machine = recorded, cluster, ClusterMachine(cluster)
        self._costs, self._fixed = costs, fixed

    @cache  # noqa: B019 (there is one in a program)
    def model(self, stages: int) -> Model:
        """The model in ``stages``."""
        return model_of(self.recorded, stages, took_by(self._costs))

    @cache  # noqa: B019
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
            layers = SharedLayers(self.recorded, self.cluster, self._costs.rates)
            found |= {size: layers.among(size) for size in sizes if size > 1}
        return {size: way for size, way in found.items() if size in (1, given) or way.layouts}

    def estimates(self) -> Found:
        """All choices, by estimates. Raises as `search`."""
        return search(self.machine, self.recorded.samples, self.shared(), self.model, self._fixed)

    def planned(self, count: int = REPLAYED) -> Planned:
        """The best ``count`` choices, played. Raises as `plan_on`."""
        player = Player(self.recorded, self.cluster, self._costs)
        samples, shared = self.recorded.samples, self.shared()
        return plan_on(self.machine, samples, shared, self.model, player, self._fixed, count)

    def sweep(self, sizes: Sequence[int]) -> list[Scaled]:
        """The best estimates for each number of devices that the batch can be divided among. They are held
        against one device, on which the model need not fit.

        Raises `InvalidArgumentError` if there is none.
        """
        one = self._with_larger_batch(1)
        found = []
        for size in sizes:
            try:
                best = self._best(size)
            except OpError:
                continue
            weak = size * one.seconds / self._with_larger_batch(size).seconds
            found.append(Scaled(size, best, one.seconds / best.seconds, weak))
        if not found:
            raise InvalidArgumentError(
                f"sweep: expected numbers of devices among which a batch of {self.recorded.samples} can be "
                f"divided; got {', '.join(map(str, sizes))}"
            )
        return found

    def _best(self, size: int) -> Estimate:
        machine = ClusterMachine(resized(self.cluster, size))
        return search(machine, self.recorded.samples, {1: Shared()}, self.model, self._fixed).fitting[0]

    def _with_larger_batch(self, size: int) -> Estimate:
        """Data parallelism with ``size`` batches; one device for 1."""
        machine = ClusterMachine(resized(self.cluster, size))
        model = self.model(1)
        (stage,) = model.stages
        larger = stage._replace(
            forward=stage.forward._replace(work=stage.forward.work * size),
            backward=stage.backward._replace(work=stage.backward.work * size),
        )
        samples = self.recorded.samples * size
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


def costs_of(recorded: Recorded, cluster: Cluster, is_measured: bool) -> Costs:
    """The seconds of nodes by the rates of the cluster's devices; or measured on this device, of the step as
    it is on one device, together with what was measured before.

    Raises `InvalidArgumentError` if the step computes in a floating dtype without flops of the devices.
    """
    if not is_measured:
        kind, step = cluster.host.kind, recorded.step(has_parts=False)
        for dtype in dict.fromkeys(demand(step, node).rate for node in step if node.op.cost is not None):
            if dtype in _FLOATS:
                kind.flops_reached(dtype)  # or an error that names the dtypes which have flops
        return Costs(rates_of(kind))
    path = table_path()
    table = measure(parts_of(applied(recorded, Choice())), load_table(path))
    save_table(table, path)
    return table.costs()
