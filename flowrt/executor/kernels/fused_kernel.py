"""`FusedKernel`: the compiled loop of a group of operations, called on arrays.

Dimensions that are contiguous in all operands are merged. See `flowrt.executor.kernels.loop_operands`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import MachineCall, ParallelCall, Table, in_sequence
from flowrt.executor.kernels.copy_kernels import clear_call, copy_call, sum_call
from flowrt.executor.kernels.fused_program import OperandOf
from flowrt.executor.kernels.loop_layout import Layout, call_on, layout_of
from flowrt.executor.kernels.loop_operands import SUMS, GroupKernel, arrays_of
from flowrt.executor.program.arguments import LateArray, Later
from flowrt.executor.program.instruction import Action, Call, Checked, Summed
from flowrt.graph.node import TensorSpec, static_shape
from flowrt.graph.passes.fusion.group import Level, plain_kernel
from flowrt.loops.loop_program import LoopProgram

Array = np.ndarray[Any, Any]


@final
class FusedKernel(GroupKernel):
    """The kernel of a fused node on the host."""

    def bind(self, inputs: Sequence[Any], results: Sequence[Array]) -> Action:
        return self._bind([np.asarray(value) for value in inputs], results)[0]

    def _bind(self, inputs: Sequence[Array], results: Sequence[Array]) -> tuple[Action, Table | None]:
        """`bind`, and the loop's table where the action reads ``inputs`` by it alone."""
        operands = arrays_of(self._operands, inputs, results)
        layout: Layout | None = None
        if all(array.flags.aligned for array in (*inputs, *results)):
            layout = self._loop(operands, [0 if array is None else array.ctypes.data for array in operands])
        if layout is None:
            return Call(self._call_members, (inputs, results)), None
        sums = {
            position: self._partial_sums(operand, results, layout)
            for position, operand in enumerate(self._operands)
            if operand.level in SUMS
        }
        call = call_on(layout, [sums.get(position, array) for position, array in enumerate(operands)])
        status = None if self._program is None else self._program.status
        refused = None if status is None else sums.pop(status)
        action = self._with_sums(call, sums, results) if sums else call
        if refused is None:
            return action, call.table
        return Checked(action, partial(self._call_members, inputs, results), refused), None

    def _with_sums(
        self, call: MachineCall | ParallelCall, sums: dict[int, Array], results: Sequence[Array]
    ) -> MachineCall | Summed:
        """The loop between calls that clear ``sums`` and add up those of its parts."""
        before, after = [], []
        for position, array in sums.items():
            operand = self._operands[position]
            result = results[operand.number or 0]
            is_whole = len(array) == 1
            if not is_whole or operand.level is Level.COLUMN_SUM:  # one total is stored, not added to
                before.append(clear_call(array))
            after.append(
                copy_call(result, array.reshape(result.shape)) if is_whole else sum_call(result, array)
            )
        if isinstance(call, MachineCall):
            return in_sequence([*before, call, *after])
        alone = in_sequence([*before, call.call, *after])
        return Summed(in_sequence(before), call, in_sequence(after), alone)

    def bind_late(self, late: Later, registers: list[Any], results: Sequence[Array]) -> Action:
        """The addresses of inputs in registers are stored in the loop's table in each call: 1 us each, while
        to bind it takes 60.
        """
        inputs = [
            LateArray(item.slot, self._empty(spec)) if item.slot is not None else item.value
            for item, spec in zip(late.items, self._group.inputs.values(), strict=True)
        ]
        stand_ins = [each.stand_in if isinstance(each, LateArray) else each for each in inputs]
        action, table = self._bind(stand_ins, results)
        if table is None:
            return super().bind_late(late, registers, results)
        (function, arguments), words = action.bound(), table.words
        places = [
            (position, array)
            for position, operand in enumerate(self._operands)
            if operand.is_input and isinstance(array := inputs[operand.number or 0], LateArray)
        ]

        def call() -> None:
            arrays = [late.read(registers) for _, late in places]  # kept until the loop ends
            for (position, _), array in zip(places, arrays, strict=True):
                words[position] = address_of(array)
            function(*arguments)

        return Call(call)

    # --- ways to compute

    def _call_members(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            plain_kernel(np, tuple(inputs), self._group, results)

    # --- memory

    def _partial_sums(self, operand: OperandOf, results: Sequence[Array], layout: Layout) -> Array:
        if operand.number is None:
            return np.zeros(1, np.int64)
        result = results[operand.number]
        if operand.level is Level.TOTAL:
            return np.zeros(layout.parts, np.float64 if result.dtype.kind == "f" else result.dtype)
        return np.zeros((layout.parts, result.size), result.dtype)

    def _empty(self, spec: TensorSpec) -> Array:
        return np.empty(static_shape(spec), spec.dtype.np)

    def _made(self, program: LoopProgram, strides: list[tuple[int, ...]], arrays: Sequence[Any]) -> Layout:
        return layout_of(program, self._group.domain, strides)
