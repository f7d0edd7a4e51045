"""Lists that a loop only pushes onto, or only pops from, as plain Python lists while the loop runs.

A list value is immutable (`flowrt.graph.resources.tensor_list`), which costs some microseconds per change. If
a loop variable is a list that a single operation of the body reads and updates, intermediate versions are
unobservable, so it can be opened before the loop, changed in place, and closed after it. Saving a value for a
gradient then costs a copy, and popping it 0.1 us.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.swapping import Arrivals, swapped
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Call
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import RESTORES, STACK, SWAPS, check_dtype
from flowrt.graph.resources.tensor_list import ListSpec, TensorList
from flowrt.graph.shapes import is_static

NO_ELEMENTS = "expected a list with elements; got an empty one"
"""Error when an element is taken from an empty list."""


class ListBinder(Protocol):
    """Binds an operation on lists in a loop's body, in place of its kernel."""

    @abstractmethod
    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        """Emit the operation's instruction, and record the locations of its outputs."""


class OpenListBinder(ListBinder, Protocol):
    """The same of a list that is open while a loop runs, in place of the list value in a register."""

    @abstractmethod
    def open(self, registers: list[Any]) -> None:
        """Open it, before the loop."""

    @abstractmethod
    def close(self, registers: list[Any]) -> None:
        """Make it a list value again, after the loop."""


