"""Backends: the way in which a kind of device computes, beside the kernels of its operations.

    kernel    a kernel of the device's own, such as a library's, in place of an operation's
    call      a compiled call of a small operation, or a library's on memory that stays; `scalar_code`, the
              code of one element in a control nest
    group     the compiled loop of a fusion group
    update    the compiled loop of an operation that writes variables

A backend is registered for a device type (`flowrt.executor.kernels.device_backends`); binding asks it for
each node. For the rest, the operations' own kernels are called with the device's array module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from flowrt.device.device import Device
from flowrt.device.workspace import Workspace
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.program.arguments import Operand
from flowrt.executor.program.instruction import Action
from flowrt.graph.node import Node, TensorSpec


class Backend:
    """The backend of ``device``, as binding asks it. This one has the operations' kernels and nothing else:
    others override what they do better. Methods may raise errors of their compilers.
    """

    compiles_control = False
    """Whether loops and branches over small tensors become machine code."""

    def __init__(self, device: Device) -> None:
        self.device = device

    @property
    def workspace(self) -> Workspace | None:
        """The scratch memory of kernels that take one, or None: then they use new memory."""
        return None

    def kernel(self, node: Node, specs: Sequence[TensorSpec], has_loops: bool) -> Callable[..., Any] | None:
        """The backend's own kernel for ``node`` on inputs of ``specs``, with the signature of the
        operation's; None if it has none. ``has_loops``: whether loops may be compiled.
        """
        return None

    def call(
        self,
        node: Node,
        arguments: Sequence[Any],
        specs: Sequence[TensorSpec],
        constants: Collection[int],
        out: Sequence[Any],
        registers: list[Any],
    ) -> Action | None:
        """A compiled call of ``node`` on ``arguments``, as its kernel takes them, into ``out``, or None. Its
        inputs have ``specs``; those of the numbers ``constants`` never change. Arguments that are known when
        it runs are in ``registers``.
        """
        return None

    def scalar_code(self, node: Node, reads: Sequence[Operand], out: Sequence[Any]) -> Action | None:
        """A fused node of one element as code of a control nest, from ``reads`` into ``out``, or None."""
        return None

    def group(self, node: Node) -> GroupKernel | None:
        """The loop of a fused node, or None: then its members' kernels run one after another."""
        return None

    def update(
        self, node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], registers: list[Any]
    ) -> Action | None:
        """The loop that writes the variables among ``arguments``, which have ``specs``, or None. Arguments
        that are known when it runs are in ``registers``.
        """
        return None
