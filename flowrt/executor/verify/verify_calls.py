"""Verification of what is printed from instructions: calls from Python, and the tables of control nests.

See `flowrt.executor.verify.verify_program`, which follows the instructions themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall, Table
from flowrt.device.llvm.host_jit import CompiledLoop
from flowrt.errors import InternalError
from flowrt.executor.kernels.scalar_code import ScalarCode
from flowrt.executor.lists.row_access import RowAccess
from flowrt.executor.program.control_flow import Control, Loop
from flowrt.executor.program.instruction import Checked, Instruction, call_of, code_maker
from flowrt.executor.program.program import Segment
from flowrt.graph.evaluate import located


def check_calls(segment: Segment) -> None:
    """Raise unless the segment's calls are its instructions, some of them joined as machine code."""
    left = iter(segment.instructions)
    for (function, arguments), node in zip(segment.calls, segment.nodes, strict=True):
        for words in [None] if node is not None else arguments[0].words.reshape(-1, 4).tolist():
            at, action = next(left)
            if words is None:
                is_same = at is node and action.bound()[0] == function
            else:
                make = code_maker(action, is_alone=True)
                code = make and make()
                is_same = code is not None and words == _words(call_of(code))
            if not is_same:
                raise located(at, InternalError("program: expected the call of this operation; got another"))


def _words(call: MachineCall) -> list[int]:
    """The call in the table of a sequence."""
    return [call.loop.address, int(call.table), call.begin, call.end]


def check_nest(control: Control) -> None:
    """Raise unless the machine code in place of a loop or branches, if there is any, is given the calls of
    their instructions, in order, and the places of their scalars and lists.
    """
    if control.nest is None:
        return
    targets = control.nest.pointers.values()
    cells = {target.ctypes.data for target in targets if isinstance(target, np.ndarray)}
    lists = {int(target) for target in targets if isinstance(target, Table)}
    calls = _calls_in(control.nest)
    for node, action in _instructions_in(control):
        match action:
            case MachineCall():
                is_there = _words(action) in calls  # of those after the last one that was found
            case Checked(MachineCall() as call):
                is_there = _words(call) in calls
            case ScalarCode():
                is_there = cells.issuperset([array.ctypes.data for array in action.arrays])
            case RowAccess():
                is_there = int(action.table) in lists
            case _:
                is_there = True
        if not is_there:
            message = "program: expected the machine code of this operation; got another"
            raise located(node, InternalError(message))


def _calls_in(table: Table) -> Iterator[list[int]]:
    """The calls of machine code with this table, in order."""
    loops = sorted([at for at, target in table.pointers.items() if isinstance(target, CompiledLoop)])
    return (table.words[at : at + 4].tolist() for at in loops)


def _instructions_in(control: Control) -> Iterator[Instruction]:
    """All instructions of the functions of ``control``, in order."""
    blocks: Sequence[Sequence[Segment]]
    blocks = [control.bound_body] if isinstance(control, Loop) else control.blocks
    for segment in [segment for block in blocks for segment in block]:
        yield from segment.instructions
        if segment.control is not None:
            yield from _instructions_in(segment.control)
