"""The spec of a dataset's elements: a nested structure of `TensorSpec`.

Rule of this file: pure functions from specs to specs, one per transformation of a dataset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure, flatten, leaf_paths, map_structure, same_structure
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.shapes import Shape, as_shape, format_shape, merge, relax


@final
@dataclass(frozen=True)
class TensorSpec:
    """Shape (dimensions, or the rank, may be unknown) and dtype of one component."""

    shape: Shape
    dtype: dtypes.DType

    @classmethod
    def of(cls, value: Any) -> TensorSpec:
        """The spec of an array, a scalar, or anything with ``shape`` and ``dtype`` (a graph's tensor)."""
        described = value if hasattr(value, "shape") else np.asarray(value)
        return cls(as_shape(described.shape), dtypes.as_dtype(described.dtype))

    def __str__(self) -> str:
        return f"{self.dtype.name}{format_shape(self.shape)}"


def declared_spec(output_types: Structure, output_shapes: Structure = None) -> Structure:
    """The spec with these dtypes and shapes; without ``output_shapes`` they are unknown."""
    if output_shapes is None:
        output_shapes = map_structure(lambda _: None, output_types)
    return map_structure(
        lambda dtype, shape: TensorSpec(as_shape(shape), dtypes.as_dtype(dtype)), output_types, output_shapes
    )


def spec_of(tensors: Structure) -> Structure:
    """The spec of one element with these tensors."""
    return map_structure(TensorSpec.of, tensors)


def row_spec(spec: Structure) -> Structure:
    """The spec of an element's rows. Raises `InvalidArgumentError` for a scalar or differing row counts."""
    rows: Shape = (None,)
    for path, leaf in zip(leaf_paths(spec), flatten(spec), strict=True):
        if leaf.shape == ():
            raise InvalidArgumentError(
                f"component{path}: expected a dimension to cut into rows; got a scalar"
            )
        try:
            rows = merge(rows, leaf.shape and leaf.shape[:1])
        except InvalidArgumentError:
            got = ", ".join(format_shape(other.shape) for other in flatten(spec))
            raise InvalidArgumentError(
                f"component{path}: expected the same number of rows in all components; got shapes {got}"
            ) from None
    return map_structure(lambda leaf: TensorSpec(leaf.shape and leaf.shape[1:], leaf.dtype), spec)


def batch_spec(spec: Structure, size: int | None) -> Structure:
    """The spec of a batch of ``size`` elements; None if the size varies."""

    def batched(leaf: TensorSpec) -> TensorSpec:
        return TensorSpec(None if leaf.shape is None else (size, *leaf.shape), leaf.dtype)

    return map_structure(batched, spec)


def common_spec(first: Structure, second: Structure, what: str = "concatenate") -> Structure:
    """The most specific spec of the elements of both datasets, which ``what`` makes one of.

    Raises `InvalidArgumentError` for different structures and `DTypeError` for different dtypes.
    """
    if not same_structure(first, second):
        raise InvalidArgumentError(
            f"{what}: expected elements of one structure; got {_format(first)} and {_format(second)}"
        )
    for path, a, b in zip(leaf_paths(first), flatten(first), flatten(second), strict=True):
        if a.dtype is not b.dtype:
            raise DTypeError(f"{what}: component{path}: expected {a.dtype.name}; got {b.dtype.name}")
    return map_structure(lambda a, b: TensorSpec(relax(a.shape, b.shape), a.dtype), first, second)


def _format(spec: Structure) -> Structure:
    return map_structure(str, spec)
