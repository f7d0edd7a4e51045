"""Compiled loops of operations that write variables: an optimizer's updates in one pass over memory.

Adjacent updates, such as an optimizer's, are one call: `Updates`. The variables' memory is fixed for the
session's lifetime, so the loops are bound to it once; a gradient in a register, received or new in each step,
is looked up at each call. It is copied if its layout does not fit: the same loop updates a variable's copies
on all devices, so they stay equal to the last bit. As in the operations' own kernels, all variables are
locked meanwhile, in a fixed order, and all must be initialized.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from threading import Lock
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.llvm.call_sequence import Call, Table, in_sequence, shared
from flowrt.device.loops.loop_program import LoopBuilder, LoopProgram
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.executor.kernels.copy_kernels import is_fit
from flowrt.executor.kernels.fused_program import by_rule
from flowrt.executor.kernels.loop_layout import PARALLEL_NS, expanded, layout_of, parts_on, strides_in
from flowrt.executor.program.arguments import Later
from flowrt.graph.evaluate import located
from flowrt.graph.node import Node, TensorSpec, static_shape
from flowrt.graph.passes.fusion.group import Level
from flowrt.graph.resources.variables import VariableResource
from flowrt.graph.shapes import is_static

Array = np.ndarray[Any, Any]


class LateArray(NamedTuple):
    """An array that is in register ``slot`` when the call is made, of the ``stand_in``'s shape and dtype."""

    slot: int
    stand_in: Array
    """Stand-in in C order."""

    def read(self, registers: Sequence[Any]) -> Array:
        """The array, in C order. Raises `InvalidArgumentError` for one of another shape."""
        array: Array = registers[self.slot]
        shape, dtype = self.stand_in.shape, self.stand_in.dtype
        is_array = type(array) is np.ndarray  # a scalar has no memory
        if not (is_array and array.flags.c_contiguous and array.flags.aligned and array.dtype == dtype):
            array = np.array(array, dtype, order="C")
        if array.shape != shape:
            message = f"expected an update of shape {list(shape)}; got {list(array.shape)}"
            raise InvalidArgumentError(message)
        return array


def late_array(argument: Any, spec: TensorSpec) -> Any:
    """An ``argument`` of ``spec`` in a register and of known shape as a `LateArray`; any other as it is."""
    if not isinstance(argument, Later) or argument.plain_slot is None or not is_static(spec.shape):
        return argument
    return LateArray(argument.plain_slot, np.empty(static_shape(spec), spec.dtype.np))


class Update(NamedTuple):
    """The update of ``node``: ``calls`` that write ``variables``, of which the ``needed`` must have a value,
    and read ``arrays`` and, by the position of its address in the calls' one ``table``, each of ``late``.
    """

    node: Node
    variables: tuple[VariableResource, ...]
    needed: tuple[VariableResource, ...]
    arrays: tuple[Array, ...]
    late: tuple[tuple[int, LateArray], ...]
    calls: tuple[Call, ...]
    table: Table


def update_of(node: Node, arguments: Sequence[Any]) -> Update | None:
    """The update of ``node``, with inputs variables, arrays or `LateArray`s; None if no loop supports it."""
    variables = tuple([a for a in arguments if isinstance(a, VariableResource)])
    values = [_array_of(argument) for argument in arguments]
    if not variables or len(set(variables)) < len(variables) or not all(map(is_fit, values)):
        return None
    domain = variables[0].array.shape
    if not variables[0].array.size or any(array.shape not in (domain, ()) for array in values):
        return None
    arrays = tuple([a for a in arguments if isinstance(a, np.ndarray)])
    if _overlap(_extents(arrays), _extents([v.array for v in variables])):
        return None  # a gradient that is the variable, read in another order perhaps
    program = update_program(node, arguments, values)
    if program is None:
        return None
    strides = [strides_in(array, Level.ELEMENT, domain) for array in values]
    layout = layout_of(expanded(program), domain, strides)
    read = {data for op, _, _, data, _ in program.instructions if op == "load"}
    needed = tuple([a for i, a in enumerate(arguments) if isinstance(a, VariableResource) and i in read])
    late = tuple([(i, a) for i, a in enumerate(arguments) if isinstance(a, LateArray)])
    calls = tuple(parts_on(layout, values))
    return Update(node, variables, needed, arrays, late, calls, calls[0][1][0])


def _array_of(argument: Any) -> Any:
    if isinstance(argument, LateArray):
        return argument.stand_in
    return argument.array if isinstance(argument, VariableResource) else argument


