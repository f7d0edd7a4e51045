"""An action: a primitive of oneDNN's on arrays of the program.

A kernel finds the primitive of its arguments by their layouts, and gives it their addresses, in each call:
12 us of Python, or 40 where a step has since called other code, while a product of 128x256 by 256x256 takes
120. The layouts of a program's arrays never change, and hardly an address. Filters that are constants are
copied to the layout that the library requires once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from flowrt.device.host_memory import address_of
from flowrt.device.llvm.call_sequence import BoundCall
from flowrt.device.onednn import onednn
from flowrt.device.onednn.primitive_call import PrimitiveCall, primitive_call
from flowrt.device.onednn.primitives import Execution, Primitive
from flowrt.executor.program.arguments import LateArray

Array = np.ndarray[Any, Any]


@final
class BoundPrimitive:
    """The primitive that ``find()`` returns on ``arrays``, of which some may be in ``registers``, and some,
    of the numbers ``fixed``, never change. ``otherwise()`` computes it where the library has none.
    """

    __slots__ = (
        "_call", "_execution", "_find", "_fixed", "_known", "_late", "_otherwise", "_primitive", "_registers",
    )  # fmt: skip

    def __init__(
        self,
        find: Callable[[], Primitive],
        arrays: Sequence[Array | LateArray],
        fixed: Sequence[int],
        registers: list[Any],
        otherwise: Callable[[], None],
    ) -> None:
        self._find, self._registers, self._otherwise = find, registers, otherwise
        self._late = [(i, array) for i, array in enumerate(arrays) if isinstance(array, LateArray)]
        self._known = [(i, array) for i, array in enumerate(arrays) if not isinstance(array, LateArray)]
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
        """Compute the result. Raises `InvalidArgumentError` for a late array of another shape."""
        execution = self._execution
        if execution is None or self._primitive is None or not self._primitive.is_current:
            execution = self._execution = self._prepare()
            if execution is None:
                self._otherwise()
                return
        arrays = [late.read(self._registers) for _, late in self._late]  # kept until it has run
        for (number, _), array in zip(self._late, arrays, strict=True):
            execution.place(number, address_of(array))
        execution.run()

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
