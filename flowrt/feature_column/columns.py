"""Columns: data with a name, by which a batch of features is transformed.

A `DenseColumn` gives a tensor [batch, *shape]. A `CategoricalColumn` gives the numbers of categories, below
``num_buckets``, as a `SparseTensor` [batch, any], perhaps with weights. A bucketized column is both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from flowrt.dtypes import DType, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.gather_scatter import gather_nd
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor, SparseTensorValue
from flowrt.graph.ops.elementwise.comparison import not_equal, where
from flowrt.graph.source import misuse


class Column(ABC):
    """A feature column."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name, by which columns are ordered and variables called."""

    @property
    @abstractmethod
    def parse_example_spec(self) -> dict[str, Any]:
        """The features that `parse_example` has to read for it, by name."""


class DenseColumn(Column):
    """A column of numbers."""

    @property
    def scope(self) -> str:
        """The scope of its variables."""
        return self.name

    @property
    @abstractmethod
    def variable_shape(self) -> tuple[int, ...]:
        """The shape for one example."""

    @abstractmethod
    def dense(self, batch: Batch, trainable: bool) -> Tensor:
        """The tensor [batch, *variable_shape], with the column's variables in the current scope."""


class Ids(NamedTuple):
    """The numbers of categories in a batch, and weights of these."""

    ids: SparseTensor
    weights: SparseTensor | None = None


class CategoricalColumn(Column):
    """A column of numbers of categories."""

    @property
    @abstractmethod
    def num_buckets(self) -> int:
        """The number of categories."""

    @abstractmethod
    def categories(self, batch: Batch) -> Ids:
        """The numbers of the categories of a batch; those that are negative do not count."""


class Batch:
    """The features of a batch by name; what columns share is built once."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        self._features = features
        self._made: dict[Any, Any] = {}

    def once(self, column: CategoricalColumn) -> Ids:
        """`CategoricalColumn.categories`."""
        if column not in self._made:
            self._made[column] = column.categories(self)
        found: Ids = self._made[column]
        return found

    def raw(self, key: str) -> Tensor | SparseTensor:
        """The feature ``key``, of two dimensions at least. Raises `InvalidArgumentError` if it is missing."""
        if key not in self._features:
            raise misuse(
                f"features: expected {key!r}; there are {sorted(map(str, self._features))}",
                InvalidArgumentError,
            )
        given = self._features[key]
        if isinstance(given, (SparseTensor, SparseTensorValue)):
            return SparseTensor.from_value(given)
        found = convert_to_tensor(given)
        if found.shape.ndims == 0:
            raise misuse(f"features: expected {key!r} of a batch; it is a scalar", InvalidArgumentError)
        return expand_dims(found, -1) if found.shape.ndims == 1 else found

    def tensor(self, key: str) -> Tensor:
        """The dense feature ``key``. Raises `DTypeError` if it is sparse."""
        found = self.raw(key)
        if isinstance(found, SparseTensor):
            raise misuse(f"features: expected {key!r} as a dense tensor; it is sparse", DTypeError)
        return found

    def sparse(self, key: str) -> SparseTensor:
        """The feature ``key`` as a sparse tensor: of a dense one, what is neither "" nor -1."""
        found = self.raw(key)
        if isinstance(found, SparseTensor):
            return found
        nothing: Any = "" if found.dtype is string else -1
        places = where(not_equal(found, convert_to_tensor(nothing, found.dtype)))
        return SparseTensor(places, gather_nd(found, places), cast(shape(found), int64))


def check_categories(where_: str, dtype: DType) -> None:
    """Raise `DTypeError` unless ``dtype`` is of strings or integers."""
    if dtype is not string and not dtype.is_integer:
        raise misuse(f"{where_}: expected strings or integers; got {dtype.name}", DTypeError)
