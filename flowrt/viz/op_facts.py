"""What is known of operations beside the graph: how long they take, what was compiled for them, what they are
fused in.

    the last stage       -> estimated seconds, groups
    StepStats            -> measured seconds
    a plan of a session  -> each operation's instructions, with where its operands are
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

Code: TypeAlias = Mapping[str, Sequence[str]]
"""By the name of an operation the texts that run it: lines of programs, and of a group its loop."""


class OpFacts(NamedTuple):
    """By the name of the operation: seconds a step, the texts that run it, and the operation that stands for
    the group in which it is fused.
    """

    seconds: Mapping[str, float] = {}
    seconds_are: str = ""
    """Where they come from: "estimated", "measured"."""
    code: Mapping[str, Sequence[str]] = {}
    unplanned: str = ""
    """Why there is no code."""
    fused: Mapping[str, str] = {}


def facts_of(last: Stage) -> OpFacts:
    """What ``last`` alone tells, the stage in which everything has its device and its group."""
    seconds = {
        node.name: _estimated(part, node)
        for part in _all_parts(list(last.parts.values()))
        for node in part
        if not _costs_nothing(node)
    }
    fused = {**last.fused, **{name: name for name in last.fused.values()}}
    return OpFacts(seconds, "estimated", fused=fused)


PRODUCTS_FASTER = 10
"""Times that a library's product takes an operation less than a loop over memory does. By this digits_cnn is
estimated at 36 ms a step, and takes 25.
"""


def _estimated(part: Subgraph, node: Node) -> float:
    """A schedule only has to rank (`node_seconds`); a reader looks at the shares."""
    seconds = node_seconds(part, node)
    return CALL_SECONDS + (seconds - CALL_SECONDS) / PRODUCTS_FASTER if node.op.cost is not None else seconds


ALIKE = 0.5
"""Of the operations of two steps the share that both have, from which on they are taken for the same one."""


def step_like(steps: Sequence[Any], stages: Sequence[Stage]) -> Any:
    """Of the ``StepStats`` of ``steps`` the last that traces the step of ``stages``, with its groups of
    operations or before they were compiled; None where there is none.

    Steps are told from each other by their operations: by the Jaccard index of these.
    """
    expected = [
        {
            node.name
            for part in _all_parts([*stage.parts.values()])
            for node in part
            if not _costs_nothing(node)
        }
        for stage in stages[-2:]
    ]
    best, least = None, ALIKE
    for step in steps:
        traced = {entry.node_name for device in step.dev_stats for entry in device.node_stats}
        alike = max(len(traced & names) / max(1, len(traced | names)) for names in expected)
        if alike >= least:
            best, least = step, alike
    return best


def measured_seconds(step_stats: Any) -> dict[str, float]:
    """From a ``StepStats`` message; of an operation that ran several times, or on several devices, all
    together. A receive has none: what it waited is the time of others.
    """
    seconds: dict[str, float] = {}
    for cost in node_costs([read_step(step_stats)]):
        if cost.micros:
            seconds[cost.name] = seconds.get(cost.name, 0.0) + cost.micros / 1e6
    return seconds


def program_texts(plan: Plan) -> Code:
    """By operation the lines of ``plan``'s programs that run it; a fused group's are followed by its loop."""
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


def _costs_nothing(node: Node) -> bool:
    """Whether nothing runs for it: it is there already, or a view of what is."""
    return node.op.name in ("Const", "_Feed", "NoOp") or node.op.effect is Effect.HANDLE or node.op.alias
