"""Layers over feature columns: their dense tensors side by side, and linear models of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flowrt.dtypes import float32
from flowrt.errors import InvalidArgumentError
from flowrt.feature_column.columns import Batch, CategoricalColumn, Column, DenseColumn
from flowrt.functions.sparse_embeddings import safe_embedding_lookup_sparse
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import add_n
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.source import misuse
from flowrt.initializers import zeros_initializer
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable_scope import variable_scope

__all__ = ["input_layer", "linear_model", "make_parse_example_spec"]


def input_layer(
    features: Mapping[str, Any],
    feature_columns: Any,
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
    cols_to_output_tensors: dict[Any, Any] | None = None,
) -> Tensor:
    """The dense columns of a batch side by side in the order of their names, [batch, numbers].

    ``features`` are tensors or sparse tensors by name. ``cols_to_vars`` and ``cols_to_output_tensors`` are
    dicts that get each column's variables and tensor. Raises `InvalidArgumentError` for a categorical column
    (use `embedding_column` or `indicator_column`), equal columns, or a feature that is missing.

    Example:
        >>> tf.feature_column.input_layer(
        ...     {"b": [[1.0]], "a": [[2.0, 3.0]]},
        ...     [tf.feature_column.numeric_column("b"), tf.feature_column.numeric_column("a", 2)],
        ... ).eval()
        array([[2., 3., 1.]], dtype=float32)
    """
    columns = _sorted("input_layer", feature_columns)
    batch, found = Batch(features), []
    with variable_scope(None, "input_layer"):
        for column in columns:
            if not isinstance(column, DenseColumn):
                raise misuse(
                    f"input_layer: expected dense columns; {column.name!r} is categorical: use "
                    "embedding_column or indicator_column",
                    InvalidArgumentError,
                )
            with variable_scope(None, column.scope) as scope:
                tensor = column.dense(batch, trainable)
                output = reshape(tensor, [-1, math.prod(column.variable_shape)])
                made = scope.global_variables()
            found.append(output)
            if cols_to_vars is not None:
                cols_to_vars[column] = made
            if cols_to_output_tensors is not None:
                cols_to_output_tensors[column] = output
        return concat(found, 1)


def linear_model(
    features: Mapping[str, Any],
    feature_columns: Any,
    units: int = 1,
    sparse_combiner: str = "sum",
    weight_collections: Any = None,
    trainable: bool = True,
    cols_to_vars: dict[Any, Any] | None = None,
) -> Tensor:
    """A linear function of all columns of a batch, [batch, units]: a weight for each number of a dense column
    and for each category, and a bias; all begin at 0.

    The weights of an example's categories are combined by ``sparse_combiner``: "sum", "mean" or "sqrtn".
    ``cols_to_vars`` is a dict that gets each column's variables, and those of "bias". Raises
    `InvalidArgumentError` as `input_layer` does, and for columns of embeddings.
    """
    columns = _sorted("linear_model", feature_columns)
    batch, sums = Batch(features), []
    with variable_scope(None, "linear_model"):
        for column in columns:
            with variable_scope(column.name):
                total, weights = _weighted(column, batch, units, sparse_combiner, trainable)
            sums.append(total)
            if cols_to_vars is not None:
                cols_to_vars[column] = [weights]
        bias = get_variable(
            "bias_weights", [units], float32, initializer=zeros_initializer(), trainable=trainable
        )
        if cols_to_vars is not None:
            cols_to_vars["bias"] = [bias]
        return add_n(sums) + bias


def _weighted(column: Column, batch: Batch, units: int, combiner: str, trainable: bool) -> tuple[Tensor, Any]:
    """The column's share of a linear model, and its weights."""
    zeros = zeros_initializer()
    if isinstance(column, CategoricalColumn):
        weights = get_variable(
            "weights", [column.num_buckets, units], float32, initializer=zeros, trainable=trainable
        )
        found = batch.once(column)
        total = safe_embedding_lookup_sparse(weights, found.ids, found.weights, combiner)
        return reshape(total, [-1, units]), weights
    assert isinstance(column, DenseColumn)
    count = math.prod(column.variable_shape)
    weights = get_variable("weights", [count, units], float32, initializer=zeros, trainable=trainable)
    return matmul(reshape(column.dense(batch, trainable), [-1, count]), weights), weights


def make_parse_example_spec(feature_columns: Iterable[Column]) -> dict[str, Any]:
    """The features that `parse_example` has to read for ``feature_columns``, by name.

    Raises `InvalidArgumentError` where two columns read a feature in different ways.
    """
    spec: dict[str, Any] = {}
    for column in feature_columns:
        for key, feature in column.parse_example_spec.items():
            if spec.setdefault(key, feature) != feature:
                raise misuse(
                    f"make_parse_example_spec: expected one way to read {key!r}; got {spec[key]}, {feature}",
                    InvalidArgumentError,
                )
    return spec


def _sorted(where: str, feature_columns: Any) -> list[Column]:
    columns = [feature_columns] if isinstance(feature_columns, Column) else list(feature_columns)
    strange = [column for column in columns if not isinstance(column, Column)]
    names = [column.name for column in columns if isinstance(column, Column)]
    if strange or not columns or len(set(names)) < len(names):
        raise misuse(
            f"{where}: expected different feature columns; got {(strange or names)!r:.200}",
            InvalidArgumentError,
        )
    return sorted(columns, key=lambda column: column.name)