@final
class Updates:
    """Independent updates as one call: threads share all of their elements. Nothing is written unless all can
    be made. Late arrays are in ``registers``.
    """

    def __init__(self, registers: list[Any]) -> None:
        self._registers = registers
        self._freed: list[int] = []
        self._updates: list[Update] = []
        self._written, self._read = _NOWHERE, _NOWHERE
        self._unsure: list[tuple[Node, VariableResource]] = []
        """Variables not initialized when last checked; once initialized, they stay so."""
        self._call: Call | None = None
        """Call of all loops, created at the first use: until then updates may be added."""
        self._variables: list[VariableResource] = []
        self._begins: list[int] = []
        self._ends: list[int] = []
        """The ends of the written memory ranges, in order; ``_begins`` are their beginnings."""

    def add(self, update: Update) -> bool:
        """Whether ``update`` is one of these from now on; False if it has to wait for another."""
        written, read = _extents([v.array for v in update.variables]), _extents(update.arrays)
        if _overlap(written, self._written) or _overlap(written, self._read) or _overlap(read, self._written):
            return False
        self._written, self._read = np.vstack([self._written, written]), np.vstack([self._read, read])
        self._updates.append(update)
        self._unsure += [(update.node, variable) for variable in update.needed]
        return True

    def free(self, slot: int) -> None:
        """Free the register after the updates."""
        self._freed.append(slot)

    def _joined(self) -> Call:
        self._variables = sorted([v for update in self._updates for v in update.variables], key=id)
        calls = [call for update in self._updates for call in update.calls]
        written = self._written[np.argsort(self._written[:, 0])]
        self._begins, self._ends = written[:, 0].tolist(), written[:, 1].tolist()
        is_long = sum(update.table.nanoseconds for update in self._updates) > PARALLEL_NS
        return shared(calls) if is_long and len(calls) > 1 else in_sequence(calls)

    def __call__(self) -> None:
        """Raises `FailedPreconditionError` for a variable without a value, `InvalidArgumentError` for a late
        array of another shape than was known; both name the operation.
        """
        if self._call is None:
            self._call = self._joined()
        function, arguments = self._call
        held: list[Lock] = []
        try:
            for variable in self._variables:  # in one order for all, so that no two wait for each other
                variable.lock.acquire()
                held.append(variable.lock)
            if self._unsure:
                self._check()
            kept = self._find_late()
            function(*arguments)
            del kept
            for variable in self._variables:
                variable.is_initialized = True
        finally:
            for lock in held:
                lock.release()
        for slot in self._freed:
            self._registers[slot] = None

    def _find_late(self) -> list[Array]:
        """Point the loops to the current late arrays, 1 us each. Arrays that are also written, by this update
        or another, are copied. Returns the arrays to keep alive until the loops end.
        """
        kept = []
        for node, _, _, _, late, _, table in self._updates:
            for position, expected in late:
                try:
                    array = expected.read(self._registers)
                except InvalidArgumentError as error:
                    raise located(node, error) from None
                address = _address(array)
                if self._is_written(address, array.nbytes):
                    array = array.copy()
                    address = _address(array)
                table.words[position] = address
                kept.append(array)
        return kept

    def _is_written(self, address: int, nbytes: int) -> bool:
        before = bisect_left(self._begins, address + nbytes)
        return before > 0 and self._ends[before - 1] > address

    def _check(self) -> None:
        for node, variable in self._unsure:
            try:
                variable.read()
            except FailedPreconditionError as error:
                raise located(node, error) from None
        self._unsure = []


# --- where arrays are

_Extents = np.ndarray[Any, Any]
"""[n, 2]: the addresses at which arrays begin and end."""

_NOWHERE = np.empty((0, 2), np.int64)


def _address(array: Array) -> int:
    return array.__array_interface__["data"][0]


def _extents(arrays: Sequence[Array]) -> _Extents:
    return np.array([np.lib.array_utils.byte_bounds(array) for array in arrays], np.int64).reshape(-1, 2)


def _overlap(some: _Extents, others: _Extents) -> bool:
    return bool(((some[:, None, 0] < others[:, 1]) & (others[:, 0] < some[:, None, 1])).any())


# --- loops


def update_program(node: Node, arguments: Sequence[Any], arrays: Sequence[Any]) -> LoopProgram | None:
    """The program that applies ``node`` to ``arrays``, those of its arguments: each is the operand of its
    index. None if the operation has no rule for that.
    """
    builder = LoopBuilder()
    values = [builder.load(builder.operand(array.dtype.name), array.shape == ()) for array in arrays]
    results = by_rule(builder, node, values)
    if results is None:
        return None
    written = [i for i, argument in enumerate(arguments) if isinstance(argument, VariableResource)]
    for number, value in zip(written, results, strict=True):
        builder.put(builder.spread(value), number)
    return builder.build()
