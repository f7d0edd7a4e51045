"""Dataset nodes with tuple elements, one replica's batch in each component.

    SplitBatch    global batches, each split into the replicas' shares in order
    DealBatches   the replicas' batches one after the other, dealt out in order

Towards the end some replicas may get an empty batch, so that all replicas take part in every step until none
has data. With ``until_all_end`` a bool before the tuple tells whether it has any rows, and after the end such
empty elements follow: other workers may still have data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure, flatten, leaf_paths, map_structure
from flowrt.data.batching import Batch, PaddedBatch
from flowrt.data.node import Array, Element, Iteration, Node, Stream, known_int
from flowrt.data.pipeline import Cache, Filter, Map, Prefetch, Repeat, Shuffle, Skip, Take
from flowrt.data.spec import TensorSpec
from flowrt.errors import InvalidArgumentError
from flowrt.graph.shapes import format_shape

_KEEP_ROWS = (Cache, Filter, Map, Prefetch, Repeat, Shuffle, Skip, Take)


@final
@dataclass(frozen=True, eq=False)
class SplitBatch(Node):
    """Each element of ``input``, a global batch along its first dimension, split for ``replicas`` replicas of
    all workers; the tuple has those from number ``first`` on, ``count`` of them.

    A share is ``share`` rows, and a smaller batch lacks rows at its end. None: shares of any batch differ by
    one row at most, the first ones are larger.
    """

    input: Node
    replicas: int
    first: int
    count: int
    share: int | None

    @property
    def spec(self) -> Structure:
        share = self.share

        def cut(leaf: TensorSpec) -> TensorSpec:
            if leaf.shape is None:
                return leaf
            is_full = share is not None and leaf.shape[0] == share * self.replicas
            return TensorSpec((share if is_full else None, *leaf.shape[1:]), leaf.dtype)

        return tuple(map_structure(cut, self.input.spec) for _ in range(self.count))

    def open(self, iteration: Iteration) -> Stream[Element]:
        paths = leaf_paths(self.input.spec)
        with closing(self.input.open(iteration)) as batches:
            for batch in batches:
                bounds = self._bounds(_rows(batch, paths))
                yield tuple([array[start:end] for start, end in pairwise(bounds) for array in batch])

    def _bounds(self, rows: int) -> list[int]:
        """The first row of each share of ``rows``, and the end of the last. Raises `InvalidArgumentError`."""
        numbers = range(self.first, self.first + self.count + 1)
        if self.share is None:
            each, more = divmod(rows, self.replicas)
            return [number * each + min(number, more) for number in numbers]
        if rows > (most := self.share * self.replicas):
            raise InvalidArgumentError(
                f"distributed dataset: expected batches of at most {most} rows; got one of {rows}. Batch the "
                "dataset last"
            )
        return [self.share * number for number in numbers]


def _rows(batch: Element, paths: Sequence[str]) -> int:
    """The rows of ``batch``. Raises `InvalidArgumentError` unless all components have equally many."""
    counts = {len(array) if np.ndim(array) else None for array in batch}
    if len(counts) != 1 or None in counts:
        shapes = ", ".join(
            f"{path} {format_shape(np.shape(array))}" for path, array in zip(paths, batch, strict=True)
        )
        raise InvalidArgumentError(
            "distributed dataset: expected batches with the same number of rows in all components; got "
            f"{shapes}"
        )
    (rows,) = counts
    assert rows is not None
    return rows


@final
@dataclass(frozen=True, eq=False)
class DealBatches(Node):
    """``count`` elements of ``input`` after each other as one tuple."""

    input: Node
    count: int

    @property
    def spec(self) -> Structure:
        spec = self.input.spec
        return (spec if self.count == 1 else map_structure(_any_rows, spec),) * self.count

    def open(self, iteration: Iteration) -> Stream[Element]:
        paths = leaf_paths(self.input.spec)
        with closing(self.input.open(iteration)) as batches:
            while hand := list(islice(batches, self.count)):
                if len(hand) < self.count:
                    _rows(hand[0], paths)  # only batches can have no rows
                    hand += [_without_rows(hand[0])] * (self.count - len(hand))
                yield tuple(chain.from_iterable(hand))


def _any_rows(leaf: TensorSpec) -> TensorSpec:
    return TensorSpec((None, *leaf.shape[1:]) if leaf.shape else leaf.shape, leaf.dtype)


def _without_rows(element: Element) -> Element:
    return tuple([array[:0] for array in element])


@final
@dataclass(frozen=True, eq=False)
class UntilAllEnd(Node):
    """Each element of ``input`` preceded by true; after the end, empty elements with false, forever."""

    input: Node

    @property
    def spec(self) -> Structure:
        return (TensorSpec((), dtypes.as_dtype(bool)), map_structure(_any_rows, self.input.spec))

    def open(self, iteration: Iteration) -> Stream[Element]:
        empty = tuple(_empty(leaf) for leaf in flatten(self.input.spec))
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                empty = _without_rows(element)
                yield (np.bool_(True), *element)
        while True:
            iteration.check()
            yield (np.bool_(False), *empty)


def _empty(leaf: TensorSpec) -> Array:
    """An array without rows. Unknown dimensions are 0 too: there was no element to determine them."""
    known = leaf.shape[1:] if leaf.shape else ()
    return np.zeros((0, *(size or 0 for size in known)), leaf.dtype.np)


# --- the share of a replica


def share_of(node: Node, replicas: int, may_be_uneven: bool) -> int | None:
    """The rows of a replica's share of the batches of ``node``; None if unknown in advance, or uneven: where
    they may be, a last batch with fewer rows is, too.

    Raises `InvalidArgumentError` for elements that are not batches, and, unless shares ``may_be_uneven``, for
    a batch size not divisible by ``replicas``.
    """
    for path, leaf in zip(leaf_paths(node.spec), flatten(node.spec), strict=True):
        if leaf.shape == ():
            raise InvalidArgumentError(
                f"distributed dataset: expected batches to divide among the replicas; component{path} is a "
                "scalar. Call dataset.batch(global batch size) first"
            )
    size = batch_size(node)
    leaves = flatten(node.spec)
    if size is None or (may_be_uneven and not all(leaf.shape and leaf.shape[0] == size for leaf in leaves)):
        return None
    if size % replicas and may_be_uneven:
        return None
    if size % replicas:
        raise InvalidArgumentError(
            f"distributed dataset: expected a global batch size divisible by {replicas} replicas; got "
            f"{size}. Use batch({size - size % replicas or replicas}) or "
            f"batch({size + replicas - size % replicas})"
        )
    return size // replicas


def batch_size(node: Node) -> int | None:
    """The number of rows that all elements of ``node`` have, but for a last one; None if it is not known."""
    for below in _down_to_batches(node):
        if isinstance(below, Batch | PaddedBatch):
            return known_int(below.batch_size)
    leading: set[int | None] = {leaf.shape[0] if leaf.shape else None for leaf in flatten(node.spec)}
    return leading.pop() if len(leading) == 1 else None


def _down_to_batches(node: Node) -> Iterator[Node]:
    """``node`` and its inputs, as far as elements keep their rows."""
    while True:
        yield node
        below: Any = getattr(node, "input", None)
        if not isinstance(node, _KEEP_ROWS) or below is None:
            return
        node = below