class OpenList(NamedTuple):
    """The operation that changes a list, and the register of the open list."""

    node: Node
    slot: int

    @property
    def is_pushed(self) -> bool:
        return self.node.op.uses_list(ListUse.PUSHED)

    def open(self, registers: list[Any]) -> None:
        """Make the list value in the register a list of its elements. Raises `DTypeError`."""
        check_dtype(registers[self.slot], self.spec.dtype)
        registers[self.slot] = registers[self.slot].kept()

    def close(self, registers: list[Any]) -> None:
        """Make it a list value again."""
        registers[self.slot] = TensorList(self.spec, registers[self.slot])

    @property
    def spec(self) -> ListSpec:
        return ListSpec(self.node.attrs["element_dtype"], self.node.outputs[0].shape)

    def bind(self, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        """The instruction of `node`, in the loop's body: push onto the list, or take its last element."""
        node, operands = self.node, [tensors[ref] for ref in self.node.inputs[:2]]
        tensors.place(node, 0, operands[0])
        if self.is_pushed:
            push = self._push(tensors, operands[1])
            builder.emit_line(node, Call(push), operands, operands[:1])
        else:
            popped = tensors.new_register(node, 1)
            assert popped.slot is not None
            builder.emit_line(node, Call(self._pop(tensors, popped.slot)), operands[:1], [popped])

    def _push(self, tensors: BoundTensors, value: Operand) -> Callable[[], None]:
        registers, slot, source, device = tensors.registers, self.slot, value.slot, tensors.device
        if self._swaps(device):
            read = self._copy(tensors, value)
            return lambda: registers[slot].append(swapped(device, read()))
        if source is None:
            return self._push_row(tensors, value.value)
        if self._is_new(tensors, value):
            return lambda: registers[slot].append(registers[source])
        copy = self._copy(tensors, value)
        return lambda: registers[slot].append(copy())

    def _push_row(self, tensors: BoundTensors, array: Any) -> Callable[[], None]:
        registers, slot, copyto = tensors.registers, self.slot, tensors.device.xp.copyto
        rows = _rows(tensors.device, array.shape, array.dtype)

        def push() -> None:
            row = next(rows)
            copyto(row, array)
            registers[slot].append(row)

        return push

    def _copy(self, tensors: BoundTensors, value: Operand) -> Callable[[], Any]:
        """Function that returns a private array of the device with the value."""
        registers, slot, array, device = tensors.registers, value.slot, value.value, tensors.device
        copy = device.put if value.is_host else device.xp.array
        if slot is None:
            return lambda: copy(array)
        if self._is_new(tensors, value):
            return lambda: registers[slot]
        return lambda: copy(registers[slot])

    def _is_new(self, tensors: BoundTensors, value: Operand) -> bool:
        """Whether the value is in new memory of the device that is not written elsewhere."""
        op = tensors.source(self.node.inputs[1]).op
        is_made = op.effect in (Effect.PURE, Effect.RANDOM) and not op.alias
        return value.slot is not None and not value.is_host and is_made

    def _swaps(self, device: Device) -> bool:
        """Whether the elements wait in host memory."""
        return device.is_asynchronous and SWAPS in self.node.attrs

    def _pop(self, tensors: BoundTensors, target: int) -> Callable[[], None]:
        registers, slot, spec = tensors.registers, self.slot, self.node.outputs[1]
        xp = tensors.device.xp
        take = Arrivals().pop if self._swaps(tensors.device) else list.pop

        def pop() -> None:
            try:
                value = take(registers[slot])
            except IndexError:
                raise InvalidArgumentError(NO_ELEMENTS) from None
            registers[target] = xp.zeros(spec.shape, spec.dtype.np) if value is None else value

        return pop


MAX_ROWS = 64
"""Elements that are cut from one piece of memory at most: it is free when the last of them is."""

SLAB_BYTES = 1 << 20
"""Size of the allocation from the pool for elements of a list: its pages are warm, while those of new memory,
16 KiB per element, cost 4 us each.
"""


def _rows(device: Device, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Iterator[Any]:
    """Arrays of ``shape``, each new, cut from larger ones."""
    count = max(1, SLAB_BYTES // max(1, math.prod(shape) * dtype.itemsize))
    while True:
        slab = device.empty((min(count, MAX_ROWS), *shape), dtype)
        for i in range(len(slab)):
            yield slab[i, ...]


def open_lists(loop: Node, slots: Mapping[int, int]) -> dict[str, OpenList]:
    """Lists that can be opened, by the name of the operation in the body of ``loop`` that changes them.
    ``slots`` are the registers of the loop's variables, by their position.
    """
    body: Subgraph = loop.attrs["body"]
    found: dict[str, OpenList] = {}
    for slot, node in changed_lists(body, slots):
        is_push = is_unlimited_push(node) and body.spec(node.inputs[1]).dtype is not dtypes.variant
        is_pop = node.op.uses_list(ListUse.POPPED) and node.outputs[1].dtype is not dtypes.variant
        if is_push or (is_pop and is_static(node.outputs[1].shape)):
            found[node.name] = OpenList(node, slot)
    return found


def changed_lists(body: Subgraph, slots: Mapping[int, int]) -> Iterator[tuple[int, Node]]:
    """The lists among a loop's variables that one operation of its ``body`` changes: the register of each, by
    ``slots``, and the operation.
    """
    readers = body.consumers()
    for position, slot in slots.items():
        node = _changed_by(body, position, readers) if is_list(body, position) else None
        if node is not None:
            yield slot, node


def is_list(body: Subgraph, position: int) -> bool:
    """Whether the parameter at ``position`` is a list."""
    return body.nodes[body.feeds[position]].outputs[0].dtype is dtypes.variant


def _changed_by(body: Subgraph, position: int, readers: Mapping[str, Sequence[str]]) -> Node | None:
    """The single operation of a loop's ``body`` that reads the list variable at ``position`` and produces its
    next value as its first output, without other uses; None if there is none.
    """
    parameter, results = body.feeds[position], body.fetches[1:]
    name, index = results[position]
    node = body.nodes[name]
    is_linear = readers[parameter] == [name] and node.inputs[:1] == ((parameter, 0),) and index == 0
    is_once = results.count((name, 0)) == 1 and all(
        (name, 0) not in body.nodes[reader].inputs for reader in readers[name]
    )
    return node if is_linear and is_once else None


def is_unlimited_push(node: Node) -> bool:
    """Whether it is a push of a gradient: onto a list without a maximum length, or of popped elements."""
    marks = (STACK, RESTORES, SWAPS)
    return node.op.uses_list(ListUse.PUSHED) and not node.attrs.keys().isdisjoint(marks)
