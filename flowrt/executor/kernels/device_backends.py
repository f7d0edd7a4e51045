"""The backends of the device types: host, CUDA, and the null device, which has none of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from flowrt.device.device import Device
from flowrt.device.workspace import Workspace
from flowrt.executor.kernels.backend import Backend
from flowrt.executor.kernels.bound_primitive import bound_primitive
from flowrt.executor.kernels.cuda_kernel import CudaKernel
from flowrt.executor.kernels.cuda_update import cuda_update
from flowrt.executor.kernels.fused_kernel import FusedKernel
from flowrt.executor.kernels.host_kernels import host_kernel
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.kernels.scalar_code import scalar_code
from flowrt.executor.kernels.small_calls import small_call
from flowrt.executor.kernels.update_kernel import update_of
from flowrt.executor.program.arguments import late_array
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.node import Node, TensorSpec


@final
class HostBackend(Backend):
    """oneDNN, BLAS, and loops by LLVM."""

    compiles_control = True

    kernel = staticmethod(host_kernel)
    scalar_code = staticmethod(scalar_code)
    group = FusedKernel

    @property
    def workspace(self) -> Workspace | None:
        return self.device.workspace

    def call(
        self,
        node: Node,
        arguments: Sequence[Any],
        specs: Sequence[TensorSpec],
        constants: Collection[int],
        out: Sequence[Any],
        registers: list[Any],
    ) -> Action | None:
        small = small_call(node, arguments, out)
        return small or bound_primitive(node, arguments, specs, constants, out[0], registers)

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        late = [late_array(argument, spec) for argument, spec in zip(arguments, specs, strict=True)]
        return update_of(node, late, registers)


@final
class CudaBackend(Backend):
    """CuPy, and loops in CUDA C."""

    def group(self, node: Node) -> GroupKernel:
        return CudaKernel(node, self.device)

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        call = cuda_update(self.device, node, arguments)
        return None if call is None else Call(call)


BACKENDS: dict[str, Callable[[Device], Backend]] = {"CPU": HostBackend, "GPU": CudaBackend, "NULL": Backend}
"""Backends by device type."""


def backend_of(device: Device) -> Backend:
    """The backend of ``device``."""
    return BACKENDS[device.device_type](device)
