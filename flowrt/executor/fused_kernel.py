"""`FusedKernel`: the compiled loop of a group of operations, called on arrays.

What a loop looks like depends on how its arrays lie in memory, so it is made when they are known: dimensions
that all operands go through in one stride become one, and an operand that shares its memory with a result
becomes one with it. Loops are compiled once for each way to lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.device.host_jit import CompiledLoop, compile_loop
from flowrt.device.host_pool import run_in_parallel
from flowrt.device.llvm_loops import llvm_function
from flowrt.device.loop_math import expand_functions
from flowrt.device.loops import LoopProgram, Store
from flowrt.executor.arguments import Later
from flowrt.executor.fused_program import OperandOf, fused_program
from flowrt.graph.node import Node, static_shape
from flowrt.graph.passes.fuse import Group, Level, plain_kernel

Array = np.ndarray[Any, Any]

MAX_PARTS = 16
"""Into how many parts a loop is cut at most; each has its own sums."""

NS_PER_INSTRUCTION, NS_PER_OPERAND = 0.08, 0.25
"""Of one element: 8 to 16 are computed at once, and memory gives about 16 bytes a nanosecond."""

PARALLEL_NS, RELEASING_NS = 80e3, 20e3
"""From how long on a loop is shared by threads, and lets other Python threads run."""


class _Table(int):
    """The address of a loop's table, which it keeps."""

    array: Array

    @classmethod
    def of(cls, array: Array) -> _Table:
        table = cls(array.ctypes.data)
        table.array = array
        return table


class _Layout(NamedTuple):
    """How a group's arrays lie: the loop for it, and what its table has behind the addresses."""

    loop: CompiledLoop
    numbers: tuple[int, ...]
    """Dimensions, strides and grain."""
    extent: int
    """Of dimension 0."""
    grain: int
    parts: int
    nanoseconds: float
    """About how long it takes one thread."""


