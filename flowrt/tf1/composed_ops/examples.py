"""Encoded examples, as TensorFlow 2 parses them: features by vectors of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import unstack
from flowrt.graph.ops.text.examples import parse_example_op
from flowrt.tf1.composed_ops.composition import composed


@composed(
    "ParseExampleV2",
    "serialized: string, names: string, sparse_keys: string, dense_keys: string, ragged_keys: string, "
    "dense_defaults: *Tdense in ANY -> sparse_indices: num_sparse * int64, "
    "sparse_values: *sparse_types in ANY, sparse_shapes: num_sparse * int64, dense_values: *Tdense, "
    "ragged_values: *ragged_value_types in ANY, ragged_row_splits: *ragged_split_types in ANY",
    "num_sparse: int, sparse_types: list(type), ragged_value_types: list(type), "
    "ragged_split_types: list(type), dense_shapes: list(shape)",
)
def parse_examples(
    serialized: Tensor, names: Tensor, sparse_keys: Tensor, dense_keys: Tensor, ragged_keys: Tensor,
    dense_defaults: list[Tensor], num_sparse: int, sparse_types: Sequence[Any],
    ragged_value_types: Sequence[Any], ragged_split_types: Sequence[Any], dense_shapes: Sequence[Any],
) -> Any:  # fmt: skip
    """The same as `ParseExample`, of a vector of messages, without ragged features."""
    if ragged_value_types or serialized.shape.rank != 1:
        raise UnimplementedError("expected a vector of examples without ragged features")
    sparse, dense = unstack(sparse_keys, num_sparse), unstack(dense_keys, len(dense_defaults))
    return parse_example_op(
        serialized, names, sparse, dense, dense_defaults, sparse_types=list(sparse_types),
        dense_shapes=list(dense_shapes),
    )  # fmt: skip
