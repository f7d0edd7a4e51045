"""Building blocks of batching rules: handling of the batch axis before the axes of one element."""

from __future__ import annotations

from typing import Any

import numpy as np

from flowrt.graph.construction.build import constant_tensor
from flowrt.graph.construction.operation import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add_v2
from flowrt.graph.ops.elementwise.comparison import greater_equal
from flowrt.graph.shapes import is_static


def moved_axes(axes: Tensor) -> Tensor:
    """`moved_axis` of each axis in a host tensor."""
    known = _known(axes)
    if known is not None:
        return constant_tensor(known + (known >= 0).astype(known.dtype))
    return add_v2(axes, cast(greater_equal(axes, 0), axes.dtype))


def behind(head: Any, dims: Tensor) -> Tensor:
    """A host vector, or matrix, with one more row ``head`` in front."""
    known = _known(dims)
    if known is not None and not isinstance(head, Tensor):
        return constant_tensor(np.concatenate([np.array([head], known.dtype), known]))
    first = cast(head, dims.dtype) if isinstance(head, Tensor) else np.array(head, dims.dtype.np)
    return concat([reshape(first, [1]) if isinstance(head, Tensor) else first[None], dims], 0)


def _known(tensor: Tensor) -> Any:
    """The value of a host tensor if all of it is known."""
    value = static_value(tensor)
    if value is None or not is_static(tensor.spec.shape):
        return None
    array = np.array(value, object).reshape(tensor.spec.shape)
    return None if None in array.ravel().tolist() else array.astype(tensor.dtype.np)


def dims_of(tensor: Tensor) -> Any:
    """The shape: a tuple where it is known, else a tensor."""
    dims = tensor.spec.shape
    return dims if is_static(dims) else shape(tensor)


def joined(*parts: Any) -> Any:
    """Dimensions, concatenated: a tuple if all are known, else a tensor."""
    if all(isinstance(part, tuple) for part in parts):
        return tuple(d for part in parts for d in part)
    return concat([np.array(p, np.int32) if isinstance(p, tuple) else p for p in parts if p != ()], 0)


def with_inner_axes(batch: Tensor, count: int) -> Tensor:
    """A batch with ``count`` axes of size 1 inserted after the batch axis."""
    if not count:
        return batch
    dims = dims_of(batch)
    return reshape(batch, joined(dims[:1], (1,) * count, dims[1:]))


def with_last_axes(tensor: Tensor, count: int) -> Tensor:
    """The tensor with ``count`` axes of size 1 appended."""
    return reshape(tensor, joined(dims_of(tensor), (1,) * count)) if count else tensor


def merged_axes(batch: Tensor) -> Tensor:
    """The batch with its own axis and the first one of its elements as one."""
    dims = dims_of(batch)
    both = (dims[0] * dims[1],) if isinstance(dims, tuple) else reshape(dims[0] * dims[1], [1])
    return reshape(batch, joined(both, dims[2:]))


def split_axis(merged: Tensor, like: Tensor) -> Tensor:
    """The merged axis of `merged_axes` split in two again: those of the batch ``like``."""
    return reshape(merged, joined(dims_of(like)[:2], dims_of(merged)[1:]))
