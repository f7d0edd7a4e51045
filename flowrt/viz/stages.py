"""The stages of a compilation: the results of the real passes for a real request, in order.

    built -> pruned -> optimised -> placed -> partitioned -> fused -> scheduled

The stages are those of `flowrt.graph.passes.pipeline`, observed, with each pass of `optimise` and `fuse` that
changed something; the streams are those of `flowrt.executor.lower.schedule`. Nothing runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from flowrt.executor.lower.schedule import schedule_parts
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.passes import pipeline as passes
from flowrt.graph.passes.fusion.group import Group
from flowrt.graph.passes.pipeline import PIPELINE, Observer, Scope, compile_step
from flowrt.viz.compile_request import CompileRequest, compile_request
from flowrt.viz.from_parts import Parts

PHASES = ("built", "pruned", "optimised", "placed", "partitioned", "fused", "scheduled")

_PHASE_OF = {name: stage.state.value for stage in PIPELINE for name in (*stage.passes, stage.name)}

PHASES_OF_PASSES = ("optimised", "fused")
"""Phases that consist of passes: only those that changed something are stages."""


class Change(NamedTuple):
    """Changes of a stage to the previous one, as names of nodes (outside functions), in order."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class Stage(NamedTuple):
    """``phase`` is one of `PHASES`, ``name`` the pass (``simplify 2`` in the second round) or the phase.

    ``parts``: see `flowrt.viz.from_parts`. In the last stage, scheduled, ``streams`` gives each node's stream
    on its device, and ``fused`` the node that represents a group, by the name of each member.
    """

    phase: str
    name: str
    parts: Parts
    change: Change
    streams: Mapping[str, int] = {}
    fused: Mapping[str, str] = {}


def stages(
    source: BaseSession | Graph, fetches: Any = None, feed_dict: Mapping[Any, Any] | None = None
) -> list[Stage]:
    """The stages of the step that `Session.run` would compile; a `Graph` is compiled for the devices that its
    operations request.

    ``fetches`` None: all operations that nothing reads; ``feed_dict`` None: all placeholders that are needed.
    Raises the errors of `Session.run`, without the stages before the failed pass.
    """
    return stages_of(compile_request(source, fetches, feed_dict))


def stages_of(asked: CompileRequest, pipeline: Sequence[passes.Stage] = PIPELINE) -> list[Stage]:
    """See `stages`; with another ``pipeline`` up to its end."""
    recorder = _Recorder(built(asked.graph))
    options = replace(asked.options, observer=recorder)
    placed = compile_step(asked.request, options, pipeline=pipeline)
    if pipeline[-1].scope is not Scope.WHOLE:
        return recorder.stages
    scheduled = schedule_parts(placed, options, pipeline)
    parts = {device: part for device, (part, _) in scheduled.items()}
    streams = {
        node.name: schedule.stream_of(node.name) for part, schedule in scheduled.values() for node in part
    }
    last = Stage(
        "scheduled",
        "scheduled",
        parts,
        _change(recorder.stages[-1].parts, parts),
        streams,
        _fused(parts.values()),
    )
    return [*recorder.stages, last]


def built(graph: Graph) -> Subgraph:
    """All of ``graph``, as it was built."""
    return Subgraph({op.name: op.node for op in graph.get_operations()})


class _Recorder(Observer):
    """Records the ``stages``; of passes only those that changed something. A step that is cut again, in
    another order, has the stages of the last cut.
    """

    def __init__(self, whole: Subgraph) -> None:
        self.stages = [Stage("built", "built", {"": whole}, Change((), (), ()))]
        self._times: dict[str, int] = {}

    def after(self, name: str, parts: Parts) -> None:
        """See `Observer`."""
        phase = _PHASE_OF.get(name, "optimised")
        if phase == "partitioned":
            self.stages = [stage for stage in self.stages if "" in stage.parts]
        before = self.stages[-1]
        change = _change(before.parts, parts)
        if any(change) or phase not in (before.phase, *PHASES_OF_PASSES):
            self._times[name] = times = self._times.get(name, 0) + 1
            self.stages.append(Stage(phase, name if times == 1 else f"{name} {times}", parts, change))


def _change(before: Parts, after: Parts) -> Change:
    old, new = _nodes(before), _nodes(after)
    return Change(
        tuple([name for name in new if name not in old]),
        tuple([name for name in old if name not in new]),
        tuple([name for name, node in new.items() if name in old and not _is_same(old[name], node)]),
    )


def _nodes(parts: Parts) -> dict[str, Node]:
    return {node.name: node for part in parts.values() for node in part}


def _is_same(a: Node, b: Node) -> bool:
    """Passes share unchanged nodes; some create equal ones."""
    return a is b or (a.attrs is b.attrs and _FACTS(a) == _FACTS(b))


_FACTS = attrgetter("op", "inputs", "controls", "device", "outputs")


def _fused(parts: Iterable[Subgraph]) -> dict[str, str]:
    """The node that represents each group, by the name of each member, including those in functions."""
    found: dict[str, str] = {}
    for part in parts:
        for node in part:
            group = node.attrs.get("group")
            if isinstance(group, Group):
                found.update({member.name: node.name for member in group.members})
            found.update(_fused(owned_subgraphs(node.attrs)))
    return found
