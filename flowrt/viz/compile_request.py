"""The step to show: of a session, or of a graph without one.

For a graph without a session the devices are those that its operations request, whether or not they exist on
this machine: placement only needs names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.errors import DTypeError
from flowrt.executor.ends.feeds import flat_feeds, resolve_feed
from flowrt.executor.ends.fetches import Fetches, parse_fetches
from flowrt.executor.lower.schedule import LOOP_COMPILER
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.node import Node, owned_subgraphs
from flowrt.graph.passes.pipeline import CompileOptions
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.shapes import Shape

MASTERS = ("chief", "master", "worker")
"""Jobs with the default task as their first one, if requested."""


MAX_NAMED = 6
"""Fetches, and fed tensors, that a title names."""


class CompileRequest(NamedTuple):
    """The ``tensors`` and ``targets`` of ``graph`` compiled with ``options`` for the ``feeds``' shapes."""

    graph: Graph
    tensors: tuple[Tensor, ...]
    targets: tuple[Operation, ...]
    feeds: Mapping[Tensor, Shape]
    options: CompileOptions

    @property
    def request(self) -> StepRequest:
        """The same, as the pipeline takes it."""
        return StepRequest(self.graph, self.tensors, self.targets, self.feeds)


def compile_request(
    source: BaseSession | Graph, fetches: Any = None, feed_dict: Mapping[Any, Any] | None = None
) -> CompileRequest:
    """``fetches`` None: all operations that nothing reads. ``feed_dict`` None: all placeholders that are
    needed, with the shapes that they were made with.

    Raises `DTypeError` for another source, and as `Session.run`.
    """
    if not isinstance(source, BaseSession | Graph):
        raise DTypeError(f"expected a Session or a Graph; got {source!r}")
    graph = source if isinstance(source, Graph) else source.graph
    options = _options_of(graph) if isinstance(source, Graph) else source.compile_options()
    asked = Fetches((), _ends(graph), list) if fetches is None else parse_fetches(graph, fetches)
    tensors, targets, _ = asked
    if feed_dict is None:
        feeds = _placeholders([t.op for t in tensors] + list(targets))
    else:
        flat = [pair for item in feed_dict.items() for pair in flat_feeds(*item)]
        feeds = {resolve_feed(graph, key): np.shape(value) for key, value in flat}
    return CompileRequest(graph, tensors, targets, feeds, options)


def title_of(asked: CompileRequest) -> str:
    """``step: loss:0, train``; of more than `MAX_NAMED` fetches how many more."""
    return f"step: {some([t.name for t in asked.tensors] + [op.name for op in asked.targets])}"


def some(words: Sequence[str]) -> str:
    """The first `MAX_NAMED` of them, and how many more there are."""
    more = f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else ""
    return ", ".join(words[:MAX_NAMED]) + more


def _ends(graph: Graph) -> tuple[Operation, ...]:
    """The operations that nothing reads or waits for, in order."""
    nodes = [op.node for op in graph.get_operations()]
    read = {name for node in nodes for name, _ in node.inputs}.union(*[node.controls for node in nodes])
    return tuple(op for op in graph.get_operations() if op.name not in read)


def _placeholders(roots: list[Operation]) -> dict[Tensor, Shape]:
    """The placeholders that ``roots`` need, in the order of the graph."""
    found: set[Operation] = set()
    waiting = list(roots)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [t.op for t in op.inputs] + list(op.control_inputs)
    graph = roots[0].graph.get_operations() if roots else ()
    fed = [op for op in graph if op.type == "Placeholder" and op in found]
    return {op.outputs[0]: op.node.outputs[0].shape for op in fed}


# --- devices that a graph requests


def _options_of(graph: Graph) -> CompileOptions:
    devices = devices_asked_for(op.node for op in graph.get_operations())
    return CompileOptions(devices, loops={device.to_string(): LOOP_COMPILER for device in devices})


def devices_asked_for(nodes: Iterable[Node]) -> list[DeviceSpec]:
    """The devices of every task that ``nodes`` name: as many of each type as requested, and one CPU; of this
    process if they name no task. The default device is first.
    """
    specs = {parse_device(name) for name in set(_requests(nodes))}
    tasks = sorted({_task(spec) for spec in specs if spec.job}, key=_task_rank) or [_task(DeviceSpec())]
    types = {"CPU": 1}
    for spec in specs:
        if spec.device_type is not None:
            count = 1 + (spec.device_index or 0)
            types[spec.device_type] = max(types.get(spec.device_type, 0), count)
    return [
        task.replace(device_type=kind, device_index=index)
        for task in tasks
        for kind, count in types.items()
        for index in range(count)
    ]


def _requests(nodes: Iterable[Node]) -> Iterator[str]:
    """The devices that the nodes request, including those in functions."""
    for node in nodes:
        yield node.device
        for function in owned_subgraphs(node.attrs):
            yield from _requests(function)


def _task(spec: DeviceSpec) -> DeviceSpec:
    return DeviceSpec(spec.job or "localhost", spec.replica or 0, spec.task or 0)


def _task_rank(task: DeviceSpec) -> tuple[int, str, int]:
    rank = MASTERS.index(task.job) if task.job in MASTERS else len(MASTERS)
    return rank, task.job or "", task.task or 0
