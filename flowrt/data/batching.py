"""Batching of consecutive elements along a new leading dimension, and its inverse."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, final

import numpy as np

from flowrt.base.structure import Structure, flatten, leaf_paths, pack_as
from flowrt.data.node import Array, Element, Iteration, Node, Stream, expect_at_least, known_int
from flowrt.data.spec import TensorSpec, batch_spec, row_spec
from flowrt.errors import InvalidArgumentError
from flowrt.graph.shapes import format_shape


@final
@dataclass(frozen=True, eq=False)
class Batch(Node):
    """Every ``batch_size`` elements stacked into one; the last batch may be smaller, or is dropped."""

    input: Node
    batch_size: Any
    drop_remainder: Any = False

    def __post_init__(self) -> None:
        expect_at_least(1, "batch: batch_size", self.batch_size)

    @property
    def spec(self) -> Structure:
        return batch_spec(self.input.spec, _static_size(self.batch_size, self.drop_remainder))

    def open(self, iteration: Iteration) -> Stream[Element]:
        return self.open_from(iteration, 0)

    def open_from(self, iteration: Iteration, first: int) -> Stream[Element]:
        size, drop = operator.index(self.batch_size), bool(self.drop_remainder)
        open_batches = rows.open_batched if (rows := self.input.rows) else self._stacked
        return open_batches(iteration, size, drop, first)

    def _stacked(self, iteration: Iteration, size: int, drop: bool, first: int) -> Stream[Element]:
        paths = leaf_paths(self.input.spec)
        with closing(self.input.open_from(iteration, first * size)) as elements:
            for columns in _columns(elements, size, drop):
                yield tuple([_stack(column, path) for column, path in zip(columns, paths, strict=True)])


@final
@dataclass(frozen=True, eq=False)
class PaddedBatch(Node):
    """Like `Batch`, each component padded at its ends to its entry of ``padded_shapes``.

    An unknown dimension is padded to the batch's largest. ``padded_shapes`` and ``padding_values`` are flat,
    one per component; the value None means 0 or ``b""``.
    """

    input: Node
    batch_size: Any
    padded_shapes: tuple[tuple[Any, ...], ...]
    padding_values: tuple[Any, ...]
    drop_remainder: Any = False

    def __post_init__(self) -> None:
        expect_at_least(1, "padded_batch: batch_size", self.batch_size)
        paths = leaf_paths(self.input.spec)
        for path, leaf, shape in zip(paths, self._leaves, self.padded_shapes, strict=True):
            if leaf.shape is not None and len(leaf.shape) != len(shape):
                raise InvalidArgumentError(
                    f"padded_batch: component{path}: expected a padded shape of rank {len(leaf.shape)}; "
                    f"got {format_shape(self._known(shape))}"
                )

    @property
    def _leaves(self) -> list[TensorSpec]:
        return flatten(self.input.spec)

    @staticmethod
    def _known(shape: tuple[Any, ...]) -> tuple[int | None, ...]:
        sizes = map(known_int, shape)
        return tuple(None if size is None or size < 0 else size for size in sizes)

    @property
    def spec(self) -> Structure:
        shapes = map(self._known, self.padded_shapes)
        padded = [TensorSpec(shape, leaf.dtype) for shape, leaf in zip(shapes, self._leaves, strict=True)]
        size = _static_size(self.batch_size, self.drop_remainder)
        return batch_spec(pack_as(self.input.spec, padded), size)

    def open(self, iteration: Iteration) -> Stream[Element]:
        size, drop = operator.index(self.batch_size), bool(self.drop_remainder)
        paths = leaf_paths(self.input.spec)
        plan = list(zip(map(self._known, self.padded_shapes), self.padding_values, paths, strict=True))
        with closing(self.input.open(iteration)) as elements:
            for columns in _columns(elements, size, drop):
                yield tuple([_pad(column, *how) for column, how in zip(columns, plan, strict=True)])


@final
@dataclass(frozen=True, eq=False)
class Unbatch(Node):
    """Every row of every element as a separate element."""

    input: Node

    def __post_init__(self) -> None:
        _ = self.spec  # scalars and differing row counts are found now

    @property
    def spec(self) -> Structure:
        return row_spec(self.input.spec)

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                iteration.check()
                if len({len(component) for component in element}) > 1:
                    shapes = ", ".join(format_shape(component.shape) for component in element)
                    raise InvalidArgumentError(
                        f"unbatch: expected the same number of rows in all components; got {shapes}"
                    )
                for i in range(len(element[0])):
                    yield tuple([component[i, ...] for component in element])


def _static_size(batch_size: Any, drop_remainder: Any) -> int | None:
    return known_int(batch_size) if drop_remainder is True else None


def _columns(elements: Stream[Element], size: int, drop_remainder: bool) -> Iterator[list[tuple[Any, ...]]]:
    """The values of each component, for every batch."""
    while chunk := list(islice(elements, size)):
        if len(chunk) == size or not drop_remainder:
            yield list(zip(*chunk, strict=True))


def _stack(values: Sequence[Any], path: str) -> Array:
    shape = values[0].shape
    stacked: Array = np.empty((len(values), *shape), values[0].dtype)
    for i, value in enumerate(values):
        if value.shape != shape:
            raise InvalidArgumentError(
                f"batch: component{path}: expected shape {format_shape(shape)}, like the first element; "
                f"got {format_shape(value.shape)} at position {i}. Use padded_batch()?"
            )
        stacked[i, ...] = value  # the ellipsis: an object array would keep a 0-d array as such
    return stacked


def _pad(values: Sequence[Any], shape: tuple[int | None, ...], padding: Any, path: str) -> Array:
    for i, value in enumerate(values):
        if not _fits(value.shape, shape):
            raise InvalidArgumentError(
                f"padded_batch: component{path}: expected elements that fit into {format_shape(shape)}; "
                f"got {format_shape(value.shape)} at position {i}"
            )
    dims = [max(v.shape[axis] for v in values) if dim is None else dim for axis, dim in enumerate(shape)]
    dtype = values[0].dtype
    filler = padding if padding is not None else b"" if dtype.kind == "O" else 0
    padded: Array = np.full((len(values), *dims), filler, dtype)
    for i, value in enumerate(values):
        corner: tuple[Any, ...] = tuple(slice(size) for size in value.shape)
        padded[(i, *corner, ...)] = value
    return padded


def _fits(shape: tuple[int, ...], room: tuple[int | None, ...]) -> bool:
    return len(shape) == len(room) and all(
        most is None or have <= most for have, most in zip(shape, room, strict=True)
    )
