"""Columns of numbers, and of the buckets that numbers fall into."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flowrt.dtypes import DType, DTypeLike, as_dtype, float32, int64
from flowrt.errors import InvalidArgumentError
from flowrt.feature_column.columns import Batch, CategoricalColumn, DenseColumn, Ids
from flowrt.functions.parsing import FixedLenFeature
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.ranges import one_hot, range
from flowrt.graph.ops.array.sorting import searchsorted
from flowrt.graph.ops.array.tile_and_reverse import meshgrid
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.source import misuse

__all__ = ["bucketized_column", "numeric_column"]


@dataclass(frozen=True)
class NumericColumn(DenseColumn):
    """Made by `numeric_column`."""

    key: str
    shape: tuple[int, ...]
    default_value: Any
    dtype: DType
    normalizer_fn: Callable[[Tensor], Any] | None

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: FixedLenFeature(self.shape, self.dtype, self.default_value)}

    @property
    def variable_shape(self) -> tuple[int, ...]:
        return self.shape

    def dense(self, batch: Batch, trainable: bool) -> Tensor:
        found = batch.tensor(self.key)
        if self.normalizer_fn is not None:
            found = convert_to_tensor(self.normalizer_fn(found))
        return self._of_examples(cast(found, float32))

    def _of_examples(self, numbers: Tensor) -> Tensor:
        """``numbers`` as [batch, *shape]: numbers of another shape would become more or fewer examples."""
        given = numbers.shape[1:].num_elements() if numbers.shape.ndims is not None else None
        if given is None:
            return reshape(numbers, [shape(numbers)[0], *self.shape])
        if given != math.prod(self.shape):
            raise misuse(
                f"numeric_column {self.key!r}: expected {math.prod(self.shape)} numbers for each example, "
                f"shape {self.shape}; got {numbers.shape}",
                InvalidArgumentError,
            )
        return numbers


def numeric_column(
    key: str,
    shape: Any = (1,),
    default_value: Any = None,
    dtype: DTypeLike = float32,
    normalizer_fn: Callable[[Tensor], Any] | None = None,
) -> NumericColumn:
    """A column of the numbers ``key``, of ``shape`` in each example, as ``normalizer_fn`` changes them.

    ``default_value``, a number or one for each element, is for examples without the feature. Raises
    `InvalidArgumentError` for sizes below 1, strings, and a default of another shape.

    Example:
        >>> column = tf.feature_column.numeric_column("x", normalizer_fn=lambda x: x - 1)
        >>> tf.feature_column.input_layer({"x": [[1.0], [3.0]]}, [column]).eval()
        array([[0.],
               [2.]], dtype=float32)
    """
    sizes = tuple(int(size) for size in ([shape] if isinstance(shape, int) else shape))
    kind = as_dtype(dtype)
    if any(size < 1 for size in sizes) or not (kind.is_integer or kind.is_floating):
        raise misuse(
            f"numeric_column {key!r}: expected sizes from 1 on and numbers; got {sizes}, {kind.name}",
            InvalidArgumentError,
        )
    default = default_value
    if isinstance(default_value, (int, float)):
        default = [default_value] * math.prod(sizes)
    default = None if default is None else tuple(_flat(default))
    if default is not None and len(default) != math.prod(sizes):
        raise misuse(
            f"numeric_column {key!r}: expected a default_value of shape {sizes}; got {default_value}",
            InvalidArgumentError,
        )
    return NumericColumn(key, sizes, default, kind, normalizer_fn)


def _flat(value: Any) -> list[Any]:
    return [x for each in value for x in _flat(each)] if isinstance(value, (list, tuple)) else [value]


@dataclass(frozen=True)
class BucketizedColumn(DenseColumn, CategoricalColumn):
    """Made by `bucketized_column`."""

    source_column: NumericColumn
    boundaries: tuple[float, ...]

    @property
    def name(self) -> str:
        return f"{self.source_column.name}_bucketized"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.source_column.parse_example_spec

    @property
    def variable_shape(self) -> tuple[int, ...]:
        return (*self.source_column.shape, len(self.boundaries) + 1)

    @property
    def num_buckets(self) -> int:
        return math.prod(self.variable_shape)

    def buckets(self, batch: Batch) -> Tensor:
        """The bucket of each number, [batch, *shape], from 0 on."""
        numbers = self.source_column.dense(batch, trainable=False)
        limits = convert_to_tensor(self.boundaries, float32)
        found = searchsorted(limits, reshape(numbers, [-1]), "right", int64)
        return reshape(found, shape(numbers))

    def dense(self, batch: Batch, trainable: bool) -> Tensor:
        return one_hot(self.buckets(batch), len(self.boundaries) + 1)

    def categories(self, batch: Batch) -> Ids:
        count = math.prod(self.source_column.shape)
        buckets = reshape(self.buckets(batch), [-1, count])
        rows, places = meshgrid(range(shape(buckets)[0]), range(count), indexing="ij")
        flat = [reshape(cast(each, int64), [-1]) for each in (rows, places)]
        ids = reshape(buckets, [-1]) + (len(self.boundaries) + 1) * flat[1]
        return Ids(SparseTensor(stack(flat, 1), ids, cast(shape(buckets), int64)))


def bucketized_column(source_column: Any, boundaries: Any) -> BucketizedColumn:
    """A column of the buckets that the numbers of ``source_column`` fall into: ``len(boundaries) + 1``, each
    with its lower boundary. As a dense column they are one-hot vectors.

    Raises `InvalidArgumentError` unless the source is a `numeric_column` of one dimension, and the boundaries
    are a sorted list.
    """
    if not isinstance(source_column, NumericColumn) or len(source_column.shape) > 1:
        raise misuse(
            f"bucketized_column: expected a numeric_column of one dimension; got {source_column!r}",
            InvalidArgumentError,
        )
    limits = tuple(boundaries or ()) if isinstance(boundaries, (list, tuple)) else ()
    if not limits or any(a >= b for a, b in itertools.pairwise(limits)):
        raise misuse(
            f"bucketized_column: expected boundaries as a sorted list; got {boundaries!r}",
            InvalidArgumentError,
        )
    return BucketizedColumn(source_column, limits)
