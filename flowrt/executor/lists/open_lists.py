"""Lists that a loop only pushes onto, or only pops from, as plain Python lists while the loop runs.

A list value is immutable (`flowrt.graph.resources.tensor_list`), which costs some microseconds per change. If
a loop variable is a list that a single operation of the body reads and updates, intermediate versions are
unobservable, so it can be opened before the loop, changed in place, and closed after it. Saving a value for a
gradient then costs a copy, and popping it 0.1 us. A list of a nest of loops is opened by the outermost.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from flowrt.device.device import Device
from flowrt.errors import InvalidArgumentError
from flowrt.executor.buffers.bound_tensors import BoundTensors
from flowrt.executor.lists.swapping import Arrivals, swapped
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Call
from flowrt.executor.program.instruction_builder import InstructionBuilder
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, OpDef
from flowrt.graph.op_facets import ListUse
from flowrt.graph.ops.lists.tensor_lists import SWAPS, check_dtype
from flowrt.graph.resources.tensor_list import ListSpec, TensorList

NO_ELEMENTS = "expected a list with elements; got an empty one"
"""Error when an element is taken from an empty list."""


class OpenList(ABC):
    """A list that is open while a loop runs, in place of the list value in register ``slot``. Inside the loop
    it is the value of the list's operand.
    """

    def __init__(self, slot: int, device: Device) -> None:
        self.slot, self._device = slot, device

    @abstractmethod
    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        """Emit the instruction of ``node``, which changes or reads the list, in place of its kernel, and
        record the locations of its outputs.
        """

    @abstractmethod
    def open(self, registers: list[Any]) -> None:
        """Open it, before the loop."""

    @abstractmethod
    def close(self, registers: list[Any]) -> None:
        """Make it a list value again, after the loop."""


@final
class PythonList(OpenList):
    """A list that is pushed onto, or popped from, as a Python list in the register."""

    _spec: ListSpec

    def open(self, registers: list[Any]) -> None:
        """Raises `DTypeError`."""
        value: TensorList = registers[self.slot]
        check_dtype(value, self._dtype)
        self._spec, registers[self.slot] = value.spec, value.kept()

    def close(self, registers: list[Any]) -> None:
        registers[self.slot] = TensorList(self._spec, registers[self.slot])

    def bind(self, node: Node, builder: InstructionBuilder, tensors: BoundTensors) -> None:
        operands = [tensors[ref] for ref in node.inputs[:2]]
        self._dtype = node.attrs["element_dtype"]
        tensors.place(node, 0, operands[0])
        if node.op.uses_list(ListUse.PUSHED):
            push = self._push(node, tensors, operands[1])
            builder.emit_line(node, Call(push), operands, operands[:1])
        else:
            popped = tensors.new_register(node, 1)
            assert popped.slot is not None
            builder.emit_line(node, Call(self._pop(node, tensors, popped.slot)), operands[:1], [popped])

    def _push(self, node: Node, tensors: BoundTensors, value: Operand) -> Callable[[], None]:
        registers, slot, source, device = tensors.registers, self.slot, value.slot, self._device
        made = tensors.source(node.inputs[1]).op
        is_new = source is not None and not value.is_host and _makes_new(made)
        if self._swaps(node):
            read = self._copy(tensors, value, is_new)
            return lambda: registers[slot].append(swapped(device, read()))
        if source is None:
            return self._push_row(tensors, value.value)
        copy = self._copy(tensors, value, is_new)
        return lambda: registers[slot].append(copy())

    def _push_row(self, tensors: BoundTensors, array: Any) -> Callable[[], None]:
        registers, slot, copyto = tensors.registers, self.slot, self._device.xp.copyto
        rows = _rows(self._device, array.shape, array.dtype)

        def push() -> None:
            row = next(rows)
            copyto(row, array)
            registers[slot].append(row)

        return push

    def _copy(self, tensors: BoundTensors, value: Operand, is_new: bool) -> Callable[[], Any]:
        """Function that returns an array of the device with the value; itself if it ``is_new`` memory of the
        device that is not written elsewhere.
        """
        registers, slot, array, device = tensors.registers, value.slot, value.value, self._device
        copy = device.put if value.is_host else device.xp.array
        if slot is None:
            return lambda: copy(array)
        return (lambda: registers[slot]) if is_new else lambda: copy(registers[slot])

    def _swaps(self, node: Node) -> bool:
        """Whether the elements wait in host memory."""
        return self._device.is_asynchronous and SWAPS in node.attrs

    def _pop(self, node: Node, tensors: BoundTensors, target: int) -> Callable[[], None]:
        registers, slot, spec = tensors.registers, self.slot, node.outputs[1]
        xp = self._device.xp
        take = Arrivals().pop if self._swaps(node) else list.pop

        def pop() -> None:
            try:
                value = take(registers[slot])
            except IndexError:
                raise InvalidArgumentError(NO_ELEMENTS) from None
            registers[target] = xp.zeros(spec.shape, spec.dtype.np) if value is None else value

        return pop


def _makes_new(op: OpDef) -> bool:
    """Whether its results are in memory that is not written elsewhere."""
    return op.effect in (Effect.PURE, Effect.RANDOM) and not op.alias


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
