"""Memory layout of the arrays of a `LoopProgram`, and the compiled loop for it.

Dimensions that are contiguous in all operands are merged. Loops are compiled once per layout.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flowrt.device.llvm.call_sequence import MachineCall, ParallelCall, Table
from flowrt.device.llvm.host_jit import CompiledLoop, compile_loop, has_masks
from flowrt.device.llvm.host_pool import PARALLEL_NS
from flowrt.executor.kernels.fused_program import remembered
from flowrt.graph.passes.fusion.group import Level
from flowrt.loops.llvm_loops import WHOLE, llvm_function
from flowrt.loops.loop_math import expand_functions
from flowrt.loops.loop_program import LoopProgram, Store
from flowrt.loops.nest import BUFFER

Array = np.ndarray[Any, Any]

MAX_PARTS = 16
"""Maximum number of parts into which a loop is split; each has its own partial sums."""

NS_PER_INSTRUCTION = 0.08
"""Time per element: 8 to 16 are computed at once."""

NS_PER_OPERAND, NS_PER_CACHED_OPERAND = 0.25, 0.06
"""Time per element: memory has a bandwidth of about 16 bytes per nanosecond, the cache in which another
operation of the step has just left them 64.
"""

MAX_CACHED = 1 << 18
"""Elements of all operands of a loop that finds them in the cache: of float32 1 MiB, half of a core's."""


MAX_RAGGED, MIN_LEFT = 512, 4
"""Rows of fewer columns, of which at least so many would be computed one by one, are computed in masked
vectors: softmax of 60 columns takes 1.4 ns per element instead of 2.8, of 255 1.1 instead of 1.6; of 700 as
long, and of 130 1.2 instead of 1.1.
"""


class Layout(NamedTuple):
    """Layout of a group's arrays: the loop for it, and the words after the addresses in its table."""

    loop: CompiledLoop
    numbers: tuple[int, ...]
    """Dimensions, strides and grain."""
    extent: int
    """Size of dimension 0."""
    grain: int
    parts: int
    nanoseconds: float
    """Estimated time on one thread."""


_printed: dict[tuple[str, tuple[str, ...], tuple[bool, ...]], tuple[str, int]] = {}
"""The text of loops, and their number of instructions, by the text of a program: 0.0 and -0.0 are equal, and
so are programs with them. The layers of a network have equal groups.
"""
_compiled: dict[str, CompiledLoop] = {}
"""Compiled loops, kept when failed steps discard their instances; the next step reuses them."""


def compiled(text: str) -> CompiledLoop:
    """`compile_loop`, with a cache that keeps unused results for a while."""
    return remembered(_compiled, text, lambda: compile_loop(text))


def layout_of(
    program: LoopProgram,
    domain: tuple[int, ...],
    strides: Sequence[tuple[int, ...]],
    for_all_sizes: bool = False,
) -> Layout:
    """The loop of ``program`` for operands with these strides, one per dimension of ``domain``.
    ``for_all_sizes``: a few elements have no loop of their own.
    """
    if not domain:
        domain, strides = (1,), [(0,)] * len(strides)
    dims, lies = coalesced(domain, strides, keeps_rows=has_rows(program, strides))
    accesses = tuple([_letters(steps) for steps in lies])
    has_columns = len(dims) > 1
    is_ragged, is_whole = has_columns and _is_ragged(dims[-1]), has_columns and dims[-1] % WHOLE == 0
    is_brief = not (has_columns or for_all_sizes) and WHOLE // 4 <= dims[0] < WHOLE
    rows = is_ragged, dims[-1] <= BUFFER, is_whole, is_brief
    text, count = remembered(
        _printed, (str(program), accesses, rows), lambda: _print(program, accesses, rows)
    )
    is_cached = math.prod(domain) * len(lies) <= MAX_CACHED
    per_operand = NS_PER_CACHED_OPERAND if is_cached else NS_PER_OPERAND
    nanoseconds = math.prod(domain) * (NS_PER_INSTRUCTION * count + per_operand * len(lies))
    is_long = nanoseconds > PARALLEL_NS and dims[0] > 1
    grain = max(1, math.ceil(dims[0] / MAX_PARTS)) if is_long else max(1, dims[0])
    numbers = (*dims, *[stride for steps in lies for stride in steps], grain)
    return Layout(compiled(text), numbers, dims[0], grain, math.ceil(dims[0] / grain), nanoseconds)


def _print(program: LoopProgram, accesses: Sequence[str], rows: tuple[bool, ...]) -> tuple[str, int]:
    program = expand_functions(program)
    count = sum(op not in ("load", "const") for op, *_ in program.instructions)
    return llvm_function(program, accesses, *rows), count


def _is_ragged(columns: int) -> bool:
    """Whether masked vectors compute a row of so many columns faster: LLVM computes what is left of groups of
    64 in vectors of 8, and what is left of these one by one.
    """
    return columns < MAX_RAGGED and columns % 8 >= MIN_LEFT and has_masks()


def call_on(layout: Layout, arrays: Sequence[Array]) -> MachineCall | ParallelCall:
    """The call that runs the loop on ``arrays``, its operands."""
    call = whole_on(layout, arrays)
    return ParallelCall(call, layout.grain) if layout.parts > 1 else call


def whole_on(layout: Layout, arrays: Sequence[Array]) -> MachineCall:
    """The loop on ``arrays``, on one thread."""
    return MachineCall(layout.loop, _table(layout, arrays), 0, layout.extent)


def parts_on(layout: Layout, arrays: Sequence[Array]) -> list[MachineCall]:
    """The loop on ``arrays`` part by part, in any order."""
    table = _table(layout, arrays)
    bounds = [*range(0, layout.extent, layout.grain), layout.extent]
    return [MachineCall(layout.loop, table, begin, end) for begin, end in itertools.pairwise(bounds)]


def _table(layout: Layout, arrays: Sequence[Array]) -> Table:
    return Table.of([*arrays, *layout.numbers], layout.nanoseconds)


# --- layouts of arrays


def strides_in(array: Array, level: Level, domain: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements, one per dimension of the domain; for a matrix those of one of its rows."""
    if level is Level.MATRIX:
        return (*[0] * (len(domain) - 1), 1)
    if level is Level.ROW:
        array = np.broadcast_to(array, (*domain[:-1], 1))
    elif level is Level.DROPPED:
        array = np.broadcast_to(array, domain[:-1])[..., None]
    if array.shape != domain:  # a view takes 7 us
        array = np.broadcast_to(array, domain)
    return tuple([stride // array.itemsize for stride in array.strides])


def coalesced(
    dims: tuple[int, ...], strides: Sequence[tuple[int, ...]], keeps_rows: bool
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """The domain with as few dimensions as possible: those of size one are dropped, and two are merged if
    they are contiguous in every operand. With ``keeps_rows`` the last one is kept, after at least one other.
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


def has_rows(program: LoopProgram, strides: Sequence[tuple[int, ...]]) -> bool:
    """Whether it matters to the program where rows begin."""
    return any(output.store is Store.SUM_ROWS for output in program.outputs) or any(
        op.startswith("row_")
        or op in ("column", "columns", "load_at")
        or (op == "load" and is_row and any(strides[data]))
        for op, _, _, data, is_row in program.instructions
    )
