"""From a request to the placed subgraph that a `Plan` is made of: the passes, timed."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from flowrt.device.spec import DeviceSpec
from flowrt.executor.observe.compile_times import CompileTimes
from flowrt.graph.collectives.cost import links_of
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.passes import Watch, optimise, unwatched
from flowrt.graph.passes.collective.lower_collectives import lower_collectives
from flowrt.graph.passes.placement.partition import PartOf, device_of
from flowrt.graph.passes.placement.place import NO_REASONS, WhyNone, place
from flowrt.graph.passes.placement.split import split
from flowrt.graph.passes.prepare.extend import Recent
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.prune import extract
from flowrt.graph.shapes import Shape


class Setting(NamedTuple):
    """What a runtime compiles for: its ``devices``, where nodes with state are (``assigned``), what its
    session allows; how many ``streams`` each device has, and which are ``fusing`` operations.
    """

    devices: Sequence[DeviceSpec]
    assigned: Mapping[str, str]
    soft_placement: bool
    optimisations: bool
    streams: Mapping[str, int]
    fusing: Collection[str]


def compile_step(
    graph: Graph,
    fetches: Sequence[Tensor],
    targets: Sequence[Operation],
    feeds: Mapping[Tensor, Shape],
    devices: Sequence[DeviceSpec],
    assigned: Mapping[str, str],
    soft_placement: bool,
    optimisations: bool,
    done: Collection[str],
    why_none: WhyNone = NO_REASONS,
    times: CompileTimes | None = None,
    recent: Recent | None = None,
    watch: Watch = unwatched,
) -> Subgraph:
    """The placed subgraph of one run. Nothing waits for the operations in ``done``. `place` explains
    ``why_none``. What ``recent`` remembers of an earlier run with these ``optimisations`` is not done again.
    ``watch`` is shown the subgraph after each pass.
    """
    times = times or CompileTimes()
    with times.phase("extract"):
        subgraph = (recent.extract if recent else extract)(graph, fetches, targets, feeds, done)
    watch("extract", subgraph)
    return compile_subgraph(
        subgraph,
        devices,
        assigned,
        soft_placement,
        optimisations,
        why_none,
        times,
        recent=recent,
        watch=watch,
    )


def compile_subgraph(
    subgraph: Subgraph,
    devices: Sequence[DeviceSpec],
    assigned: Mapping[str, str],
    soft_placement: bool,
    optimisations: bool,
    why_none: WhyNone = NO_REASONS,
    times: CompileTimes | None = None,
    part_of: PartOf = device_of,
    recent: Recent | None = None,
    watch: Watch = unwatched,
) -> Subgraph:
    """``subgraph``, as `extract` leaves it, placed and ready to be cut by ``part_of``."""
    times = times or CompileTimes()
    prepare = functools.partial(_prepare, optimisations=optimisations, times=times, watch=watch)
    subgraph = prepare(subgraph) if recent is None else recent.optimise(subgraph, prepare)
    with times.phase("place"):
        settle = functools.partial(
            _settle, devices, assigned, soft_placement, why_none, part_of=part_of, watch=watch
        )
        return settle(subgraph, {}) if recent is None else recent.place(subgraph, settle)


def _settle(
    devices: Sequence[DeviceSpec],
    assigned: Mapping[str, str],
    soft_placement: bool,
    why_none: WhyNone,
    subgraph: Subgraph,
    also_assigned: Mapping[str, str],
    part_of: PartOf,
    watch: Watch,
) -> Subgraph:
    """Where each node of ``subgraph`` runs, and what follows from that."""
    there = {**assigned, **also_assigned}
    placed = place(subgraph, devices, assigned=there, soft=soft_placement, why_none=why_none)
    watch("place", placed)
    placed = lower_collectives(placed, links_of(os.environ))
    watch("lower_collectives", placed)
    placed = split(placed, part_of)
    watch("split", placed)
    return placed


def _prepare(subgraph: Subgraph, optimisations: bool, times: CompileTimes, watch: Watch) -> Subgraph:
    """All that comes before `place`."""
    with times.phase("extract"):
        subgraph = lower(subgraph)
        watch("lower", subgraph)
        subgraph = order_effects(subgraph)
    watch("order_effects", subgraph)
    with times.phase("infer"):
        subgraph = infer_shapes(subgraph)
    watch("infer_shapes", subgraph)
    if optimisations:
        with times.phase("optimise"):
            subgraph = infer_shapes(optimise(subgraph, watch=watch))  # folded shapes are known now
        watch("infer_shapes", subgraph)
    return subgraph
