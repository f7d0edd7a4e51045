"""Frames of a signal: cut out with overlaps, and added up again."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.ranges import range
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.typing import NumericLike
from flowrt.signal.sizes import as_size, at_least_zero, last_sizes
from flowrt.variables.graph_scopes import name_scope

__all__ = ["frame", "overlap_and_add"]


def frame(
    signal: NumericLike,
    frame_length: NumericLike,
    frame_step: NumericLike,
    pad_end: bool = False,
    pad_value: NumericLike = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """The frames of ``frame_length`` samples that begin every ``frame_step`` samples along ``axis``, which
    becomes two: [..., frames, frame_length, ...].

    A frame that would reach beyond the end is left out, or filled up with ``pad_value`` if ``pad_end``.

    Example:
        >>> tf.signal.frame([1, 2, 3, 4, 5], 3, 2).eval()
        array([[1, 2, 3],
               [3, 4, 5]], dtype=int32)
    """
    with name_scope(name, "frame", [signal, frame_length, frame_step, pad_value]):
        x = convert_to_tensor(signal)
        length, step = as_size(frame_length), as_size(frame_step)
        at = axis % len(x.shape)
        known = x.shape.as_list()[at]
        size = shape(x)[at] if known is None else known
        if pad_end:
            count = (size + step - 1) // step
            missing = at_least_zero((count - 1) * step + length - size)
            around: list[Any] = [[0, 0]] * len(x.shape)
            around[at] = [0, missing]
            x = pad(x, around, constant_values=pad_value)
        else:
            count = at_least_zero(1 + (size - length) // step)
        starts = step * range(count)
        return gather(x, starts[:, None] + range(length)[None, :], axis=at)


def overlap_and_add(signal: NumericLike, frame_step: NumericLike, name: str | None = None) -> Tensor:
    """The sum of frames [..., frames, frame_length], each put ``frame_step`` samples behind the one before:
    [..., (frames - 1) * frame_step + frame_length].

    Raises `InvalidArgumentError` if the signal has less than two dimensions.

    Example:
        >>> tf.signal.overlap_and_add([[1, 2, 3], [10, 20, 30]], 2).eval()
        array([ 1,  2, 13, 20, 30], dtype=int32)
    """
    with name_scope(name, "overlap_and_add", [signal, frame_step]):
        x = convert_to_tensor(signal)
        frames, length = last_sizes(x, 2)
        step = as_size(frame_step)
        # Piece p of frame f, `step` samples long, is part of piece f + p of the sum. Zeros behind the frames,
        # as many as a frame has pieces, make a row of pieces p one step longer than the sum: cut into rows
        # of the sum's length, row p begins p steps later.
        pieces = (length + step - 1) // step
        rows = frames + pieces
        outer, ahead = shape(x)[:-2], len(x.shape) - 2
        x = pad(x, [*[[0, 0]] * ahead, [0, pieces], [0, pieces * step - length]])
        x = reshape(x, concat([outer, [rows, pieces, step]], 0))
        x = transpose(x, [*np.arange(ahead), ahead + 1, ahead, ahead + 2])
        x = reshape(x, concat([outer, [pieces * rows, step]], 0))[..., : pieces * (rows - 1), :]
        x = reduce_sum(reshape(x, concat([outer, [pieces, rows - 1, step]], 0)), -3)
        x = reshape(x, concat([outer, [(rows - 1) * step]], 0))
        return x[..., : (frames - 1) * step + length]
