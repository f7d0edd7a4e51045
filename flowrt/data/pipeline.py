"""The transformations of a dataset tree: selection, order and mapping of elements.

A `Reordering` passes elements on unchanged. It works on streams of elements and on streams of row indices, so
that ``from_tensor_slices().shuffle().repeat().batch()`` shuffles integers and gathers each batch once.
"""

from __future__ import annotations

import operator
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, count, islice
from typing import Any, TypeVar, final

import numpy as np

from flowrt.base.structure import Structure, flatten, map_structure
from flowrt.data.background import map_in_order, read_ahead
from flowrt.data.node import (
    DeclaredSpec,
    Element,
    Iteration,
    Node,
    Opener,
    Rows,
    SameSpec,
    Stream,
    after,
    expect_at_least,
    known_int,
)
from flowrt.data.sources import TensorSlices
from flowrt.data.spec import common_spec
from flowrt.errors import InvalidArgumentError

T = TypeVar("T")

AUTOTUNE = -1  # TensorFlow's value for an automatic choice
_AUTO_PREFETCH = 2  # one element being used, one ready
_END: Any = object()


class Reordering(SameSpec):
    """Passes on elements of ``input`` unchanged; a subclass selects and orders them."""

    @abstractmethod
    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        """The items of ``open_input(iteration, 0)`` that this dataset selects, in its order."""

    def order_rows(self, open_rows: Opener[int], iteration: Iteration, first: int) -> Stream[int]:
        """`order`, from item number ``first`` on, of row indices."""
        return after(first, self.order(open_rows, iteration), iteration)

    @property
    def rows(self) -> Rows | None:
        source = self.input.rows
        return source and Rows(source.arrays, partial(self.order_rows, source.indices))

    def open(self, iteration: Iteration) -> Stream[Element]:
        return self.open_from(iteration, 0)

    def open_from(self, iteration: Iteration, first: int) -> Stream[Element]:
        if rows := self.rows:
            return rows.open(iteration, first)
        elements = self.order(self.input.open_from, iteration)
        return after(first, elements, iteration) if first else elements


@final
@dataclass(frozen=True, eq=False)
class Shuffle(Reordering):
    """A buffer of ``buffer_size`` items; a random one is yielded and replaced by the input's next.

    The order is a function of ``seed`` alone or, with ``reshuffle_each_iteration``, of ``seed`` and the
    epochs of the enclosing repeats. So two equal shuffles stay aligned when zipped, and reopening repeats the
    order.
    """

    input: Node
    buffer_size: Any
    seed: tuple[Any, Any]
    reshuffle_each_iteration: Any = True

    def __post_init__(self) -> None:
        expect_at_least(1, "shuffle: buffer_size", self.buffer_size)

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        fractions = _uniform(self._generator(iteration))
        with closing(open_input(iteration, 0)) as items:
            buffer = list(islice(items, operator.index(self.buffer_size)))
            while buffer:
                slot = int(next(fractions) * len(buffer))
                yield buffer[slot]
                item = next(items, _END)
                buffer[slot] = buffer[-1] if item is _END else item
                if item is _END:
                    buffer.pop()

    def _generator(self, iteration: Iteration) -> np.random.Generator:
        words = [operator.index(part) % 2**64 for part in self.seed]
        epochs = iteration.epochs if self.reshuffle_each_iteration else ()
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(words, spawn_key=epochs)))


def _uniform(generator: np.random.Generator) -> Iterator[float]:
    """Floats in [0, 1), drawn in blocks: a single draw costs 0.5 us, one from a block 0.02."""
    while True:
        yield from generator.random(1024).tolist()


@final
@dataclass(frozen=True, eq=False)
class Repeat(Reordering):
    """The input ``count`` times, or endlessly when it is None or negative; ends if the input is empty."""

    input: Node
    count: Any = None

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        return self._epochs(open_input, iteration, 0, 0)

    def order_rows(self, open_rows: Opener[int], iteration: Iteration, first: int) -> Stream[int]:
        """See `Reordering.order_rows`. Of the epochs before, one is read: all have its length."""
        length = 0
        with closing(open_rows(iteration.at_epoch(0), 0)) as rows:
            for _ in zip(range(first), rows, strict=False):
                iteration.check()
                length += 1
        if length == first:  # the first epoch has no fewer
            yield from self._epochs(open_rows, iteration, 0, first)
        elif length:
            yield from self._epochs(open_rows, iteration, *divmod(first, length))

    def _epochs(self, open_input: Opener[T], iteration: Iteration, epoch: int, first: int) -> Stream[T]:
        """The items from number ``first`` of ``epoch`` on."""
        times = -1 if self.count is None else operator.index(self.count)
        for number in count(epoch) if times < 0 else range(epoch, times):
            item = _END
            with closing(open_input(iteration.at_epoch(number), first)) as items:
                for item in items:
                    yield item
            if item is _END and not first:
                return
            first = 0


