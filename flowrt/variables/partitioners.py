"""Partitioners: into how many parts TensorFlow would cut a variable along each axis.

A program may name them, but a variable stays one here, as a checkpoint has it: how it is stored changes no
number. A `LayoutStrategy` spreads variables over devices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from flowrt.dtypes import as_dtype, string
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse

__all__ = [
    "PartitionedVariable", "fixed_size_partitioner", "min_max_variable_partitioner",
    "variable_axis_size_partitioner",
]  # fmt: skip


class PartitionedVariable:
    """The type of variables in parts, for programs that ask: no variable has it."""


def fixed_size_partitioner(num_shards: int, axis: int = 0) -> Callable[..., list[int]]:
    """A function of a shape: ``num_shards`` parts along ``axis``, but none without elements.

    Example:
        >>> tf.fixed_size_partitioner(3)(shape=tf.TensorShape([10, 4]))
        [3, 1]
    """
    return lambda shape, **_: _along(axis, shape, num_shards)


def variable_axis_size_partitioner(
    max_shard_bytes: int, axis: int = 0, bytes_per_string_element: int = 16, max_shards: int | None = None
) -> Callable[..., list[int]]:
    """A function of a shape and a dtype: parts of at most ``max_shard_bytes``, if ``axis`` is long enough,
    and at most ``max_shards`` of them.

    Raises `InvalidArgumentError` for numbers that are not positive.
    """
    if min(max_shard_bytes, bytes_per_string_element, max_shards or 1) < 1:
        raise misuse(
            "variable_axis_size_partitioner: expected positive numbers; got"
            f" {max_shard_bytes}, {bytes_per_string_element}, {max_shards}"
        )

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        length = max(1, _lengths(shape)[axis])
        slice_bytes = max(1, _bytes_of(shape, dtype, bytes_per_string_element) / length)
        parts = math.ceil(length / max(1, math.floor(max_shard_bytes / slice_bytes)))
        return _along(axis, shape, min(parts, max_shards or parts))

    return partitioner


def min_max_variable_partitioner(
    max_partitions: int = 1,
    axis: int = 0,
    min_slice_size: int = 256 << 10,
    bytes_per_string_element: int = 16,
) -> Callable[..., list[int]]:
    """A function of a shape and a dtype: at most ``max_partitions`` parts along ``axis``, each of at least
    ``min_slice_size`` bytes.
    """

    def partitioner(shape: Any, dtype: Any) -> list[int]:
        parts = math.ceil(_bytes_of(shape, dtype, bytes_per_string_element) / min_slice_size)
        return _along(axis, shape, max(1, min(max_partitions, parts)))

    return partitioner


def _along(axis: int, shape: Any, parts: int) -> list[int]:
    """``parts`` along ``axis``, or its length. Raises `InvalidArgumentError` unless it is an axis."""
    dims = _lengths(shape)
    if not -len(dims) <= axis < len(dims):
        raise misuse(f"partitioner: expected an axis of a variable of shape {dims}; got {axis}")
    counts = [1] * len(dims)
    counts[axis] = min(parts, dims[axis])
    return counts


def _bytes_of(shape: Any, dtype: Any, string_bytes: int) -> int:
    each = string_bytes if as_dtype(dtype) is string else as_dtype(dtype).size
    return math.prod(_lengths(shape)) * each


def _lengths(shape: Any) -> list[int]:
    """The dimensions of ``shape``. Raises `InvalidArgumentError` for unknown ones."""
    dims = TensorShape(shape).as_list()
    known = [length for length in dims if length is not None]
    if len(known) < len(dims):
        raise misuse(f"partitioner: expected a shape without unknown dimensions; got {dims}")
    return known
