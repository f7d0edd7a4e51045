"""Feature columns as the features of boosted trees: buckets by number, one for each example and feature."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from flowrt.dtypes import int32
from flowrt.errors import InvalidArgumentError
from flowrt.feature_column.categories import IndicatorColumn
from flowrt.feature_column.columns import Batch
from flowrt.feature_column.dense import BucketizedColumn, NumericColumn
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import minimum
from flowrt.graph.source import misuse


class BoostedFeatures:
    """The features of ``columns``, in the order of their names: each number of a numeric column, the bucket
    of a bucketized one, and whether each category of an indicator column is there.

    Raises `InvalidArgumentError` for other columns, and for those of several dimensions.
    """

    def __init__(self, columns: Iterable[Any]) -> None:
        self._columns = sorted(columns, key=lambda column: str(column.name))
        if not self._columns:
            raise misuse("feature_columns: expected at least one; got none", InvalidArgumentError)
        for column in self._columns:
            _check(column)

    @property
    def has_numbers(self) -> bool:
        """Whether there are numbers without buckets."""
        return any(isinstance(column, NumericColumn) for column in self._columns)

    def sizes(self, num_quantiles: int) -> tuple[int, ...]:
        """The number of buckets of each feature. Numbers have two more than ``num_quantiles``: boundaries
        keep the first and the last number.
        """
        found: list[int] = []
        for column in self._columns:
            if isinstance(column, NumericColumn):
                found += [num_quantiles + 2] * math.prod(column.shape)
            elif isinstance(column, BucketizedColumn):
                found.append(len(column.boundaries) + 1)
            else:
                found += [2] * column.categorical_column.num_buckets
        return tuple(found)

    def names(self) -> list[str]:
        """The name of each feature's column; of an indicator that of its categories."""
        found: list[str] = []
        for column in self._columns:
            if isinstance(column, IndicatorColumn):
                found += [column.categorical_column.name] * column.categorical_column.num_buckets
            else:
                count = math.prod(column.shape) if isinstance(column, NumericColumn) else 1
                found += [column.name] * count
        return found

    def numbers(self, features: Mapping[str, Any]) -> Tensor | None:
        """The numbers that need buckets, float32, [examples, numbers]; None without any."""
        batch = Batch(features)
        found = [
            reshape(column.dense(batch, trainable=False), [-1, math.prod(column.shape)])
            for column in self._columns
            if isinstance(column, NumericColumn)
        ]
        return concat(found, 1) if found else None

    def buckets(self, features: Mapping[str, Any], of_numbers: Tensor | None) -> Tensor:
        """The buckets of all features, int32, [examples, features], given those of `numbers`."""
        batch, found, start = Batch(features), [], 0
        for column in self._columns:
            if isinstance(column, NumericColumn):
                assert of_numbers is not None
                count = math.prod(column.shape)
                found.append(of_numbers[:, start : start + count])
                start += count
            elif isinstance(column, BucketizedColumn):
                found.append(cast(reshape(column.buckets(batch), [-1, 1]), int32))
            else:
                found.append(minimum(cast(column.dense(batch, trainable=False), int32), 1))
        return concat(found, 1)


def _check(column: Any) -> None:
    if isinstance(column, BucketizedColumn) and column.source_column.shape == (1,):
        return
    if isinstance(column, IndicatorColumn) or (isinstance(column, NumericColumn) and len(column.shape) <= 1):
        return
    raise misuse(
        "feature_columns: expected numeric_column of one dimension, bucketized_column of one number, or "
        f"indicator_column; got {column!r:.200}",
        InvalidArgumentError,
    )
