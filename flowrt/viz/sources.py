"""Sources of graphs: a session, a graph, a file, a running worker. The three views of each:

logical        as it was built, or the subgraph the fetches need
placed         as it runs, with every node on its device
partitioned    cut by device, with a _Send and a _Recv on every cut edge

A step with a mesh has a fourth: layouts, one global graph of which the devices compute parts.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeAlias, final

from flowrt import protos
from flowrt.device.spec import parse_device
from flowrt.distribute.client.cluster_runtime import ClusterRuntime
from flowrt.distribute.wire.messages import Message
from flowrt.distribute.worker.describe import DescribedTask, read_description
from flowrt.errors import DTypeError, InvalidArgumentError, NotFoundError, OpError, ResourceExhaustedError
from flowrt.executor.ends.config import ConfigProto
from flowrt.executor.session.session import BaseSession
from flowrt.graph.construction.constant import feed_op, placeholder_op
from flowrt.graph.construction.graph import Graph
from flowrt.graph.messages.graph_def import SOURCE
from flowrt.graph.node import Node, Subgraph, with_functions
from flowrt.graph.passes.pipeline import compile_step
from flowrt.graph.passes.placement.partition import partition
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.prune import extract
from flowrt.nest import map_structure
from flowrt.protos import cluster_pb2 as pb
from flowrt.summary.event_file import WRITE_S, read_events
from flowrt.tf1.graph_import.import_graph_def import import_graph_def
from flowrt.tf1.message_files import parsed, read_message
from flowrt.viz.compile_request import (
    CompileRequest,
    compile_request,
    devices_asked_for,
    ends_of,
    read_plan,
    title_of,
)
from flowrt.viz.foreign import needed, read_foreign
from flowrt.viz.from_parts import GRAPH, Parts
from flowrt.viz.laid_out import LaidOut, laid_out
from flowrt.viz.op_facts import Code, program_texts
from flowrt.viz.roles import Roles, marks, roles_of
from flowrt.viz.stages import Change, Stage, built, stages_of
from flowrt.viz.training import Training, joined, training_of

VIEWS = ("logical", "placed", "partitioned")
LAYOUTS = "layouts"

WORKER = "grpc://"
"""The prefix of a running worker's address."""

WORKER_MS = 4_000
"""Milliseconds to reach a worker. It is already running, so the wait is too short to be logged (5 s)."""

GraphDef = Any  # the message of flowrt.protos.graph_pb2


@final
class Step:
    """The step of a session, or of a graph without one."""

    def __init__(self, title: str, asked: CompileRequest, session: BaseSession | None = None) -> None:
        self.title, self._asked, self._session = title, asked, session

    def parts(self, view: str) -> Parts:
        """Raises as `Session.run` where it does not compile."""
        asked = self._asked
        if view == "logical":
            is_whole = not asked.tensors and asked.targets == ends_of(asked.graph)
            return {"": built(asked.graph) if is_whole else extract(*asked.request)}
        placed = compile_step(asked.request, asked.options)
        return {"": placed} if view == "placed" else partition(placed)

    @cached_property
    def roles(self) -> Roles:
        graph = self._asked.graph
        return roles_of(built(graph), marks(graph), graph.derivatives.values())

    @cached_property
    def training(self) -> Training:
        graph = self._asked.graph
        return training_of(built(graph), self.roles, graph.derivatives)

    @cached_property
    def laid_out(self) -> LaidOut | None:
        return laid_out(self._asked)

    def stages(self) -> Sequence[Stage]:
        return stages_of(self._asked)

    def code(self) -> tuple[Code, str]:
        """The texts from a plan, created for this if the session has none yet. A step that cannot be planned
        here, for lack of memory for instance, can still be drawn.
        """
        try:
            found, why = read_plan(self._asked, program_texts, self._session)
        except OpError as error:
            return {}, error.message
        return found or {}, why


@final
class Task:
    """The compilation results of a running worker: the parts of its sessions, which are already placed."""

    laid_out = None

    def __init__(self, title: str, placed: Sequence[Subgraph]) -> None:
        self.title = title
        self._placed = _side_by_side(placed)
        self.roles = roles_of(self._placed)
        self.training = training_of(self._placed, self.roles)

    def parts(self, view: str) -> Parts:
        if view == "partitioned":
            return partition(self._placed)
        return {"": self._placed}

    def stages(self) -> Sequence[Stage]:
        nothing = Change((), (), ())
        return [
            Stage("placed", "placed", self.parts("placed"), nothing),
            Stage("partitioned", "partitioned", self.parts("partitioned"), nothing),
        ]

    def code(self) -> tuple[Code, str]:
        return {}, "flowrt explain asks the worker for its programs"