@final
@dataclass(frozen=True, eq=False)
class Take(Reordering):
    """The first ``count`` elements; all when it is negative."""

    input: Node
    count: Any

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        limit = operator.index(self.count)
        with closing(open_input(iteration, 0)) as items:
            yield from items if limit < 0 else islice(items, limit)


@final
@dataclass(frozen=True, eq=False)
class Skip(Reordering):
    """All but the first ``count`` elements; none when it is negative."""

    input: Node
    count: Any

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        skipped = operator.index(self.count)
        if skipped < 0:
            return
        with closing(open_input(iteration, skipped)) as items:
            yield from items


@final
@dataclass(frozen=True, eq=False)
class Shard(Reordering):
    """Every ``num_shards``-th element, from number ``index`` on."""

    input: Node
    num_shards: Any
    index: Any

    def __post_init__(self) -> None:
        expect_at_least(1, "shard: num_shards", self.num_shards)
        shards, index = known_int(self.num_shards), known_int(self.index)
        if shards is not None and index is not None and not 0 <= index < shards:
            raise InvalidArgumentError(f"shard: expected an index in [0, {shards}); got {index}")

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        with closing(open_input(iteration, 0)) as items:
            yield from islice(items, operator.index(self.index), None, operator.index(self.num_shards))


@final
@dataclass(frozen=True, eq=False)
class Cache(Reordering):
    """The input, read from memory after one complete pass; a partial pass is not kept."""

    input: Node

    def order(self, open_input: Opener[T], iteration: Iteration) -> Stream[T]:
        known = iteration.memory.get(self)
        if known is not None:
            yield from known
            return
        read: list[T] = []
        with closing(open_input(iteration, 0)) as items:
            for item in items:
                read.append(item)
                yield item
        iteration.memory[self] = read


@final
@dataclass(frozen=True, eq=False)
class Prefetch(SameSpec):
    """The input, computed on a thread up to ``buffer_size`` elements ahead; 0 computes on demand."""

    input: Node
    buffer_size: Any = AUTOTUNE

    def __post_init__(self) -> None:
        expect_at_least(AUTOTUNE, "prefetch: buffer_size", self.buffer_size)

    @property
    def device(self) -> str:
        return self.input.device

    def open(self, iteration: Iteration) -> Stream[Element]:
        return self.open_from(iteration, 0)

    def open_from(self, iteration: Iteration, first: int) -> Stream[Element]:
        size = operator.index(self.buffer_size)
        if size == 0:
            return self.input.open_from(iteration, first)
        size = _AUTO_PREFETCH if size == AUTOTUNE else size
        return read_ahead(lambda upstream: self.input.open_from(upstream, first), size, iteration)


@final
@dataclass(frozen=True, eq=False)
class OnDevice(SameSpec):
    """The input, for an iterator on ``target``: elements are computed on the host, and their copy to the
    device starts immediately. With a `Prefetch` after it the copy runs ahead of the step.
    """

    input: Node
    target: str

    @property
    def device(self) -> str:
        return self.target

    @property
    def rows(self) -> Rows | None:
        return self.input.rows

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                yield tuple([iteration.put(array) for array in element])


