"""Rows of embedding tables, combined for each row of a sparse tensor of their numbers."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import int64
from flowrt.errors import InvalidArgumentError
from flowrt.functions.sparse_functions import sparse_fill_empty_rows, sparse_reshape, sparse_retain
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, stack
from flowrt.graph.ops.array.reductions import reduce_prod
from flowrt.graph.ops.array.segments import segment_sum
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.slicing import getitem
from flowrt.graph.ops.base.filling import ones_like, zeros_like
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape, shape
from flowrt.graph.ops.base.sparse_tensor import SparseTensor
from flowrt.graph.ops.elementwise.comparison import greater, greater_equal, logical_and, where_v2
from flowrt.graph.ops.elementwise.division import div_no_nan
from flowrt.graph.ops.elementwise.math import sqrt, square
from flowrt.graph.source import misuse
from flowrt.variables.graph_scopes import name_scope

__all__ = ["embedding_lookup_sparse", "safe_embedding_lookup_sparse"]


def embedding_lookup_sparse(
    params: Any,
    sp_ids: SparseTensor,
    sp_weights: SparseTensor | None,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
) -> Tensor:
    """The rows of the table ``params`` that each row of ``sp_ids``, [rows, any], names, combined into one:
    ``[rows, *row]``, up to the last row that has ids.

    ``combiner``: "sum" of the rows times their ``sp_weights`` (None: 1), "mean" (the default), that divided
    by the sum of the weights, or "sqrtn", by the root of the sum of their squares. ``params`` may be a list
    of parts, see `embedding_lookup`. Raises `InvalidArgumentError` for another combiner.
    """
    how = combiner or "mean"
    _check_combiner("embedding_lookup_sparse", how)
    with name_scope(name, "embedding_lookup_sparse", [sp_ids]):
        rows = sp_ids.indices[:, 0]
        found = embedding_lookup(params, sp_ids.values, partition_strategy, max_norm=max_norm)
        weights = ones_like(rows, found.dtype) if sp_weights is None else cast(sp_weights.values, found.dtype)
        each = reshape(weights, concat([shape(weights), ones_like(shape(found)[1:])], 0))
        total = segment_sum(found * each, rows)
        if how == "sum":
            return total
        divisor = segment_sum(each, rows) if how == "mean" else sqrt(segment_sum(square(each), rows))
        return div_no_nan(total, divisor)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: SparseTensor,
    sparse_weights: SparseTensor | None = None,
    combiner: str = "mean",
    default_id: int | None = None,
    name: str | None = None,
    partition_strategy: str = "div",
    max_norm: float | None = None,
) -> Tensor:
    """`embedding_lookup_sparse` of ``sparse_ids``, [..., any], where rows may be empty: ``[..., *row]``.

    Negative ids are left out, and those with weights that are not positive, unless they are summed. A row
    without ids is that of ``default_id``, by default zeros.
    """
    _check_combiner("safe_embedding_lookup_sparse", combiner)
    with name_scope(name, "embedding_lookup", [sparse_ids]):
        sizes = sparse_ids.dense_shape
        flat = stack([reduce_prod(sizes[:-1]), sizes[-1]])
        ids = sparse_reshape(sparse_ids, flat)
        is_used = greater_equal(ids.values, zeros_like(ids.values))
        if sparse_weights is not None and combiner != "sum":
            is_used = logical_and(is_used, greater(sparse_weights.values, 0.0))
        weights = sparse_weights and sparse_retain(sparse_reshape(sparse_weights, flat), is_used)
        filled, is_empty = sparse_fill_empty_rows(sparse_retain(ids, is_used), default_id or 0)
        if weights is not None:
            weights, _ = sparse_fill_empty_rows(weights, 1.0)
        found = embedding_lookup_sparse(
            embedding_weights, filled, weights, partition_strategy, combiner=combiner, max_norm=max_norm
        )
        width = len(found.shape) - 1
        if default_id is None:
            found = where_v2(getitem(is_empty, (..., *[None] * width)), zeros_like(found), found)
        return reshape(found, concat([cast(sizes[:-1], int64), cast(shape(found)[1:], int64)], 0))


def _check_combiner(function: str, combiner: str) -> None:
    if combiner not in ("mean", "sqrtn", "sum"):
        raise misuse(
            f"{function}: expected combiner 'mean', 'sqrtn' or 'sum'; got {combiner!r}", InvalidArgumentError
        )
