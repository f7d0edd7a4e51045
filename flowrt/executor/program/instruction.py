"""Instructions of a lowered program, as data: for each node, the actions that compute it.

    Call          a Python function on its arguments
    MachineCall   a compiled loop (`flowrt.device.llvm.call_sequence`); `ParallelCall`, shared by threads
    Summed        a compiled loop with sums, which threads share
    BoundPrimitive  a primitive of oneDNN's (`flowrt.executor.program.primitive_action`)
    Checked       a compiled loop that may not support its inputs, and the function that then settles it
    Move          of a value to a register or an array
    Free          of a register
    Update        of variables by compiled loops; adjacent ones are joined (`flowrt.executor.program.updates`)
    ScalarCode    scalar operations in a loop or branch (`flowrt.executor.kernels.scalar_code`)
    RowAccess     a row of a list in a loop (`flowrt.executor.lists.row_access`)
    Awaiting      plain kernels until a loop is compiled (`flowrt.executor.bind.awaited_loops`)
    Signal        an event, for a program on another host stream
    UseStream, Record, WaitFor      the streams of an asynchronous device

Binding makes them, passes join them, and printers turn them into what is executed: `bound` into a Python
function and its arguments, `flowrt.executor.lists.compiled_body` into machine code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from flowrt.device.llvm.call_sequence import Array, BoundCall, MachineCall, ParallelCall, in_sequence
from flowrt.device.llvm.host_pool import num_threads
from flowrt.device.onednn.primitive_call import PrimitiveCall, PrimitiveSequence
from flowrt.device.stream_executor import Event, Stream
from flowrt.executor.program.primitive_action import BoundPrimitive
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node


class Action(Protocol):
    """The effect of an instruction."""

    def bound(self) -> BoundCall:
        """The Python function that has this effect, and its arguments."""


class Call(NamedTuple):
    """``function(*arguments)``."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def bound(self) -> BoundCall:
        return self.function, (*self.arguments,)


class Summed(NamedTuple):
    """``call`` of a loop with sums, of which each part has its own: ``before`` sets them to 0, and ``after``
    adds them up. ``alone`` is all of that on one thread.
    """

    before: MachineCall
    call: ParallelCall
    after: MachineCall
    alone: MachineCall

    def bound(self) -> BoundCall:
        return run_in_turn, (self.before.bound(), self.call.bound(), self.after.bound())


def run_in_turn(*calls: BoundCall) -> None:
    """Make the calls one after another."""
    for function, arguments in calls:
        function(*arguments)


class Checked(NamedTuple):
    """``call`` of a loop that may not support its inputs: ``settle()`` then raises the operation's error, or
    recomputes everything. With a ``status``, an int64 [1] that the loop may set, only if that is set.

    In a loop of machine code ``settle`` runs after all iterations, but for a status the machine code pauses
    (`flowrt.executor.lists.compiled_body`).
    """

    call: MachineCall | ParallelCall | Summed
    settle: Callable[[], None]
    status: Array | None = None

    def bound(self) -> BoundCall:
        status = None if self.status is None else self.status.data
        return _run_checked, (*self.call.bound(), self.settle, status)


def _run_checked(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    settle: Callable[[], None],
    status: memoryview | None,
) -> None:
    function(*arguments)
    if status is None:
        settle()
    elif status[0]:  # a look-up takes 40 ns, an array element's 100
        status[0] = 0
        settle()


class Register(NamedTuple):
    """Register ``slot`` of a program."""

    registers: list[Any]
    slot: int


Place: TypeAlias = "Array | Register"
"""The location of a value: an array of the device, or a register."""


Copy: TypeAlias = "Callable[..., Any]"
"""A function that copies arrays. See `Move`."""


class Move(NamedTuple):
    """The value at ``source`` to ``target``: by ``copy(target, source)`` into an array, and by
    ``copy(source)``, which returns the new value, into a register. Without ``copy`` the register refers to
    the same value.
    """

    target: Place
    source: Place
    copy: Copy | None = np.copyto

    def bound(self) -> BoundCall:
        target, source, copy = self
        match target, source:
            case Register(), Register():
                return (_refer, (*target, *source)) if copy is None else (_copy, (*target, copy, *source))
            case Register(), _:
                return _store, (*target, copy, source)
            case _, Register():
                return _load, (copy, target, *source)
        assert copy is not None
        return copy, (target, source)


def _refer(registers: list[Any], slot: int, others: list[Any], source: int) -> None:
    registers[slot] = others[source]


def _copy(registers: list[Any], slot: int, copy: Callable[..., Any], others: list[Any], source: int) -> None:
    registers[slot] = copy(others[source])


