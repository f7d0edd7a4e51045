"""Columns that make vectors of categories: embeddings and indicators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.feature_column.columns import Batch, CategoricalColumn, DenseColumn
from flowrt.functions.sparse_embeddings import safe_embedding_lookup_sparse
from flowrt.functions.sparse_functions import sparse_tensor_to_dense
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.ranges import one_hot
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape
from flowrt.graph.source import misuse
from flowrt.initializers import truncated_normal_initializer
from flowrt.variables.get_variable import get_variable

__all__ = ["embedding_column", "indicator_column", "shared_embedding_columns"]


@dataclass(frozen=True)
class EmbeddingColumn(DenseColumn):
    """Made by `embedding_column` and `shared_embedding_columns`."""

    categorical_column: CategoricalColumn
    dimension: int
    combiner: str
    initializer: Any
    max_norm: float | None
    trainable: bool
    shared_name: str | None = None

    @property
    def name(self) -> str:
        kind = "embedding" if self.shared_name is None else "shared_embedding"
        return f"{self.categorical_column.name}_{kind}"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def scope(self) -> str:
        return self.shared_name or self.name

    @property
    def variable_shape(self) -> tuple[int, ...]:
        return (self.dimension,)

    def _table(self, trainable: bool) -> Any:
        graph = get_default_graph()
        if self.shared_name is not None and (made := graph.get_collection(self.shared_name)):
            return made[0]
        table = get_variable(
            "embedding_weights",
            [self.categorical_column.num_buckets, self.dimension],
            float32,
            initializer=self.initializer or truncated_normal_initializer(0.0, 1 / math.sqrt(self.dimension)),
            trainable=self.trainable and trainable,
        )
        if self.shared_name is not None:
            graph.add_to_collection(self.shared_name, table)
        return table

    def dense(self, batch: Batch, trainable: bool) -> Tensor:
        ids, weights = batch.once(self.categorical_column)
        found = safe_embedding_lookup_sparse(
            self._table(trainable), ids, weights, self.combiner, max_norm=self.max_norm
        )
        return reshape(found, [-1, self.dimension])


def embedding_column(
    categorical_column: CategoricalColumn,
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> EmbeddingColumn:
    """A column of vectors of ``dimension`` numbers that are learned, one for each category; of an example's
    categories the ``combiner``: "mean", "sqrtn" or "sum".

    The vectors begin as normal numbers of deviation 1 / sqrt(dimension), or as ``initializer`` makes them.
    Raises `InvalidArgumentError` for a dimension below 1, `UnimplementedError` for a checkpoint.
    """
    _check(categorical_column, dimension, ckpt_to_load_from or tensor_name_in_ckpt)
    return EmbeddingColumn(categorical_column, dimension, combiner, initializer, max_norm, trainable)


def shared_embedding_columns(
    categorical_columns: Sequence[CategoricalColumn],
    dimension: int,
    combiner: str = "mean",
    initializer: Any = None,
    shared_embedding_collection_name: str | None = None,
    ckpt_to_load_from: str | None = None,
    tensor_name_in_ckpt: str | None = None,
    max_norm: float | None = None,
    trainable: bool = True,
) -> list[EmbeddingColumn]:
    """Embedding columns that learn the same vectors, for columns of as many categories each.

    Raises `InvalidArgumentError` for columns of different numbers of categories; see `embedding_column`.
    """
    counts = {column.num_buckets for column in categorical_columns}
    if len(counts) != 1:
        raise misuse(
            f"shared_embedding_columns: expected one number of categories; got {sorted(counts)}",
            InvalidArgumentError,
        )
    _check(categorical_columns[0], dimension, ckpt_to_load_from or tensor_name_in_ckpt)
    names = sorted(column.name for column in categorical_columns)
    shared = shared_embedding_collection_name or f"{'_'.join(names)}_shared_embedding"
    return [
        EmbeddingColumn(column, dimension, combiner, initializer, max_norm, trainable, shared)
        for column in categorical_columns
    ]


def _check(column: Any, dimension: int, checkpoint: str | None) -> None:
    if not isinstance(column, CategoricalColumn) or dimension < 1:
        raise misuse(
            "embedding_column: expected a categorical column and a dimension from 1 on; got "
            f"{column!r:.200}, {dimension}",
            InvalidArgumentError,
        )
    if checkpoint is not None:
        raise misuse("embedding_column: use train.init_from_checkpoint", UnimplementedError)


@dataclass(frozen=True)
class IndicatorColumn(DenseColumn):
    """Made by `indicator_column`."""

    categorical_column: CategoricalColumn

    @property
    def name(self) -> str:
        return f"{self.categorical_column.name}_indicator"

    @property
    def parse_example_spec(self) -> dict[str, Any]:
        return self.categorical_column.parse_example_spec

    @property
    def variable_shape(self) -> tuple[int, ...]:
        return (self.categorical_column.num_buckets,)

    def dense(self, batch: Batch, trainable: bool) -> Tensor:
        ids, weights = batch.once(self.categorical_column)
        each = one_hot(sparse_tensor_to_dense(ids, -1), self.categorical_column.num_buckets)
        if weights is not None:
            each *= expand_dims(sparse_tensor_to_dense(weights), -1)
        return reduce_sum(each, -2)


def indicator_column(categorical_column: CategoricalColumn) -> IndicatorColumn:
    """A column of vectors with a number for each category: how many times, or with which weight, it is there.

    Example:
        >>> column = tf.feature_column.indicator_column(
        ...     tf.feature_column.categorical_column_with_identity("x", 3)
        ... )
        >>> tf.feature_column.input_layer({"x": [[2, 2], [0, 1]]}, [column]).eval()
        array([[0., 0., 2.],
               [1., 1., 0.]], dtype=float32)
    """
    if not isinstance(categorical_column, CategoricalColumn):
        raise misuse(
            f"indicator_column: expected a categorical column; got {categorical_column!r:.200}",
            InvalidArgumentError,
        )
    return IndicatorColumn(categorical_column)
