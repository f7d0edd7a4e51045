"""Scheduling of a placed subgraph: one partition per device, fused, ordered, and assigned to streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flowrt.device.onednn import onednn
from flowrt.device.spec import DeviceSpec
from flowrt.executor.analysis.streams import StreamSchedule, by_rank, one_stream, schedule_streams
from flowrt.executor.kernels.fused_program import supports
from flowrt.executor.kernels.small_calls import MAX_ALONG, MAX_PRODUCT
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.fusion.loop_compiler import LoopCompiler
from flowrt.graph.passes.pipeline import PIPELINE, CompileOptions, Stage, cut

LOOP_COMPILER = LoopCompiler(
    supports, max_product=MAX_PRODUCT, max_transposed_product=MAX_ALONG, has_epilogues=lambda: False
)
"""One for all devices: below it, the host's loops are compiled by LLVM and a GPU's by CUDA's compiler."""

HOST_COMPILER = LOOP_COMPILER._replace(has_epilogues=onednn.is_available)


def loop_compilers(devices: Iterable[DeviceSpec]) -> dict[str, LoopCompiler]:
    """The compilers of loops of ``devices``, by their names."""
    return {
        device.to_string(): HOST_COMPILER if device.device_type == "CPU" else LOOP_COMPILER
        for device in devices
    }


def schedule_parts(
    placed: Subgraph, options: CompileOptions, pipeline: Sequence[Stage] = PIPELINE
) -> dict[str, tuple[Subgraph, StreamSchedule]]:
    """The partitions by device, each on as many of its device's streams as pay. If no device spreads its part
    the order stays as it was, which ends lifetimes sooner.
    """
    streams = options.streams
    if any(streams.get(name, 1) > 1 for name in {node.device for node in placed}):
        spread = {
            name: (part, schedule_streams(part, streams.get(name, 1)))
            for name, part in cut(by_rank(placed), options, pipeline).items()
        }
        if any(schedule.count > 1 for _, schedule in spread.values()):
            return spread
    return {name: (part, one_stream(part)) for name, part in cut(placed, options, pipeline).items()}
