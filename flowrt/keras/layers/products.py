"""Products of Keras: `dot` along the inner dimensions, `batch_dot` sample by sample."""

from __future__ import annotations

import math
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import multiply
from flowrt.graph.ops.linalg.matmul import matmul, tensordot
from flowrt.graph.source import misuse


def dot(x: Any, y: Any) -> Tensor:
    """``x`` times ``y``: over the last dimension of ``x`` and the last but one of ``y``."""
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    if x.shape.ndims == 2 and y.shape.ndims == 2:
        return matmul(x, y)
    rank = y.shape.ndims or 0
    return tensordot(x, y, [[(x.shape.ndims or 1) - 1], [max(rank - 2, 0)]])


def batch_dot(x: Any, y: Any, axes: Any = None) -> Tensor:
    """The product of each sample over axis ``axes[0]`` of ``x`` and ``axes[1]`` of ``y``: their other
    dimensions, in order, with ``[batch, 1]`` where none is left.

    The default axes are the last of ``x`` and the last but one of ``y``. Raises `InvalidArgumentError` for
    the axis of the batch.
    """
    x, y = convert_to_tensor(x), convert_to_tensor(y)
    ranks = x.shape.ndims or 0, y.shape.ndims or 0
    if axes is None:
        axes = [ranks[0] - 1, ranks[1] - 2 if ranks[1] > 2 else 1]
    axes = [axes, axes] if isinstance(axes, int) else list(axes)
    axes = [axis % rank for axis, rank in zip(axes, ranks, strict=True)]
    if 0 in axes:
        raise misuse(f"batch_dot: expected axes of samples, from 1; got {axes}")
    if ranks == (2, 2):
        return reduce_sum(multiply(x, y), 1, keepdims=True)
    left, left_dims = _as_matrices(x, axes[0], last=True)
    right, right_dims = _as_matrices(y, axes[1], last=False)
    product = matmul(left, right)
    outer = [shape(x)[0], *left_dims, *right_dims]
    result: Tensor = reshape(product, outer) if len(outer) != 3 else product
    result.set_shape([
        x.shape.as_list()[0],
        *(n for i, n in enumerate(x.shape.as_list()) if i not in (0, axes[0])),
        *(n for i, n in enumerate(y.shape.as_list()) if i not in (0, axes[1])),
    ])  # fmt: skip
    return result


def _as_matrices(x: Tensor, axis: int, last: bool) -> tuple[Tensor, list[Any]]:
    """``x`` as a batch of matrices with ``axis`` last or first, and the dimensions that make up the other
    one.
    """
    rank = x.shape.ndims or 0
    others = [i for i in range(1, rank) if i != axis]
    dims = shape(x)
    moved = transpose(x, [0, *others, axis] if last else [0, axis, *others])
    sizes = [dims[i] for i in others]
    if len(others) == 1:
        return moved, sizes
    flat = -1 if others else 1
    return reshape(moved, [dims[0], flat, dims[axis]] if last else [dims[0], dims[axis], flat]), sizes


def batch_flatten(x: Any) -> Tensor:
    """``[batch, ...]`` as ``[batch, n]``."""
    x = convert_to_tensor(x)
    dims = x.shape.as_list()
    size = None if None in dims[1:] else math.prod(dims[1:])
    return reshape(x, [-1, size] if size is not None else [shape(x)[0], -1])
