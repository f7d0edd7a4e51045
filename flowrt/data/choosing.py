"""The transformations of ``data.experimental``: elements of several datasets, with a state, up to an end."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import islice
from typing import Any, final

import numpy as np

from flowrt.base.structure import Structure
from flowrt.data.node import DeclaredSpec, Element, Iteration, Node, SameSpec, Stream
from flowrt.data.spec import common_spec
from flowrt.errors import InvalidArgumentError


@final
@dataclass(frozen=True, eq=False)
class Single(SameSpec):
    """The only element of ``input``. A step raises `InvalidArgumentError` if there are none or several."""

    input: Node

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            found = list(islice(elements, 2))
        if len(found) != 1:
            raise InvalidArgumentError(
                f"get_single_element: expected one element; got {'several' if found else 'none'}"
            )
        yield found[0]


@final
@dataclass(frozen=True, eq=False)
class Unique(SameSpec):
    """The elements, scalars, that are not equal to an earlier one."""

    input: Node

    def open(self, iteration: Iteration) -> Stream[Element]:
        seen = set[Any]()
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                iteration.check()
                value = np.asarray(element[0]).item()
                if value not in seen:
                    seen.add(value)
                    yield element


@final
@dataclass(frozen=True, eq=False)
class TakeWhile(SameSpec):
    """The elements before the first one for which ``predicate(*components)`` is false."""

    input: Node
    predicate: Callable[..., Any]

    def open(self, iteration: Iteration) -> Stream[Element]:
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                if not self.predicate(*element):
                    return
                yield element


@final
@dataclass(frozen=True, eq=False)
class Scan(DeclaredSpec):
    """The outputs of ``fn(*state, *components)``, which returns the next state's components, then the
    output's, of spec ``returns``.
    """

    input: Node
    fn: Callable[..., Element]
    state: tuple[Any, ...]
    returns: Structure

    def open(self, iteration: Iteration) -> Stream[Element]:
        state, count = tuple(self.state), len(self.state)
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                found = self.fn(*state, *element)
                state = found[:count]
                yield found[count:]


@final
@dataclass(frozen=True, eq=False)
class Choose(Node):
    """The next element of the input that ``choices``, a dataset of int64 scalars, names each time. A choice
    of an input that has ended is passed over; at the end of ``choices`` the dataset ends.
    """

    choices: Node
    inputs: tuple[Node, ...]

    def __post_init__(self) -> None:
        _ = self.spec  # different structures and dtypes are found now

    @cached_property
    def spec(self) -> Structure:
        return reduce(common_spec, [node.spec for node in self.inputs])

    def open(self, iteration: Iteration) -> Stream[Element]:
        with ExitStack() as stack:
            choices = stack.enter_context(closing(self.choices.open(iteration)))
            streams = [stack.enter_context(closing(node.open(iteration))) for node in self.inputs]
            running = set(range(len(streams)))
            for (choice,) in choices:
                iteration.check()
                number = operator.index(choice)
                if not 0 <= number < len(streams):
                    raise InvalidArgumentError(
                        f"choose_from_datasets: expected a number in [0, {len(streams)}); got {number}"
                    )
                if number in running:
                    element = next(streams[number], None)
                    if element is not None:
                        yield element
                    else:
                        running.discard(number)
                        if not running:
                            return


@final
@dataclass(frozen=True, eq=False)
class Sample(Node):
    """Elements of the inputs, each time of one drawn with the probabilities ``weights`` of those
    that have not ended.
    """

    inputs: tuple[Node, ...]
    weights: tuple[Any, ...]
    seed: tuple[Any, Any]

    def __post_init__(self) -> None:
        _ = self.spec

    @cached_property
    def spec(self) -> Structure:
        return reduce(common_spec, [node.spec for node in self.inputs])

    def open(self, iteration: Iteration) -> Stream[Element]:
        words = [operator.index(part) % 2**64 for part in self.seed]
        generator = np.random.default_rng(np.random.SeedSequence(words, spawn_key=iteration.epochs))
        weights = np.array([float(weight) for weight in self.weights])
        with ExitStack() as stack:
            streams = [stack.enter_context(closing(node.open(iteration))) for node in self.inputs]
            while weights.sum() > 0:
                iteration.check()
                number = int(generator.choice(len(streams), p=weights / weights.sum()))
                element = next(streams[number], None)
                if element is None:
                    weights[number] = 0
                else:
                    yield element


@final
@dataclass(frozen=True, eq=False)
class Resample(DeclaredSpec):
    """Pairs of a class, ``classify(*components)``, and an element, of spec ``returns``: those elements that a
    draw keeps, so that classes come with the probabilities ``target``.

    ``initial`` are those of the input; without them they are estimated as it is read. An element of class c
    is kept with the probability ``target[c] / initial[c]`` over the greatest such ratio (rejection sampling).
    """

    input: Node
    classify: Callable[..., Element]
    target: tuple[float, ...]
    initial: tuple[float, ...] | None
    seed: tuple[Any, Any]
    returns: Structure

    def open(self, iteration: Iteration) -> Stream[Element]:
        words = [operator.index(part) % 2**64 for part in self.seed]
        generator = np.random.default_rng(np.random.SeedSequence(words, spawn_key=iteration.epochs))
        target, seen = np.array(self.target), np.full(len(self.target), _SEEN_BEFORE)
        with closing(self.input.open(iteration)) as elements:
            for element in elements:
                iteration.check()
                found = self.classify(*element)[0]
                number = int(found)
                if not 0 <= number < len(target):
                    raise InvalidArgumentError(
                        f"rejection_resample: expected a class in [0, {len(target)}); got {number}"
                    )
                seen[number] += 1
                ratios = target / (seen / seen.sum() if self.initial is None else self.initial)
                if generator.random() * ratios.max() < ratios[number]:
                    yield (found, *element)


_SEEN_BEFORE = 10.0
"""The times that each class counts as seen at the beginning, as in TensorFlow: few elements say little."""


def probabilities(weights: Sequence[float] | None, count: int) -> tuple[float, ...]:
    """``weights`` for ``count`` datasets, equal ones if None. Raises `InvalidArgumentError` for another
    number of them, or unless they are at least 0 and not all 0.
    """
    found = (1.0,) * count if weights is None else tuple(float(weight) for weight in weights)
    if len(found) != count or not count or min(found) < 0 or max(found) <= 0:
        raise InvalidArgumentError(
            f"sample_from_datasets: expected {count} weights of at least 0, not all 0; got {weights!r}"
        )
    return found
