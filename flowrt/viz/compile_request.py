"""The step to show, of a session or of a graph without one, and its plan.

For a graph without a session the devices are those that its operations request, whether or not they exist on
this machine: placement only needs names. Its plan is that of an equivalent session created for this, and is
read while that session is open. Nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, NamedTuple, TypeVar

import numpy as np

from flowrt.device.device_kinds import KINDS
from flowrt.device.spec import DeviceSpec, parse_device
from flowrt.errors import DTypeError, FailedPreconditionError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.ends.feeds import flat_feeds, resolve_feed
from flowrt.executor.ends.fetches import Fetches, parse_fetches
from flowrt.executor.lower.schedule import loop_compilers
from flowrt.executor.plan.plan import Plan
from flowrt.executor.session.session import BaseSession, Session, not_a_dict
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.layouts.attributes import MESH
from flowrt.graph.layouts.mesh import parse_mesh
from flowrt.graph.node import Node, owned_subgraphs
from flowrt.graph.passes.pipeline import CompileOptions
from flowrt.graph.passes.prepare.prune import StepRequest
from flowrt.graph.shapes import Shape
from flowrt.profiler.text_table import first_few

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
        raise DTypeError(f"source: expected a Session or a Graph; got {source!r}")
    graph = source if isinstance(source, Graph) else source.graph
    options = _options_of(graph) if isinstance(source, Graph) else source.compile_options()
    asked = Fetches((), ends_of(graph), list) if fetches is None else parse_fetches(graph, fetches)
    tensors, targets, _ = asked
    if feed_dict is None:
        feeds = _placeholders(graph, needed_ops(tensors, targets))
    elif not isinstance(feed_dict, Mapping):
        raise not_a_dict(feed_dict)
    else:
        flat = [pair for item in feed_dict.items() for pair in flat_feeds(*item)]
        feeds = {resolve_feed(graph, key): np.shape(value) for key, value in flat}
    return CompileRequest(graph, tensors, targets, feeds, options)


def title_of(asked: CompileRequest) -> str:
    """``step: loss:0, train``; of more than `MAX_NAMED` fetches how many more."""
    return (
        f"step: {first_few([t.name for t in asked.tensors] + [op.name for op in asked.targets], MAX_NAMED)}"
    )


def ends_of(graph: Graph) -> tuple[Operation, ...]:
    """The operations that nothing reads or waits for, in order."""
    nodes = [op.node for op in graph.get_operations()]
    read = {name for node in nodes for name, _ in node.inputs}.union(*[node.controls for node in nodes])
    return tuple(op for op in graph.get_operations() if op.name not in read)


def needed_ops(tensors: Sequence[Tensor], targets: Sequence[Operation]) -> set[Operation]:
    """The operations that these, and ``targets``, need."""
    found: set[Operation] = set()
    waiting = [tensor.op for tensor in tensors] + list(targets)
    while waiting:
        op = waiting.pop()
        if op not in found:
            found.add(op)
            waiting += [tensor.op for tensor in op.inputs] + list(op.control_inputs)
    return found


def _placeholders(graph: Graph, needed: set[Operation]) -> dict[Tensor, Shape]:
    """The placeholders among ``needed``, in the order of ``graph``."""
    fed = [op for op in graph.get_operations() if op.type == "Placeholder" and op in needed]
    return {op.outputs[0]: op.node.outputs[0].shape for op in fed}


# --- devices that a graph requests


def _options_of(graph: Graph) -> CompileOptions:
    devices = devices_asked_for(op.node for op in graph.get_operations())
    return CompileOptions(devices, loops=loop_compilers(devices))


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
    """The devices that the nodes, and their meshes, request, including those in functions."""
    for node in nodes:
        yield node.device
        if MESH in node.attrs:
            mesh = parse_mesh(node.attrs[MESH])
            yield from mesh.devices or [f"/device:CPU:{i}" for i in range(mesh.num_devices)]
        for function in owned_subgraphs(node.attrs):
            yield from _requests(function)


def _task(spec: DeviceSpec) -> DeviceSpec:
    return DeviceSpec(spec.job or "localhost", spec.replica or 0, spec.task or 0)


def _task_rank(task: DeviceSpec) -> tuple[int, str, int]:
    rank = MASTERS.index(task.job) if task.job in MASTERS else len(MASTERS)
    return rank, task.job or "", task.task or 0


THIS_PROCESS = ("localhost", 0, 0)
"""Job, replica and task of the devices of a session without a cluster."""

OF_TASKS = "the tasks of the cluster plan their parts: flowrt explain grpc://host:port asks one"

T = TypeVar("T")


def read_plan(
    asked: CompileRequest, read: Callable[[Plan], T], session: BaseSession | None = None
) -> tuple[T | None, str]:
    """The result of ``read`` for the plan of ``asked`` in ``session``; None, and the reason, if the devices
    are not of this process. Raises the errors of `Session.run` if the step does not compile.
    """
    if session is not None:
        return _read(session, asked, read)
    kinds = [device.device_type or "" for device in asked.options.devices]
    if {(device.job, device.replica, device.task) for device in asked.options.devices} != {THIS_PROCESS}:
        return None, OF_TASKS
    if not all(kind in KINDS and KINDS[kind].is_made_by_count for kind in kinds):
        return None, "the step needs devices that can only be planned on their own machine"
    config = ConfigProto(device_count=Counter(kinds), allow_soft_placement=True)
    with closing(Session(graph=asked.graph, config=config)) as made:
        try:
            return _read(made, asked, read)
        except FailedPreconditionError as error:  # datasets and Python functions are not in a file
            return None, error.message


def _read(session: BaseSession, asked: CompileRequest, read: Callable[[Plan], T]) -> tuple[T | None, str]:
    plan = session.plan_of([*asked.tensors, *asked.targets], asked.feeds)
    return (None, OF_TASKS) if plan is None else (read(plan), "")
