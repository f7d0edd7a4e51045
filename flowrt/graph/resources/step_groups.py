"""Native collectives among ranks in one step of one process, which need no joined group.

    rank's start     deposits its value; the last one computes all results with the operation's kernel
    rank's wait      takes its result

Each step has its own `StepGroup`, so concurrent steps are independent. All ranks are parts of one operation,
and none can be lost without the step: a rank waits for the others, however long their kernels take, until
they arrive or the step ends, by its deadline, a cancellation or another kernel's error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final
from weakref import WeakKeyDictionary

import numpy as np

from flowrt.errors import FailedPreconditionError, OpError
from flowrt.graph.collectives.ends import gets
from flowrt.graph.op_def import op_def
from flowrt.graph.resources.step_context import StepEnd, current_step, wait_until

PREFIX = "step;"
"""Prefix of the keys of these groups, followed by their size: users' keys contain no semicolon."""

Results = Mapping[int, Any]
"""Results by rank; a rank that gets none is absent."""


@final
class StepGroup:
    """The collectives of one step, by their edges: a loop reuses one once a rank has taken its result."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._given: dict[str, dict[int, Any]] = {}
        self._results: dict[tuple[str, int], Any] = {}
        """Results not taken yet, None for a rank that gets none."""

    def give(
        self, edge: str, rank: int, size: int, value: Any, compute: Callable[[list[Any]], Results]
    ) -> None:
        """Deposit the ``value`` of ``rank``, None if it has none: ``compute`` gets the others, by rank."""
        with self._changed:
            given = self._given.setdefault(edge, {})
            given[rank] = value
            if len(given) < size:
                return
            del self._given[edge]
        results = compute([given[r] for r in range(size) if given[r] is not None])
        with self._changed:
            self._results |= {(edge, r): results.get(r) for r in range(size)}
            self._changed.notify_all()

    def take(self, edge: str, rank: int) -> Any:
        """The result of ``rank``, once all have arrived. Raises the error that ends the step."""
        with self._changed:
            wait_until(lambda: (edge, rank) in self._results, self._changed.wait)
            return self._results.pop((edge, rank))


_lock = threading.Lock()
_groups: WeakKeyDictionary[StepEnd, StepGroup] = WeakKeyDictionary()


def _step_group() -> StepGroup:
    """The group of the step that the thread is running. Raises `FailedPreconditionError` outside of steps."""
    step = current_step()
    if step is None:
        raise FailedPreconditionError("native: expected a step of a session; got a kernel called outside one")
    with _lock:
        return _groups.setdefault(step, StepGroup())


@final
class StepMember:
    """A rank of the group ``key``: see `flowrt.graph.resources.groups.Member`. It has no links."""

    def __init__(self, key: str, rank: int) -> None:
        self._size, self._rank = int(key.removeprefix(PREFIX)), rank

    def start(self, edge: str, kind: str, arrays: Sequence[Any], attrs: Mapping[str, Any]) -> None:
        def compute(values: list[Any]) -> Results:
            return _computed(kind, self._size, values, attrs)

        array = arrays[0] if arrays else None
        _step_group().give(edge, self._rank, self._size, array, compute)

    def wait(self, edge: str) -> Sequence[Any]:
        result = _step_group().take(edge, self._rank)
        return [] if result is None else [result]

    def send(self, peer: int, edge: str, array: Any) -> None:
        raise FailedPreconditionError(f"{edge}: expected a native collective; ranks of a step have no links")

    def receive(self, peer: int, edge: str) -> Any:
        raise FailedPreconditionError(f"{edge}: expected a native collective; ranks of a step have no links")

    def meet_at_end(self) -> Callable[[], object]:
        return lambda: None  # the group has ended with the step

    def abort(self, error: OpError) -> None:
        """No-op: waits end with the step."""

    def settle(self) -> None:
        """No-op: what is computed is new."""


def _computed(kind: str, size: int, values: list[Any], attrs: Mapping[str, Any]) -> Results:
    """Results of the operation's kernel for all ranks' ``values``."""
    op, known = op_def(kind), {**attrs, "group_size": size, "axis": attrs["axes"][0]}
    has_places = "places" in [argument.name for argument in op.inputs]
    arguments = [values, [np.zeros(0, np.int32)] * size] if has_places else [values]
    results = op.kernel(np, *arguments, **{name: known[name] for name in op.kernel_attrs})
    return dict(enumerate(results)) if gets(kind, 0, 1) else {attrs["root"]: results}