@final
class Foreign:
    """A GraphDef with operations that flowrt does not have, unchanged. ``reason`` names what is foreign."""

    laid_out = None

    def __init__(self, title: str, graph: Subgraph, reason: str) -> None:
        self.title, self.graph, self.reason = title, graph, reason
        self.roles = roles_of(graph)
        self.training = training_of(graph, self.roles)

    def parts(self, view: str) -> Parts:
        """Raises `InvalidArgumentError` for an invalid device name."""
        if view == "logical":
            return {"": self.graph}
        placed = on_its_devices(self.graph)
        return {"": placed} if view == "placed" else partition(placed)

    def stages(self) -> Sequence[Stage]:
        nothing = Change((), (), ())
        phases = zip(("built", "placed", "partitioned"), VIEWS, strict=True)
        return [Stage(phase, phase, self.parts(view), nothing) for phase, view in phases]

    def code(self) -> tuple[Code, str]:
        return {}, self.reason


@final
class Comparison:
    """Two graphs as stages, the one before and the one after a change, each as its GraphDef has it: a step
    does not differ from its own file. Lines of scripts are left out: in another version of a script all
    differ.
    """

    laid_out = None

    def __init__(self, before: Step | Task | Foreign, after: Step | Task | Foreign) -> None:
        self.title = f"{after.title}, compared with {before.title}"
        self._before, self._after = before, after
        found = {name: role for name, role in after.roles.items() if role is not None}
        self.roles: Roles = {**after.roles, **before.roles, **found}
        self.training = joined(before.training, after.training)

    def parts(self, view: str) -> Parts:
        return self._after.parts(view)

    def stages(self) -> Sequence[Stage]:
        nothing = Change((), (), ())
        both = {"before": self._before.parts("logical"), "after": self._after.parts("logical")}
        return [
            Stage(name, name, {device: stored_form(part) for device, part in parts.items()}, nothing)
            for name, parts in both.items()
        ]

    def code(self) -> tuple[Code, str]:
        return {}, ""


def on_its_devices(graph: Subgraph) -> Subgraph:
    """Return ``graph`` with every operation on the device that it requests, else on the default device."""
    default = devices_asked_for(graph)[0]

    @cache
    def full(name: str) -> str:
        return default.merge(parse_device(name)).to_string()

    return graph.with_nodes([node.replace(device=full(node.device)) for node in graph])


def _side_by_side(graphs: Sequence[Subgraph]) -> Subgraph:
    """One subgraph; with several, the nodes of each are in a separate scope."""
    if len(graphs) == 1:
        return graphs[0]
    moved = [_in_scope(node, f"graph_{number}/") for number, graph in enumerate(graphs) for node in graph]
    return Subgraph({node.name: node for node in moved})


def _in_scope(node: Node, scope: str) -> Node:
    """``node`` with ``scope`` before all names, also the tensor's of a _Send, which places and pairs it."""
    attrs = node.attrs
    if "tensor_name" in attrs:
        attrs = {**attrs, "tensor_name": scope + attrs["tensor_name"], GRAPH: scope}
    return node.replace(
        name=scope + node.name,
        attrs=attrs,
        inputs=tuple([(scope + name, index) for name, index in node.inputs]),
        controls=tuple([scope + name for name in node.controls]),
    )


Source: TypeAlias = Step | Task | Foreign | Comparison
"""``title`` names it, ``parts(view)`` returns one of `VIEWS`, ``stages()`` those of its compilation, and
``code()`` the texts that run each operation, and the reason if there are none; ``roles`` are those of its
operations, ``training`` what it trains; ``laid_out`` is the step in its layouts, None if it has none.
"""


# --- finding it


def compared(
    what: BaseSession | Graph | CompileRequest | str | os.PathLike[str],
    against: BaseSession | Graph | str | os.PathLike[str] | None,
    fetches: Any,
    feed_dict: Mapping[Any, Any] | None,
) -> Source:
    """The source of ``what``, beside that of ``against`` if it is given, where ``fetches`` are looked up by
    name. Raises as `source_of`, and `DTypeError` for another ``against``.
    """
    found = source_of(what, fetches, feed_dict)
    if against is None:
        return found
    if not isinstance(against, BaseSession | Graph | str | os.PathLike):
        raise DTypeError(f"against: expected a Session, a Graph or the path of a GraphDef; got {against!r}")
    names = map_structure(lambda fetch: getattr(fetch, "name", fetch), fetches)
    return Comparison(source_of(against, names), found)


def source_of(
    what: BaseSession | Graph | CompileRequest | str | os.PathLike[str],
    fetches: Any = None,
    feed_dict: Mapping[Any, Any] | None = None,
) -> Step | Task | Foreign:
    """The source of ``what``: a session, a graph, a CompileRequest, a GraphDef's path (``.pb``, ``.pbtxt``),
    an event file's, or a running worker's address, ``grpc://host:port``. ``fetches``, ``feed_dict``: see
    `compile_request`.

    Raises the errors of `compile_request` and `read_source`, and `UnavailableError` if no worker answers.
    """
    if isinstance(what, CompileRequest):
        return Step(title_of(what), what)
    if not isinstance(what, str | os.PathLike):
        session = what if isinstance(what, BaseSession) else None
        return Step("graph", compile_request(what, fetches, feed_dict), session)
    text = os.fspath(what)
    if text.startswith(WORKER):
        described = ask_worker(text, fetches)
        return Task(described.name, described.parts)
    found = read_source(text, fetches)
    if isinstance(found, Foreign):
        return found
    return Step(Path(text).name, compile_request(found, fetches, feed_dict))


