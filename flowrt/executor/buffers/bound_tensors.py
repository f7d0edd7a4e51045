"""Operands: the locations of a partition's tensors during binding.

Storage classes were assigned before (`flowrt.executor.buffers.buffer_assignment`). Here the arena is
allocated from the device's pool, registers are numbered, and each tensor becomes an `Operand`. The functions
that a node owns share their owner's registers and arena, but have separate operands.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, final

import numpy as np

from flowrt.device.device import Device
from flowrt.device.host_memory import populate
from flowrt.device.memory_pool import LiveTensor, Owner
from flowrt.errors import OpError
from flowrt.executor.buffers.buffer_assignment import (
    SCRATCH,
    SMALL_BYTES,
    BufferAssignment,
    is_output_on_host,
    nbytes_of,
)
from flowrt.executor.buffers.memory_plan import MemoryPlan
from flowrt.executor.program.arguments import Operand
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect
from flowrt.graph.shapes import is_static

POPULATED_FROM = 4 << 20
"""Bytes of an arena that is populated beside binding: 51 MiB take 14 ms there, and 22 to 40 in a step."""


@final
class BoundTensors:
    """The operands of tensors in their ``places``: a partition's, or with ``owner`` a function's in that one,
    with buffers from ``base`` of the owner's arena. ``part``: the part that has them, if it is another one of
    the class. Raises `ResourceExhaustedError` if the arena cannot be allocated.
    """

    def __init__(
        self,
        device: Device,
        places: BufferAssignment,
        part: Subgraph | None = None,
        owner: BoundTensors | None = None,
        base: int = 0,
    ) -> None:
        self.device, self.subgraph, self.lifetimes = device, places.subgraph, places.lifetimes
        self._memory, self._base = places.memory, base
        self._arena: Any
        """The bytes of the arena, as an array; None without buffers."""
        self.registers: list[Any]
        self._names: dict[tuple[int, int], str]
        """Names of the buffers, by arena and offset."""
        if owner is None:
            nodes = dict(zip(self.subgraph.nodes, part or self.subgraph, strict=True))
            self._arena, self.registers, self._names = _take_arena(device, nodes, places.memory), [], {}
        else:
            self._arena, self.registers, self._names = owner._arena, owner.registers, owner._names
        self._operands: dict[Ref, Operand] = {}
        self._buffers: dict[tuple[int, TensorSpec], Operand] = {}
        """Arrays by offset and shape, shared by all tensors with both: there are far fewer than tensors."""
        self._in_place: Mapping[Ref, Operand] = {}
        """Outputs of a function's owner that are written by the function's own kernels."""
        self._borrowed: Collection[Ref] = ()
        """Parameters with borrowed arguments. See `is_borrowed`."""
        self.large_registers: dict[Ref, list[int]] = {}
        """Registers with large values that are still to be freed, by the roots of these."""
        self.copies: dict[Ref, Operand] = {}
        """Copies in memory of values in registers, for loops that are machine code."""

    def of_function(
        self, node: Node, places: BufferAssignment, arguments: Sequence[Operand], outputs: Sequence[Operand]
    ) -> BoundTensors:
        """The tensors of a function of ``node``: its parameters are at ``arguments``, and ``outputs`` are the
        node's.
        """
        function = places.subgraph
        base = self._base + self._memory.offsets[node.name, SCRATCH]
        inner = BoundTensors(self.device, places, None, self, base)
        inner._operands.update({(name, 0): o for name, o in zip(function.feeds, arguments, strict=True)})
        inner._in_place = {ref: outputs[index] for ref, index in places.in_place.items()}
        carried = len(outputs) if node.op.name == "_Loop" else 0  # moved into the outputs, which own them
        given = node.inputs[len(node.inputs) - len(function.feeds) :]
        pairs = list(zip(function.feeds, given, strict=True))[carried:]
        inner._borrowed = {(name, 0) for name, argument in pairs if self.is_borrowed(argument)}
        return inner

    def of_addition(self, places: BufferAssignment, arguments: Sequence[Operand]) -> BoundTensors:
        """The tensors of nodes that are bound later, with a separate arena: their parameters are at
        ``arguments``.
        """
        more = BoundTensors(self.device, places)
        more.registers, more._names = self.registers, self._names
        more._operands.update({(name, 0): o for name, o in zip(more.subgraph.feeds, arguments, strict=True)})
        return more

    def named(self, part: Subgraph) -> BoundTensors:
        """The same operands under the names of ``part``, which is of the class of the subgraph."""
        if part is self.subgraph:
            return self
        other = copy(self)
        names = dict(zip(self.subgraph.nodes, part.nodes, strict=True))
        other.subgraph = part
        other._operands = {(names[name], index): o for (name, index), o in self._operands.items()}
        return other

    def __contains__(self, ref: Ref) -> bool:
        return ref in self._operands

    def __getitem__(self, ref: Ref) -> Operand:
        return self._operands[ref]

    def get(self, ref: Ref) -> Operand | None:
        """The operand; None for a tensor internal to a group."""
        return self._operands.get(ref)

    def inputs(self, node: Node) -> list[Operand]:
        return list(map(self._operands.__getitem__, node.inputs))

    def outputs(self, node: Node) -> list[Operand]:
        return [self._operands[node.name, index] for index in range(len(node.outputs))]

    def source(self, ref: Ref) -> Node:
        """The node that allocated the tensor's memory."""
        return self.subgraph.nodes[self.lifetimes.root(ref)[0]]

    def is_borrowed(self, ref: Ref) -> bool:
        """Whether a value in a register may be in memory that is written again: a variable's, or a buffer's
        of which it is a view. Where it leaves a function, or is to outlive the buffer, it is copied.
        """
        root = self.lifetimes.root(ref)
        owner = self._operands.get(root)
        is_view = root != ref and owner is not None and owner.slot is None
        return is_view or root in self._borrowed or self.subgraph.nodes[root[0]].op.effect is Effect.READ

    def is_alias(self, ref: Ref) -> bool:
        """Whether the tensor is in another one's memory."""
        return self.lifetimes.root(ref) != ref

    # --- places

    def place(self, node: Node, index: int, operand: Operand) -> None:
        self._operands[node.name, index] = operand

    def create(self, node: Node) -> list[Operand]:
        """New places for the outputs of ``node``, as assigned: buffers or registers."""
        created: list[Operand] = []
        offsets, in_place = self._memory.offsets, self._in_place
        for index in range(len(node.outputs)):
            ref = node.name, index
            is_buffer = ref in offsets or ref in in_place
            created.append(self._new_buffer(node, index) if is_buffer else self.new_register(node, index))
        return created

    def new_slot(self) -> int:
        """A register of no tensor."""
        self.registers.append(None)
        return len(self.registers) - 1

    def new_register(self, node: Node, index: int) -> Operand:
        """A register for the output."""
        slot, spec = self.new_slot(), node.outputs[index]
        if not is_static(spec.shape) or nbytes_of(spec) > SMALL_BYTES:
            self.large_registers.setdefault(self.lifetimes.root((node.name, index)), []).append(slot)
        is_host = self.device.is_asynchronous and is_output_on_host(node, index)
        operand = self._operands[node.name, index] = Operand(None, slot, f"r{slot}", is_host=is_host)
        return operand

    def _new_buffer(self, node: Node, index: int) -> Operand:
        """The output's array in the arena, by the memory plan."""
        spec, ref = node.outputs[index], (node.name, index)
        operand = self._in_place.get(ref)
        if operand is None:
            key = offset, _ = self._base + self._memory.offsets[ref], spec
            operand = self._buffers.get(key)
            if operand is None:
                operand = self._buffers[key] = self._buffer_at(offset, spec)
        self._operands[ref] = operand
        return operand

    def _buffer_at(self, offset: int, spec: TensorSpec) -> Operand:
        array = self._arena[offset : offset + nbytes_of(spec)].view(spec.dtype.np).reshape(spec.shape)
        return Operand(array, None, self._names.setdefault((id(self._arena), offset), f"b{len(self._names)}"))

    def last_read(self, node: Node, position: int) -> list[int]:
        """The registers with large values that ``node`` is the last to read. Each is named once."""
        slots: list[int] = []
        for root in self.lifetimes.read_last_at(position):
            if root in self.large_registers and self.lifetimes.are_done(root, node.name):
                slots += self.large_registers.pop(root)
        return slots


