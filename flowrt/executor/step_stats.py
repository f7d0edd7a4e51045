"""Recording a traced step, and its form as RunMetadata."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.graph.graph_def import subgraph_to_graph_def
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.shapes import num_elements


@final
class StepRecorder:
    """Collects (node, start, end) for each device; times are nanoseconds since the epoch."""

    def __init__(self) -> None:
        self.slices: dict[str, list[tuple[Node, int, int]]] = {}
        self.recorded: list[bytes] = []
        """``StepStats`` of other tasks."""

    def on(self, device: str) -> Callable[[Node, int, int], None]:
        """The function that records for ``device``."""
        slices = self.slices.setdefault(device, [])
        return lambda node, start, end: slices.append((node, start, end))

    def fill(self, step_stats: Any) -> None:
        """Write what was recorded into a ``StepStats`` message."""
        for stats in self.recorded:
            step_stats.MergeFromString(stats)
        for device, slices in self.slices.items():
            stats = step_stats.dev_stats.add(device=device)
            for node, start, end in slices:
                inputs = ", ".join(name for name, _ in node.inputs)
                entry = stats.node_stats.add(
                    node_name=node.name,
                    timeline_label=f"{node.name} = {node.op.name}({inputs})",
                    all_start_micros=start // 1000,
                    op_end_rel_micros=max(1, (end - start) // 1000),
                    all_end_rel_micros=max(1, (end - start) // 1000),
                    all_start_nanos=start,
                    op_end_rel_nanos=end - start,
                    all_end_rel_nanos=end - start,
                )
                for slot, spec in enumerate(node.outputs):
                    _describe(entry.output.add(slot=slot).tensor_description, spec)


def describe_step(run_metadata: Any, recorder: StepRecorder | None, partitions: Sequence[Subgraph]) -> None:
    """Make ``run_metadata``, a ``RunMetadata`` message, say what was recorded and what the ``partitions``
    are.
    """
    run_metadata.Clear()
    if recorder is not None:
        recorder.fill(run_metadata.step_stats)
    for subgraph in partitions:
        run_metadata.partition_graphs.add().CopyFrom(subgraph_to_graph_def(subgraph))


def _describe(description: Any, spec: Any) -> None:
    description.dtype = spec.dtype.number
    if spec.shape is None:
        description.shape.unknown_rank = True
        return
    for dim in spec.shape:
        description.shape.dim.add(size=-1 if dim is None else dim)
    count = num_elements(spec.shape)
    if count is not None:
        description.allocation_description.requested_bytes = count * spec.dtype.size
