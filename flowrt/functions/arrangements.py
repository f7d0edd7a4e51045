"""Array functions composed of others: image patches, blocks between space and batch, unravelled indices.

They build several operations each, so that placement, gradients and kernels need no additions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.array.scans import cumprod
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape, transpose
from flowrt.graph.ops.elementwise.division import floordiv, floormod
from flowrt.graph.ops.nn.conv_functions import conv2d
from flowrt.graph.partial_value import partial_value
from flowrt.graph.typing import NumericLike, ShapeTensorLike, TensorLike


def _sizes(x: Tensor) -> list[Any]:
    """The size of each axis: a number if it is known, else a scalar tensor. Needs a known rank."""
    dynamic = shape(x)
    return [dynamic[i] if size is None else size for i, size in enumerate(x.shape.as_list())]


def _numbers(value: Any, what: str) -> Any:
    """``value`` as an integer array. Raises `InvalidArgumentError` if the graph does not determine it."""
    if isinstance(value, Tensor):
        known = partial_value(get_default_graph().node, value.ref)
        if known is None or None in np.ravel(np.asarray(known, object)):
            raise InvalidArgumentError(f"{what}: expected constants; got {value!r}")
        value = known
    return np.asarray(value, int)


def _blocks(what: str, block_shape: Any, name: str, pairs: Any) -> tuple[list[int], list[list[int]]]:
    """``block_shape``, and ``pairs`` of margins. Raises `InvalidArgumentError` unless each has a pair."""
    blocks, margins = _numbers(block_shape, what).reshape(-1), _numbers(pairs, what)
    if margins.size != 2 * blocks.size:
        raise InvalidArgumentError(
            f"{what}: expected {name} of {2 * blocks.size} numbers, a pair for each block; got {margins.size}"
        )
    return blocks.tolist(), margins.reshape(-1, 2).tolist()


def space_to_batch_nd(
    input: TensorLike, block_shape: NumericLike, paddings: NumericLike, name: str | None = None
) -> Tensor:
    """``[n, *space, *rest]`` cut into blocks: the positions within a block become part of the batch.

    ``block_shape`` has one number per spatial axis, ``paddings`` a pair of them; the padded axes must be
    multiples of the block's.
    """
    blocks, margins = _blocks("space_to_batch", block_shape, "paddings", paddings)
    count = len(blocks)
    with get_default_graph().name_scope(name or "SpaceToBatchND"):
        x = convert_to_tensor(input)
        outside = [[0, 0]] * (len(x.shape) - 1 - count)
        x = pad(x, [[0, 0], *margins, *outside])
        batch, *rest = _sizes(x)
        steps = [_divided(size, block) for size, block in zip(rest, blocks, strict=False)]
        pairs = [size for pair in zip(steps, blocks, strict=True) for size in pair]
        x = reshape(x, [batch, *pairs, *rest[count:]])
        within = [2 + 2 * i for i in range(count)]
        between = [1 + 2 * i for i in range(count)]
        x = transpose(x, [*within, 0, *between, *range(1 + 2 * count, len(x.shape))])
        return reshape(x, [batch * int(np.prod(blocks)), *steps, *rest[count:]])


def _divided(size: Any, block: int) -> Any:
    if isinstance(size, int) and size % block:
        raise InvalidArgumentError(
            f"space_to_batch: expected padded sizes in multiples of {block}; got {size}"
        )
    return size // block


def batch_to_space_nd(
    input: TensorLike, block_shape: NumericLike, crops: NumericLike, name: str | None = None
) -> Tensor:
    """The inverse of `space_to_batch_nd`, less ``crops``, a pair of numbers per spatial axis."""
    blocks, margins = _blocks("batch_to_space", block_shape, "crops", crops)
    count = len(blocks)
    with get_default_graph().name_scope(name or "BatchToSpaceND"):
        x = convert_to_tensor(input)
        batch, *rest = _sizes(x)
        batch = batch // int(np.prod(blocks))
        x = reshape(x, [*blocks, batch, *rest])
        order = [axis for i in range(count) for axis in (count + 1 + i, i)]
        x = transpose(x, [count, *order, *range(1 + 2 * count, len(x.shape))])
        grown = [size * block for size, block in zip(rest, blocks, strict=False)]
        x = reshape(x, [batch, *grown, *rest[count:]])
        kept = [slice(a, size - b) for (a, b), size in zip(margins, grown, strict=True)]
        return x[(slice(None), *kept)]


def space_to_batch(
    input: Any,
    paddings: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: NumericLike | None = None,
) -> Tensor:
    """`space_to_batch_nd` of square blocks over two axes."""
    blocks: Any = [block_size] * 2 if block_shape is None else block_shape
    return space_to_batch_nd(input, blocks, paddings, name)


def batch_to_space(
    input: Any,
    crops: Any,
    block_size: int | None = None,
    name: str | None = None,
    block_shape: NumericLike | None = None,
) -> Tensor:
    """`batch_to_space_nd` of square blocks over two axes."""
    blocks: Any = [block_size] * 2 if block_shape is None else block_shape
    return batch_to_space_nd(input, blocks, crops, name)


def extract_image_patches(
    images: Any, ksizes: Any = None, strides: Any = None, rates: Any = None, padding: Any = None,
    name: str | None = None, sizes: Any = None,
) -> Tensor:  # fmt: skip
    """``[n, h, w, c] -> [n, h', w', kh * kw * c]``: every patch of ``ksizes`` ``[1, kh, kw, 1]`` as a row.

    A convolution with one filter per element of the patch: for images of a floating dtype and known depth.
    Raises `InvalidArgumentError` for missing arguments, `UnimplementedError` for other images.
    """
    window = ksizes if sizes is None else sizes
    if window is None or strides is None or rates is None or padding is None:
        raise InvalidArgumentError(
            "extract_image_patches: expected ksizes, strides, rates and padding; got None"
        )
    images = convert_to_tensor(images)
    depth = images.shape.as_list()[3]
    if depth is None or not images.dtype.is_floating:
        raise UnimplementedError(
            f"extract_image_patches: expected floating images of known depth; got {images!r}"
        )
    height, width = window[1:3]
    length = height * width * depth
    filters = np.eye(length).reshape(height, width, depth, length).astype(images.dtype.as_numpy_dtype)
    return conv2d(images, filters, strides=list(strides), padding=padding, dilations=list(rates), name=name)


def unravel_index(indices: NumericLike, dims: ShapeTensorLike, name: str | None = None) -> Tensor:
    """Flat ``indices`` into an array of shape ``dims`` as coordinates ``[number of dims,
    *indices.shape]``.
    """
    with get_default_graph().name_scope(name or "UnravelIndex"):
        indices = convert_to_tensor(indices)
        dims = convert_to_tensor(dims, indices.dtype)
        strides = cumprod(dims, exclusive=True, reverse=True)
        if indices.shape.rank == 0:
            return floormod(floordiv(indices, strides), dims)
        return floormod(floordiv(indices, expand_dims(strides, 1)), expand_dims(dims, 1))
