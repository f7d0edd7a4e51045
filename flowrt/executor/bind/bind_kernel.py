"""Binding of kernels: an operation and the places of its tensors -> the action that computes it.

In order of preference: a compiled loop for a fusion group, a compiled call for a small operation, a compiled
update of variables, the backend's kernel, the operation's own. A kernel that can writes into its output's
buffer; else its results are stored in registers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.device.device import Device
from flowrt.executor.analysis.cost import node_seconds
from flowrt.executor.kernels.device_backends import backend_of
from flowrt.executor.kernels.loop_operands import GroupKernel
from flowrt.executor.kernels.sized_call import sized_call
from flowrt.executor.kernels.split_call import MIN_BYTES, split_call
from flowrt.executor.program.arguments import Later, Operand, bound_kernel, late_call
from flowrt.executor.program.instruction import Action, Call
from flowrt.graph.construction.constant import const
from flowrt.graph.node import Node, Subgraph, TensorSpec
from flowrt.graph.op_def import Effect, Ufunc
from flowrt.graph.stand_in import stand_in


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
        self._is_numpy = device.xp is np and device.executor.computes
        self.compiles_control = has_loops and self._backend.compiles_control
        """Whether loops and branches over small tensors become machine code."""

    def action(
        self, node: Node, reads: Sequence[Operand], writes: Sequence[Operand], in_nest: bool = False
    ) -> Action:
        """The action that computes ``writes``, all of them in buffers or all in registers, from ``reads``.
        ``in_nest``: it may become part of a control nest. Raises errors of compilers and of kernels that
        cannot be bound.
        """
        arrays = [place.value for place in writes if place.slot is None]
        code = self._backend.scalar_code(node, reads, arrays) if in_nest and arrays else None
        if code is not None:
            return code
        function, arguments = self._kernel(node, reads)
        compiled = self._compiled(node, function, arguments, arrays)
        return compiled or self._kernel_call(node, function, arguments, writes)

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

    def views(self, node: Node, reads: Sequence[Operand]) -> list[Operand]:
        """The outputs of ``node`` as views of the memory of one of its inputs, made by its kernel now, or the
        handle that it passes on, or that of rows. Raises the kernel's errors, and gives NumPy's warnings.
        """
        source = reads[node.op.aliased]
        if node.op.effect is Effect.READ:
            return [Operand(source.value.array, None, source.text)]
        function, arguments = bound_kernel(self._xp, node, reads)
        array: Any = function(*arguments)
        if array is source.value:
            return [Operand(array, None, source.text, host_value=source.host_value)]
        text = f"{node.op.name}({source.text})"
        if isinstance(array, list):
            return [Operand(part, None, f"{text}[{index}]") for index, part in enumerate(array)]
        return [Operand(array, None, text)]

    def initialization_check(self, node: Node, variable: Any) -> Action:
        """A check that ``variable`` has a value. It never loses it again."""
        return Call(self._device.executor.kernel(node.name, variable.read, 0.0))

    def _kernel(self, node: Node, reads: Sequence[Operand]) -> tuple[Any, tuple[Any, ...]]:
        """The kernel, with attrs and array module bound, and one argument per input of the signature; one
        that is not known yet is a `Later`.
        """
        convert = self._device.to_host, self._device.to_device
        group = self._backend.group(node) if self._has_loops and "group" in node.attrs else None
        if group is not None:
            return group, bound_kernel(self._xp, node, reads, *convert)[1]
        own = self._backend.kernel(node, self._specs(node), self._has_loops)
        return bound_kernel(self._xp, node, reads, *convert, own)

    def _compiled(
        self, node: Node, function: Any, arguments: tuple[Any, ...], arrays: Sequence[Any]
    ) -> Action | None:
        """The compiled loop, call or update in place of a call of the kernel, if there is one. ``arrays``:
        the buffers of the results; none if these are in registers.
        """
        if isinstance(function, GroupKernel):
            return self._loop(function, arguments[0], arrays)
        if not self._has_loops:
            return None
        if arrays:
            constants = [i for i, ref in enumerate(node.inputs) if self._subgraph.nodes[ref[0]].op is const]
            return self._backend.call(node, arguments, self._specs(node), constants, arrays, self._registers)
        if node.op.effect is Effect.WRITE and node.op.loop is not None:
            return self._backend.update(node, arguments, self._specs(node), self._registers)
        return None

    def _loop(self, group: GroupKernel, inputs: Any, arrays: Sequence[Any]) -> Action | None:
        """The loop of a group; None if its results will be new memory, which no input shares."""
        if not arrays:
            group.prepare()
            return None
        if isinstance(inputs, Later):
            return group.bind_late(inputs, self._registers, arrays)
        return group.bind(inputs, arrays)

    def _specs(self, node: Node) -> list[TensorSpec]:
        """The specs of the inputs of ``node``."""
        return [self._subgraph.spec(ref) for ref in node.inputs]

    def _kernel_call(
        self, node: Node, function: Any, arguments: tuple[Any, ...], writes: Sequence[Operand]
    ) -> Call:
        """The call of a kernel of ``node`` on ``arguments``, into buffers or registers ``writes``."""
        own: dict[str, Any] = {}
        if node.op.state is not None:
            own["state"] = self._resource(node)
        if node.op.takes_workspace and self._backend.workspace is not None:
            own["workspace"] = self._backend.workspace
        if own:
            function = functools.partial(function, **own)
        if writes and writes[0].slot is None:
            arrays = [place.value for place in writes]
            split = None
            if self._is_numpy and max(array.nbytes for array in arrays) >= MIN_BYTES:
                split = split_call(node, self._specs(node), function, arguments, arrays)
            if split is not None:
                return Call(split)
            out = arrays[0] if len(writes) == 1 and not node.op.outputs[0].is_list else tuple(arrays)
            if isinstance(node.op.kernel, Ufunc):
                arguments = *arguments, out
            else:
                function = functools.partial(function, out=out)
            return self._call(node, function, arguments, ())
        if not self._device.is_asynchronous:
            function = sized_call(node, function, self._device.empty)
        return self._call(node, function, arguments, [place.slot for place in writes], allocates=True)

    def _call(
        self,
        node: Node,
        function: Any,
        arguments: tuple[Any, ...],
        slots: Sequence[Any],
        allocates: bool = False,
    ) -> Call:
        """``function(*arguments)``, with its results stored in registers ``slots``. Arguments that are not
        known yet are read from registers.
        """
        executor = self._device.executor
        if not executor.computes:
            function = executor.kernel(node.name, function, node_seconds(self._subgraph, node))
            if allocates:
                function = functools.partial(function, out=_stand_ins(node))
        if Later in map(type, arguments):
            function, arguments = late_call(self._registers, function, arguments), ()
        if not slots:
            return Call(function, arguments)
        is_list = allocates and node.op.outputs[0].is_list
        return Call(_stored(self._registers, slots, is_list, function, arguments))


def _stand_ins(node: Node) -> Any:
    """Results of a simulated call with outputs in registers: None for a list, one row for a value derived
    from all its elements.
    """
    found = []
    for dtype, shape in node.outputs:
        known = TensorSpec(dtype, tuple([1 if d is None else d for d in shape or ()]))
        found.append(None if dtype is dtypes.variant else stand_in(known))
    return tuple(found) if len(found) != 1 or node.op.outputs[0].is_list else found[0]


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
