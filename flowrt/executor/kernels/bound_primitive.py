"""Convolutions and products of oneDNN's on the memory of a program: in a step nothing but the library is
called.

A kernel finds the primitive of its arguments by their layouts, and gives it their addresses, in each call:
12 us of Python, or 40 where a step has since called other code, while a product of 128x256 by 256x256 takes
120. The layouts of a program's arrays never change, and hardly an address. Filters that are constants are
copied to the layout that the library requires once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.device.onednn import onednn
from flowrt.device.onednn.primitives import Execution, Primitive
from flowrt.executor.kernels.onednn_kernels import ONEDNN_KERNELS, PRIMITIVES, PrimitiveOn, primitive_on
from flowrt.executor.kernels.update_kernel import late_array
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.updates import LateArray
from flowrt.graph.node import Node, TensorSpec

Array = np.ndarray[Any, Any]


def bound_primitive(
    node: Node,
    arguments: Sequence[Any],
    specs: Sequence[TensorSpec],
    constants: Collection[int],
    out: Array,
    registers: list[Any],
) -> BoundPrimitive | None:
    """The convolution or product of ``node`` on ``arguments``, as its kernel takes them, into ``out``; None
    if it is none, or is not computed by one primitive. Its inputs have ``specs``; those of the numbers
    ``constants`` never change.
    """
    if node.op not in PRIMITIVES or not onednn.is_available():
        return None
    late = [late_array(a, spec) for a, spec in zip(_one_by_one(arguments), specs, strict=True)]
    arrays = [a.stand_in if isinstance(a, LateArray) else a for a in late]
    if not all(isinstance(array, np.ndarray) for array in (*arrays, out)):
        return None
    attrs = {key: node.attrs[key] for key in node.op.kernel_attrs}
    try:
        found = primitive_on(node.op, attrs, arrays, out)
    except onednn.Unsupported:
        return None
    kernel = partial(ONEDNN_KERNELS[node.op], node.op, np, out=out, **attrs)
    slots = {i: late[s].slot for i, s in enumerate(found.sources) if s is not None and _is_late(late[s])}
    fixed = [i for i, source in enumerate(found.sources) if source in constants]
    return BoundPrimitive(found, slots, fixed, registers, partial(_call, kernel, arguments, registers))


def _is_late(argument: Any) -> bool:
    return isinstance(argument, LateArray)


def _one_by_one(arguments: Sequence[Any]) -> Iterator[Any]:
    """Each input: those of lists one by one."""
    for argument in arguments:
        if isinstance(argument, tuple) and not isinstance(argument, Later):
            yield from argument
        elif isinstance(argument, Later) and argument.is_list:
            yield from [item.value if item.slot is None else Later((item,), False) for item in argument.items]
        else:
            yield argument


def _call(kernel: Callable[..., Any], arguments: Sequence[Any], registers: list[Any]) -> None:
    kernel(*[a.read(registers) if isinstance(a, Later) else a for a in arguments])


@final
class BoundPrimitive:
    """An action: a primitive on arrays, of which some are in the registers ``slots``, by number, and some, of
    the numbers ``fixed``, never change. ``otherwise()`` computes it where the library has none, or where a
    register has an array with another layout.
    """

    __slots__ = ("_execution", "_find", "_fixed", "_known", "_late", "_otherwise", "_primitive", "_registers")

    def __init__(
        self,
        found: PrimitiveOn,
        slots: Mapping[int, int],
        fixed: Sequence[int],
        registers: list[Any],
        otherwise: Callable[[], None],
    ) -> None:
        self._find, self._registers, self._otherwise = found.find, registers, otherwise
        self._late = list(slots.items())
        self._known = [(i, array) for i, array in enumerate(found.arrays) if i not in slots]
        self._fixed = fixed
        self._primitive: Primitive | None = None
        self._execution: Execution | None = None

    def bound(self) -> BoundCall:
        return self.run, ()

    def run(self) -> None:
        """Compute the result."""
        execution = self._execution
        if execution is None or self._primitive is None or not self._primitive.is_current:
            execution = self._prepare()
            if execution is None:
                return self._otherwise()
        for number, slot in self._late:
            array = self._registers[slot]
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return self._otherwise()
            execution.place(number, address_of(array))
        return execution.run()

    def _prepare(self) -> Execution | None:
        """The execution, which has the addresses of arrays; None if the library has no such primitive."""
        try:
            self._primitive = self._find()
        except onednn.Unsupported:
            return None
        constants = {number: address_of(array) for number, array in self._known if number in self._fixed}
        self._execution = execution = Execution(self._primitive, constants)
        for number, array in self._known:
            execution.place(number, address_of(array))
        return execution
