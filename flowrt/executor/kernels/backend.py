"""Backends: the way in which a kind of device computes, beside the kernels of its operations.

    kernel    a kernel of the device's own, such as a library's, in place of an operation's
    call      a compiled call of a small operation
    group     the compiled loop of a fusion group
    update    the compiled loop of an operation that writes variables

A backend is registered for a device type; binding asks it for each node. What it has not, the operations' own
kernels do, with the device's array module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, final

from flowrt.device.device import Device
from flowrt.executor.kernels.cuda_kernel import CudaKernel
from flowrt.executor.kernels.cuda_update import cuda_update
from flowrt.executor.kernels.fused_kernel import FusedKernel
from flowrt.executor.kernels.host_kernels import host_kernel
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.kernels.small_calls import small_call
from flowrt.executor.kernels.update_kernel import late_array, update_of
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.passes.fusion.group import plain_kernel


class Backend(Protocol):
    """The backend of a device, as binding asks it. Its methods may raise errors of its compilers."""

    compiles_control: bool
    """Whether loops and branches over small tensors become machine code."""

    def kernel(self, subgraph: Subgraph, node: Node, has_loops: bool) -> Callable[..., Any] | None:
        """The backend's own kernel for ``node`` of ``subgraph``, with the signature of the operation's; None
        if it has none. ``has_loops``: whether loops may be compiled.
        """

    def call(self, node: Node, arguments: Sequence[Any], out: Sequence[Any]) -> Action | None:
        """A compiled call of ``node`` on ``arguments``, as its kernel takes them, into ``out``, or None."""

    def group(self, node: Node) -> GroupKernel | Callable[..., Any]:
        """The kernel of a fused node, ``kernel(inputs, out=None)``: a loop, or the members' kernels."""

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        """The loop that writes the variables among ``arguments``, which have ``specs``, or None. Arguments
        that are known when it runs are in ``registers``.
        """


class PlainBackend:
    """The backend of a device that has only the operations' kernels: others override what they do better."""

    compiles_control = False

    def __init__(self, device: Device) -> None:
        self.device = device

    def kernel(self, subgraph: Subgraph, node: Node, has_loops: bool) -> Callable[..., Any] | None:
        return None

    def call(self, node: Node, arguments: Sequence[Any], out: Sequence[Any]) -> Action | None:
        return None

    def group(self, node: Node) -> GroupKernel | Callable[..., Any]:
        return partial(plain_kernel, self.device.xp, group=node.attrs["group"])

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        return None


@final
class HostBackend(PlainBackend):
    """oneDNN, BLAS, and loops by LLVM."""

    compiles_control = True

    def kernel(self, subgraph: Subgraph, node: Node, has_loops: bool) -> Callable[..., Any] | None:
        own = host_kernel(subgraph, node, has_loops)
        if not node.op.takes_workspace:
            return own
        return partial(own or node.op.kernel, workspace=self.device.workspace)

    def call(self, node: Node, arguments: Sequence[Any], out: Sequence[Any]) -> Action | None:
        return small_call(node, arguments, out)

    def group(self, node: Node) -> GroupKernel:
        kernel = FusedKernel(node)
        kernel.prepare()
        return kernel

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        late = [late_array(argument, spec) for argument, spec in zip(arguments, specs, strict=True)]
        return update_of(node, late, registers)


@final
class CudaBackend(PlainBackend):
    """CuPy, and loops in CUDA C."""

    def group(self, node: Node) -> GroupKernel:
        return CudaKernel(node, self.device)

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        call = cuda_update(self.device, node, arguments)
        return None if call is None else Call(call)


BACKENDS: dict[str, Callable[[Device], Backend]] = {
    "CPU": HostBackend,
    "GPU": CudaBackend,
    "NULL": PlainBackend,
}
"""Backends by device type."""


def backend_of(device: Device) -> Backend:
    """The backend of ``device``."""
    return BACKENDS[device.device_type](device)
