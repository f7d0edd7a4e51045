"""`explain`: where each operation of a step runs and why, and what was compiled for it, as text.

    Session | Graph | GraphDef file | CompileRequest -> Explanation -> str

The devices and the reasons come from the real placement, the programs from a real plan: of the given session,
else of an equivalent one that is created for this and runs nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, final

from flowrt.device.spec import DeviceSpec
from flowrt.errors import InvalidArgumentError, NotFoundError
from flowrt.executor.plan.plan_description import DevicePlan, describe_plan
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.passes.pipeline import PIPELINE, Observer, compile_step, format_pipeline, parse_pipeline
from flowrt.graph.passes.placement.placement_reasons import placement_reasons
from flowrt.graph.shapes import format_shape
from flowrt.graph.text.graph_text import labelled_functions
from flowrt.profiler.text_table import aligned, first_few, size_text
from flowrt.tf1.graph_import.read_graph_def import find_op
from flowrt.viz.compile_request import MAX_NAMED, CompileRequest, compile_request, read_plan, title_of
from flowrt.viz.from_parts import line_of
from flowrt.viz.sources import WORKER, Foreign, ask_worker, on_its_devices, read_source
from flowrt.viz.stages import stages_of


class Placed(NamedTuple):
    """One operation's device, and the reason. In a function, ``name`` begins with its owner's."""

    name: str
    op: str
    device: str
    why: str
    source: str


class Explanation(NamedTuple):
    """The placement and programs of a step. ``step`` names the fetches and feeds; if the devices are not of
    this process, ``devices`` is empty and ``unplanned`` gives the reason.
    """

    step: str
    operations: tuple[Placed, ...]
    devices: tuple[DevicePlan, ...]
    unplanned: str

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def only(self, pattern: str) -> Explanation:
        """The same of the operations that have the regular expression ``pattern`` in their names. Raises
        `InvalidArgumentError` for another text, and `NotFoundError` if there is no such operation.
        """
        names = regex(pattern)
        operations = tuple([each for each in self.operations if names.search(each.name)])
        if not operations:
            raise NotFoundError(f"name: expected the names of some operations; none has {pattern!r} in it")
        return self._replace(
            operations=operations, devices=tuple([_only(device, names) for device in self.devices])
        )


def regex(pattern: str) -> re.Pattern[str]:
    """``pattern`` compiled. Raises `InvalidArgumentError`."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise InvalidArgumentError(f"name: expected a regular expression; got {pattern!r}: {error}") from None


def _only(device: DevicePlan, names: re.Pattern[str]) -> DevicePlan:
    """``device`` with the groups and the program lines that name a match."""
    groups = tuple([group for group in device.groups if names.search(f"{group.name} {group.members}")])
    programs = []
    for program in device.programs:
        title, *lines = program.splitlines()
        kept = [line for line in lines if names.search(line.rpartition("# ")[2].partition(" ")[0])]
        programs.append("\n".join([title, *kept]))
    return device._replace(groups=groups, programs=tuple(programs))


def explain(
    what: BaseSession | Graph | str | os.PathLike[str] | CompileRequest,
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
) -> Explanation:
    """The step of ``what`` that computes ``fetches``: see `flowrt.viz.compile_request.compile_request`. A
    string is the path of a GraphDef, or the address of a running worker, ``grpc://host:port``; then all it
    has compiled is explained. Variables that no step has placed are placed by this one; nothing runs.

    Raises the errors of `Session.run` if the step does not compile, and those of
    `flowrt.viz.sources.source_of`.
    """
    if isinstance(what, str) and what.startswith(WORKER):
        return _of_worker(what, fetches)
    asked = request_of(what, fetches, feed_dict)
    if isinstance(asked, Foreign):
        written = _written(asked.graph, on_its_devices(asked.graph), "")
        return Explanation(f"graph: {asked.title}", tuple(written), (), asked.reason)
    step, operations = _title(asked), tuple(_placements(asked))
    plans, unplanned = read_plan(asked, describe_plan, what if isinstance(what, BaseSession) else None)
    return Explanation(step, operations, plans or (), unplanned)


def request_of(
    what: BaseSession | Graph | str | os.PathLike[str] | CompileRequest,
    fetches: Any,
    feed_dict: Mapping[Any, Any] | None = None,
) -> CompileRequest | Foreign:
    if isinstance(what, CompileRequest):
        return what
    found = what if isinstance(what, BaseSession | Graph) else read_source(os.fspath(what), fetches)
    return found if isinstance(found, Foreign) else compile_request(found, fetches, feed_dict)


def request_here(
    source: CompileRequest | BaseSession | Graph | str | os.PathLike[str],
    fetches: Any,
    what: str,
    feed_dict: Mapping[Any, Any] | None = None,
) -> CompileRequest:
    """The step of ``source``. Raises `InvalidArgumentError`, for ``what``, if it is compiled elsewhere."""
    is_worker = isinstance(source, str) and source.startswith(WORKER)
    asked = None if is_worker else request_of(source, fetches, feed_dict)
    if not isinstance(asked, CompileRequest):
        raise InvalidArgumentError(f"{what}: expected a script or a GraphDef that runs here; got {source}")
    return asked


