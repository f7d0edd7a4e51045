"""Seconds of a node: measured ones, or those of a device of which rates are known.

A node is known in a table by its `signature`: its operation, or those of a fused group, its shapes and what
else decides how long it takes, without its name. Others take

    max(floating-point operations / rate, bytes / bandwidth) + a call

(the roofline of Williams, Waterman and Patterson, 2009). Rates are those of a device, or fitted to a table.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, final

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.executor.analysis.trip_counts import trip_counts
from flowrt.graph.node import Node, Ref, Subgraph, TensorSpec, owned_subgraphs
from flowrt.graph.op_def import Effect
from flowrt.graph.ops.collective.group_transfer import group_agree_op
from flowrt.graph.passes.fusion.group import Group
from flowrt.graph.shapes import num_elements

FREE_EFFECTS = (Effect.HANDLE, Effect.SOURCE)
MAX_SHOWN = 16
"""Elements of a constant, such as the axes of a sum, that are a part of a signature."""

_NAMES = frozenset(("shared_name", "container", "seed", "seed2"))
"""Attributes that do not change how long a node takes."""


ELEMENTS = "elements"
"""The rate of elements that operations other than products compute."""


class Demand(NamedTuple):
    """The work of a node: operations of one ``rate``, a dtype for products or `ELEMENTS`, and the bytes that
    it reads and writes.
    """

    flops: float
    nbytes: int
    rate: str


class Rates(NamedTuple):
    """The speed of a device: floating-point operations per second by the dtype of products, and `ELEMENTS`
    per second, without limit if they are not there; bytes per second; and the seconds of a call.
    """

    flops: Mapping[str, float]
    bandwidth: float
    call_s: float = 0.0

    def seconds(self, demand: Demand) -> float:
        """The seconds of a node. Products of an unknown dtype are as fast as the slowest."""
        rate = self.flops.get(demand.rate)
        if rate is None:
            known = [] if demand.rate == ELEMENTS else [f for key, f in self.flops.items() if key != ELEMENTS]
            rate = min(known, default=math.inf)
        return max(demand.flops / rate, demand.nbytes / self.bandwidth) + self.call_s


@final
@dataclass(frozen=True)
class Costs:
    """Seconds of nodes, by their signatures in ``table`` or by ``rates``.

    >>> rates = Rates({"float32": 1e10}, bandwidth=1e10, call_s=1e-6)
    >>> rates.seconds(Demand(2e6, 4096, "float32"))
    0.000201
    """

    rates: Rates
    table: Mapping[str, float] = field(default_factory=dict)
    _known: dict[int, tuple[Node, float]] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by the identity of a node, which is kept so that no other one gets it."""

    def __call__(self, subgraph: Subgraph, node: Node) -> float:
        """The seconds for which ``node``, of ``subgraph``, occupies its device."""
        found = self._known.get(id(node))
        if found is None:
            found = self._known[id(node)] = node, self._seconds(subgraph, node)
        return found[1]

    def _seconds(self, subgraph: Subgraph, node: Node) -> float:
        if "seconds" in node.attrs:  # of an operation that only waits
            return float(node.attrs["seconds"])
        if is_free(node):
            return 0.0
        if node.op.effect is Effect.NESTED:
            return self._seconds_of_functions(subgraph, node)
        measured = self.table.get(signature(subgraph, node)) if self.table else None
        return self.rates.seconds(demand(subgraph, node)) if measured is None else measured

    def _seconds_of_functions(self, subgraph: Subgraph, node: Node) -> float:
        """The seconds of a loop, once if nobody knows how often, and of the longest branch."""
        times = trip_counts(subgraph).get(node.name, 1) if node.op.name == "_Loop" else 1
        return times * max(
            math.fsum(self(function, inner) for inner in function) for function in owned_subgraphs(node.attrs)
        )


def is_free(node: Node) -> bool:
    """Whether a node takes no time: it is a name, a value that is there, or nothing."""
    return node.op.effect in FREE_EFFECTS or node.op.name in ("Const", "NoOp") or node.op is group_agree_op


# --- what a node asks


def demand(subgraph: Subgraph, node: Node) -> Demand:
    """The operations and the bytes of ``node``: inputs are read, outputs written, variables that it writes
    both. Unknown dimensions count as one.
    """
    inputs = [_spec(subgraph, ref) for ref in node.inputs]
    nbytes = sum(map(nbytes_of, [*inputs, *node.outputs]))
    if node.op.effect is Effect.WRITE:
        handles = [_is_handle(subgraph, ref) for ref in node.inputs]
        nbytes += sum(nbytes_of(spec) for spec, is_handle in zip(inputs, handles, strict=True) if is_handle)
    if node.op.cost is not None:
        return Demand(node.op.cost(inputs, node.outputs) or 0.0, nbytes, inputs[0].dtype.name)
    return Demand(_elements(node, inputs), nbytes, ELEMENTS)


def _is_handle(subgraph: Subgraph, ref: Ref) -> bool:
    return subgraph.nodes[ref[0]].op.effect is Effect.HANDLE


