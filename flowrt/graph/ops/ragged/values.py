"""Ragged values outside of a graph: fetched and fed ones, and nested lists."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np

from flowrt.dtypes import DTypeLike, as_dtype
from flowrt.errors import InvalidArgumentError
from flowrt.graph.source import misuse


class RaggedTensorValue(NamedTuple):
    """A fetched `RaggedTensor`, or one to feed: row i has ``values[row_splits[i]:row_splits[i + 1]]``.

    ``values`` is an array [n, ...], or another `RaggedTensorValue` where rows are of ragged rows.
    """

    values: Any
    row_splits: Any

    @property
    def flat_values(self) -> Any:
        """The elements of the innermost rows in succession, [n, ...]."""
        return self.values.flat_values if isinstance(self.values, RaggedTensorValue) else self.values

    @property
    def nested_row_splits(self) -> tuple[Any, ...]:
        inner = self.values.nested_row_splits if isinstance(self.values, RaggedTensorValue) else ()
        return (self.row_splits, *inner)

    @property
    def ragged_rank(self) -> int:
        return len(self.nested_row_splits)

    @property
    def dtype(self) -> Any:
        return np.asarray(self.flat_values).dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        return (len(self.row_splits) - 1, None, *self.values.shape[1:])

    def to_list(self) -> list[Any]:
        """The value as nested lists."""
        rows = self.values.to_list() if isinstance(self.values, RaggedTensorValue) else self.values.tolist()
        ends = np.asarray(self.row_splits).tolist()
        return [rows[start:end] for start, end in itertools.pairwise(ends)]


def depth_of(rows: Any) -> int | None:
    """The number of lists around the elements of ``rows``; None where there are no elements."""
    if not isinstance(rows, (list, tuple, np.ndarray)):
        return 0
    known = {depth for depth in map(depth_of, rows) if depth is not None}
    if len(known) > 1:
        raise misuse(f"ragged.constant: expected elements at one depth of lists; got {rows!r:.200}")
    return known.pop() + 1 if known else None


def least_depth(rows: Any) -> int:
    """The depth of lists that are empty at all depths below it."""
    return 1 + max(map(least_depth, rows), default=0) if isinstance(rows, (list, tuple, np.ndarray)) else 0


def nested_value(
    rows: Any, dtype: DTypeLike | None, ragged_rank: int | None, inner_shape: Any, splits_dtype: Any
) -> Any:
    """``rows`` as a `RaggedTensorValue`, or as an array where ``ragged_rank`` is 0.

    Raises `InvalidArgumentError` for elements at several depths, and rows that do not fit ``inner_shape``.
    """
    found = depth_of(rows)
    depth = max(1, least_depth(rows)) if found is None else found
    if found == 0:
        if ragged_rank:
            raise misuse(f"ragged.constant: expected a ragged_rank of 0 for a scalar; got {ragged_rank}")
        return _array(rows, dtype, ())
    if ragged_rank is None:
        ragged_rank = max(0, depth - 1 - len(inner_shape or ()))
    if inner_shape is None:
        inner_shape = _sizes(rows, ragged_rank, depth)
    if ragged_rank >= max(depth, 1):
        raise misuse(f"ragged.constant: expected a ragged_rank below {depth}; got {ragged_rank}")
    splits, level = [], list(rows)
    for _ in range(ragged_rank):
        splits.append(np.cumsum([0, *map(len, level)], dtype=as_dtype(splits_dtype).np))
        level = [row for outer in level for row in outer]
    value: Any = _array(level, dtype, (len(level), *inner_shape))
    for ends in reversed(splits):
        value = RaggedTensorValue(value, ends)
    return value


def _sizes(rows: Any, ragged_rank: int, depth: int) -> tuple[int, ...]:
    """The shape of the elements, from the first row that has each dimension."""
    level = list(rows)
    for _ in range(ragged_rank):
        level = [row for outer in level for row in outer]
    found = []
    for _ in range(depth - 1 - ragged_rank):
        found.append(len(level[0]) if level else 0)
        level = [row for outer in level for row in outer]
    return tuple(found)


def _array(rows: Any, dtype: DTypeLike | None, shape: tuple[int, ...]) -> Any:
    from_floats = {"float64": np.float32, "int64": np.int32}  # as in a constant of Python's numbers
    try:
        array = np.array(rows, None if dtype is None else as_dtype(dtype).np)
    except ValueError:
        raise misuse(f"ragged.constant: expected elements of one shape; got {rows!r:.200}") from None
    if dtype is None and array.size == 0:
        array = array.astype(np.float32)
    if dtype is None and array.dtype.name in from_floats:
        array = array.astype(from_floats[array.dtype.name])
    if array.dtype.kind in "US":
        array = np.array([x.encode() if isinstance(x, str) else x for x in array.ravel().tolist()], object)
    try:
        return array.reshape(shape)
    except ValueError:
        raise misuse(
            f"ragged.constant: expected elements of shape {list(shape)}; got {rows!r:.200}",
            InvalidArgumentError,
        ) from None
