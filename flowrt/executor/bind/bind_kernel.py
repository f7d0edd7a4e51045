"""Binding of kernels: an operation and the places of its tensors -> the action that computes it.

In order of preference: a compiled loop for a fusion group, a compiled call for a small operation, a compiled
update of variables, the backend's kernel, the operation's own. A kernel that can writes into its output's
buffer; else its results are stored in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

from flowrt.device.device import Device
from flowrt.executor.kernels.device_backends import backend_of
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.kernels.plain_group import PlainGroup
from flowrt.executor.kernels.sized_call import sized_call
from flowrt.executor.program.arguments import Later, Operand, bound_kernel, late_call
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.node import Node, Subgraph
from flowrt.graph.op_def import Effect, Ufunc


@final
class KernelBinder:
    """Binds the kernels of ``subgraph`` on ``device``, with results in buffers or in ``registers``.
    ``resource(node)`` returns the session's object of a stateful node; ``has_loops``: loops may be compiled.
    """

    def __init__(
        self,
        device: Device,
        subgraph: Subgraph,
        registers: list[Any],
        resource: Callable[[Node], Any],
        has_loops: bool,
    ) -> None:
        self._device, self._subgraph, self._registers = device, subgraph, registers
        self._resource, self._has_loops = resource, has_loops
        self._xp, self._backend = device.xp, backend_of(device)
        self.compiles_control = has_loops and self._backend.compiles_control
        """Whether loops and branches over small tensors become machine code."""

    def action(
        self, node: Node, reads: Sequence[Operand], writes: Sequence[Operand], in_nest: bool = False
    ) -> Action:
        """The action that computes ``writes``, all of them in buffers or all in registers, from ``reads``.
        ``in_nest``: it may become part of a control nest. Raises errors of compilers and of kernels that
        cannot be bound.
        """
        is_buffer = bool(writes) and writes[0].slot is None
        arrays = [operand.value for operand in writes]
        code = self._backend.scalar_code(node, reads, arrays) if in_nest and is_buffer else None
        if code is not None:
            return code
        function, arguments = self._kernel(node, reads)
        if is_buffer:
            return self._into_buffers(node, function, arguments, arrays)
        return self._into_registers(node, function, arguments, [operand.slot for operand in writes])

    def copied_read(self, node: Node, reads: Sequence[Operand], writes: Sequence[Operand]) -> Action:
        """A read of a variable that is written before the value's last reader: a copy, made under the lock
        (rule 2 of `flowrt.executor.buffers.buffer_assignment`).
        """
        (target,), lock = writes, reads[0].value.lock
        read, arguments = self._kernel(node, reads)
        make = self._xp.array if target.slot is not None else functools.partial(self._xp.copyto, target.value)

        def copy(*arguments: Any) -> Any:
            with lock:
                return make(read(*arguments))

        slots = [] if target.slot is None else [target.slot]
        return self._call(node, copy, arguments, slots)

    def initialization_check(self, node: Node, variable: Any) -> Action:
        """A check that ``variable`` has a value. It never loses it again."""
        return Call(self._device.executor.kernel(node.name, variable.read, 0.0))

    def _kernel(self, node: Node, reads: Sequence[Operand]) -> tuple[Any, tuple[Any, ...]]:
        """The kernel, with attrs and array module bound, and one argument per input of the signature; one
        that is not known yet is a `Later`.
        """
        convert = self._device.to_host, self._device.to_device
        if "group" in node.attrs:
            kernel = self._backend.group(node) if self._has_loops else PlainGroup(node)
            return kernel, bound_kernel(self._xp, node, reads, None, *convert)[1]
        state = self._resource(node) if node.op.state is not None else None
        own = self._backend.kernel(self._subgraph, node, self._has_loops)
        return bound_kernel(self._xp, node, reads, state, *convert, own)

    def _into_buffers(
        self, node: Node, function: Any, arguments: tuple[Any, ...], arrays: Sequence[Any]
    ) -> Action:
        if isinstance(function, GroupKernel):
            (inputs,) = arguments
            if isinstance(inputs, Later):
                return function.bind_late(inputs, self._registers, arrays)
            return function.bind(inputs, arrays)
        compiled = self._backend.call(node, arguments, arrays) if self._has_loops else None
        if compiled is not None:
            return compiled
        out = tuple(arrays) if len(arrays) != 1 or node.op.outputs[0].is_list else arrays[0]
        if isinstance(node.op.kernel, Ufunc):
            arguments = *arguments, out
        else:
            function = functools.partial(function, out=out)
        return self._call(node, function, arguments, ())

    def _into_registers(
        self, node: Node, function: Any, arguments: tuple[Any, ...], slots: Sequence[Any]
    ) -> Action:
        if self._has_loops and node.op.effect is Effect.WRITE and node.op.loop is not None:
            specs = [self._subgraph.spec(ref) for ref in node.inputs]
            update = self._backend.update(node, arguments, specs, self._registers)
            if update is not None:
                return update
        if isinstance(function, GroupKernel):
            function.prepare()  # its results will be new memory, which no input shares
        if not self._device.is_asynchronous:
            function = sized_call(node, function, self._device.empty)
        return self._call(node, function, arguments, slots, allocates=True)

    def _call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        slots: Sequence[int],
        allocates: bool = False,
    ) -> Call:
        """``function(*arguments)``, with its results stored in registers ``slots``. Arguments that are not
        known yet are read from registers.
        """
        function = self._backend.launched(self._subgraph, node, function, allocates)
        if any(isinstance(argument, Later) for argument in arguments):
            function, arguments = late_call(self._registers, function, arguments), ()
        if not slots:
            return Call(function, arguments)
        is_list = allocates and node.op.outputs[0].is_list
        return Call(_stored(self._registers, slots, is_list, function, arguments))


def _stored(
    registers: list[Any],
    slots: Sequence[int],
    is_list: bool,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> Callable[[], None]:
    """A call of ``function`` that stores its result, or each of several."""
    if len(slots) == 1 and not is_list:
        store = functools.partial(registers.__setitem__, slots[0])
        if not arguments:
            return lambda: store(function())
        return lambda: store(function(*arguments))

    def call() -> None:
        for slot, value in zip(slots, function(*arguments), strict=True):
            registers[slot] = value

    return call