@final
class FusedKernel:
    """The kernel of a fused node on the host: ``kernel(inputs, out=None)`` as any other, where ``inputs`` is
    one tuple. What loops cannot do (a check that fails, memory that overlaps) the members' own kernels do.
    """

    def __init__(self, node: Node) -> None:
        self._group: Group = node.attrs["group"]
        self._specs = node.outputs
        traced = fused_program(self._group)
        self._program = None if traced is None else expanded(traced.program)
        self._operands = () if traced is None else traced.operands
        self._layouts: dict[Any, _Layout] = {}

    def __call__(self, inputs: Sequence[Array], out: Sequence[Array] | None = None) -> Sequence[Array]:
        results = out
        if results is None:
            results = [np.empty(static_shape(spec), spec.dtype.np) for spec in self._specs]
        function, arguments = self.bind([np.asarray(value) for value in inputs], results)
        function(*arguments)
        return results

    def prepare(self) -> None:
        """Compile the loop for arrays in C order, which most are. Raises what the compiler raises."""
        inputs = [np.empty(static_shape(s), s.dtype.np) for s in self._group.inputs.values()]
        self._layout(inputs, [np.empty(static_shape(s), s.dtype.np) for s in self._specs])

    def bind(
        self, inputs: Sequence[Array], results: Sequence[Array]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What to call to compute ``results`` from ``inputs``, whenever their elements have changed."""
        layout = self._layout(inputs, results)
        if layout is None:
            return self._call_members, (inputs, results)
        sums = {
            position: self._partial_sums(operand, results, layout)
            for position, operand in enumerate(self._operands)
            if operand.level in (Level.COLUMN_SUM, Level.TOTAL)
        }
        arrays = [
            sums[position] if position in sums else self._array(operand, inputs, results)
            for position, operand in enumerate(self._operands)
        ]
        function, arguments = call_on(layout, arrays)
        if not sums:
            return function, arguments
        if len(sums) == 1 and self._program is not None and self._program.status in sums:
            status = sums[self._program.status].data  # looked at in 40 ns, an array's element in 100
            return self._call_checked, (function, arguments, status, inputs, results)
        return self._call_with_sums, (function, arguments, sums, inputs, results)

    def bind_late(
        self, late: Later, registers: list[Any], results: Sequence[Array]
    ) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """As `bind`, for inputs of which some are in registers when the call is made. Their addresses go into
        the loop's table then: 0.7 us each, where to bind anew takes 60.
        """
        stand_ins = [
            np.empty(static_shape(spec), spec.dtype.np) if item.slot is not None else item.value
            for item, spec in zip(late.items, self._group.inputs.values(), strict=True)
        ]
        slots = [item.slot for item in late.items]
        function, arguments = self.bind(stand_ins, results)
        layout = self._layout(stand_ins, results)
        if layout is None or layout.parts > 1 or not isinstance(arguments[0], _Table):
            return lambda: self(late.read(registers), results), ()
        table = arguments[0].array
        places = [
            (position, slot)
            for position, operand in enumerate(self._operands)
            if operand.is_input and (slot := slots[operand.number or 0]) is not None
        ]

        def call(_: Any = stand_ins) -> None:  # which were there before the first call
            for position, slot in places:
                array = registers[slot]
                if type(array) is not np.ndarray or not array.flags.carray:  # a scalar has no memory
                    self(late.read(registers), results)
                    return
                table[position] = array.__array_interface__["data"][0]
            function(*arguments)

        return call, ()

    # --- ways to compute

    def _call_members(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        with np.errstate(all="ignore"):
            plain_kernel(np, tuple(inputs), self._group, results)

    def _call_checked(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        status: memoryview,
        inputs: Sequence[Array],
        results: Sequence[Array],
    ) -> None:
        function(*arguments)
        if status[0]:
            status[0] = 0
            self._call_members(inputs, results)

    def _call_with_sums(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        sums: dict[int, Array],
        inputs: Sequence[Array],
        results: Sequence[Array],
    ) -> None:
        for array in sums.values():
            array.fill(0)
        function(*arguments)
        for position, array in sums.items():
            number = self._operands[position].number
            if number is not None:
                result = results[number]
                result[...] = array.sum(axis=0).reshape(result.shape)
            elif array[0]:
                self._call_members(inputs, results)
                return

    # --- memory

    def _array(self, operand: OperandOf, inputs: Sequence[Array], results: Sequence[Array]) -> Array:
        assert operand.number is not None
        return inputs[operand.number] if operand.is_input else results[operand.number]

    def _partial_sums(self, operand: OperandOf, results: Sequence[Array], layout: _Layout) -> Array:
        if operand.number is None:
            return np.zeros(1, np.int64)
        result = results[operand.number]
        if operand.level is Level.TOTAL:
            return np.zeros(layout.parts, np.float64 if result.dtype.kind == "f" else result.dtype)
        return np.zeros((layout.parts, result.size), result.dtype)

    def _layout(self, inputs: Sequence[Array], results: Sequence[Array]) -> _Layout | None:
        if self._program is None:
            return None
        shared = self._shared(inputs, results)
        if shared is None or not all(array.flags.aligned for array in (*inputs, *results)):
            return None
        key = (*[a.strides for a in inputs], *[a.strides for a in results], tuple(shared.items()))
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = self._new_layout(inputs, results, shared)
        return layout

    def _shared(self, inputs: Sequence[Array], results: Sequence[Array]) -> dict[int, int] | None:
        """Which operands are one with an earlier one: an input whose memory a result takes. None where they
        would not be read and written in step.
        """
        shared: dict[int, int] = {}
        places: dict[int, tuple[int, tuple[int, ...]]] = {}
        for position, operand in enumerate(self._operands):
            if operand.level in (Level.COLUMN_SUM, Level.TOTAL):
                continue
            array = self._array(operand, inputs, results)
            address, strides = array.ctypes.data, strides_in(array, operand.level, self._group.domain)
            if operand.is_input:
                places.setdefault(address, (position, strides))
            elif address in places:
                other, lies = places[address]
                if lies != strides or self._operands[other].level is not operand.level:
                    return None
                shared[position] = other
        return shared

    def _new_layout(
        self, inputs: Sequence[Array], results: Sequence[Array], shared: dict[int, int]
    ) -> _Layout:
        assert self._program is not None
        domain = self._group.domain
        strides = []
        for operand in self._operands:
            if operand.level in (Level.COLUMN_SUM, Level.TOTAL):
                column = 1 if operand.level is Level.COLUMN_SUM else 0
                strides.append((0,) * (len(domain) - 1) + (column,) * bool(domain))
            else:
                strides.append(strides_in(self._array(operand, inputs, results), operand.level, domain))
        program = _merged(self._program, shared)
        return layout_of(program, domain, strides)


_expanded: dict[str, LoopProgram] = {}
_texts: dict[tuple[str, tuple[str, ...]], str] = {}
"""By the text of a program: 0.0 and -0.0 are equal, and so are programs with them. The layers of a network
have equal groups.
"""

MAX_KEPT = 512


def expanded(program: LoopProgram) -> LoopProgram:
    """`expand_functions`, once for equal programs."""
    found: LoopProgram = _once(_expanded, str(program), lambda: expand_functions(program))
    return found


def _compiled(program: LoopProgram, accesses: tuple[str, ...]) -> CompiledLoop:
    return compile_loop(_once(_texts, (str(program), accesses), lambda: llvm_function(program, accesses)))


def _once(known: dict[Any, Any], key: Any, make: Callable[[], Any]) -> Any:
    found = known.get(key)
    if found is None:
        if len(known) >= MAX_KEPT:
            known.clear()
        found = known[key] = make()
    return found


def layout_of(program: LoopProgram, domain: tuple[int, ...], strides: Sequence[tuple[int, ...]]) -> _Layout:
    """The loop of ``program`` for operands with these strides, one a dimension of ``domain``."""
    if not domain:
        domain, strides = (1,), [(0,)] * len(strides)
    dims, lies = coalesced(domain, strides, keeps_rows=_has_rows(program, strides))
    loop = _compiled(program, tuple([_letters(steps) for steps in lies]))
    count = sum(op not in ("load", "const") for op, *_ in program.instructions)
    nanoseconds = math.prod(domain) * (NS_PER_INSTRUCTION * count + NS_PER_OPERAND * len(lies))
    is_long = nanoseconds > PARALLEL_NS and dims[0] > 1
    grain = max(1, math.ceil(dims[0] / MAX_PARTS)) if is_long else dims[0]
    numbers = (*dims, *[stride for steps in lies for stride in steps], grain)
    return _Layout(loop, numbers, dims[0], grain, math.ceil(dims[0] / grain), nanoseconds)


def call_on(layout: _Layout, arrays: Sequence[Array]) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """What to call to run the loop on ``arrays``, its operands, which must stay."""
    table = _Table.of(np.array([*[array.ctypes.data for array in arrays], *layout.numbers], np.int64))
    if layout.parts > 1:
        return run_in_parallel, (layout.loop.call, table, 0, layout.extent, layout.grain)
    call = layout.loop.call if layout.nanoseconds > RELEASING_NS else layout.loop.call_holding_gil
    return call, (table, 0, layout.extent)


# --- how arrays lie


def strides_in(array: Array, level: Level, domain: tuple[int, ...]) -> tuple[int, ...]:
    """In elements, one a dimension of the domain."""
    if level is Level.ROW:
        array = np.broadcast_to(array, (*domain[:-1], 1))
    elif level is Level.DROPPED:
        array = np.broadcast_to(array, domain[:-1])[..., None]
    whole = np.broadcast_to(array, domain)
    return tuple([stride // array.itemsize for stride in whole.strides])


def coalesced(
    dims: tuple[int, ...], strides: Sequence[tuple[int, ...]], keeps_rows: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The domain with as few dimensions as can be: those of one element go, and two become one where every
    operand goes through them in one stride. With ``keeps_rows`` the last stays as it is, behind at least
    one other.
    """
    columns = [(dims[-1], [lies[-1] for lies in strides])] if keeps_rows else []
    found: list[tuple[int, list[int]]] = []
    for i in range(len(dims) - bool(columns)):
        size, steps = dims[i], [lies[i] for lies in strides]
        if size == 1:
            continue
        if found and all(outer == step * size for outer, step in zip(found[-1][1], steps, strict=True)):
            found[-1] = (found[-1][0] * size, steps)
        else:
            found.append((size, steps))
    if not found:
        found.append((1, [0] * len(strides)))
    found += columns
    return tuple([size for size, _ in found]), [
        tuple([steps[operand] for _, steps in found]) for operand in range(len(strides))
    ]


def _letters(strides: tuple[int, ...]) -> str:
    outer = "".join("s" if stride else "0" for stride in strides[:-1])
    return outer + {0: "0", 1: "1"}.get(strides[-1], "s")


def _has_rows(program: LoopProgram, strides: Sequence[tuple[int, ...]]) -> bool:
    """Whether it matters to the program where rows begin."""
    return any(output.store is Store.SUM_ROWS for output in program.outputs) or any(
        op.startswith("row_")
        or op in ("column", "columns")
        or (op == "load" and is_row and any(strides[data]))
        for op, _, _, data, is_row in program.instructions
    )


def _merged(program: LoopProgram, shared: dict[int, int]) -> LoopProgram:
    """``program`` with results put into the operands that they share memory with."""
    outputs = [o._replace(operand=shared.get(o.operand, o.operand)) for o in program.outputs]
    return program._replace(outputs=tuple(outputs))
