"""Feeds that decide shapes by their values, such as a batch size that a script feeds as a number.

    size = tf.placeholder(tf.int32, [])
    rows = tf.reshape(x, [size, -1])

Shapes of feeds do not determine those of ``rows``, so everything behind it would be allocated dynamically and
run without loops: GraphSAGE's LSTM takes 18 ms a step, and 3.6 with a constant size. While runs repeat the
values of such feeds, they use a plan in which these are known to shape inference, besides the one for all
values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, final

from flowrt import dtypes
from flowrt.errors import OpError
from flowrt.graph.construction.constant import KNOWN
from flowrt.graph.node import Node, Subgraph, owned_subgraphs
from flowrt.graph.op_def import Effect, PartialValue
from flowrt.graph.partial_value import as_host_value
from flowrt.graph.shapes import is_static

P = TypeVar("P")
Values: TypeAlias = tuple[PartialValue, ...]

MAX_ELEMENTS = 8
"""Maximum number of elements of such a feed: a number, or a shape. Longer ones are data."""

RUNS_BEFORE_COMPILING = 3
"""Runs in a row with the same values, the last of which compiles a plan for them. A value that is new in each
run, such as the number of the step, compiles none.
"""

MAX_PLANS = 4
"""Plans for certain values, beside one plan for all of them: each holds memory, and compiling takes as long
as for other shapes. A full batch and an epoch's last one are two.
"""


@final
class SizeFeeds(Generic[P]):
    """The feeds at ``positions`` of a plan, and how often runs have repeated their values. ``make(values)``
    makes a plan for certain ones, or None if that is no better.
    """

    def __init__(self, positions: Sequence[int], make: Callable[[Values], P | None]) -> None:
        self._positions, self.make = positions, make
        self._last: Values = ()
        self._repeats = 0
        self._plans_left = MAX_PLANS

    def values(self, arrays: Sequence[Any]) -> Values:
        """The values in ``arrays``, the feeds of a run, on the host."""
        return tuple([as_host_value(arrays[position]) for position in self._positions])

    def are_steady(self, values: Values) -> bool:
        """Count a run with ``values`` of the plan for all values. Whether to compile one for these: after
        every `RUNS_BEFORE_COMPILING` runs in a row, as long as `compile` may be called. Threads may count a
        run too few of each other's.
        """
        self._repeats = repeats = self._repeats + 1 if values == self._last else 1
        self._last = values
        return repeats % RUNS_BEFORE_COMPILING == 0 and self._plans_left > 0

    def compile(self, values: Values) -> P | None:
        """A plan for ``values``, at most `MAX_PLANS` times. None if it is no better, and then there will be
        none for other values; if an operation, which may be one that never runs, refuses these; or if memory
        is short.
        """
        self._plans_left -= 1
        try:
            plan = self.make(values)
        except OpError:
            return None
        if plan is None:
            self._plans_left = 0
        return plan


def find_size_feeds(step: Subgraph) -> list[int]:
    """Positions of the small integer feeds of ``step`` from which an argument of an operation without a
    static shape is computed.
    """
    names = {name for name in step.feeds if _can_be_size(step.nodes[name])}
    found = names & _sources_of_shapes(step) if names else names
    return [position for position, name in enumerate(step.feeds) if name in found]


def with_known_feeds(step: Subgraph, positions: Sequence[int], values: Values) -> Subgraph:
    """``step`` for feeds of certain ``values`` alone."""
    nodes = dict(step.nodes)
    for position, value in zip(positions, values, strict=True):
        feed = nodes[step.feeds[position]]
        nodes[feed.name] = feed.replace(attrs={**feed.attrs, KNOWN: value})
    return step.replace(nodes=nodes)


def num_unknown(step: Subgraph) -> int:
    """Number of tensors of ``step`` and its functions without a static shape, other than lists."""
    arrays = [spec for node in step for spec in node.outputs if spec.dtype is not dtypes.variant]
    own = sum(not is_static(spec.shape) for spec in arrays)
    return own + sum(num_unknown(function) for node in step for function in owned_subgraphs(node.attrs))


def _can_be_size(feed: Node) -> bool:
    (spec,) = feed.outputs
    return spec.dtype.is_integer and is_static(spec.shape) and math.prod(spec.shape) <= MAX_ELEMENTS


def _sources_of_shapes(step: Subgraph) -> set[str]:
    """The nodes from which shapes that are not static are computed, by rules for values."""
    unknown = [node for node in step if any(not is_static(spec.shape) for spec in node.outputs)]
    stack = [name for node in unknown for name in _sizes(node)]
    found: set[str] = set()
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            node = step.nodes[name]
            stack += [producer for producer, _ in node.inputs] if node.op.value is not None else []
    return found


def _sizes(node: Node) -> list[str]:
    """The producers of what may decide a shape of ``node``: host arguments, all arguments of functions."""
    if node.op.effect is Effect.NESTED:
        return [name for name, _ in node.inputs]
    arguments = [a for a in node.op.inputs for _ in range(a.length(node.attrs))]
    return [name for a, (name, _) in zip(arguments, node.inputs, strict=True) if a.on_host]
