"""Feature columns of ``contrib.layers``: the older names for those of `flowrt.feature_column`.

A column of numbers is dense there too; sparse columns are categories, for linear models as they are, for deep
ones by `embedding_column` or `one_hot_column`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from flowrt import feature_column as core
from flowrt.dtypes import DTypeLike, float32, int64, string
from flowrt.errors import UnimplementedError
from flowrt.feature_column.columns import Column
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.source import misuse

bucketized_column = core.bucketized_column
crossed_column = core.crossed_column
create_feature_spec_for_parsing = core.make_parse_example_spec


def real_valued_column(
    column_name: str,
    dimension: int | None = 1,
    default_value: Any = None,
    dtype: DTypeLike = float32,
    normalizer: Callable[[Tensor], Any] | None = None,
) -> Column:
    """A column of ``dimension`` numbers, as ``normalizer`` changes them; see `feature_column.numeric_column`.

    Raises `UnimplementedError` for numbers of any count (``dimension=None``).
    """
    if dimension is None:
        raise misuse("real_valued_column: expected a dimension; got None", UnimplementedError)
    return core.numeric_column(column_name, dimension, default_value, dtype, normalizer)


def sparse_column_with_hash_bucket(
    column_name: str, hash_bucket_size: int, combiner: str = "sum", dtype: DTypeLike = string
) -> Column:
    """Categories numbered by a hash; see `feature_column.categorical_column_with_hash_bucket`."""
    _check_combiner(combiner)
    return core.categorical_column_with_hash_bucket(column_name, hash_bucket_size, dtype)


def sparse_column_with_keys(
    column_name: str,
    keys: Sequence[Any],
    default_value: int = -1,
    combiner: str = "sum",
    dtype: DTypeLike = string,
) -> Column:
    """Categories numbered as in ``keys``; see `feature_column.categorical_column_with_vocabulary_list`."""
    _check_combiner(combiner)
    return core.categorical_column_with_vocabulary_list(column_name, keys, dtype, default_value)


def sparse_column_with_vocabulary_file(
    column_name: str,
    vocabulary_file: str,
    num_oov_buckets: int = 0,
    vocab_size: int | None = None,
    default_value: int = -1,
    combiner: str = "sum",
    dtype: DTypeLike = string,
) -> Column:
    """Categories numbered by the lines of a file; see
    `feature_column.categorical_column_with_vocabulary_file`.
    """
    _check_combiner(combiner)
    default = None if num_oov_buckets else default_value
    return core.categorical_column_with_vocabulary_file(
        column_name, vocabulary_file, vocab_size, num_oov_buckets, default, dtype
    )


def sparse_column_with_integerized_feature(
    column_name: str, bucket_size: int, combiner: str = "sum", dtype: DTypeLike = int64
) -> Column:
    """Categories that are numbers below ``bucket_size``; see
    `feature_column.categorical_column_with_identity`.
    """
    _check_combiner(combiner)
    return core.categorical_column_with_identity(column_name, bucket_size)


def _check_combiner(combiner: str) -> None:
    """Linear models combine the weights of an example's categories in one way for all columns."""
    if combiner != "sum":
        raise misuse(f"combiner: expected 'sum'; got {combiner!r}. Use feature_column", UnimplementedError)


def weighted_sparse_column(
    sparse_id_column: Any, weight_column_name: str, dtype: DTypeLike = float32
) -> Column:
    """Categories with the weights of another feature; see `feature_column.weighted_categorical_column`."""
    return core.weighted_categorical_column(sparse_id_column, weight_column_name, dtype)


def embedding_column(
    sparse_id_column: Any,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> Column:
    """Vectors of categories; see `feature_column.embedding_column`."""
    return core.embedding_column(
        sparse_id_column, dimension, combiner, initializer, ckpt_to_load_from, tensor_name_in_ckpt, max_norm,
        trainable,
    )  # fmt: skip


def one_hot_column(sparse_id_column: Any) -> Column:
    """The count of each category in an example; see `feature_column.indicator_column`."""
    return core.indicator_column(sparse_id_column)


def infer_real_valued_columns(features: Any) -> list[Column]:
    """A `real_valued_column` of each feature, a dict of tensors, or of the only one, named "".

    The tensors are [batch, dimension].
    """
    named: Mapping[str, Tensor] = features if isinstance(features, Mapping) else {"": features}
    return [
        real_valued_column(name, tensor.shape[1].value if len(tensor.shape) > 1 else 1, dtype=tensor.dtype)
        for name, tensor in sorted(named.items())
    ]


def input_from_feature_columns(
    columns_to_tensors: Mapping[str, Any],
    feature_columns: Iterable[Column],
    weight_collections: Any = None,
    trainable: bool = True,
    scope: Any = None,
) -> Tensor:
    """The columns of a batch side by side, [batch, any]; see `feature_column.input_layer`."""
    return core.input_layer(columns_to_tensors, feature_columns, weight_collections, trainable)
