"""Blocks of space as examples of a batch, and back: by them a dilated convolution is a dense one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.op_def import LINEAR, OpDef, ShapeContext, define_op, sample
from flowrt.graph.ops.base.kernel_output import delivered
from flowrt.graph.shapes import Shape, format_shape


def _block(s: ShapeContext, margins: str) -> tuple[Sequence[Any] | None, Any]:
    """The block's shape and the margins, as far as they are known."""
    block, given = s.value(1), s.value(2)
    if block is not None and (any(b is not None and b < 1 for b in block)):
        raise InvalidArgumentError(f"block_shape: expected sizes of at least 1; got {list(block)}")
    for pair in given or ():
        if pair is not None and any(v is not None and v < 0 for v in pair):
            raise InvalidArgumentError(f"{margins}: expected sizes of at least 0; got {given}")
    return block, given


def _sizes(s: ShapeContext, margins: str) -> tuple[Shape, Sequence[Any], Sequence[Any]] | None:
    """The input's shape, the block's and the margins; None where they are not all known by number."""
    (block, given), shape = _block(s, margins), s.shapes[0]
    if shape is None or block is None or given is None:
        return None
    if len(shape) < 1 + len(block) or len(given) != len(block):
        raise InvalidArgumentError(
            f"expected {len(block)} dimensions of space, with {margins} of each; got {format_shape(shape)}"
        )
    return shape, block, given


def _to_batch_shape(s: ShapeContext) -> list[Shape]:
    known = _sizes(s, "paddings")
    if known is None:
        return [None if s.shapes[0] is None else (None,) * len(s.shapes[0])]
    shape, block, paddings = known
    assert shape is not None
    space = []
    for size, step, pair in zip(shape[1:], block, paddings, strict=False):
        parts = (size, step, *(pair or (None, None)))
        padded = None if None in parts else size + pair[0] + pair[1]
        if padded is not None and padded % step:
            raise InvalidArgumentError(f"expected a padded size that {step} divides; got {padded}")
        space.append(None if padded is None else padded // step)
    batch = None if shape[0] is None or None in block else shape[0] * math.prod(block)
    return [(batch, *space, *shape[1 + len(block) :])]


def _to_space_shape(s: ShapeContext) -> list[Shape]:
    known = _sizes(s, "crops")
    if known is None:
        return [None if s.shapes[0] is None else (None,) * len(s.shapes[0])]
    shape, block, crops = known
    assert shape is not None
    space = []
    for size, step, pair in zip(shape[1:], block, crops, strict=False):
        parts = (size, step, *(pair or (None, None)))
        whole = None if None in parts else size * step - pair[0] - pair[1]
        if whole is not None and whole < 0:
            raise InvalidArgumentError(f"crops: expected at most {size * step} elements; got {pair}")
        space.append(whole)
    batch = shape[0]
    if batch is not None and None not in block and batch % math.prod(block):
        raise InvalidArgumentError(f"expected a batch that {math.prod(block)} divides; got {batch}")
    batch = None if batch is None or None in block else batch // math.prod(block)
    return [(batch, *space, *shape[1 + len(block) :])]


def _to_batch(xp: Any, input: Any, block_shape: Any, paddings: Any, out: Any = None) -> Any:
    rank, rest = len(block_shape), input.shape[1 + len(block_shape) :]
    padded = xp.pad(input, [(0, 0), *map(tuple, paddings), *[(0, 0)] * len(rest)])
    split = [n for size, b in zip(padded.shape[1:], block_shape, strict=False) for n in (size // b, b)]
    parts = padded.reshape(input.shape[0], *split, *rest)
    order = [*range(2, 2 * rank + 1, 2), 0, *range(1, 2 * rank + 1, 2), *range(2 * rank + 1, parts.ndim)]
    made = parts.transpose(order).reshape(-1, *split[::2], *rest)
    return delivered(xp, made, input.dtype, out)


def _to_space(xp: Any, input: Any, block_shape: Any, crops: Any, out: Any = None) -> Any:
    rank, space = len(block_shape), input.shape[1 : 1 + len(block_shape)]
    rest = input.shape[1 + rank :]
    batch = input.shape[0] // math.prod(block_shape)
    parts = input.reshape(*block_shape, batch, *space, *rest)
    order = [rank, *(i for d in range(rank) for i in (rank + 1 + d, d)), *range(2 * rank + 1, parts.ndim)]
    whole = parts.transpose(order).reshape(
        batch, *(s * b for s, b in zip(space, block_shape, strict=True)), *rest
    )
    kept = [slice(c[0], size - c[1]) for c, size in zip(crops, whole.shape[1:], strict=False)]
    return delivered(xp, whole[(slice(None), *kept)], input.dtype, out)


space_to_batch_op: OpDef[Tensor] = define_op(
    "SpaceToBatchND",
    "input: T in ANY, block_shape: host Tblock_shape in INDEX, paddings: host Tpaddings in INDEX -> T",
    shape=_to_batch_shape,
    kernel=_to_batch,
    vjp=lambda op, dy: [batch_to_space_op(dy, op.inputs[1], op.inputs[2]), None, None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(
            rng.standard_normal((2, 3, 4, 2)),
            np.array([2, 2], np.int32),
            np.array([[1, 0], [0, 2]], np.int32),
        ),
        sample(rng.integers(0, 9, (1, 6)), np.array([3]), np.array([[0, 0]])),
    ),
    doc="Blocks of the padded space, each place in a block as an example of the batch.",
)
batch_to_space_op: OpDef[Tensor] = define_op(
    "BatchToSpaceND",
    "input: T in ANY, block_shape: host Tblock_shape in INDEX, crops: host Tcrops in INDEX -> T",
    shape=_to_space_shape,
    kernel=_to_space,
    vjp=lambda op, dy: [space_to_batch_op(dy, op.inputs[1], op.inputs[2]), None, None],
    jvp=LINEAR,
    samples=lambda rng: (
        sample(
            rng.standard_normal((8, 2, 1, 3)),
            np.array([2, 2], np.int32),
            np.array([[1, 0], [0, 1]], np.int32),
        ),
        sample(rng.integers(0, 9, (3, 2)), np.array([3]), np.array([[0, 0]])),
    ),
    doc="The inverse of SpaceToBatchND, with margins cut off.",
)
