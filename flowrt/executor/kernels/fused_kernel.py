"""`FusedKernel`: the compiled loop of a group of operations, called on arrays.

A loop depends on the memory layout of its arrays, so it is created when they are known: dimensions that are
contiguous in all operands are merged, and an operand that shares its memory with a result is merged with it.
Loops are compiled once per layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flowrt.device.llvm.call_sequence import Call, Table, in_sequence, is_compiled
from flowrt.executor.kernels.copy_kernels import clear_call, copy_call
from flowrt.executor.kernels.fused_program import OperandOf, fused_program
from flowrt.executor.kernels.loop_layout import Layout, call_on, expanded, layout_of
from flowrt.executor.kernels.loop_operands import (
    SUMS,
    are_matrices_whole,
    arrays_of,
    merged,
    shared_operands,
    strides_of,
)
from flowrt.executor.kernels.small_calls import run_or_fall_back
from flowrt.executor.program.arguments import Later
from flowrt.graph.node import Node, static_shape
from flowrt.graph.passes.fusion.group import Group, Level, plain_kernel

Array = np.ndarray[Any, Any]


@final
class FusedKernel:
    """The kernel of a fused node on the host: ``kernel(inputs, out=None)`` as any other, where ``inputs`` is
    one tuple. What loops cannot do (a check that fails, memory that overlaps) the members' own kernels do.
    """

    def __init__(self, node: Node) -> None:
        self._group: Group = node.attrs["group"]
        self._specs = node.outputs
        traced = fused_program(self._group)
        self._program = None if traced is None else expanded(traced.program)
        self._operands = () if traced is None else traced.operands
        self._layouts: dict[Any, Layout] = {}

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> Sequence[Array]:
        results = out
        if results is None:
            results = [np.empty(static_shape(spec), spec.dtype.np) for spec in self._specs]
        function, arguments = self.bind([np.asarray(value) for value in inputs], results)
        function(*arguments)
        return results

    def prepare(self) -> None:
        """Compile the loop for C-contiguous arrays, the common case. Raises errors of the compiler."""
        inputs = [np.empty(static_shape(s), s.dtype.np) for s in self._group.inputs.values()]
        self._layout(inputs, [np.empty(static_shape(s), s.dtype.np) for s in self._specs])

    def bind(self, inputs: Sequence[Array], results: Sequence[Array]) -> Call:
        """The call that computes ``results`` from ``inputs``, reusable when their elements change."""
        return self._bind(inputs, results)[0]

    def _bind(self, inputs: Sequence[Array], results: Sequence[Array]) -> tuple[Call, Table | None]:
        """`bind`, and the loop's table where the call is nothing but machine code."""
        layout = self._layout(inputs, results)
        if layout is None:
            return (self._call_members, (inputs, results)), None
        sums = {
            position: self._partial_sums(operand, results, layout)
            for position, operand in enumerate(self._operands)
            if operand.level in SUMS
        }
        arrays = arrays_of(self._operands, inputs, results)
        arrays = [sums.get(position, array) for position, array in enumerate(arrays)]
        call = call_on(layout, arrays)
        if not is_compiled(call):
            return (self._call_with_sums, (*call, sums, inputs, results)) if sums else call, None
        table = call[1][0]
        if not sums:
            return call, table
        status = None if self._program is None else self._program.status
        if status is None:
            return self._with_sums(call, sums, results), table
        if len(sums) == 1:
            fallback = partial(self._call_members, inputs, results)
            return (run_or_fall_back, (*call, sums[status].data, fallback)), None
        return (self._call_with_sums, (*call, sums, inputs, results)), None

    def _with_sums(self, call: Call, sums: dict[int, Array], results: Sequence[Array]) -> Call:
        """The loop between the copies that `_call_with_sums` makes, for a loop that is one part."""
        before, after = [], []
        for position, array in sums.items():
            operand = self._operands[position]
            result = results[operand.number or 0]
            if operand.level is Level.COLUMN_SUM:  # a total is stored, not added to
                before.append(clear_call(array))
            after.append(copy_call(result, array.reshape(result.shape)))
        return in_sequence([*before, call, *after])

    def bind_late(self, late: Later, registers: list[Any], results: Sequence[Array]) -> Call:
        """`bind` for inputs of which some are in registers when the call is made. Their addresses are then
        stored in the loop's table: 0.7 us each, while rebinding takes 60.
        """
        stand_ins = [
            np.empty(static_shape(spec), spec.dtype.np) if item.slot is not None else item.value
            for item, spec in zip(late.items, self._group.inputs.values(), strict=True)
        ]
        slots = [item.slot for item in late.items]
        (function, arguments), table = self._bind(stand_ins, results)
        if table is None:
            return lambda: self(late.read(registers), results), ()
        words = table.words
        places = [
            (position, slot)
            for position, operand in enumerate(self._operands)
            if operand.is_input and (slot := slots[operand.number or 0]) is not None
        ]

        def call() -> None:
            for position, slot in places:
                array = registers[slot]
                if type(array) is not np.ndarray or not array.flags.carray:  # a scalar has no memory
                    self(late.read(registers), results)
                    return
                words[position] = array.__array_interface__["data"][0]
            function(*arguments)

        return call, ()

    # --- ways to compute

    def _call_members(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            plain_kernel(np, tuple(inputs), self._group, results)

    def _call_with_sums(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        sums: dict[int, Array],
        inputs: Sequence[Array],
        results: Sequence[Array],
    ) -> None:
        for array in sums.values():
            array.fill(0)
        function(*arguments)
        for position, array in sums.items():
            number = self._operands[position].number
            if number is not None:
                result = results[number]
                result[...] = array.sum(axis=0).reshape(result.shape)
            elif array[0]:
                self._call_members(inputs, results)
                return

    # --- memory

    def _partial_sums(self, operand: OperandOf, results: Sequence[Array], layout: Layout) -> Array:
        if operand.number is None:
            return np.zeros(1, np.int64)
        result = results[operand.number]
        if operand.level is Level.TOTAL:
            return np.zeros(layout.parts, np.float64 if result.dtype.kind == "f" else result.dtype)
        return np.zeros((layout.parts, result.size), result.dtype)

    def _layout(self, inputs: Sequence[Array], results: Sequence[Array]) -> Layout | None:
        if self._program is None:
            return None
        arrays = arrays_of(self._operands, inputs, results)
        strides = strides_of(self._operands, arrays, self._group.domain)
        addresses = [0 if array is None else array.ctypes.data for array in arrays]
        shared = shared_operands(self._operands, addresses, strides)
        if shared is None or not all(array.flags.aligned for array in (*inputs, *results)):
            return None
        if not are_matrices_whole(self._operands, arrays):
            return None
        key = (*strides, *shared.items())
        layout = self._layouts.get(key)
        if layout is None:
            program = merged(self._program, shared)
            layout = self._layouts[key] = layout_of(program, self._group.domain, strides)
        return layout
