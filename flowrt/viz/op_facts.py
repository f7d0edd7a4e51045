"""Facts about operations that are not in the graph: times, compiled code, fusion groups.

the last stage       -> estimated seconds, groups
StepStats            -> measured seconds
a plan of a session  -> each operation's instructions, with the locations of operands
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from flowrt.executor.analysis.cost import CALL_SECONDS, node_seconds
from flowrt.executor.kernels.fused_program import fused_program
from flowrt.executor.plan.plan import Plan
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.passes.fusion.group import Group
from flowrt.profiler.costs import node_costs
from flowrt.profiler.steps import read_step
from flowrt.viz.stages import Stage
from flowrt.viz.training import NO_TRAINING, Training

Code: TypeAlias = Mapping[str, Sequence[str]]
"""The texts that run each operation, by name: program lines, and for a group its loop."""


class OpFacts(NamedTuple):
    """Facts by operation name: seconds per step, the texts that run it, and the operation that represents its
    fusion group.
    """

    seconds: Mapping[str, float] = {}
    seconds_are: str = ""
    """Source of the times: "estimated", "measured"."""
    code: Mapping[str, Sequence[str]] = {}
    unplanned: str = ""
    """The reason if there is no code."""
    fused: Mapping[str, str] = {}
    training: Training = NO_TRAINING
    """Losses and updates, of the whole graph."""


def facts_of(last: Stage) -> OpFacts:
    """Facts from ``last`` alone, the stage in which every node has its device and its group."""
    seconds = {node.name: _estimated(part, node) for part, node in _instructions(last)}
    fused = {**last.fused, **{name: name for name in last.fused.values()}}
    return OpFacts(seconds, "estimated", fused=fused)


PRODUCTS_FASTER = 10
"""Speed of a library's product per operation, relative to a loop over memory. With it digits_cnn is estimated
at 36 ms per step, and takes 25.
"""


def _estimated(part: Subgraph, node: Node) -> float:
    """Estimated seconds of a node: scheduling needs only a ranking (`node_seconds`), a reader the shares."""
    seconds = node_seconds(part, node)
    return CALL_SECONDS + (seconds - CALL_SECONDS) / PRODUCTS_FASTER if node.op.cost is not None else seconds


ALIKE = 0.5
"""Minimum Jaccard index of two steps' operations to count as the same step."""


def step_like(steps: Sequence[Any], stages: Sequence[Stage]) -> Any:
    """The last of ``steps``, ``StepStats``, that traces the step of ``stages``, with its groups of operations
    or before they were compiled; None if there is none.

    Steps are compared by the Jaccard index of their operations.
    """
    expected = [{node.name for _, node in _instructions(stage)} for stage in stages[-2:]]
    best, least = None, ALIKE
    for step in steps:
        traced = {entry.node_name for device in step.dev_stats for entry in device.node_stats}
        alike = max(len(traced & names) / max(1, len(traced | names)) for names in expected)
        if alike >= least:
            best, least = step, alike
    return best


def measured_seconds(step_stats: Any) -> dict[str, float]:
    """Times from a ``StepStats`` message, summed over several runs or devices of an operation. A receive has
    none: its wait belongs to the producer.
    """
    seconds: dict[str, float] = {}
    for cost in node_costs([read_step(step_stats)]):
        if cost.micros:
            seconds[cost.name] = seconds.get(cost.name, 0.0) + cost.micros / 1e6
    return seconds


def program_texts(plan: Plan) -> Code:
    """The lines of ``plan``'s programs by operation; those of a fused group are followed by its loop."""
    texts: dict[str, list[str]] = {}
    for program in plan.programs:
        _, *lines = str(program).splitlines()
        for line, text in zip(program.lines, lines, strict=True):
            texts.setdefault(line.node.name, []).append(text.strip())
    for name, loop in _loops([part.subgraph for part in plan.partitions.values()]).items():
        texts.setdefault(name, []).append(loop)
    return texts


def _loops(parts: Sequence[Subgraph]) -> dict[str, str]:
    """The scalar program of each fused group."""
    found: dict[str, str] = {}
    for part in _all_parts(parts):
        for node in part:
            group = node.attrs.get("group")
            if isinstance(group, Group) and (fused := fused_program(group)) is not None:
                found[node.name] = str(fused.program)
    return found


def _all_parts(parts: Sequence[Subgraph]) -> Iterator[Subgraph]:
    """``parts`` and the functions in them."""
    for part in parts:
        yield part
        for node in part:
            yield from _all_parts(owned_subgraphs(node.attrs))


def _instructions(stage: Stage) -> Iterator[tuple[Subgraph, Node]]:
    """The nodes that an instruction runs for, with their parts: the results of others exist already, or are
    views.
    """
    for part in _all_parts([*stage.parts.values()]):
        for node in part:
            is_there = node.op.name in ("Const", "_Feed", "NoOp") or node.op.effect is Effect.HANDLE
            if not (is_there or node.op.alias):
                yield part, node
