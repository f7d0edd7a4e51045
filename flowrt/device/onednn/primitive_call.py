"""Primitives called by machine code on one thread, in a sequence with compiled loops.

From Python, a product of 128x256 by 256x256, which takes 120 us, costs 40 more: the product has displaced
from the caches what a call touches of the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import Array, BoundCall, MachineCall, Table, in_sequence
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.device.onednn.onednn import library
from flowrt.device.onednn.primitives import Execution
from flowrt.device.workspace import WORKSPACE
from flowrt.errors import OpError
from flowrt.loops.llvm_text import with_fields

MULTIPLICATIONS_PER_NS = 50
"""Speed of one thread, roughly: 60 to 73 were measured with AVX-512."""

TEXT = with_fields("""
%Step = type { ptr, ptr, ptr, i64, ptr, ptr, ptr }

; The primitives that begin and end number. Of one that fails the status is noted, and it is counted.
define void @execute(ptr %table, i64 %begin, i64 %end) nounwind {
entry:
  %is_any = icmp slt i64 %begin, %end
  br i1 %is_any, label %step, label %exit
step:
  %i = phi i64 [ %begin, %entry ], [ %i_next, %next ]
  %execute = field ptr, %Step, ptr %table, i64 %i, i32 0
  %primitive = field ptr, %Step, ptr %table, i64 %i, i32 1
  %stream = field ptr, %Step, ptr %table, i64 %i, i32 2
  %count = field i64, %Step, ptr %table, i64 %i, i32 3
  %arguments = field ptr, %Step, ptr %table, i64 %i, i32 4
  %noted = field ptr, %Step, ptr %table, i64 %i, i32 5
  %failures = field ptr, %Step, ptr %table, i64 %i, i32 6
  %count32 = trunc i64 %count to i32
  %status = call i32 %execute(ptr %primitive, ptr %stream, i32 %count32, ptr %arguments)
  %is_done = icmp eq i32 %status, 0
  br i1 %is_done, label %next, label %fail
fail:
  %status64 = sext i32 %status to i64
  store i64 %status64, ptr %noted
  %earlier = atomicrmw add ptr %failures, i64 1 seq_cst
  br label %next
next:
  %i_next = add i64 %i, 1
  %is_over = icmp eq i64 %i_next, %end
  br i1 %is_over, label %exit, label %step
exit:
  ret void
}
""")

_failures = np.zeros(1, np.int64)
"""The number of primitives that have failed in this process. While it is the same, none has to be asked."""
_failed = _failures.data


@cache
def _functions() -> dict[str, CompiledLoop]:
    return compile_functions(TEXT, ("execute",))


class PrimitiveCall(NamedTuple):
    """A call that executes a primitive in a thread prepared for it, see `PrimitiveSequence`."""

    call: MachineCall
    execution: Execution
    status: Array
    """oneDNN's, if it has failed, an int64 [1]."""


def primitive_call(execution: Execution) -> PrimitiveCall:
    """The call of ``execution``, of a primitive for one thread, with its operands placed."""
    execute, status = library().execute_address, np.zeros(1, np.int64)
    words = [
        word
        for primitive, arguments in execution.steps
        for word in (
            execute, primitive.address or 0, execution.stream.address or 0, len(arguments),
            ctypes.addressof(arguments), status, _failures,
        )
    ]  # fmt: skip
    nanoseconds = execution.primitive.work / MULTIPLICATIONS_PER_NS
    call = MachineCall(_functions()["execute"], Table.of(words, nanoseconds), 0, len(execution.steps))
    return PrimitiveCall(call, execution, status)


@final
class PrimitiveSequence:
    """Machine code that executes primitives among others, called from Python. It prepares the thread.
    ``blame(number, error)`` is the error of the call ``primitives[number]``.
    """

    def __init__(
        self,
        calls: Sequence[MachineCall],
        primitives: Sequence[PrimitiveCall],
        blame: Callable[[int, Exception], Exception],
    ) -> None:
        self._function, self._arguments = in_sequence(calls).bound()
        self._primitives, self._blame = tuple(primitives), blame
        sizes = [primitive.execution.nbytes for primitive in primitives]
        self._nbytes = max(sizes)
        self._largest = sizes.index(self._nbytes)
        self._workspace = 0

    def bound(self) -> BoundCall:
        return self._run, self._arguments

    def _run(self, table: Table, begin: int, end: int) -> None:
        """Raises the error of a primitive that fails, after all have run, and `ResourceExhaustedError` where
        there is no memory for a workspace.
        """
        library().use_threads(1)
        try:
            workspace = WORKSPACE.address(self._nbytes)
        except MemoryError as error:
            raise self._blame(self._largest, error) from error
        if workspace != self._workspace:
            for primitive in self._primitives:
                primitive.execution.place_workspace(workspace)
            self._workspace = workspace
        failed = _failed[0]
        self._function(table, begin, end)
        if _failed[0] != failed:
            self._check()

    def _check(self) -> None:
        """Raise the error of the first primitive that has failed, if it is one of these."""
        statuses = [int(primitive.status[0]) for primitive in self._primitives]
        for primitive in self._primitives:
            primitive.status[0] = 0
        for number, status in enumerate(statuses):
            try:
                library().check_execution(status)
            except OpError as error:
                raise self._blame(number, error) from None
