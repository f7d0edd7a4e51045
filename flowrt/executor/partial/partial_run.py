"""Partial runs: one step in several calls, each operation at most once.

    Session.partial_run_setup -> PartialRun
    Session.partial_run -> PartialRun.run: names become tensors, values arrays -> Calls.call -> fetches

`Calls` makes the calls of one step: for a session of this process `LocalCalls`, by ordinary runs that are fed
the results of earlier calls; for a cluster its master, by `RemoteCalls`
(`flowrt.distribute.client.cluster_steps`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, final

from flowrt.executor.bind.bind_fetches import copied
from flowrt.executor.ends.feeds import converter, resolve_feed
from flowrt.executor.ends.fetches import parse_fetches
from flowrt.executor.partial.partial_step import begin_partial_step, failed_before
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.graph.node import Node, Ref


class Calls(Protocol):
    """Executes the calls of one step. Not thread-safe."""

    def call(
        self, given: Mapping[Tensor, Any], tensors: Sequence[Tensor], targets: Sequence[Operation]
    ) -> list[Any]:
        """The values of ``tensors``. Raises as `Session.partial_run`."""


@final
class PartialRun:
    """One step. Made by `Session.partial_run_setup`; of several threads one waits for the other."""

    def __init__(self, graph: Graph, calls: Calls) -> None:
        self._graph, self._calls = graph, calls
        self._lock = threading.Lock()

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any]) -> Any:
        """See `Session.partial_run`."""
        with self._lock:
            tensors = {resolve_feed(self._graph, key): value for key, value in feed_dict.items()}
            given = {tensor: converter(tensor)(value) for tensor, value in tensors.items()}
            parsed = parse_fetches(self._graph, fetches)
            return parsed.rebuild(self._calls.call(given, parsed.tensors, parsed.targets))


RunPart = Callable[[Sequence[Tensor], Sequence[Operation], Mapping[Tensor, Any], frozenset[str]], list[Any]]
"""See `flowrt.executor.session.session.BaseSession.run_part`."""


@final
class LocalCalls:
    """Runs each call as a step of a session by ``run_part``. Raises `InvalidArgumentError` as
    `begin_partial_step`.
    """

    def __init__(
        self,
        run_part: RunPart,
        graph: Graph,
        fetches: Sequence[Tensor],
        targets: Sequence[Operation],
        feeds: Sequence[Tensor],
    ) -> None:
        def node_of(name: str) -> Node:
            return graph.operations[name].node

        self._run_part, self._graph = run_part, graph
        names = [operation.name for operation in targets]
        self._step = begin_partial_step(node_of, [t.ref for t in fetches], names, [t.ref for t in feeds])
        self._values: dict[Ref, Any] = {}
        self._failure: BaseException | None = None

    def call(
        self, given: Mapping[Tensor, Any], tensors: Sequence[Tensor], targets: Sequence[Operation]
    ) -> list[Any]:
        """See `Calls`."""
        if self._failure is not None:
            raise failed_before(self._failure)
        wanted = [tensor.ref for tensor in tensors]
        values = {**self._values, **{tensor.ref: value for tensor, value in given.items()}}
        call = self._step.call([t.ref for t in given], wanted, [operation.name for operation in targets])
        fetched = [self._tensor(ref) for ref in dict.fromkeys(call.computed + call.kept)]
        left = [self._graph.operations[name] for name in call.targets]
        feeds = {self._tensor(ref): values[ref] for ref in call.used}
        try:
            computed = self._run_part(fetched, left, feeds, call.done)
        except BaseException as failure:
            self._failure = failure
            raise
        values.update({tensor.ref: value for tensor, value in zip(fetched, computed, strict=True)})
        self._step = call.after
        fed = {tensor.ref for tensor in given}  # the caller's arrays, which he may change now
        self._values = {
            ref: copied(value) if ref in fed else value
            for ref, value in values.items()
            if ref in call.after.known
        }
        return [copied(values[ref]) for ref in wanted]

    def _tensor(self, ref: Ref) -> Tensor:
        return self._graph.operations[ref[0]].outputs[ref[1]]