def _title(asked: CompileRequest) -> str:
    fed = [f"{tensor.name} {tensor.dtype.name}{format_shape(shape)}" for tensor, shape in asked.feeds.items()]
    return title_of(asked) + (f"; fed: {first_few(fed, MAX_NAMED)}" if fed else "")


def _of_worker(target: str, fetches: Any) -> Explanation:
    task = ask_worker(target, fetches)
    operations = [
        _placed(node, node.name, "the master placed it there") for part in task.parts for node in part
    ]
    return Explanation(f"task: {task.name}", tuple(operations), task.plans, "")


def _written(graph: Subgraph, placed: Subgraph, prefix: str) -> Iterator[Placed]:
    for node, there in zip(graph, placed, strict=True):
        asks = f"requested {node.device}" if node.device else "default device"
        why = "a parameter" if node.name in graph.feeds else asks if find_op(node.op.name) else "no kernel"
        yield _placed(there, prefix + node.name, why)
        for label, function in labelled_functions(node):
            inner = function.with_nodes([n if n.device else n.replace(device=there.device) for n in function])
            yield from _written(function, on_its_devices(inner), f"{prefix}{node.name}:{label}/")


# --- devices and reasons


def _placements(asked: CompileRequest) -> Iterator[Placed]:
    placement = _Placement()
    compile_step(asked.request, replace(asked.options, observer=placement))
    options = asked.options
    yield from _explained(placement.before, placement.placed, options.devices, options.assigned, "")


@final
class _Placement(Observer):
    """The step ``before`` the stage `place`, and as that ``placed`` it."""

    before: Subgraph
    placed: Subgraph

    def after(self, name: str, parts: Mapping[str, Subgraph]) -> None:
        if name == "place":
            self.placed = parts[""]
        elif not hasattr(self, "placed"):
            self.before = parts[""]


def _explained(
    before: Subgraph,
    placed: Subgraph,
    devices: Sequence[DeviceSpec],
    assigned: Mapping[str, str],
    prefix: str,
) -> Iterator[Placed]:
    """The nodes of ``placed``, each followed by those of its functions: these are placed as separate graphs,
    with their parameters colocated with the arguments.
    """
    reasons = placement_reasons(before, placed, devices, assigned)
    parameters = dict.fromkeys(placed.feeds if prefix else (), "a parameter")
    for node in placed:
        name = prefix + node.name
        yield _placed(node, name, parameters.get(node.name, reasons[node.name]))
        functions = labelled_functions(before.nodes[node.name]), labelled_functions(node)
        for (label, old), (_, new) in zip(*functions, strict=True):
            yield from _explained(old, new, devices, {}, f"{name}:{label}/")


def _placed(node: Node, name: str, why: str) -> Placed:
    return Placed(name, node.op.name, node.device, why, line_of(node))


# --- text


def _lines(explanation: Explanation) -> Iterator[str]:
    yield explanation.step
    yield ""
    yield "operations"
    rows = [("name", "type", "device", "why", "line")]
    rows += [(o.name, o.op, _short(o.device), o.why, o.source) for o in explanation.operations]
    yield from ("  " + line for line in aligned(rows))
    for device in explanation.devices:
        yield ""
        yield from _device_lines(device)
    if explanation.unplanned:
        yield ""
        yield f"no plan: {explanation.unplanned}"


def _device_lines(device: DevicePlan) -> Iterator[str]:
    streams = f"{device.streams} stream{'s' if device.streams > 1 else ''}"
    arena = f"arena {size_text(device.arena_bytes)} (at least {size_text(device.lower_bound_bytes)})"
    groups = f"{len(device.groups)} fused group{'' if len(device.groups) == 1 else 's'}"
    yield f"{device.device}: {streams}, {arena}, {groups}"
    yield from (f"  {group.name}: {group.members}" for group in device.groups)
    for program in device.programs:
        yield from (f"  {line}" for line in program.splitlines())


def _short(device: str) -> str:
    """``CPU:0`` of a device of this process, else the name without the replica."""
    local = "/job:localhost/replica:0/task:0/device:"
    return device.removeprefix(local) if device.startswith(local) else device.replace("/replica:0", "")


ALL = "all"


def pass_changes(
    source: CompileRequest | str | os.PathLike[str], passes: str = ALL, fetches: Sequence[str] | None = None
) -> str:
    """The stages of a step that changed it, with the numbers of operations that each added, removed and
    changed, outside of functions.

    ``source`` is a step, or the path of a GraphDef; ``passes`` is ``"all"`` or a text for `parse_pipeline`.
    Raises `InvalidArgumentError` for other ``passes`` and for a source that is compiled elsewhere, and as
    `Session.run`.
    """
    pipeline = PIPELINE if passes == ALL else parse_pipeline(passes)
    asked = request_here(source, fetches, "passes")
    rows: list[tuple[str, ...]] = [("stage", "operations", "added", "removed", "changed")]
    for stage in stages_of(asked, pipeline):
        count = sum(len(part) for part in stage.parts.values())
        rows.append((stage.name, str(count), *[str(len(names)) for names in stage.change]))
    return "\n".join([f"passes: {format_pipeline(pipeline)}", *aligned(rows)])
