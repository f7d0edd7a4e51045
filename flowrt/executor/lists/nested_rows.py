"""Lists of lists in a machine-code nest: the rows of all inner lists are contiguous.

An inner loop saves values for its gradient in a list, and the outer loop saves a list of those. The gradient
pops the lists and their elements in reverse order: all of them are stacks. The rows of a pushed list stay
where the inner loop has put them, and only their count is pushed, onto a stack of counts. To pop a list is to
pop its count: that many rows on the top are its elements. Each level of a nest adds one stack of counts.

    forward     an inner loop pushes rows and counts them; then the count is pushed     `PushedLists`
    backward    a count is popped; then an inner loop pops that many rows                      `TakenLists`

Such lists are detected by `flowrt.executor.lists.nested_lists`. Outside the nest they are ordinary list
values containing a `FlatLists`: an element is a list of some of the rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.list_rows import Array, PushedRows, StackedRows, TakenRows
from flowrt.executor.lists.open_lists import OpenList
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node
from flowrt.graph.ops.lists.tensor_lists import check_dtype
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.loops.control_nest import TOP


@final
class FlatLists:
    """Lists of arrays, or of lists, in place of an array of them (`TensorList.of_rows`): ``rows`` are the
    elements of all, concatenated, and ``lengths`` the number of each list's. ``spec`` is that of each.
    """

    dtype: ClassVar[Any] = TensorList.dtype

    def __init__(self, spec: ListSpec, rows: Any, lengths: Array) -> None:
        self.spec, self.rows, self.lengths = spec, rows, lengths

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as for an array of rows; the rest is the shape of the elements' elements."""
        return (len(self.lengths), *self.rows.shape[1:])

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[TensorList]:
        return (self[i, ...] for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """Some lists for a slice, one for ``i, ...``."""
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            return FlatLists(self.spec, self.rows[self._ends[begin] : self._ends[end]], self.lengths[index])
        number, _ = index
        return TensorList.of_rows(self.spec, self.rows[self._ends[number] : self._ends[number + 1]])

    @cached_property
    def _ends(self) -> list[int]:
        """End of each list among the rows, after the 0 at which the first begins."""
        return [0, *np.cumsum(self.lengths).tolist()]


class NoElements(NamedTuple):
    """The empty list ``node``, as which lists in a loop's body begin."""

    node: Node

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        tensors.place(self.node, 0, Operand(self, None, "[]"))

    def hand_to(self, inner: StackedRows) -> None:
        """Nothing: ``inner`` counts its elements itself."""


@final
class PushedLists(PushedRows):
    """A list onto which lists are pushed: its rows are their lengths."""

    _inner: PushedRows

    def _pushed(self, builder: InstructionBuilder, tensors: BoundTensors) -> Array:
        """The number of rows of the list that is pushed, which are where the inner loop has put them."""
        self._inner = tensors[self._opened.node.inputs[1]].value
        return self._inner.length

    def begin(self) -> None:
        super().begin()
        self._inner.begin()

    def close(self, registers: list[Any]) -> None:
        lists, before = self.finished(), registers[self.slot]
        if len(lists) and not before.length:
            registers[self.slot] = TensorList.of_rows(self.spec, lists)
        elif len(lists):
            registers[self.slot] = TensorList(self.spec, [*before.kept(), *lists])

    def finished(self) -> FlatLists:
        lengths = super().finished()
        return FlatLists(self._inner.spec, self._inner.finished(), lengths)


@final
class TakenLists(TakenRows):
    """A list from which lists are taken: its rows are their lengths."""

    def __init__(self, opened: OpenList, device: Device) -> None:
        super().__init__(opened, device)
        self._taken: Array = np.zeros((), np.int64)
        """Number of elements left of the list popped last."""
        self._inner: TakenRows | None = None

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        node = self._opened.node
        handle = tensors[node.inputs[0]]
        tensors.place(node, 0, handle)
        tensors.place(node, 1, Operand(self, None, f"{handle.text}[-1]"))
        self._like = self._taken
        self._bind_take(builder, tensors, self._taken)

    def hand_to(self, inner: StackedRows) -> None:
        """Have ``inner``, which is not bound yet, be the list that was taken."""
        assert isinstance(inner, TakenRows)
        self._inner, inner.length = inner, self._taken

    @property
    def _elements(self) -> TakenRows:
        assert self._inner is not None
        return self._inner

    def _refuse(self) -> None:
        """Skip elements left of the previous list, which are above those of the next."""
        if not self.length:
            super()._refuse()
        self._elements.skip()

    def begin(self, rows: FlatLists) -> None:
        super().begin(rows.lengths)
        self._elements.begin(rows.rows)
        self._rows = rows

    def end(self) -> None:
        super().end()
        self._elements.end()

    def rows_of(self, values: Sequence[TensorList]) -> FlatLists:
        if len(values) == 1 and self.suits(values[0].rows):
            return values[0].rows  # checked by `suits`
        lists = [element for value in values for element in elements_of(value)]
        lengths = np.array([one.length for one in lists], np.int64)
        return FlatLists(self._elements.spec, self._elements.rows_of(lists), lengths)

    def suits(self, rows: Any) -> bool:
        return isinstance(rows, FlatLists) and self._elements.suits(rows.rows)

    def skip(self) -> None:
        self._elements.skip()
        lengths, count = self._rows.lengths, int(self.length)
        top = (int(self._words[TOP]) - lengths.ctypes.data) // lengths.itemsize
        for length in reversed(lengths[top - count : top]):
            self._taken[...] = length
            self._elements.skip()
        super().skip()


def elements_of(value: TensorList) -> list[TensorList]:
    """The lists in ``value``. Raises `InvalidArgumentError` if one is not set, `DTypeError` for others."""
    check_dtype(value, dtypes.variant)
    lists = value.elements()
    if None in lists:
        raise InvalidArgumentError(f"element {lists.index(None)}: expected it to be written")
    return lists


def is_inner_list(value: Any) -> bool:
    """Whether ``value``, of an operand, is a list that is part of another."""
    return isinstance(value, NoElements | TakenLists)
