"""`CudaKernel`: the kernels of a group of operations on a GPU, called on arrays of the device.

As `flowrt.executor.kernels.fused_kernel` on the host. To launch a loop is to put one or two kernels on the
current stream, with the addresses of its arrays: a step with loops can be captured as any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from flowrt.device.cuda.cuda import CudaExecutor
from flowrt.device.device import Device
from flowrt.device.memory_pool import Owner
from flowrt.executor.buffers.bound_tensors import owner_of
from flowrt.executor.kernels.loop_layout import coalesced, has_rows
from flowrt.executor.kernels.loop_operands import GroupKernel, arrays_of
from flowrt.executor.program.instruction import Call, run_in_turn
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.passes.fusion.group import plain_kernel
from flowrt.loops.cuda_grid import THREADS
from flowrt.loops.cuda_loops import LOOP, SUMS, CudaLoop, cuda_loop
from flowrt.loops.loop_program import LoopProgram


@final
class CudaKernel(GroupKernel):
    """The kernel of a fused node on a GPU, to be bound in `Device.activate`."""

    def __init__(self, node: Node, device: Device) -> None:
        super().__init__(node)
        self._device, self._owner = device, owner_of(node)

    def bind(self, inputs: Sequence[Any], results: Sequence[Any]) -> Call:
        arrays = arrays_of(self._operands, inputs, results)
        loop = self._loop(arrays, [0 if array is None else array.data.ptr for array in arrays])
        if loop is None:
            return Call(plain_kernel, (self._device.xp, tuple(inputs), self._group, results))
        return loop.bind(arrays)

    def _empty(self, spec: TensorSpec) -> Any:
        return self._device.empty(static_shape(spec), spec.dtype.np, self._owner)

    def _made(self, program: LoopProgram, strides: list[tuple[int, ...]], arrays: Sequence[Any]) -> Any:
        return bound_loop(self._device, self._owner, program, self._group.domain, strides, arrays)


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
        launch = self._kernels[0], ((loop.blocks,), (loop.threads,), operands)
        if not loop.sums:
            return Call(*launch)
        sums = tuple([array for s in loop.sums for array in (self._parts[s.operand], arrays[s.operand])])
        return Call(run_in_turn, (launch, (self._kernels[1], ((loop.sum_blocks,), (THREADS,), sums))))


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
