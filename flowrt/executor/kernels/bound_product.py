"""Products of oneDNN's on the memory of a program: in a step nothing but the library is called.

A kernel finds the primitive of its arguments by their layouts, and gives it their addresses, in each call:
12 us of Python, or 40 where a step has since called other code, while a product of 128x256 by 256x256 takes
120. The layouts of a program's arrays never change, and hardly an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.device.onednn import onednn
from flowrt.device.onednn.primitives import Execution, Primitive
from flowrt.executor.kernels.onednn_kernels import ONEDNN_KERNELS, PRODUCTS, product_on
from flowrt.executor.kernels.update_kernel import late_array
from flowrt.executor.program.arguments import Later
from flowrt.executor.program.updates import LateArray
from flowrt.graph.node import Node, TensorSpec

Array = np.ndarray[Any, Any]


def bound_product(
    node: Node, arguments: Sequence[Any], specs: Sequence[TensorSpec], out: Array, registers: list[Any]
) -> BoundProduct | None:
    """The product of ``node`` on ``arguments``, as its kernel takes them, which have ``specs``, into ``out``;
    None if it is none, or is not computed by one primitive.
    """
    if node.op not in PRODUCTS or not onednn.is_available():
        return None
    late = [late_array(argument, spec) for argument, spec in zip(arguments, specs, strict=True)]
    arrays = [a.stand_in if isinstance(a, LateArray) else a for a in late]
    if not all(isinstance(array, np.ndarray) for array in (*arrays, out)):
        return None
    attrs = {key: node.attrs[key] for key in node.op.kernel_attrs}
    try:
        find, used = product_on(node.op, attrs, arrays, out)
    except onednn.Unsupported:
        return None
    kernel = partial(ONEDNN_KERNELS[node.op], node.op, np, out=out, **attrs)
    slots = [a.slot if isinstance(a, LateArray) else None for a in late[-2:]]
    return BoundProduct(find, used, slots, registers, partial(_call, kernel, arguments, registers))


def _call(kernel: Callable[..., Any], arguments: Sequence[Any], registers: list[Any]) -> None:
    kernel(*[a.read(registers) if isinstance(a, Later) else a for a in arguments])


@final
class BoundProduct:
    """An action: a product of two factors, of which some may be in registers, by the primitive that
    ``find()`` returns. ``otherwise()`` computes it where a register has an array with another layout.
    """

    __slots__ = ("_execution", "_find", "_known", "_late", "_otherwise", "_primitive", "_registers")

    def __init__(
        self,
        find: Callable[[], Primitive],
        arrays: tuple[Array, Array, Array],
        slots: Sequence[int | None],
        registers: list[Any],
        otherwise: Callable[[], None],
    ) -> None:
        self._find, self._registers, self._otherwise = find, registers, otherwise
        self._late = [(number, slot) for number, slot in enumerate(slots) if slot is not None]
        late = [number for number, _ in self._late]
        self._known = [(number, array) for number, array in enumerate(arrays) if number not in late]
        self._primitive: Primitive | None = None
        self._execution: Execution | None = None

    def bound(self) -> BoundCall:
        return self.run, ()

    def run(self) -> None:
        """Compute the product."""
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
        self._execution = execution = Execution(self._primitive)
        for number, array in self._known:
            execution.place(number, address_of(array))
        return execution
