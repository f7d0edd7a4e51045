"""Columns of the numbers of categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from flowrt.dtypes import DType, DTypeLike, as_dtype, float32, int64, string
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.feature_column.columns import Batch, CategoricalColumn, Ids, check_categories
from flowrt.functions.parsing import VarLenFeature
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.comparison import greater_equal, less, logical_and, where_v2
from flowrt.graph.ops.text.assertions import assert_greater_equal, assert_less
from flowrt.graph.ops.text.crossing import sparse_cross_op
from flowrt.graph.ops.text.formatting import as_string
from flowrt.graph.ops.text.hashing import string_to_hash_bucket_fast
from flowrt.graph.source import misuse
from flowrt.lookup import index_table_from_file, index_table_from_tensor
from flowrt.variables.graph_scopes import control_dependencies

__all__ = [
    "categorical_column_with_hash_bucket", "categorical_column_with_identity",
    "categorical_column_with_vocabulary_file", "categorical_column_with_vocabulary_list", "crossed_column",
    "weighted_categorical_column",
]  # fmt: skip


@dataclass(frozen=True)
class _KeyedColumn(CategoricalColumn):
    """Categories of one feature."""

    key: str

    @property
    def name(self) -> str:
        return self.key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {self.key: VarLenFeature(self._dtype())}

    def _dtype(self) -> DType:
        return int64

    def _numbers(self, values: Tensor) -> Tensor:
        """The numbers of categories."""
        raise NotImplementedError

    def categories(self, batch: Batch) -> Ids:
        given = batch.sparse(self.key)
        check_categories(f"feature {self.key!r}", given.dtype)
        return Ids(SparseTensor(given.indices, self._numbers(given.values), given.dense_shape))


@dataclass(frozen=True)
class IdentityColumn(_KeyedColumn):
    """Made by `categorical_column_with_identity`."""

    count: int
    default_value: int | None

    @property
    def num_buckets(self) -> int:
        return self.count

    def _numbers(self, values: Tensor) -> Tensor:
        if not values.dtype.is_integer:
            raise misuse(f"feature {self.key!r}: expected integers; got {values.dtype.name}", DTypeError)
        numbers = cast(values, int64)
        if self.default_value is None:
            checks = [
                assert_greater_equal(numbers, cast(0, int64)),
                assert_less(numbers, cast(self.count, int64)),
            ]
            with control_dependencies(checks):
                return identity(numbers)
        is_known = logical_and(greater_equal(numbers, cast(0, int64)), less(numbers, cast(self.count, int64)))
        return where_v2(is_known, numbers, cast(self.default_value, int64))


def categorical_column_with_identity(
    key: str, num_buckets: int, default_value: int | None = None
) -> IdentityColumn:
    """A column of integers from 0 to ``num_buckets`` - 1, which are the categories' numbers.

    Others are ``default_value``; if that is None, they raise `InvalidArgumentError` at run time.
    """
    if num_buckets < 1 or (default_value is not None and not 0 <= default_value < num_buckets):
        raise misuse(
            f"categorical_column_with_identity {key!r}: expected num_buckets from 1 on and a default_value "
            f"below; got {num_buckets}, {default_value}",
            InvalidArgumentError,
        )
    return IdentityColumn(key, num_buckets, default_value)


@dataclass(frozen=True)
class VocabularyListColumn(_KeyedColumn):
    """Made by `categorical_column_with_vocabulary_list`."""

    vocabulary_list: tuple[Any, ...]
    dtype: DType
    default_value: int
    num_oov_buckets: int

    @property
    def num_buckets(self) -> int:
        return len(self.vocabulary_list) + self.num_oov_buckets

    def _dtype(self) -> DType:
        return self.dtype

    def _numbers(self, values: Tensor) -> Tensor:
        key_dtype = string if self.dtype is string else int64
        table = index_table_from_tensor(
            list(self.vocabulary_list), self.num_oov_buckets, self.default_value, dtype=key_dtype,
            name=f"{self.key}_lookup",
        )  # fmt: skip
        found: Tensor = table.lookup(values if key_dtype is string else cast(values, int64))
        return found


def categorical_column_with_vocabulary_list(
    key: str,
    vocabulary_list: Sequence[Any],
    dtype: DTypeLike | None = None,
    default_value: int = -1,
    num_oov_buckets: int = 0,
) -> VocabularyListColumn:
    """A column of strings or integers; a category's number is its place in ``vocabulary_list``.

    Values that are not in the list have ``default_value``, which -1 leaves out, or one of ``num_oov_buckets``
    numbers behind the list's. Raises `InvalidArgumentError` for an empty list or one with repetitions, or
    where both a default and buckets are given.
    """
    words = tuple(getattr(vocabulary_list, "tolist", lambda: vocabulary_list)())
    if not words or len(set(words)) < len(words):
        raise misuse(
            f"categorical_column_with_vocabulary_list {key!r}: expected different values; got {words!r:.200}",
            InvalidArgumentError,
        )
    _check_default(f"categorical_column_with_vocabulary_list {key!r}", default_value, num_oov_buckets)
    kind = as_dtype(dtype) if dtype is not None else int64 if isinstance(words[0], int) else string
    check_categories(f"categorical_column_with_vocabulary_list {key!r}", kind)
    return VocabularyListColumn(key, words, kind, default_value, num_oov_buckets)


def _check_default(where: str, default_value: int | None, num_oov_buckets: int) -> None:
    if num_oov_buckets < 0 or (num_oov_buckets and default_value not in (None, -1)):
        raise misuse(
            f"{where}: expected a default_value or num_oov_buckets; got {default_value}, {num_oov_buckets}",
            InvalidArgumentError,
        )


@dataclass(frozen=True)
class VocabularyFileColumn(_KeyedColumn):
    """Made by `categorical_column_with_vocabulary_file`."""

    vocabulary_file: str
    vocabulary_size: int
    num_oov_buckets: int
    default_value: int
    dtype: DType

    @property
    def num_buckets(self) -> int:
        return self.vocabulary_size + self.num_oov_buckets

    def _dtype(self) -> DType:
        return self.dtype

    def _numbers(self, values: Tensor) -> Tensor:
        key_dtype = string if self.dtype is string else int64
        table = index_table_from_file(
            self.vocabulary_file, self.num_oov_buckets, self.vocabulary_size, self.default_value,
            key_dtype=key_dtype, name=f"{self.key}_lookup",
        )  # fmt: skip
        found: Tensor = table.lookup(values if key_dtype is string else cast(values, int64))
        return found


def categorical_column_with_vocabulary_file(
    key: str,
    vocabulary_file: Any,
    vocabulary_size: int | None = None,
    num_oov_buckets: int = 0,
    default_value: int | None = None,
    dtype: DTypeLike = string,
) -> VocabularyFileColumn:
    """Like `categorical_column_with_vocabulary_list`, of the first ``vocabulary_size`` lines of a file (None:
    all). Raises `InvalidArgumentError`, and ``OSError`` where the lines are to be counted and cannot be read.
    """
    _check_default(f"categorical_column_with_vocabulary_file {key!r}", default_value, num_oov_buckets)
    size = vocabulary_size
    if size is None:
        with open(vocabulary_file, "rb") as file:
            size = sum(1 for _ in file)
    default = -1 if default_value is None else default_value
    return VocabularyFileColumn(key, str(vocabulary_file), size, num_oov_buckets, default, as_dtype(dtype))


@dataclass(frozen=True)
class HashedColumn(_KeyedColumn):
    """Made by `categorical_column_with_hash_bucket`."""

    hash_bucket_size: int
    dtype: DType

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    def _dtype(self) -> DType:
        return self.dtype

    def _numbers(self, values: Tensor) -> Tensor:
        texts = values if values.dtype is string else as_string(values)
        return string_to_hash_bucket_fast(texts, self.hash_bucket_size)


def categorical_column_with_hash_bucket(
    key: str, hash_bucket_size: int, dtype: DTypeLike = string
) -> HashedColumn:
    """A column of strings or integers; a category's number is its fingerprint modulo ``hash_bucket_size``."""
    if hash_bucket_size < 1:
        raise misuse(
            f"categorical_column_with_hash_bucket {key!r}: expected a size from 1 on; got {hash_bucket_size}",
            InvalidArgumentError,
        )
    kind = as_dtype(dtype)
    check_categories(f"categorical_column_with_hash_bucket {key!r}", kind)
    return HashedColumn(key, hash_bucket_size, kind)