def _spec(subgraph: Subgraph, ref: Ref) -> TensorSpec:
    """The spec of ``ref``; of a handle, that of its variable."""
    node = subgraph.nodes[ref[0]]
    if node.op.effect is Effect.HANDLE and "shape" in node.attrs:
        return TensorSpec(node.attrs["dtype"], node.attrs["shape"])
    return subgraph.spec(ref)


def nbytes_of(spec: TensorSpec) -> int:
    """The bytes of a tensor, with 1 for unknown dimensions."""
    return math.prod(d or 1 for d in spec.shape or ()) * int(spec.dtype.np.itemsize)


def _elements(node: Node, inputs: Sequence[TensorSpec]) -> float:
    """The elements that ``node`` reads or computes, whichever are more; of a fused group, those of all its
    members.
    """
    group = node.attrs.get("group")
    if isinstance(group, Group):
        return float(len(group.members) * math.prod(group.domain))
    return float(max([num_elements(spec.shape) or 1 for spec in (*inputs, *node.outputs)], default=0))


# --- signatures


def signature(subgraph: Subgraph, node: Node) -> str:
    """The text of all that decides how long ``node`` takes: equal for nodes that do the same on equal sizes.

    ``MatMul(float32[64, 256], float32[256, 256]) -> float32[64, 256] transpose_a=False transpose_b=False``
    """
    inputs = ", ".join(_input_text(subgraph, ref) for ref in node.inputs)
    outputs = ", ".join(map(str, node.outputs))
    group = node.attrs.get("group")
    if isinstance(group, Group):
        members = "+".join(member.op.name for member in group.members)
        form = hashlib.sha256(f"{group.form} {group.domain}".encode()).hexdigest()[:12]
        return f"{members}#{form}({inputs}) -> {outputs}"
    options = [f"{key}={_value(value)}" for key, value in sorted(node.attrs.items()) if _decides(key, value)]
    return " ".join([f"{node.op.name}({inputs}) -> {outputs}", *options])


def _input_text(subgraph: Subgraph, ref: Ref) -> str:
    node, spec = subgraph.nodes[ref[0]], _spec(subgraph, ref)
    if node.op.name == "Const" and np.size(node.attrs["value"]) <= MAX_SHOWN:
        return f"{spec}={np.asarray(node.attrs['value']).tolist()}"
    return str(spec)


def _decides(key: str, value: Any) -> bool:
    items = value if isinstance(value, tuple | list) else (value,)
    return (
        key not in _NAMES
        and not key.startswith("_")
        and all(isinstance(item, bool | int | float | str) for item in items)
    )


def _value(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple | list) else str(value)


# --- rates from a table


class Timed(NamedTuple):
    """A node that was measured."""

    demand: Demand
    seconds: float


class Fitted(NamedTuple):
    """``r_squared``: which share of the variance of the logarithms of seconds the rates explain."""

    rates: Rates
    r_squared: float


def fit_rates(rows: Iterable[Timed]) -> Fitted:
    """The rates by which `Rates.seconds` comes closest to ``rows``, by the squares of logarithms: twice too
    long counts like half. They are found by steps along each rate, half as long when none helps any more.

    Raises `InvalidArgumentError` for less than two rows, and for seconds that are not positive.
    """
    found = list(rows)
    if len(found) < 2 or any(not row.seconds > 0 for row in found):
        raise InvalidArgumentError(
            f"fit_rates: expected two rows or more, with seconds above 0; got {len(found)}"
        )
    names = sorted({row.demand.rate for row in found})
    number = np.array([names.index(row.demand.rate) for row in found])
    flops = np.array([row.demand.flops for row in found])
    nbytes = np.array([row.demand.nbytes for row in found], float)
    seconds = np.array([row.seconds for row in found])

    def error(logs: Any) -> float:
        *per_flop, per_byte, call_s = np.exp(logs)
        expected = np.maximum(flops * np.array(per_flop)[number], nbytes * per_byte) + call_s
        return float(np.sum((np.log(expected) - np.log(seconds)) ** 2))

    per_flop = [np.median((seconds / np.maximum(flops, 1))[number == i]) for i in range(len(names))]
    start = np.log([*per_flop, np.median(seconds / np.maximum(nbytes, 1)), seconds.min()])
    logs, least = _least(error, start)
    *per_flop, per_byte, call_s = np.exp(logs).tolist()
    total = float(np.sum((np.log(seconds) - np.log(seconds).mean()) ** 2))
    flops_per_s = {name: 1 / each for name, each in zip(names, per_flop, strict=True)}
    return Fitted(Rates(flops_per_s, 1 / per_byte, call_s), 1 - least / total if total else 1.0)


STEPS = tuple(2.0**-i for i in range(-1, 10))
"""Steps of the logarithm of a rate: e^2 at first, 0.2 % at last."""


def _least(error: Callable[[Any], float], start: Any) -> tuple[Any, float]:
    """The place near ``start`` at which ``error`` is least, and its value there."""
    at, least = start, error(start)
    directions = [sign * row for row in np.eye(len(start)) for sign in (1.0, -1.0)]
    for step in STEPS:
        moved = True
        while moved:
            moved = False
            for direction in directions:
                tried = error(at + step * direction)
                if tried < least * (1 - 1e-9):
                    at, least, moved = at + step * direction, tried, True
    return at, least
