"""Partial runs: one step in several calls, each operation at most once.

A call runs what its fetches need and has not run yet, as an ordinary run of the session in which every tensor
that an earlier call computed is fed. So that those are at hand, a call also fetches what it computes and a
later call may read.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, final

from flowrt import dtypes
from flowrt.errors import InvalidArgumentError
from flowrt.executor.bind_fetches import copied
from flowrt.executor.feeds import converter, resolve_feed
from flowrt.executor.fetches import parse_fetches
from flowrt.graph.graph import Graph, Operation, Tensor

_RESOURCES = (dtypes.resource, dtypes.variant)


@final
class PartialRun:
    """The state of one step. Made by `Session.partial_run_setup`; may be used from one thread at a time."""

    def __init__(
        self, session: Any, graph: Graph, fetches: Sequence[Tensor | Operation], feeds: Sequence[Tensor]
    ) -> None:
        self._session, self._graph = session, graph
        self._feeds = set(feeds)
        self._pending = set(fetches)
        self._needed = _ancestors([f if isinstance(f, Operation) else f.op for f in fetches], self._feeds)
        self._known: dict[Tensor, Any] = {}
        self._done: set[Operation] = set()
        self._lock = threading.Lock()

    def run(self, fetches: Any, feed_dict: Mapping[Any, Any]) -> Any:
        """See `Session.partial_run`."""
        with self._lock:
            given = self._given(feed_dict)
            parsed = parse_fetches(self._graph, fetches)
            self._check(given, [*parsed.tensors, *parsed.targets])
            known = {**self._known, **given}
            roots = [t.op for t in parsed.tensors if t not in known] + list(parsed.targets)
            new = _ancestors(roots, set(known)) - self._done
            self._check_feeds(new, known)
            kept = [t for t in self._kept(new) if t not in known]
            wanted = [t for t in parsed.tensors if t not in known]
            targets = [op for op in parsed.targets if op not in self._done]
            computed = list(dict.fromkeys([*wanted, *kept]))
            done = frozenset(op.name for op in self._done)
            values = self._session.run_part(computed, targets, self._used(new, known), done)
            self._known = {**known, **dict(zip(computed, values, strict=True))}
            self._done |= new
            self._pending -= {*parsed.tensors, *parsed.targets}
            self._feeds -= set(given)
            return parsed.rebuild([copied(self._known[t]) for t in parsed.tensors])

    def _given(self, feed_dict: Mapping[Any, Any]) -> dict[Tensor, Any]:
        tensors = {resolve_feed(self._graph, key): value for key, value in feed_dict.items()}
        return {tensor: converter(tensor)(value) for tensor, value in tensors.items()}

    def _check(self, given: Mapping[Tensor, Any], wanted: Sequence[Tensor | Operation]) -> None:
        for tensor in given:
            if tensor not in self._feeds:
                raise _not_announced("feeds", tensor.name)
        for element in wanted:
            if element not in self._pending:
                raise _not_announced("fetches", element.name)

    def _check_feeds(self, new: set[Operation], known: Mapping[Tensor, Any]) -> None:
        for op in new:
            for tensor in op.inputs:
                if tensor in self._feeds and tensor not in known:
                    raise InvalidArgumentError(
                        f"partial_run: {op.name!r} needs {tensor.name!r}, which has not been fed"
                    )

    def _kept(self, new: set[Operation]) -> list[Tensor]:
        """What ``new`` computes and later calls read or fetch."""
        later = self._needed - self._done - new
        read = [t for op in later for t in op.inputs]
        read += [t for t in self._pending if isinstance(t, Tensor)]
        return [t for t in dict.fromkeys(read) if t.op in new and t.dtype not in _RESOURCES]

    def _used(self, new: set[Operation], known: Mapping[Tensor, Any]) -> dict[Tensor, Any]:
        return {t: known[t] for op in new for t in op.inputs if t in known}


def _not_announced(what: str, name: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"partial_run: expected {what} announced in partial_run_setup, each once; got {name!r}"
    )


def _ancestors(roots: Sequence[Operation], known: set[Tensor]) -> set[Operation]:
    """The operations that ``roots`` need when the tensors ``known`` are given."""
    found: set[Operation] = set()
    stack = list(roots)
    while stack:
        op = stack.pop()
        if op not in found:
            found.add(op)
            stack += [t.op for t in op.inputs if t not in known] + list(op.control_inputs)
    return found
