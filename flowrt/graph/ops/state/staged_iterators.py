"""Iterator elements split over several devices, each part copied while the previous step runs.

    deal, number = deal_next(dealer, iterator)     on the host: a step takes the next element
    components   = staged_next(stage, deal, number)   on each device: its part of that element

A *stage* has a part on its device when a step requests it, and then begins to copy the next one: one is in
use, one in flight. The element is taken in one place, so devices stay synchronized whatever fails. All
devices belong to this process.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, NamedTuple, final
from weakref import WeakValueDictionary

import numpy as np

from flowrt.errors import CancelledError, FailedPreconditionError, OutOfRangeError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import Effect, Effects, OpDef, define_handle, define_op
from flowrt.graph.ops.state.iterators import Elements, IteratorResource, begin, taken
from flowrt.graph.resources.step_context import wait_until

KEPT = 16
"""Number of elements kept after they were taken, for devices that lag behind."""

_deals: WeakValueDictionary[int, Deal] = WeakValueDictionary()
_serial = itertools.count(1)


@final
class Deal:
    """A run over ``elements`` by number. Any thread may call anything."""

    def __init__(self, elements: Elements) -> None:
        self.elements, self.serial = elements, next(_serial)
        self._lock = threading.Lock()
        self._known: dict[int, Future[tuple[Any, ...]]] = {}
        self._begun = self._taken = 0
        _deals[self.serial] = self

    def take(self) -> tuple[int, tuple[Any, ...]]:
        """The number of the next element, and the element. Raises `OutOfRangeError` at the end, and the error
        that ends the step of this thread: the next step then gets the element.
        """
        while True:
            number = self._taken
            try:
                element = result_of(self.element(number))
            except StopIteration:
                raise OutOfRangeError("end of sequence") from None
            with self._lock:
                if self._taken == number:  # no other step has it
                    self._taken += 1
                    return number, element

    def element(self, number: int) -> Future[tuple[Any, ...]]:
        """The future element ``number``; starts computing it and those before it, if necessary."""
        with self._lock:
            while self._begun <= number:
                before = self._known.get(self._begun - 1)
                self._known[self._begun] = begin(partial(self._read, before))
                self._known.pop(self._taken - KEPT, None)
                self._begun += 1
            if number not in self._known:
                raise CancelledError(f"element {number} no longer exists: a step has requested it too late")
            return self._known[number]

    def _read(self, before: Future[Any] | None) -> tuple[Any, ...]:
        if before is not None:
            wait((before,))
        return self.elements.__next__()


def result_of(future: Future[Any]) -> Any:
    """The result, once available. Raises the error that ends the step of this thread."""
    wait_until(future.done, lambda seconds: wait((future,), seconds))
    return future.result()


@final
class Dealer:
    """Deals out an iterator's elements; starts over when the iterator does."""

    def __init__(self) -> None:
        self._deal: Deal | None = None

    def next(self, iterator: IteratorResource) -> tuple[Deal, int, tuple[Any, ...]]:
        elements, deal = iterator.elements(), self._deal
        if deal is None or deal.elements is not elements:
            deal = self._deal = Deal(elements)
        return deal, *deal.take()


class _Ahead(NamedTuple):
    deal: int
    number: int
    part: Future[list[Any]]


@final
class Stage:
    """One device's parts: ``count`` components from number ``first`` on."""

    def __init__(self, first: int, count: int) -> None:
        self._components = slice(first, first + count)
        self._put: Callable[[Any], Any] = lambda array: array
        self._ahead: _Ahead | None = None

    def settle(self, device: Any) -> None:
        """Set the device of the stage."""
        if device.is_asynchronous:
            self._put = device.put_ahead

    def next(self, serial: int, number: int) -> list[Any]:
        """The part of element ``number``; starts copying the next one."""
        deal = _deals.get(serial)
        if deal is None:
            raise FailedPreconditionError("expected an iterator of this process; it is in another one")
        ahead = self._ahead
        if ahead is not None and ahead[:2] == (serial, number):
            part = ahead.part
        else:
            part = begin(partial(self._bring, deal, number))
        self._ahead = _Ahead(serial, number + 1, begin(partial(self._bring, deal, number + 1)))
        return result_of(part)

    def _bring(self, deal: Deal, number: int) -> list[Any]:
        element = deal.element(number).result()
        return [self._put(array) for array in element[self._components]]


# --- ops

dealer_op = define_handle(
    "Dealer", lambda node: Dealer(), "The handle of what deals out an iterator's elements to devices."
)


def _deal_next(
    xp: Any, dealer: Dealer, iterator: IteratorResource, output_types: Sequence[Any]
) -> tuple[Any, ...]:
    deal, number, element = dealer.next(iterator)
    return np.int64(deal.serial), np.int64(number), *element[: len(output_types)]


deal_next_op: OpDef[list[Tensor]] = define_op(
    "DealNext",
    "dealer: resource, iterator: resource -> deal: int64, number: int64, components: *output_types in ANY",
    attrs="output_types: list(type)",
    shape=lambda s: [(), (), *[()] * len(s.attrs["output_types"])],
    kernel=_deal_next,
    effects=Effects(Effect.WRITE, waits=True),
    doc="Takes an iterator's next element: where it is, and its first components, scalars, themselves.",
)

stage_op = define_handle(
    "Stage",
    lambda node: Stage(node.attrs["first"], node.attrs["count"]),
    "The handle of a device's parts of elements, which come ahead of the step that takes them.",
    attrs="first: int, count: int",
)


staged_next_op: OpDef[list[Tensor]] = define_op(
    "StagedNext",
    "stage: resource, deal: host int64, number: host int64 -> *output_types in ANY",
    attrs="output_types: list(type), output_shapes: list(shape)",
    shape=lambda s: list(s.attrs["output_shapes"]),
    kernel=lambda xp, stage, deal, number: tuple([taken(xp, value) for value in stage.next(deal, number)]),
    effects=Effects(Effect.WRITE, waits=True),
    doc="A device's part of an element that was taken; starts copying the next one.",
)