@dataclass(frozen=True)
class CrossedColumn(CategoricalColumn):
    """Made by `crossed_column`."""

    keys: tuple[Any, ...]
    hash_bucket_size: int
    hash_key: int | None

    @property
    def name(self) -> str:
        return "_X_".join(sorted(key if isinstance(key, str) else key.name for key in self._leaves()))

    def _leaves(self) -> Iterator[Any]:
        for key in self.keys:
            if isinstance(key, CrossedColumn):
                yield from key._leaves()
            else:
                yield key

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        spec: dict[str, Any] = {}
        for key in self.keys:
            spec |= {key: VarLenFeature(string)} if isinstance(key, str) else key.parse_example_spec
        return spec

    @property
    def num_buckets(self) -> int:
        return self.hash_bucket_size

    def categories(self, batch: Batch) -> Ids:
        found = [batch.raw(key) if isinstance(key, str) else batch.once(key).ids for key in self._leaves()]
        sparse = [part for part in found if isinstance(part, SparseTensor)]
        crossed = sparse_cross_op(
            [part.indices for part in sparse],
            [_hashable(part.values) for part in sparse],
            [part.dense_shape for part in sparse],
            [_hashable(part) for part in found if isinstance(part, Tensor)],
            hashed_output=True,
            num_buckets=self.hash_bucket_size,
            hash_key=self.hash_key or 0xDECAFCAFFE,
            out_type=int64,
            internal_type=string,
        )
        return Ids(SparseTensor(*crossed))