def owner_of(node: Node) -> Owner:
    """Owner of memory allocated for ``node``, as recorded by the pool."""
    return Owner(node.name, _line_of(node))


def _take_arena(device: Device, nodes: Mapping[str, Node], memory: MemoryPlan) -> Any:
    """Allocate the memory of all buffers, an array of bytes; None if there are none. ``nodes``: by their
    names in ``memory``. Raises `ResourceExhaustedError`, which names the operation of the largest.
    """
    if not memory.sizes:
        return None
    if not memory.peak:  # of empty arrays only
        return device.executor.array(device.allocate(0), (0,), np.uint8)
    largest = nodes[max(memory.peak, key=lambda ref: memory.sizes[ref])[0]]
    tensors = functools.partial(_tensors_at_peak, nodes, memory)
    try:
        arena = device.allocate(memory.nbytes, Owner(largest.name, _line_of(largest), tensors))
    except OpError as error:
        raise located(largest, error) from error.__cause__
    if memory.nbytes >= POPULATED_FROM and not device.is_asynchronous:
        with suppress(RuntimeError):  # no more threads: then the first step populates it
            threading.Thread(target=populate, args=(arena.address, memory.nbytes), daemon=True).start()
    return device.executor.array(arena, (memory.nbytes,), np.uint8)


def _tensors_at_peak(nodes: Mapping[str, Node], memory: MemoryPlan) -> list[LiveTensor]:
    """Tensors in the arena at its peak usage."""
    at_peak = [(nodes[ref[0]], memory.sizes[ref]) for ref in memory.peak]
    return [LiveTensor(node.name, size, _line_of(node)) for node, size in at_peak]


def _line_of(node: Node) -> str | None:
    return None if node.source is None else str(node.source)