def _store(registers: list[Any], slot: int, copy: Callable[..., Any], array: Array) -> None:
    registers[slot] = copy(array)


def _load(copy: Callable[..., Any], array: Array, registers: list[Any], source: int) -> None:
    copy(array, registers[source])


class Free(NamedTuple):
    """Release the value in register ``slot``."""

    registers: list[Any]
    slot: int

    def bound(self) -> BoundCall:
        return self.registers.__setitem__, (self.slot, None)


class Signal(NamedTuple):
    """``send(key, True)``: what was computed so far is done, for the one that waits for ``key``."""

    send: Callable[[str, Any], None]
    key: str

    def bound(self) -> BoundCall:
        return self.send, (self.key, True)


class UseStream(NamedTuple):
    """The following instructions are on ``stream``."""

    stream: Stream

    def bound(self) -> BoundCall:
        return self.stream.executor.use, (self.stream,)


class Record(NamedTuple):
    """Record ``event`` on ``stream``."""

    stream: Stream
    event: Event

    def bound(self) -> BoundCall:
        return self.stream.executor.record, (self.stream, self.event)


class WaitFor(NamedTuple):
    """``stream`` waits for an event, or for all that is on another stream now."""

    stream: Stream
    other: Event | Stream

    def bound(self) -> BoundCall:
        return self.stream.executor.wait_for, (self.stream, self.other)


class Instruction(NamedTuple):
    """An action for a node."""

    node: Node
    action: Action


Code: TypeAlias = "MachineCall | PrimitiveCall"
"""An action as machine code."""


def code_maker(action: Action, is_alone: bool) -> Callable[[], Code | None] | None:
    """The function that makes the machine code of the action, or finds that there is none; None if it cannot
    be that. If one thread computes alone, loops that threads may share can be, and primitives.
    """
    match action:
        case MachineCall():
            return lambda: action
        case ParallelCall() if is_alone:
            return lambda: action.call
        case Summed() if is_alone:
            return lambda: action.alone
        case BoundPrimitive() if is_alone and not action.is_late:
            return action.machine_code
    return None


def free_late(instructions: Sequence[Instruction]) -> Sequence[Instruction]:
    """``instructions``, with registers freed behind what may be one piece of machine code, which has no use
    for them.
    """
    found: list[Instruction] = []
    freed: list[Instruction] = []
    for instruction in instructions:
        match instruction.action:
            case Free() if found and code_maker(found[-1].action, is_alone=True):
                freed.append(instruction)
                continue
            case action if freed and not code_maker(action, is_alone=True):
                found += freed
                freed = []
        found.append(instruction)
    return [*found, *freed]


def python_calls(instructions: Sequence[Instruction]) -> list[tuple[BoundCall, Node | None]]:
    """The instructions as calls from Python, each with its node: None for several as one piece of machine
    code. What is printed for one thread stays so if there are more later. Raises errors of oneDNN, which name
    the operation.
    """
    codes = _codes_beside_others(instructions, is_alone=num_threads() == 1)
    calls: list[tuple[BoundCall, Node | None]] = []
    for is_code, run in groupby(zip(instructions, codes, strict=True), lambda item: item[1] is not None):
        several = list(run)
        if is_code and len(several) > 1:
            calls.append((_in_sequence([(node, code) for (node, _), code in several if code]), None))
        else:
            calls += [(action.bound(), node) for (node, action), _ in several]
    return calls


def _codes_beside_others(instructions: Sequence[Instruction], is_alone: bool) -> list[Code | None]:
    """The machine code of instructions with a neighbour that may have one, too. An action alone is called as
    it is: a primitive's code would be a second copy of its constants.
    """
    makers = [code_maker(action, is_alone) for _, action in instructions]
    codes: list[Code | None] = []
    triples = zip([None, *makers], makers, [*makers[1:], None], strict=False)
    for (node, _), (before, make, after) in zip(instructions, triples, strict=False):
        try:
            codes.append(make() if make and (before or after) else None)
        except Exception as error:
            raise located(node, error) from error
    return codes


def call_of(code: Code) -> MachineCall:
    return code.call if isinstance(code, PrimitiveCall) else code


def _in_sequence(codes: Sequence[tuple[Node, Code]]) -> BoundCall:
    """The machine code of several nodes as one call. Errors in it name the node."""
    calls = [call_of(code) for _, code in codes]
    primitives = [(node, code) for node, code in codes if isinstance(code, PrimitiveCall)]
    if not primitives:
        return in_sequence(calls).bound()

    def blame(number: int, error: Exception) -> Exception:
        return located(primitives[number][0], error)

    return PrimitiveSequence(calls, [code for _, code in primitives], blame).bound()
