"""Several tensors in one memory, one behind the other: the variables of a unit, as they are gathered.

    GatherTogether   concatenates the parts of each, all on one device
    TakeApart        each of them, as a view

Each begins at a multiple of `GRAIN` bytes, as tensors with memory of their own do. Between graphs
`flowrt.graph.ops.collective.group_transfer` makes the memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from flowrt.dtypes import DType
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import NONDIFFERENTIABLE, OpDef, Sample, ShapeContext, define_op, sample
from flowrt.graph.op_facets import Traits
from flowrt.graph.shapes import Shape

GRAIN = 64
"""Bytes: the alignment of each tensor (`flowrt.executor.buffers.memory_plan.GRAIN`)."""


def length_of(shapes: Sequence[Shape], dtype: DType) -> int:
    """The elements of the memory of tensors of these static ``shapes``."""
    return _begins(tuple(shapes), dtype.np.itemsize)[-1]


def in_front(shape: Shape, axis: int) -> tuple[int, ...]:
    """The static ``shape`` with ``axis`` in front: as a tensor that is gathered along it is written."""
    dims = [d or 0 for d in shape or ()]
    return dims[axis], *dims[:axis], *dims[axis + 1 :]


def written_in(memory: Any, shapes: Sequence[Shape], axes: Sequence[int]) -> list[Any]:
    """The tensors of ``shapes`` in ``memory``, as they are written: with the axis of each in front."""
    begins = _begins(tuple(shapes), memory.dtype.itemsize)
    found = []
    for begin, shape, axis in zip(begins, shapes, axes, strict=False):
        dims = in_front(shape, axis)
        found.append(memory[begin : begin + math.prod(dims)].reshape(dims))
    return found


@lru_cache(1024)
def _begins(shapes: tuple[Shape, ...], itemsize: int) -> list[int]:
    """The element at which each tensor begins, and the end of all."""
    grain, begins = max(1, GRAIN // itemsize), [0]
    for shape in shapes:
        size = math.prod([d or 0 for d in shape or ()])
        begins.append(begins[-1] + -(-size // grain) * grain)
    return begins


def _gather_together(
    xp: Any,
    values: Sequence[Any],
    dtype: DType,
    axes: Sequence[int],
    shapes: Sequence[Shape],
    out: Any = None,
) -> Any:
    memory = xp.empty((length_of(shapes, dtype),), dtype.np) if out is None else out
    for number, target in enumerate(written_in(memory, shapes, (0,) * len(shapes))):
        xp.concatenate(values[number :: len(axes)], axis=axes[number], out=target)
    return memory


def _take_apart(xp: Any, memory: Any, axes: Sequence[int], shapes: Sequence[Shape]) -> list[Any]:
    written = written_in(memory, shapes, axes)
    return [xp.moveaxis(each, 0, axis) for each, axis in zip(written, axes, strict=True)]


def _gathered_length(s: ShapeContext) -> Sequence[Shape]:
    return [(length_of(s.attrs["shapes"], s.attrs["dtype"]),)]


def _parts(rng: np.random.Generator) -> Sequence[Sample]:
    parts = tuple([rng.standard_normal(dims) for dims in [(2, 4), (4,), (2, 4), (4,)]])
    return [sample(parts, axes=(1, 0), shapes=((2, 8), (8,)))]


def _memory(rng: np.random.Generator) -> Sequence[Sample]:
    return [sample(rng.standard_normal(24), axes=(1, 0), shapes=((2, 8), (8,)), N=2)]


gather_together_op: OpDef[Tensor] = define_op(
    "GatherTogether",
    "values: M * dtype in ANY -> memory: dtype",
    attrs="axes: list(int), shapes: list(shape)",
    shape=_gathered_length,
    kernel=_gather_together,
    vjp=NONDIFFERENTIABLE,
    samples=_parts,
    doc="Concatenates the parts of several tensors, each along its own of ``axes``, into one memory: parts "
    "of the first rank, one of each tensor, then those of the second. ``shapes`` are those of the results.",
)

take_apart_op: OpDef[list[Tensor]] = define_op(
    "TakeApart",
    "memory: dtype in ANY -> N * dtype",
    attrs="N: int, axes: list(int), shapes: list(shape)",
    shape=lambda s: s.attrs["shapes"],
    kernel=_take_apart,
    vjp=NONDIFFERENTIABLE,
    samples=_memory,
    alias=True,
    traits=Traits(narrows=False),  # where each begins depends on the size of an element
    doc="The tensors of ``shapes`` in a memory of them, as views; each was written with its axis in front.",
)
