"""`CudaKernel`: the kernels of a group of operations on a GPU, called on arrays of the device.

As `flowrt.executor.kernels.fused_kernel` on the host. To launch a loop is to put one or two kernels on the
current
stream, with the addresses of its arrays: a step with loops can be captured as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt.device.cuda.cuda import CudaExecutor
from flowrt.device.cuda.cuda_loops import LOOP, SUMS, THREADS, CudaLoop, cuda_loop
from flowrt.device.device import Device
from flowrt.device.llvm.call_sequence import Call
from flowrt.device.loops.loop_program import LoopProgram
from flowrt.device.memory_pool import Owner
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.kernels.fused_program import fused_program
from flowrt.executor.kernels.loop_layout import coalesced, has_rows
from flowrt.executor.kernels.loop_operands import (
    are_matrices_whole,
    arrays_of,
    merged,
    shared_operands,
    strides_of,
)
from flowrt.executor.program.arguments import Later
from flowrt.graph.node import Node, static_shape
from flowrt.graph.passes.fusion.group import Group, plain_kernel


@final
class CudaKernel:
    """The kernel of a fused node: ``kernel(inputs, out=None)`` as any other, where ``inputs`` is one tuple.
    What loops cannot do (memory that overlaps, an unknown instruction) the members' own kernels do.
    """

    def __init__(self, node: Node, device: Device) -> None:
        self._group: Group = node.attrs["group"]
        self._specs, self._device, self._owner = node.outputs, device, owner_of(node)
        traced = fused_program(self._group)
        self._program = None if traced is None else traced.program
        self._operands = () if traced is None else traced.operands
        self._loops: dict[Any, BoundLoop | None] = {}

    def __call__(self, inputs: Sequence[Any], out: Sequence[Any] | None = None) -> Sequence[Any]:
        results = out
        if results is None:
            empty = self._device.empty
            results = [empty(static_shape(spec), spec.dtype.np, self._owner) for spec in self._specs]
        function, arguments = self.bind(inputs, results)
        function(*arguments)
        return results

    def bind(self, inputs: Sequence[Any], results: Sequence[Any]) -> Call:
        """The call that computes ``results`` from ``inputs``, in `Device.activate`, reusable when their
        elements change. Raises errors of the compiler.
        """
        arrays = arrays_of(self._operands, inputs, results)
        addresses = [0 if array is None else array.data.ptr for array in arrays]
        loop = None if self._program is None else self._loop(arrays, addresses)
        if loop is None:
            return plain_kernel, (self._device.xp, tuple(inputs), self._group, results)
        return loop.bind(arrays)

    def bind_late(self, late: Later, registers: list[Any], results: Sequence[Any]) -> Call:
        """The same as `bind`, for inputs that are partly in registers at the time of the call: most are in C
        order.
        """
        self._prepare()
        return lambda: self(late.read(registers), results), ()

    def _prepare(self) -> None:
        inputs = [np.empty(static_shape(s), s.dtype.np) for s in self._group.inputs.values()]
        arrays = arrays_of(
            self._operands, inputs, [np.empty(static_shape(s), s.dtype.np) for s in self._specs]
        )
        if self._program is not None:
            self._loop(arrays, range(len(arrays)))

    def _loop(self, arrays: Sequence[Any], addresses: Sequence[int]) -> BoundLoop | None:
        domain = self._group.domain
        strides = strides_of(self._operands, arrays, domain)
        shared = shared_operands(self._operands, addresses, strides)
        if shared is None or not are_matrices_whole(self._operands, arrays):
            return None
        key = (*strides, *shared.items())
        if key not in self._loops:
            assert self._program is not None
            program = merged(self._program, shared)
            self._loops[key] = bound_loop(self._device, self._owner, program, domain, strides, arrays)
        return self._loops[key]


@final
class BoundLoop:
    """The kernels of a loop on a device, and the memory for the parts of its sums: one call at a time."""

    def __init__(self, device: Device, owner: Owner, loop: CudaLoop) -> None:
        self._loop = loop
        names = (LOOP, SUMS) if loop.sums else (LOOP,)
        assert isinstance(device.executor, CudaExecutor)
        self._kernels = device.executor.compile_kernels(loop.text, names)
        self._parts = {s.operand: device.empty((s.parts, s.columns), s.dtype, owner) for s in loop.sums}

    def bind(self, arrays: Sequence[Any]) -> Call:
        """The call that launches the loop on ``arrays``, one per operand of its program."""
        loop = self._loop
        operands = tuple([self._parts.get(operand, arrays[operand]) for operand in loop.operands])
        call = self._kernels[0], ((loop.blocks,), (loop.threads,), operands)
        if not loop.sums:
            return call
        sums = tuple([array for s in loop.sums for array in (self._parts[s.operand], arrays[s.operand])])
        return _call_both, (call, (self._kernels[1], ((loop.sum_blocks,), (THREADS,), sums)))


def bound_loop(
    device: Device,
    owner: Owner,
    program: LoopProgram,
    domain: tuple[int, ...],
    strides: Sequence[tuple[int, ...]],
    arrays: Sequence[Any],
) -> BoundLoop | None:
    """The loop of ``program`` for ``arrays`` with these strides, one per dimension of ``domain``; None if
    CUDA C does not support it.
    """
    if not domain:
        domain, strides = (1,), [(0,)] * len(strides)
    is_by_rows = has_rows(program, strides)
    dims, lies = coalesced(domain, strides, keeps_rows=is_by_rows)
    if not is_by_rows:
        dims, lies = (*dims, 1), [(*steps, 0) for steps in lies]
    dtypes = ["" if array is None else array.dtype.name for array in arrays]
    loop = cuda_loop(program, dims, lies, dtypes)
    return None if loop is None else BoundLoop(device, owner, loop)


def _call_both(first: Call, second: Call) -> None:
    first[0](*first[1])
    second[0](*second[1])
