"""Arrays: buckets, coordinates, shapes of variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.functions.arrangements import unravel_index
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.sorting import searchsorted
from flowrt.graph.ops.base.identities import cast, static_value
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.state.variable_ops import read_variable_op
from flowrt.tf1.composed_ops.composition import composed


@composed("Bucketize", "input: T -> output: int32", "boundaries: list(float)")
def bucketize(values: Tensor, boundaries: Sequence[float]) -> Any:
    """The number of boundaries up to each value."""
    bounds = convert_to_tensor(list(boundaries), "float32")
    wide = cast(values, "float64")  # boundaries are no integers
    found = searchsorted(cast(bounds, "float64"), reshape(wide, [-1]), side="right")
    return reshape(found, shape(values))


@composed("UnravelIndex", "indices: Tidx in INDEX, dims: Tidx -> output: Tidx")
def coordinates(indices: Tensor, dims: Tensor) -> Tensor:
    return unravel_index(indices, dims)


@composed("VariableShape", "input: resource -> output: out_type in INDEX", "out_type: type = int32")
def variable_shape(handle: Tensor, out_type: Any) -> Tensor:
    dtype, _ = static_value(handle)
    return shape(read_variable_op(handle, dtype=dtype), out_type=out_type)
