"""From a request to the placed subgraph that a `Plan` is made of: the passes, timed."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence

from flowrt.device.spec import DeviceSpec
from flowrt.executor.compile_times import CompileTimes
from flowrt.graph.graph import Graph, Operation, Tensor
from flowrt.graph.node import Subgraph
from flowrt.graph.passes import optimise
from flowrt.graph.passes.extend import Recent
from flowrt.graph.passes.infer import infer_shapes
from flowrt.graph.passes.lower import lower
from flowrt.graph.passes.order_effects import order_effects
from flowrt.graph.passes.partition import PartOf, device_of
from flowrt.graph.passes.place import NO_REASONS, WhyNone, place
from flowrt.graph.passes.prune import extract
from flowrt.graph.passes.split import split
from flowrt.graph.shapes import Shape


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
) -> Subgraph:
    """The placed subgraph of one run. Nothing waits for the operations in ``done``. `place` explains
    ``why_none``. What ``recent`` remembers of an earlier run with these ``optimisations`` is not done again.
    """
    times = times or CompileTimes()
    with times.phase("extract"):
        subgraph = extract(graph, fetches, targets, feeds, done)
    return compile_subgraph(
        subgraph, devices, assigned, soft_placement, optimisations, why_none, times, recent=recent
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
) -> Subgraph:
    """``subgraph``, as `extract` leaves it, placed and ready to be cut by ``part_of``."""
    times = times or CompileTimes()
    prepare = functools.partial(_prepare, optimisations=optimisations, times=times)
    subgraph = prepare(subgraph) if recent is None else recent.optimise(subgraph, prepare)
    with times.phase("place"):
        placed = place(subgraph, devices, assigned=assigned, soft=soft_placement, why_none=why_none)
        return split(placed, part_of)


def _prepare(subgraph: Subgraph, optimisations: bool, times: CompileTimes) -> Subgraph:
    """All that comes before `place`."""
    with times.phase("extract"):
        subgraph = order_effects(lower(subgraph))
    with times.phase("infer"):
        subgraph = infer_shapes(subgraph)
    if optimisations:
        with times.phase("optimise"):
            subgraph = infer_shapes(optimise(subgraph))  # folded shapes are known now
    return subgraph
