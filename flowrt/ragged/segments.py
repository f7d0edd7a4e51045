"""Rows as segments: ids of rows and where rows end, values stacked by partition; and a ragged placeholder."""

from __future__ import annotations

import builtins
from typing import Any

from flowrt.dtypes import DTypeLike, as_dtype, int32, int64
from flowrt.errors import DTypeError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import placeholder as dense_placeholder
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.array.sorting import argsort
from flowrt.graph.ops.base.identities import cast, identity
from flowrt.graph.ops.ragged.ragged_tensor import RaggedTensor
from flowrt.graph.ops.ragged.rows import as_ragged
from flowrt.graph.ops.text.assertions import assert_equal, assert_less, assert_non_negative
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse


def placeholder(dtype: DTypeLike, ragged_rank: int, value_shape: Any = None, name: str | None = None) -> Any:
    """A ragged tensor to be fed, with ``ragged_rank`` ragged dimensions; each value is of ``value_shape``.

    Example:
        >>> rows = tf.ragged.placeholder(tf.int32, 1)
        >>> rows.row_lengths().eval({rows: tf.ragged.constant_value([[1, 2], [3]])})
        array([2, 1])
    """
    if not ragged_rank:
        return dense_placeholder(dtype, value_shape, name)
    with get_default_graph().name_scope(name or "RaggedPlaceholder"):
        inner = TensorShape([None]).concatenate(TensorShape(value_shape))
        rows: Any = dense_placeholder(dtype, inner, "flat_values")
        for i in reversed(builtins.range(ragged_rank)):
            rows = RaggedTensor(rows, dense_placeholder(int64, [None], f"row_splits_{i}"))
        return rows


def row_splits_to_segment_ids(
    splits: Any, name: str | None = None, out_type: DTypeLike | None = None
) -> Tensor:
    """The number of the row of each value, for rows that end at ``splits``, which begins with 0.

    Example:
        >>> tf.ragged.row_splits_to_segment_ids([0, 2, 2, 3]).eval()
        array([0, 0, 2])
    """
    with get_default_graph().name_scope(name or "RaggedSplitsToSegmentIds"):
        ends = convert_to_tensor(splits, preferred_dtype=int64)
        if ends.dtype not in (int32, int64):
            raise misuse(f"splits: expected int32 or int64; got {ends.dtype.name}", DTypeError)
        if ends.shape.ndims not in (1, None) or ends.shape.as_list() == [0]:
            raise misuse(f"splits: expected a vector with a first 0; got shape {ends.shape}")
        ids = RaggedTensor(ends, ends).value_rowids()
        return cast(ids, ends.dtype if out_type is None else as_dtype(out_type))


def segment_ids_to_row_splits(
    segment_ids: Any, num_segments: Any = None, out_type: DTypeLike | None = None, name: str | None = None
) -> Tensor:
    """The ends of rows, and a 0 before them, of values with these numbers of rows, in ascending order.

    There are ``num_segments`` rows, by default up to the last of a value.

    Example:
        >>> tf.ragged.segment_ids_to_row_splits([0, 0, 2], 4).eval()
        array([0, 2, 2, 3, 3])
    """
    given = [each.dtype for each in (segment_ids, num_segments) if isinstance(each, Tensor)]
    kind = as_dtype(out_type) if out_type is not None else given[0] if given else int64
    with get_default_graph().name_scope(name or "SegmentIdsToRaggedSplits"):
        ids = cast(convert_to_tensor(segment_ids, preferred_dtype=int32), kind)
        return RaggedTensor.from_value_rowids(ids, ids, num_segments, validate=False).row_splits


def stack_dynamic_partitions(
    data: Any, partitions: Any, num_partitions: Any, name: str | None = None
) -> RaggedTensor:
    """Row i has the elements of ``data`` for which ``partitions`` is i, in their order.

    ``partitions`` has the first dimensions of ``data``, and their rows where these are ragged. A step raises
    `InvalidArgumentError` for one below 0 or not below ``num_partitions``, and for other rows.

    Example:
        >>> tf.ragged.stack_dynamic_partitions([1, 2, 3], [1, 0, 1], 3).eval().to_list()
        [[2], [1, 3], []]
    """
    with get_default_graph().name_scope(name or "SegmentStack"):
        data, partitions = as_ragged(data), as_ragged(partitions)
        rank = partitions.shape.ndims
        if rank is None:
            raise misuse("partitions: expected a known number of dimensions")
        if rank > 1:
            rows = data if isinstance(data, RaggedTensor) else RaggedTensor.from_tensor(data)
            ids = partitions if isinstance(partitions, RaggedTensor) else RaggedTensor.from_tensor(partitions)
            check = assert_equal(
                cast(rows.row_splits, int64), cast(ids.row_splits, int64),
                message="data and partitions: expected the same rows",
            )  # fmt: skip
            with get_default_graph().control_dependencies([check]):
                values = identity(ids.values) if isinstance(ids.values, Tensor) else ids.values
                return stack_dynamic_partitions(rows.values, values, num_partitions)
        if rank == 0:
            data, partitions = stack([data]), stack([partitions])
        if isinstance(data, RaggedTensor):  # all splits of a ragged tensor have one dtype
            partitions = cast(partitions, data.row_splits.dtype)
        order = argsort(partitions, stable=True)
        sorted_ids = gather(partitions, order)
        limit = cast(convert_to_tensor(num_partitions), sorted_ids.dtype)
        checks = [
            assert_non_negative(sorted_ids, message="partitions: expected none below 0"),
            assert_less(sorted_ids, limit, message="partitions: expected numbers below num_partitions"),
        ]
        with get_default_graph().control_dependencies(checks):
            order, sorted_ids = identity(order), identity(sorted_ids)
        return RaggedTensor.from_value_rowids(gather(data, order), sorted_ids, limit, validate=False)
