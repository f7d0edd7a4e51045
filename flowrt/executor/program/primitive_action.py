"""An action: a primitive of oneDNN's on arrays of the program.

A kernel finds the primitive of its arguments by their layouts, and gives it their addresses, in each call:
12 us of Python, or 40 where a step has since called other code, while a product of 128x256 by 256x256 takes
120. The layouts of a program's arrays never change, and hardly an address. Filters that are constants are
copied to the layout that the library requires once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.device.onednn import onednn
from flowrt.device.onednn.primitive_call import PrimitiveCall, primitive_call
from flowrt.device.onednn.primitives import Execution, Primitive

Array = np.ndarray[Any, Any]


@final
class BoundPrimitive:
    """The primitive that ``find()`` returns on ``arrays``, of which some are in the registers ``slots``, by
    number, and some, of the numbers ``fixed``, never change. ``otherwise()`` computes it where the library
    has none, or where a register has an array with another layout.
    """

    __slots__ = (
        "_call", "_execution", "_find", "_fixed", "_known", "_late", "_otherwise", "_primitive", "_registers",
    )  # fmt: skip

    def __init__(
        self,
        find: Callable[[], Primitive],
        arrays: Sequence[Array],
        slots: Mapping[int, int],
        fixed: Sequence[int],
        registers: list[Any],
        otherwise: Callable[[], None],
    ) -> None:
        self._find, self._registers, self._otherwise = find, registers, otherwise
        self._late = list(slots.items())
        self._known = [(i, array) for i, array in enumerate(arrays) if i not in slots]
        self._fixed = fixed
        self._primitive: Primitive | None = None
        self._execution: Execution | None = None
        self._call: PrimitiveCall | None = None

    def bound(self) -> BoundCall:
        return self.run, ()

    @property
    def is_late(self) -> bool:
        """Whether it reads registers."""
        return bool(self._late)

    def machine_code(self) -> PrimitiveCall | None:
        """The call for one thread, if the library has the primitive. All arrays are known."""
        if self._call is None:
            execution = self._prepare()
            if execution is not None and execution.primitive.n_threads == 1:
                self._call = primitive_call(execution)
        return self._call

    def run(self) -> None:
        """Compute the result."""
        execution = self._execution
        if execution is None or self._primitive is None or not self._primitive.is_current:
            execution = self._execution = self._prepare()
            if execution is None:
                return self._otherwise()
        for number, slot in self._late:
            array = self._registers[slot]
            if type(array) is not np.ndarray or not array.flags.c_contiguous:
                return self._otherwise()
            execution.place(number, address_of(array))
        return execution.run()

    def _prepare(self) -> Execution | None:
        """An execution, which has the addresses of arrays; None if the library has no such primitive."""
        try:
            self._primitive = self._find()
        except onednn.Unsupported:
            return None
        constants = {number: address_of(array) for number, array in self._known if number in self._fixed}
        execution = Execution(self._primitive, constants)
        for number, array in self._known:
            execution.place(number, address_of(array))
        return execution
