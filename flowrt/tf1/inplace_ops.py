"""TensorFlow's ``inplace_ops``: rows of a tensor replaced or added to.

In TensorFlow those with ``alias_`` change the tensor itself. Here a tensor never changes: the result is a new
one, computed in the memory of the old one where nothing else reads that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.gather_scatter import (
    tensor_scatter_add,
    tensor_scatter_sub,
    tensor_scatter_update,
)
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike

__all__ = [
    "alias_inplace_add", "alias_inplace_sub", "alias_inplace_update", "empty_like", "inplace_add",
    "inplace_sub", "inplace_update",
]  # fmt: skip


def _rows(scatter: Callable[..., Tensor], doc: str) -> Callable[[Any, Any, Any], Tensor]:
    """``scatter`` at rows: all for ``i`` None, one for a scalar, several for a vector."""

    def changed(x: Any, i: Any, v: Any) -> Tensor:
        x = convert_to_tensor(x)
        v = convert_to_tensor(v, x.dtype)
        if i is None:
            return reshape(changed(reshape(x, [1, -1]), 0, reshape(v, [-1])), shape(x))
        places = convert_to_tensor(i)
        if places.shape.ndims not in (0, 1):
            raise misuse(f"inplace: expected i as None, a scalar or a vector; got shape {places.shape}")
        if places.shape.ndims == 0:
            places, v = expand_dims(places, 0), expand_dims(v, 0)
        return scatter(x, expand_dims(places, -1), v)

    changed.__doc__ = doc
    return changed


inplace_update = alias_inplace_update = _rows(
    tensor_scatter_update, "``x`` with ``v`` as its row ``i``, rows ``i``, or (None) all rows."
)
inplace_add = alias_inplace_add = _rows(
    tensor_scatter_add, "``x`` with ``v`` added to its row ``i``, rows ``i``, or (None) all rows."
)
inplace_sub = alias_inplace_sub = _rows(
    tensor_scatter_sub, "``x`` with ``v`` taken from its row ``i``, rows ``i``, or (None) all rows."
)


def empty_like(x: NumericLike, init: bool | None = None) -> Tensor:
    """Zeros of the shape and dtype of ``x``, also where ``init`` would allow anything."""
    return zeros_like(x)
