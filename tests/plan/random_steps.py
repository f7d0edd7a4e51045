"""Random training steps of few nodes, and the cost of every combination of their choices."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import flowrt as tf
from flowrt import dtypes
from flowrt.graph.layouts.layout import Layout
from flowrt.graph.node import Ref, Subgraph
from flowrt.graph.ops.base.identities import cast_op
from flowrt.plan.layouts.layout_choices import Part
from flowrt.plan.layouts.layout_costs import Moved, Prices, Tariff
from tests.distribute.strategies.nets_with_layouts import Net

ROWS, COLUMNS = 4, 8


def random_net(seed: int, nodes: int) -> Net:
    """An update of one or two variables by what a few random operations make of them and of a batch."""
    rng = np.random.default_rng(seed)
    x = tf.placeholder(tf.float32, [ROWS, COLUMNS])
    variables = [tf.get_variable(f"v{i}", [COLUMNS, COLUMNS], tf.float32) for i in range(rng.integers(1, 3))]
    tensors = [x, *[variable + 0.0 for variable in variables]]
    for _ in range(nodes):
        tensors.append(_random(rng, tensors))
    ends = [tf.reshape(tf.reduce_sum(tensors[-1], int(rng.integers(2))), [-1, 1])[:1, :1]]
    updates = [tf.assign_sub(v, tensors[1 + i] * ends[0]) for i, v in enumerate(variables)]
    return Net({x: np.zeros((ROWS, COLUMNS))}, ends[0], tf.group(*updates))


def _random(rng: np.random.Generator, tensors: Sequence[Any]) -> Any:
    a, b = tensors[rng.integers(len(tensors))], tensors[rng.integers(len(tensors))]
    kind = rng.integers(5)
    if kind == 0 and a.shape == b.shape:
        return a + b
    if kind == 1 and a.shape == b.shape:
        return a * b
    if kind == 2 and a.shape[1] == b.shape[0]:
        return tf.matmul(a, b)
    if kind == 3:
        return tf.transpose(a)
    return tf.nn.relu(a)


def costs_of_all(
    step: Subgraph, parts: Sequence[Part], prices: Prices
) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every combination of choices with its cost, worked out node by node and tensor by tensor."""
    tariff, place = Tariff(prices), {}
    for i, part in enumerate(parts):
        for k, name in enumerate(part.members):
            place[name] = i, k
    nodes = [
        [
            math.fsum(tariff.node(step, step.nodes[n], *c) for n, c in zip(part.members, chosen, strict=True))
            for chosen in part.choices
        ]
        for part in parts
    ]
    readers: dict[Ref, list[tuple[int, int, int]]] = defaultdict(list)
    for node in step:
        for at, ref in enumerate(node.inputs):
            i, k = place[node.name]
            is_cast = node.op is cast_op and place[ref[0]][0] == i
            if not is_cast and step.spec(ref).dtype is not dtypes.resource:
                readers[ref].append((i, k, at))
    handles = [
        (place[ref[0]], place[node.name], at)
        for node in step
        for at, ref in enumerate(node.inputs)
        if step.spec(ref).dtype is dtypes.resource
    ]
    for chosen in itertools.product(*[range(len(part.choices)) for part in parts]):
        total = math.fsum(costs[c] for costs, c in zip(nodes, chosen, strict=True))
        choices = [part.choices[c] for part, c in zip(parts, chosen, strict=True)]
        if any(choices[i][k].outputs[0] is not choices[j][m].inputs[at] for (i, k), (j, m), at in handles):
            continue
        for ref, wants in readers.items():
            i, k = place[ref[0]]
            have = choices[i][k].outputs[ref[1]]
            cost = _moves(tariff, have, [choices[j][m].inputs[at] for j, m, at in wants], step.spec(ref))
            total += cost
        if total < math.inf:
            yield chosen, total


def _moves(tariff: Tariff, have: Layout, wanted: Sequence[Layout], spec: Any) -> float:
    found = dict[Layout, Moved]()
    for layout in wanted:
        way = tariff.way(have, layout, spec)
        if way is None:
            return math.inf
        for moved in way:
            found.setdefault(moved.after, moved)
    return math.fsum(moved.seconds for moved in found.values())


def chosen_only(parts: Sequence[Part], choices: Sequence[int]) -> list[Part]:
    """``parts`` with one choice each."""
    return [_with_choices(part, [choice]) for part, choice in zip(parts, choices, strict=True)]


def _with_choices(part: Part, numbers: Sequence[int]) -> Part:
    stored = tuple(part.stored[c] for c in numbers) if part.stored else ()
    return part._replace(choices=tuple(part.choices[c] for c in numbers), stored=stored)


def trimmed(parts: Sequence[Part], most: int, rng: np.random.Generator) -> list[Part]:
    """``parts`` with few of their choices: at most ``most`` combinations. The first, all whole, stays."""
    kept = [list(range(len(part.choices))) for part in parts]
    while math.prod(map(len, kept)) > most:
        longest = [i for i, numbers in enumerate(kept) if len(numbers) == max(map(len, kept))]
        numbers = kept[rng.choice(longest)]
        del numbers[rng.integers(1, len(numbers))]
    return [_with_choices(part, numbers) for part, numbers in zip(parts, kept, strict=True)]
