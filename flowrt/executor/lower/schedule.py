"""From a placed subgraph to what each device runs: cut, fused, in an order, on streams."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping

from flowrt.executor.analysis.streams import StreamSchedule, by_rank, one_stream, schedule_streams
from flowrt.executor.kernels.fused_program import supports
from flowrt.executor.kernels.iterated_program import is_small, iterated_program
from flowrt.executor.lower.loop_factors import lay_out_factors
from flowrt.executor.lower.row_slices import gather_slices
from flowrt.executor.observe.compile_times import CompileTimes
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.fusion.fuse import fuse
from flowrt.graph.passes.optimise.narrow import narrow_products
from flowrt.graph.passes.optimise.row_reads import read_rows_in_place
from flowrt.graph.passes.placement.partition import partition


def schedule_parts(
    placed: Subgraph, streams: Mapping[str, int], fusing: Collection[str], times: CompileTimes
) -> dict[str, tuple[Subgraph, StreamSchedule]]:
    """The partitions by device, each on as many of its device's ``streams`` as pay. If no device spreads its
    part the order stays as it was, which ends lifetimes sooner. On the devices in ``fusing`` groups of
    operations are one node each.
    """
    if any(streams[name] > 1 for name in {node.device for node in placed}):
        spread = {
            name: (part, schedule_streams(part, streams[name]))
            for name, part in _parts(by_rank(placed), fusing, times).items()
        }
        if any(schedule.count > 1 for _, schedule in spread.values()):
            return spread
    parts = _parts(placed, fusing, times)
    return {name: (part, one_stream(part)) for name, part in parts.items()}


def _parts(placed: Subgraph, fusing: Collection[str], times: CompileTimes) -> dict[str, Subgraph]:
    with times.phase("partition"):
        parts = partition(placed)
    with times.phase("fuse"):
        return {name: _fuse(part) if name in fusing else part for name, part in parts.items()}


def _fuse(subgraph: Subgraph, each: bool = False) -> Subgraph:
    """`fuse`, in all functions too, behind what makes their products cheaper."""
    subgraph = narrow_products(lay_out_factors(gather_slices(subgraph) if each else subgraph))
    if any(node.op.effect is Effect.NESTED for node in subgraph):
        subgraph = subgraph.with_nodes([_fuse_functions(node) for node in subgraph])
    return fuse(read_rows_in_place(subgraph), supports, each)


def _fuse_functions(node: Node) -> Node:
    """Where all tensors of a loop or of branches are small each operation becomes machine code, so that they
    may.
    """
    if iterated_program(node) is not None:
        return node
    return with_functions(node, functools.partial(_fuse, each=is_small(node)))
