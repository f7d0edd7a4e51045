"""`Player`: a recorded step lowered under a choice, and played on a cluster, or on this host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeAlias, final

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.executor.observe.gc_pause import paused_collector
from flowrt.graph.collectives.cost import Link, Links
from flowrt.graph.passes.layouts.stages.order_actions import turns_in_order
from flowrt.graph.pipeline.schedules import order
from flowrt.plan.choice import Choice
from flowrt.plan.cluster.cluster_file import Cluster
from flowrt.plan.cluster.cluster_links import ClusterLinks
from flowrt.plan.replay.host import HostSpeed, play_on_host
from flowrt.plan.replay.played import ClassProgram
from flowrt.plan.replay.replay import play
from flowrt.plan.replay.step_times import Played
from flowrt.plan.step.applied import applied
from flowrt.plan.step.assembled import assembled, few_turns
from flowrt.plan.step.device_parts import DevicePart, parts_of, space_of
from flowrt.plan.step.emitted import NodeSeconds, class_program
from flowrt.plan.step.recorded import Recorded

CostsOf: TypeAlias = Callable[[Sequence[DevicePart]], NodeSeconds]
"""The seconds of nodes of some parts of a step."""


@final
class Player:
    """Plays choices for ``recorded`` on the first devices of ``cluster``. If the cluster is processes of this
    host, ``speed`` is what was measured of it.
    """

    def __init__(
        self, recorded: Recorded, cluster: Cluster, costs_of: CostsOf, speed: HostSpeed | None = None
    ) -> None:
        self._recorded, self._cluster, self._costs_of, self._speed = recorded, cluster, costs_of, speed
        self._trainable = frozenset(name for name, v in recorded.variables.items() if v.trainable)

    def __call__(self, choice: Choice, is_detailed: bool = False) -> tuple[tuple[ClassProgram, ...], Played]:
        """The class programs of ``choice``, and the step that they make; with the times of all works if it
        ``is_detailed``.
        """
        shape, programs = self._programs(choice)
        if self._speed is not None:
            return programs, play_on_host(programs, shape, self._speed)
        speeds = self._cluster.device_speeds()[: choice.devices].reshape(len(programs), -1)
        slowness = {at: 1 / row.reshape(tuple(shape.values())) for at, row in enumerate(speeds)}
        is_even = bool(np.all(speeds == 1))
        links = ClusterLinks(self._cluster, shape)
        return programs, play(programs, shape, links, None if is_even else slowness, is_detailed=is_detailed)

    @paused_collector()
    def _programs(self, choice: Choice) -> tuple[dict[str, int], tuple[ClassProgram, ...]]:
        """The sizes of the axes of a position, and the class programs."""
        step, links = applied(self._recorded, choice), self._links()
        turns = few_turns(choice.micro_batches) if self._speed is None else None
        if turns is not None:
            with suppress(UnimplementedError):  # what all turns do together, they do if all of them are there
                parts = parts_of(step, links, turns)
                mesh = parts[0].mesh
                schedule = turns_in_order(mesh) if choice.pp == 1 else order(
                    choice.schedule, choice.pp, choice.micro_batches, choice.chunks
                )  # fmt: skip
                seconds = self._costs_of(parts)
                return space_of(mesh), assembled(parts, seconds, self._trainable, schedule, turns)
        parts = parts_of(step, links)
        seconds = self._costs_of(parts)
        programs = tuple(class_program(part, seconds, self._trainable) for part in parts)
        return space_of(parts[0].mesh), programs

    def _links(self) -> Links:
        """The links by which a session of this cluster decides which messages are joined."""
        host, uplink = self._cluster.host.link, self._cluster.rack.uplink
        between = host if host is not None else uplink
        known = self._recorded.options.links
        return (
            known if between is None else known._replace(between=Link(between.latency, 1 / between.bandwidth))
        )
