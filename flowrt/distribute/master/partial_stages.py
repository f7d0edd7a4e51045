"""`Stage`: the state of a partial run of a master's session between two calls, and its transitions.

    begin_stage(graph, PartialRunSetup) -> Stage
    prepare(stage, PartialRun) -> PreparedCall: a `MakeCallable` of the new part; and the next stage

`PartialStep` determines the operations of a call; here they are assigned to tasks. Results that a later call
reads stay in their task, under a number of the run; feeds stay with the master. In the next call's graph both
are feeds, those of a task on the device that has them.

Pure values: the stages of a setup form a tree, in which runs with the same calls take the same path. So each
call is partitioned and registered once, however often it is made (`PartialRunTable.calls`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple, final

from flowrt.distribute.machines.events import Part
from flowrt.distribute.machines.session_graph import SessionGraph, feeds_graph, named, ref_of
from flowrt.distribute.wire.messages import Message, read_graph
from flowrt.errors import InvalidArgumentError
from flowrt.executor.partial.partial_step import PartialCall, PartialStep, begin_partial_step
from flowrt.graph.node import Node, Ref, TensorSpec
from flowrt.graph.passes.prepare.prune import feed_of
from flowrt.graph.shapes import compatible, format_shape
from flowrt.protos import cluster_pb2 as pb


@final
class Stage:
    """Stage of a run of ``graph``. ``feeds``: the feed of each tensor that was declared or is kept. ``kept``:
    the numbers of the tensors kept by tasks. Compared by identity.
    """

    def __init__(
        self, graph: SessionGraph, step: PartialStep, feeds: Mapping[Ref, Node], kept: Mapping[Ref, int]
    ) -> None:
        self.graph, self.step, self.feeds, self.kept = graph, step, feeds, kept

    def is_of(self, graph: SessionGraph) -> bool:
        """Whether ``graph``, a later one of the session, has the same operations of this run."""
        nodes = graph.nodes
        return graph is self.graph or all(nodes.get(name) is node for name, node in self.step.nodes.items())


class CallKey(NamedTuple):
    """A call, but for its values: ``fed`` are tensors with the shapes of their values."""

    stage: Stage
    fed: tuple[tuple[Ref, tuple[int, ...]], ...]
    fetches: tuple[Ref, ...]
    targets: tuple[str, ...]


class PreparedCall(NamedTuple):
    """``fed`` are the feeds of the operations to run, ``asked`` followed by ``call.kept`` the fetches.
    ``given``: the feeds from the client in this call.
    """

    stage: Stage
    call: PartialCall
    given: Mapping[Ref, Node]
    fed: tuple[Ref, ...]
    asked: tuple[Ref, ...]

    @property
    def numbers(self) -> dict[Ref, int]:
        """Numbers under which tasks keep the results of this call."""
        first = 1 + max(self.stage.kept.values(), default=0)
        return dict(zip(self.call.kept, count(first), strict=False))

    def wanted(self, session: str) -> Message:
        """The request for the operations to run."""
        feeds = {**self.stage.feeds, **self.given}
        body = pb.MakeCallable(
            session=session,
            fed=[named(ref) for ref in self.fed],
            fetches=[named(ref) for ref in (*self.asked, *self.call.kept)],
            targets=self.call.targets,
            done=sorted(self.call.done),
        )
        return Message(body, graph=feeds_graph([feeds[ref] for ref in self.fed]))

    def kept_by(self, part: Part) -> tuple[list[int], list[int]]:
        """Tensors that a part takes from earlier calls and keeps for later ones: see `RegisterGraph`."""
        taken = [self.stage.kept.get(self.fed[position], 0) for position in part.feeds]
        numbers, first = list(self.numbers.values()), len(self.asked)
        keeps = [numbers[position - first] for position in part.fetches if position >= first]
        return (taken if any(taken) else []), keeps

    def after(self, parts: Iterable[Part]) -> Stage:
        """The stage after this call has succeeded; the tasks had its ``parts``."""
        feeds, first = {**self.stage.feeds, **self.given}, len(self.asked)
        for part in parts:
            for position, ref in zip(part.fetches, part.subgraph.fetches, strict=True):
                if position >= first:
                    kept = self.call.kept[position - first]
                    made, shape = part.subgraph.nodes[ref[0]], part.subgraph.spec(ref).shape
                    node = self.stage.step.nodes[kept[0]]
                    feeds[kept] = feed_of(node, kept[1], shape).replace(device=made.device)
        return Stage(self.stage.graph, self.call.after, feeds, {**self.stage.kept, **self.numbers})


@final
class PartialRunTable:
    """A session's partial runs: active ones, cached setups, and registered calls with the stages after them.
    The latter two evict the least recently used.
    """

    def __init__(self) -> None:
        self.runs: dict[int, Any] = {}
        self.setups: OrderedDict[Any, Stage] = OrderedDict()
        self.calls: OrderedDict[CallKey, Any] = OrderedDict()


def begin_stage(graph: SessionGraph, message: Message) -> Stage:
    """The stage for a `PartialRunSetup`. Raises `InvalidArgumentError` for a name that is not in the graph,
    and for a placeholder that is needed and not fed.
    """
    body, given = message.body, read_graph(message)
    if len(body.fed) != len(given.feeds):
        got = f"{len(given.feeds)} for {len(body.fed)} tensors"
        raise InvalidArgumentError(f"partial_run_setup: expected one feed per fed tensor; got {got}")
    feeds = {ref: given.nodes[name] for ref, name in zip(refs(body.fed), given.feeds, strict=True)}
    for name, index in refs(body.fetches):
        if (name, index) not in feeds and not 0 <= index < len(_node(graph, name).outputs):
            raise InvalidArgumentError(f"partial_run_setup: expected an output of {name!r}; got {index}")

    def node_of(name: str) -> Node:
        return _node(graph, name)

    step = begin_partial_step(node_of, refs(body.fetches), body.targets, feeds)
    return Stage(graph, step, feeds, {})


def key_of(stage: Stage, message: Message) -> CallKey:
    """The key of a `PartialRun` in ``stage``. Raises `InvalidArgumentError` if it names other tensors."""
    body, fed = message.body, refs(message.body.fed)
    if len(set(fed)) != len(fed) or len(message.tensors) != len(fed):
        got = f"{len(message.tensors)} for {len(set(fed))} tensors"
        raise InvalidArgumentError(f"partial_run: expected one value per fed tensor; got {got}")
    shapes = tuple([tuple(tensor.shape) for tensor in message.tensors])
    return CallKey(stage, tuple(zip(fed, shapes, strict=True)), refs(body.fetches), tuple(body.targets))


def prepare(key: CallKey, tensors: Sequence[Any]) -> PreparedCall:
    """Raises `InvalidArgumentError` as `PartialStep.call`, and for values of another dtype or shape."""
    stage = key.stage
    call = stage.step.call([ref for ref, _ in key.fed], key.fetches, key.targets)
    given = {
        ref: _given(ref, stage.feeds[ref], tensor) for (ref, _), tensor in zip(key.fed, tensors, strict=True)
    }
    there = [ref for ref in dict.fromkeys(key.fetches) if ref in stage.kept]
    fed = tuple(dict.fromkeys([*call.used, *there]))
    asked = tuple([ref for ref in dict.fromkeys(key.fetches) if ref in stage.kept or ref in call.computed])
    return PreparedCall(stage, call, given, fed, asked)


def refs(names: Iterable[Any]) -> tuple[Ref, ...]:
    """The references of `TensorName`s."""
    return tuple([ref_of(name) for name in names])


def _node(graph: SessionGraph, name: str) -> Node:
    try:
        return graph.nodes[name]
    except KeyError:
        raise InvalidArgumentError(
            f"partial_run_setup: expected operations of the session's graph; got {name!r}. Extend it first"
        ) from None


def _given(ref: Ref, feed: Node, tensor: Any) -> Node:
    """The feed of a tensor with a value."""
    spec = feed.outputs[0]
    if tensor.dtype != spec.dtype.np or not compatible(tensor.shape, spec.shape):
        expected = f"{spec.dtype.name}{format_shape(spec.shape)}"
        got = f"{tensor.dtype}{list(tensor.shape)}"
        raise InvalidArgumentError(f"partial_run: '{ref[0]}:{ref[1]}': expected {expected}; got {got}")
    shape = tuple(tensor.shape)
    return feed.replace(attrs={**feed.attrs, "shape": shape}, outputs=(TensorSpec(spec.dtype, shape),))
