"""Primitives called by machine code on one thread, in a sequence with compiled loops.

From Python, a product of 128x256 by 256x256, which takes 120 us, costs 40 more: the product has displaced
from the caches what a call touches of the interpreter.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import BoundCall, MachineCall, Table, in_sequence
from flowrt.device.llvm.host_jit import CompiledLoop, compile_functions
from flowrt.device.onednn.onednn import library
from flowrt.device.onednn.primitives import Execution
from flowrt.device.workspace import WORKSPACE
from flowrt.errors import ResourceExhaustedError
from flowrt.loops.llvm_text import with_fields

MULTIPLICATIONS_PER_NS = 50
"""Speed of one thread, roughly: 60 to 73 were measured with AVX-512."""

TEXT = with_fields("""
%Step = type { ptr, ptr, ptr, i64, ptr, ptr }

; The primitives that begin and end number. Of one that fails, the status is noted, and counted.
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
  %failures = field ptr, %Step, ptr %table, i64 %i, i32 5
  %count32 = trunc i64 %count to i32
  %status = call i32 %execute(ptr %primitive, ptr %stream, i32 %count32, ptr %arguments)
  %is_done = icmp eq i32 %status, 0
  br i1 %is_done, label %next, label %fail
fail:
  %status64 = sext i32 %status to i64
  %at_status = getelementptr i64, ptr %failures, i64 1
  store i64 %status64, ptr %at_status
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

_failures = np.zeros(2, np.int64)
"""The number of primitives that have failed in this process, and the status of the last one. A sequence that
runs meanwhile in another thread fails, too.
"""
_failed = _failures.data


@cache
def _functions() -> dict[str, CompiledLoop]:
    return compile_functions(TEXT, ("execute",))


class PrimitiveCall(NamedTuple):
    """A call that executes a primitive in a thread prepared for it, see `PrimitiveSequence`."""

    call: MachineCall
    execution: Execution


def primitive_call(execution: Execution) -> PrimitiveCall:
    """The call of ``execution``, of a primitive for one thread, with its operands placed."""
    execute = library().execute_address
    words = [
        word
        for primitive, arguments in execution.steps
        for word in (
            execute, primitive.address or 0, execution.stream.address or 0, len(arguments),
            ctypes.addressof(arguments), _failures,
        )
    ]  # fmt: skip
    nanoseconds = execution.primitive.work / MULTIPLICATIONS_PER_NS
    call = MachineCall(_functions()["execute"], Table.of(words, nanoseconds), 0, len(execution.steps))
    return PrimitiveCall(call, execution)


@final
class PrimitiveSequence:
    """Machine code that executes primitives among others, called from Python. It prepares the thread."""

    def __init__(self, calls: Sequence[MachineCall], executions: Sequence[Execution]) -> None:
        self._function, self._arguments = in_sequence(calls).bound()
        self._executions = tuple(executions)
        self._nbytes = max(execution.nbytes for execution in executions)
        self._workspace = 0

    def bound(self) -> BoundCall:
        return self._run, self._arguments

    def _run(self, table: Table, begin: int, end: int) -> None:
        """Raises the error of a primitive that fails, after all have run, and `ResourceExhaustedError` where
        there is no memory for a workspace.
        """
        dnnl = library()
        dnnl.use_threads(1)
        try:
            workspace = WORKSPACE.address(self._nbytes)
        except MemoryError as error:
            raise ResourceExhaustedError(f"out of memory: {error}") from error
        if workspace != self._workspace:
            for execution in self._executions:
                execution.place_workspace(workspace)
            self._workspace = workspace
        failed = _failed[0]
        self._function(table, begin, end)
        if _failed[0] != failed:
            dnnl.check_execution(_failed[1])