def crossed_column(keys: Sequence[Any], hash_bucket_size: int, hash_key: int | None = None) -> CrossedColumn:
    """A column of the combinations of categories: of the features ``keys`` of strings, and of categorical
    columns; their hashes modulo ``hash_bucket_size``.

    Raises `InvalidArgumentError` for less than two keys, and hashed columns, of which the key is to be used.
    """
    if len(keys) < 2 or hash_bucket_size < 1:
        raise misuse(
            f"crossed_column: expected two keys, a size above 0; got {keys!r}, {hash_bucket_size}",
            InvalidArgumentError,
        )
    for key in keys:
        if not isinstance(key, (str, CategoricalColumn)) or isinstance(key, HashedColumn):
            raise misuse(
                "crossed_column: expected names of features, and columns that are categorical and not hashed "
                f"(then use the feature's name); got {key!r:.200}",
                InvalidArgumentError,
            )
    return CrossedColumn(tuple(keys), hash_bucket_size, hash_key)


def _hashable(values: Tensor) -> Tensor:
    return cast(values, int64) if values.dtype.is_integer else values


@dataclass(frozen=True)
class WeightedColumn(CategoricalColumn):
    """Made by `weighted_categorical_column`."""

    categorical_column: CategoricalColumn
    weight_feature_key: str
    dtype: DType

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_weighted_by_{self.weight_feature_key}"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return {
            **self.categorical_column.parse_example_spec,
            self.weight_feature_key: VarLenFeature(self.dtype),
        }

    @property
    def num_buckets(self) -> int:
        return self.categorical_column.num_buckets

    def categories(self, batch: Batch) -> Ids:
        weights = batch.raw(self.weight_feature_key)
        if not isinstance(weights, SparseTensor):
            weights = batch.sparse(self.weight_feature_key)
        weights = SparseTensor(weights.indices, cast(weights.values, float32), weights.dense_shape)
        return Ids(batch.once(self.categorical_column).ids, weights)


def weighted_categorical_column(
    categorical_column: CategoricalColumn, weight_feature_key: str, dtype: DTypeLike = float32
) -> WeightedColumn:
    """A column of the categories of another, each with the weight in the feature ``weight_feature_key``,
    which has as many numbers for each example.
    """
    kind = as_dtype(dtype)
    if not (kind.is_integer or kind.is_floating):
        raise misuse(f"weighted_categorical_column: expected numbers; got {kind.name}", DTypeError)
    return WeightedColumn(categorical_column, weight_feature_key, kind)