def ask_worker(target: str, fetches: Any = None) -> DescribedTask:
    """Everything that the worker at ``target`` has compiled: parts of steps, without ``fetches``.

    Raises `InvalidArgumentError` for ``fetches``, `UnavailableError` if no worker answers, and
    `NotFoundError` if it has compiled nothing.
    """
    if fetches is not None:
        raise InvalidArgumentError(
            f"{target}: expected no fetch; got some. A worker shows everything that it has compiled"
        )
    with closing(ClusterRuntime(target, ConfigProto(operation_timeout_in_ms=WORKER_MS))) as link:
        described = read_description(link.ask(Message(pb.DescribeGraphs())))
    if not described.parts:
        raise NotFoundError(f"{target}: task {described.name} has compiled nothing for the open sessions")
    return described


def read_source(path: str, fetches: Any = None) -> Graph | Foreign:
    """The graph in a GraphDef file, text if its name ends in ``.pbtxt``, or the last one in an event file.
    One that flowrt cannot build is `Foreign`: all of it, or the subgraph for the operations and tensors that
    ``fetches`` names.

    Raises `NotFoundError` for a missing file, `DataLossError` for a damaged event file,
    `ResourceExhaustedError` above the limits and `InvalidArgumentError` for any other invalid file.
    """
    message = _read_message(path)
    if not message.node:
        raise InvalidArgumentError(f"{path}: expected a GraphDef; got one without nodes")
    try:
        return _imported(message)
    except ResourceExhaustedError as error:
        raise type(error)(f"{path}: {error.message}") from None
    except OpError as error:
        return _foreign(path, message, fetches, error)


def _imported(message: GraphDef) -> Graph:
    graph = Graph()
    with graph.as_default():
        import_graph_def(message, name="")
    for op in graph.get_operations():
        op.node = without_line(op.node)
    return graph


def _foreign(path: str, message: GraphDef, fetches: Any, reason: OpError) -> Foreign:
    """A `Foreign`. Raises ``reason``, why it cannot be built, if it cannot be drawn either."""
    try:
        graph = read_foreign(message)
    except InvalidArgumentError:
        raise type(reason)(f"{path}: {reason.message}") from None
    except ResourceExhaustedError as error:
        raise type(error)(f"{path}: {error.message}") from None
    if fetches is not None:
        graph = needed(graph, [fetches] if isinstance(fetches, str) else fetches)
    return Foreign(f"{Path(path).name}, as it is written", graph, reason.message)


def stored_form(graph: Subgraph) -> Subgraph:
    """``graph`` as the GraphDef that `flowrt.viz.export` writes of it is read: without lines, and if anything
    is fed, with placeholders of the fed shapes, and the shapes that follow from them.
    """
    if any(node.op is feed_op for node in graph):
        graph = infer_shapes(graph)
    return _without_notes(graph.with_nodes([placeholder_for(n) if n.op is feed_op else n for n in graph]))


def _without_notes(graph: Subgraph) -> Subgraph:
    """Neither with lines, nor with the attributes in which a GraphDef notes them."""
    return graph.with_nodes([_without_note(node) for node in graph])


def _without_note(node: Node) -> Node:
    attrs = with_functions(node, _without_notes).attrs
    return node.replace(attrs={key: attrs[key] for key in attrs if key != SOURCE}, source=None)


def placeholder_for(node: Node) -> Node:
    """A placeholder of the name, dtype and shape of ``node``, of which the value is not in the graph."""
    (spec,) = node.outputs
    attrs = {key: value for key, value in node.attrs.items() if key.startswith("_")}
    return node.replace(op=placeholder_op, attrs={**attrs, "dtype": spec.dtype, "shape": spec.shape})


def without_line(node: Node) -> Node:
    """Return ``node`` without source lines, also in its functions."""
    return with_functions(node, _without_lines).replace(source=None)


def _without_lines(graph: Subgraph) -> Subgraph:
    return graph.with_nodes([without_line(node) for node in graph])


def _read_message(path: str) -> GraphDef:
    name = Path(path).name
    if "tfevents" in name:
        return _read_event_file(path)
    return read_message(path, protos.graph_pb2.GraphDef)


def _read_event_file(path: str) -> GraphDef:
    events = read_events(path, WRITE_S)
    graphs = [event.graph_def for event in events if event.WhichOneof("what") == "graph_def"]
    if not graphs:
        raise NotFoundError(f"{path}: expected an event file with a graph; got none in it")
    return parsed(path, graphs[-1], protos.graph_pb2.GraphDef)
