"""Grouping of elements by key: a full window of them becomes a dataset."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, final

import numpy as np

from flowrt.base.structure import Structure
from flowrt.data.node import DeclaredSpec, Element, Iteration, Node, Stream, bind, expect_at_least
from flowrt.data.spec import common_spec
from flowrt.data.traced import Traced, TracedDataset
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor


@final
@dataclass(frozen=True, eq=False)
class Held:
    """The elements of a window; an empty one is its placeholder in a tree."""

    elements: list[Element] = field(default_factory=list)


@final
@dataclass(frozen=True, eq=False)
class Window(DeclaredSpec):
    """A window as a dataset."""

    returns: Structure
    held: Held

    def open(self, iteration: Iteration) -> Stream[Element]:
        yield from checked(self.held.elements, iteration)


def over(node: Node, place: Held, elements: list[Element]) -> Node:
    """The tree ``node`` with a window of ``elements`` in ``place``."""
    held = Held(elements)
    return bind(node, lambda leaf: held if leaf is place else leaf)


@final
@dataclass(frozen=True, eq=False)
class TracedReduction(Traced):
    """A function from a key and a window to a dataset; ``place`` is the window's placeholder."""

    dataset: TracedDataset
    place: Held

    @property
    def captured(self) -> tuple[Tensor, ...]:
        return self.dataset.captured

    @property
    def draws_anew(self) -> bool:
        return self.dataset.draws_anew

    @property
    def node(self) -> Node:
        """The tree of the dataset that it returns."""
        return self.dataset.node

    def given(self, values: dict[Tensor, Any]) -> TracedReduction:
        return TracedReduction(self.dataset.given(values), self.place)

    def open(self, stack: ExitStack) -> Callable[[int, list[Element]], Node]:
        node_of = self.dataset.open(stack)
        return lambda key, elements: over(node_of(np.int64(key)), self.place, elements)


def windows(
    keyed: Iterable[tuple[int, Element]], size_of: Callable[[int], int]
) -> Iterator[tuple[int, list[Element]]]:
    """Elements with the same key, ``size_of(key)`` at a time; at the end the remaining ones, by key."""
    gathered: dict[int, list[Element]] = {}
    sizes: dict[int, int] = {}
    for key, element in keyed:
        if key not in gathered:
            gathered[key], sizes[key] = [], size_of(key)
            expect_at_least(1, f"group_by_window: the window size of key {key}", sizes[key])
        gathered[key].append(element)
        if len(gathered[key]) == sizes[key]:
            yield key, gathered.pop(key)
    yield from sorted(gathered.items())


@final
@dataclass(frozen=True, eq=False)
class GroupByWindow(DeclaredSpec):
    """The datasets ``reduction(key, window)``, of spec ``returns``, concatenated.

    ``key`` is a function of an element's components; ``window_size`` a function of the key, or a number.
    """

    input: Node
    key: Callable[..., Element]
    reduction: Callable[[int, list[Element]], Node]
    window_size: Any
    returns: Structure

    def _size_of(self, key: int) -> int:
        sized = self.window_size
        return int(sized(np.int64(key))[0] if callable(sized) else sized)

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            keyed = ((int(self.key(*element)[0]), element) for element in checked(elements, iteration))
            for key, window in windows(keyed, self._size_of):
                yield from self.reduction(key, window).open(iteration)


@final
@dataclass(frozen=True, eq=False)
class GroupByReducer(DeclaredSpec):
    """One element, of spec ``returns``, for each key, in ascending order: ``finalize(*state)``, where a state
    is begun by ``init(key)`` and continued by ``reduce(*state, *components)`` for each element with the key.
    """

    input: Node
    key: Callable[..., Element]
    init: Callable[..., Element]
    reduce: Callable[..., Element]
    finalize: Callable[..., Element]
    returns: Structure

    def open(self, iteration: Iteration) -> Stream[Element]:
        states: dict[int, Element] = {}
        with closing(self.input.open(iteration)) as elements:
            for element in checked(elements, iteration):
                key = int(self.key(*element)[0])
                state = states[key] if key in states else self.init(np.int64(key))
                states[key] = self.reduce(*state, *element)
        for _, state in sorted(states.items()):
            yield self.finalize(*state)


def checked(elements: Iterable[Element], iteration: Iteration) -> Iterator[Element]:
    """The elements, with a check before each whether the run was closed."""
    for element in elements:
        iteration.check()
        yield element


@final
@dataclass(frozen=True, eq=False)
class BucketByLength(Node):
    """Batches of elements of similar length: bucket i has the lengths from ``boundaries[i - 1]`` to below
    ``boundaries[i]``.

    ``batches`` has for every bucket the batch of a window in ``place``, or None if the bucket must stay
    empty. A complete pass logs the fraction of padding in its batches, at level INFO.
    """

    input: Node
    length: Callable[..., Element]
    boundaries: tuple[int, ...]
    batch_sizes: tuple[int, ...]
    batches: tuple[Node | None, ...]
    place: Held

    @property
    def spec(self) -> Structure:
        return reduce(common_spec, [batch.spec for batch in self.batches if batch is not None])

    def open(self, iteration: Iteration) -> Stream[Element]:
        numbers = [[0, 0] for _ in self.batches]  # in a bucket's elements, and in its batches
        with closing(self.input.open(iteration)) as elements:
            keyed = ((self._bucket_of(element), element) for element in checked(elements, iteration))
            for bucket, window in windows(keyed, self.batch_sizes.__getitem__):
                tree = self.batches[bucket]
                assert tree is not None
                for batch in over(tree, self.place, window).open(iteration):
                    numbers[bucket][0] += sum(np.size(part) for element in window for part in element)
                    numbers[bucket][1] += sum(np.size(part) for part in batch)
                    yield batch
        logging.getLogger("flowrt").info(padding_report(self.boundaries, numbers))

    def _bucket_of(self, element: Element) -> int:
        length = int(self.length(*element)[0])
        bucket = bisect_right(self.boundaries, length)
        if self.batches[bucket] is None:
            raise InvalidArgumentError(
                f"bucket_by_sequence_length: expected lengths below the last boundary {self.boundaries[-1]} "
                f"with pad_to_bucket_boundary; got {length}"
            )
        return bucket


def padding_report(boundaries: tuple[int, ...], numbers: list[list[int]]) -> str:
    """The fraction of padding, of all batches and per bucket; ``numbers`` are pairs of the number of values
    in its elements and in its batches.
    """
    names = [*(f"below {boundary}" for boundary in boundaries), f"from {boundaries[-1]}"]
    shares = [
        f"{1 - given / handed:.1%} {name}"
        for name, (given, handed) in zip(names, numbers, strict=True)
        if handed
    ]
    given, handed = (sum(column) for column in zip(*numbers, strict=True))
    whole = f"{1 - given / handed:.1%} of {handed:,} numbers are padding" if handed else "nothing handed out"
    return f"bucket_by_sequence_length: {'; '.join([whole, *shares])}"