@final
@dataclass(frozen=True, eq=False)
class Map(DeclaredSpec):
    """``fn(*components)``, a tuple of components that fit ``returns``, for every element.

    With ``num_parallel_calls`` the calls run on that many threads; the order is kept. Without effects
    (``is_pure``), it is not called for elements that are skipped.
    """

    input: Node
    fn: Callable[..., Element]
    returns: Structure
    num_parallel_calls: Any = None
    is_pure: bool = False

    def __post_init__(self) -> None:
        if known_int(self.num_parallel_calls) != AUTOTUNE:
            expect_at_least(1, "map: num_parallel_calls", self.num_parallel_calls)

    def open(self, iteration: Iteration) -> Stream[Element]:
        return self._mapped(self.input.open, iteration)

    def open_from(self, iteration: Iteration, first: int) -> Stream[Element]:
        if not self.is_pure:
            return super().open_from(iteration, first)
        return self._mapped(lambda upstream: self.input.open_from(upstream, first), iteration)

    def _mapped(
        self, open_input: Callable[[Iteration], Stream[Element]], iteration: Iteration
    ) -> Stream[Element]:
        workers = 1 if self.num_parallel_calls is None else operator.index(self.num_parallel_calls)
        if workers != 1:
            workers = workers if workers > 0 else os.cpu_count() or 1
            yield from map_in_order(self.fn, open_input, workers, iteration)
            return
        with closing(open_input(iteration)) as elements:
            for element in elements:
                yield self.fn(*element)


@final
@dataclass(frozen=True, eq=False)
class Filter(SameSpec):
    """The elements for which ``predicate(*components)`` is true."""

    input: Node
    predicate: Callable[..., Any]

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                if self.predicate(*element):
                    yield element
                else:
                    iteration.check()


@final
@dataclass(frozen=True, eq=False)
class Interleave(DeclaredSpec):
    """The elements of the datasets ``fn(*components)``, of spec ``returns``.

    ``cycle_length`` of them are open at a time and yield ``block_length`` elements in turn; a finished one is
    replaced by the input's next. With a ``cycle_length`` of 1 this is ``flat_map``.
    """

    input: Node
    fn: Callable[..., Node]
    returns: Structure
    cycle_length: Any = 1
    block_length: Any = 1

    def __post_init__(self) -> None:
        expect_at_least(1, "interleave: cycle_length", self.cycle_length)
        expect_at_least(1, "interleave: block_length", self.block_length)

    def open(self, iteration: Iteration) -> Stream[Element]:
        cycle, block = operator.index(self.cycle_length), operator.index(self.block_length)
        slots: list[Stream[Element] | None] = [None] * cycle
        with ExitStack() as stack:
            elements = stack.enter_context(closing(self.input.open(iteration)))
            stack.callback(_close_all, slots)
            at, more = 0, True
            while more or any(slots):
                iteration.check()
                if slots[at] is None and more:
                    element = next(elements, None)
                    more = element is not None
                    slots[at] = self.fn(*element).open(iteration) if element is not None else None
                if (slot := slots[at]) is not None:
                    taken = 0
                    for item in islice(slot, block):
                        yield item
                        taken += 1
                    if taken < block:
                        slots[at] = None
                at = (at + 1) % cycle


def _close_all(streams: list[Stream[Element] | None]) -> None:
    for stream in streams:
        if stream is not None:
            stream.close()


@final
@dataclass(frozen=True, eq=False)
class Zip(Node):
    """Corresponding elements of a nested structure of datasets; ends with the shortest."""

    inputs: Structure

    def __post_init__(self) -> None:
        nodes = flatten(self.inputs)
        if not nodes or not all(isinstance(node, Node) for node in nodes):
            raise InvalidArgumentError(f"zip: expected a nested structure of datasets; got {self.inputs!r}")

    @property
    def spec(self) -> Structure:
        return map_structure(lambda node: node.spec, self.inputs)

    @cached_property
    def rows(self) -> Rows | None:
        sources = [node.rows for node in flatten(self.inputs) if type(node) is TensorSlices]
        if len(sources) < len(flatten(self.inputs)):
            return None
        arrays = tuple(chain.from_iterable(source.arrays for source in sources))
        return Rows(arrays, lambda iteration, first: (i for i in range(first, min(map(len, arrays)))))

    def open(self, iteration: Iteration) -> Stream[Element]:
        with ExitStack() as stack:
            streams = [stack.enter_context(closing(node.open(iteration))) for node in flatten(self.inputs)]
            for parts in zip(*streams, strict=False):
                yield tuple(chain.from_iterable(parts))


@final
@dataclass(frozen=True, eq=False)
class Concatenate(Node):
    """All elements of ``first``, then all of ``second``."""

    first: Node
    second: Node

    def __post_init__(self) -> None:
        _ = self.spec  # different structures and dtypes are found now

    @cached_property
    def spec(self) -> Structure:
        return common_spec(self.first.spec, self.second.spec)

    def open(self, iteration: Iteration) -> Stream[Element]:
        for node in (self.first, self.second):
            with closing(node.open(iteration)) as elements:
                yield from elements
