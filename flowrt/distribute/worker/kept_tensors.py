"""`KeptTensors`: results of a session's partial runs in a task that later calls read.

    RunGraph of a call --feeds--> its own tensors, and those kept by earlier calls
    its fetches        --keep---> the last of them stay here, the others are the answer

They are stored under numbers assigned by the master: of the partial run, and of the tensor in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, final

from flowrt.errors import InvalidArgumentError


@final
class KeptTensors:
    def __init__(self) -> None:
        self._runs: dict[int, dict[int, Any]] = {}

    def __iter__(self) -> Iterator[int]:
        """The partial runs that have something here."""
        return iter(self._runs)

    def feeds(self, partial_run: int, taken: Sequence[int], tensors: Sequence[Any]) -> Sequence[Any]:
        """The feeds of a call: the numbers ``taken`` of earlier results, and for 0 the next of ``tensors``.
        Raises `InvalidArgumentError` for an unknown number.
        """
        if not any(taken):
            return tensors
        carried, kept = iter(tensors), self._runs.get(partial_run, {})
        try:
            return [kept[number] if number else next(carried) for number in taken]
        except (KeyError, StopIteration):
            got = f"{sorted(kept)}, and {len(tensors)} received"
            raise InvalidArgumentError(
                f"run_graph: expected the kept tensors {list(taken)} of partial run {partial_run}; got {got}"
            ) from None

    def keep(self, partial_run: int, numbers: Sequence[int], values: Sequence[Any]) -> Sequence[Any]:
        """Keep the last of ``values`` under ``numbers``; the others."""
        if not numbers:
            return values
        first = len(values) - len(numbers)
        self._runs.setdefault(partial_run, {}).update(zip(numbers, values[first:], strict=True))
        return values[:first]

    def forget(self, partial_runs: Iterable[int]) -> None:
        """These are over. Not known: nothing is kept of it."""
        for number in partial_runs:
            self._runs.pop(number, None)
