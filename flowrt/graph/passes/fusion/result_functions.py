"""Functions of one number that follow convolutions, as a library has them, and the operations they are of.

    Linear       alpha x + beta: sums, differences, products and quotients with constant numbers
    Clip         min(max(x, 0), high): relu6, and a maximum with 0 and a minimum with a constant number
    HardSwish    x min(max(alpha x + beta, 0), high): Mul(x, Relu6(x + 3)) and the like (Howard et al., 2019)
    Swish        x / (1 + exp(-alpha x)): Mul(x, Sigmoid(x)) and the like (Ramachandran et al., 2017)

The library takes 0.47 ns for the swish of an element and a compiled loop 0.41; but the threads of a
convolution share it, while the loops between convolutions are too short to be shared.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from flowrt.graph.construction.constant import const
from flowrt.graph.node import Node, Ref, Subgraph
from flowrt.graph.ops.elementwise.arithmetic import add_v1, add_v2, maximum, minimum, multiply, subtract
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.elementwise.math import sigmoid
from flowrt.graph.ops.nn.activations import relu6

_Array: TypeAlias = "np.ndarray[Any, Any]"


class Linear(NamedTuple):
    """alpha x + beta"""

    alpha: float = 1.0
    beta: float = 0.0

    def __call__(self, x: _Array) -> _Array:
        return x * x.dtype.type(self.alpha) + x.dtype.type(self.beta)

    def then(self, other: Linear) -> Linear:
        """``other`` of this one."""
        return Linear(other.alpha * self.alpha, other.alpha * self.beta + other.beta)


class HardSwish(NamedTuple):
    """x min(max(alpha x + beta, 0), high)"""

    alpha: float
    beta: float
    high: float

    def __call__(self, x: _Array) -> _Array:
        gate = Linear(self.alpha, self.beta)(x)
        return x * np.minimum(np.maximum(gate, x.dtype.type(0)), x.dtype.type(self.high))


class Swish(NamedTuple):
    """x / (1 + exp(-alpha x))"""

    alpha: float

    def __call__(self, x: _Array) -> _Array:
        return x / (1 + np.exp(x * x.dtype.type(-self.alpha)))


class Clip(NamedTuple):
    """min(max(x, 0), high)"""

    high: float

    def __call__(self, x: _Array) -> _Array:
        return np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(self.high))


ResultFunction: TypeAlias = Linear | HardSwish | Swish | Clip

Chain: TypeAlias = Sequence[tuple[Node, int]]
"""Nodes, each with the position of the one before it among its inputs."""


def linear(subgraph: Subgraph, node: Node, at: int) -> Linear | None:
    """The function that ``node`` is of its input ``at``; None if it is no such, or of unknown numbers."""
    number = _number(subgraph, node.inputs[1 - at]) if len(node.inputs) == 2 else None
    if number is None:
        return None
    if node.op in (add_v1, add_v2):
        return Linear(beta=number)
    if node.op is multiply:
        return Linear(number)
    if at == 0 and node.op is subtract:
        return Linear(beta=-number)
    if at == 0 and node.op is realdiv and number != 0:
        return Linear(1 / number)
    return None


def clipped(subgraph: Subgraph, chain: Chain) -> Clip | None:
    """The function that ``chain`` computes; None if it is no such."""
    if [node.op for node, _ in chain] == [relu6]:
        return Clip(6)
    bounds = {node.op: (node, at) for node, at in chain}
    if len(chain) != 2 or bounds.keys() != {maximum, minimum}:
        return None
    low, high = (_number(subgraph, node.inputs[1 - at]) for node, at in (bounds[maximum], bounds[minimum]))
    return Clip(high) if low == 0 and high is not None and high > 0 else None


def gated(subgraph: Subgraph, chain: Chain) -> HardSwish | Swish | None:
    """The function x g(x), where ``chain`` computes g(x) from x; None if it is no such."""
    if chain and chain[-1][0].op is sigmoid:
        inner = _line(subgraph, chain[:-1])
        return Swish(inner.alpha) if inner is not None and inner.beta == 0 else None
    clip = clipped(subgraph, chain[-2:]) or clipped(subgraph, chain[-1:])
    if clip is None:
        return None
    gate = _line(subgraph, chain[: -1 if chain[-1][0].op is relu6 else -2])
    return None if gate is None else HardSwish(gate.alpha, gate.beta, clip.high)


def _line(subgraph: Subgraph, chain: Chain) -> Linear | None:
    """The linear function that ``chain`` computes; None if it is no such."""
    line = Linear()
    for node, at in chain:
        after = linear(subgraph, node, at)
        if after is None:
            return None
        line = line.then(after)
    return line


def _number(subgraph: Subgraph, ref: Ref) -> float | None:
    """The value of a constant that is a finite number."""
    node = subgraph.nodes[ref[0]]
    if node.op is not const or node.attrs["value"].size != 1:
        return None
    value = float(node.attrs["value"].item())
    return value if math.isfinite(value) else None
