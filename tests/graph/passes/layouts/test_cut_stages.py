"""Stages by costs: the least longest stage of all cuts, and none through a list of tensors."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.graph.node import Subgraph
from flowrt.graph.passes.layouts.stages.cut_stages import (
    NS_PER_BYTE,
    SLACK,
    Room,
    _cuts,
    _fitting,
    _Kept,
    cut_stages,
)
from tests.each import nightly


def longest(ends: Sequence[int], costs: np.ndarray, crossing: np.ndarray) -> float:
    """The time of the longest of the parts that end at ``ends``: its costs, and what crosses either end."""
    starts = [0, *ends[:-1]]
    return max(costs[a:b].sum() + crossing[a] + crossing[b] for a, b in zip(starts, ends, strict=True))


@pytest.mark.parametrize("seed", nightly(range(40), 10))
def test_cuts_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(3, 10)), int(rng.integers(1, 4))
    costs = rng.integers(0, 9, size) * 1.0
    crossing = np.concatenate([[0.0], rng.integers(0, 9, size - 1) * 1.0, [0.0]])
    crossing[1:-1][rng.random(size - 1) < 0.2] = np.inf
    every = [(*ends, size) for ends in itertools.combinations(range(1, size), count - 1)]
    best = min(longest(ends, costs, crossing) for ends in every)
    found = _cuts(np.concatenate([[0.0], np.cumsum(costs)]), crossing, count)
    if np.isinf(best):
        assert found == []
    else:
        assert longest(found, costs, crossing) <= best * (1 + SLACK) + 1e-9


@pytest.mark.parametrize("seed", nightly(range(60), 10))
def test_cuts_within_memory_are_the_best_of_all_that_fit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, count = int(rng.integers(3, 10)), int(rng.integers(1, 4))
    costs, variables, activations = (rng.integers(0, 9, size) * 1.0 for _ in range(3))
    crossing = np.concatenate([[0.0], rng.integers(0, 9, size - 1) * 1.0, [0.0]])
    crossing[1:-1][rng.random(size - 1) < 0.2] = np.inf
    passes = tuple(map(int, rng.integers(1, 5, count)))
    parts, again = int(rng.integers(1, 4)), tuple(map(int, rng.integers(1, 4, count))) if seed % 2 else ()
    room = Room(int(rng.integers(5, 80)), passes, 1 + seed % 3 // 2, parts, again)

    def nbytes(stage: int, a: int, b: int) -> float:
        kept = variables[a:b].sum()
        if again:
            return float(kept + (again[stage] * activations[a:b].sum() + passes[stage] * crossing[a]) / parts)
        return float(kept + passes[stage] * activations[a:b].sum() / parts)

    def pairs(ends: Sequence[int]) -> list[tuple[int, int]]:
        return [*zip([0, *ends[:-1]], ends, strict=True)]

    def fits(ends: Sequence[int]) -> bool:
        return all(nbytes(s, a, b) <= room.limit / room.chunks for s, (a, b) in enumerate(pairs(ends)))

    total = np.concatenate([[0.0], np.cumsum(costs)])
    every = [(*ends, size) for ends in itertools.combinations(range(1, size), count - 1)]
    every = [ends for ends in every if np.isfinite(crossing[[*ends]]).all()]
    kept = _Kept(*(np.concatenate([[0.0], np.cumsum(each)]) for each in (variables, activations)))
    first = _cuts(total, crossing * NS_PER_BYTE, count)
    if not every:
        assert first == []
    elif not any(map(fits, every)):
        least = min(max(nbytes(s, a, b) for s, (a, b) in enumerate(pairs(ends))) for ends in every)
        with pytest.raises(ResourceExhaustedError, match=f"one needs {int(least):,}: stage"):
            _fitting(first, total, crossing, room, kept)
    else:
        found = _fitting(first, total, crossing, room, kept)
        best = min(longest(ends, costs, crossing * NS_PER_BYTE) for ends in every if fits(ends))
        assert fits(found)
        assert longest(found, costs, crossing * NS_PER_BYTE) <= best * (1 + SLACK) + 1e-9


def step_of(graph: tf.Graph) -> Subgraph:
    return Subgraph({op.name: op.node for op in graph.get_operations()}, (), (), ())


def test_initial_values_are_no_work_of_a_stage() -> None:
    with tf.Graph().as_default() as graph:
        h = tf.placeholder(tf.float32, [8, 64])
        tf.get_variable("unused", [512, 512])
        for number in range(4):
            h = tf.matmul(h, tf.get_variable(f"w{number}", [64, 64]), name=f"layer{number}")
        found = cut_stages(step_of(graph), 2)
    assert [found[f"layer{number}"] for number in range(4)] == [0, 0, 1, 1]
    assert not any("Initializer" in name for name in found)


def test_no_cut_goes_through_a_list() -> None:
    with tf.Graph().as_default() as graph:
        h = tf.matmul(tf.placeholder(tf.float32, [8, 64]), tf.ones([64, 64]), name="before")
        rows = tf.TensorArray(tf.float32, size=4).unstack(tf.reshape(h, [4, 128]))
        _, total = tf.while_loop(
            lambda i, total: i < 4, lambda i, total: (i + 1, total + rows.read(i)), [0, tf.zeros([128])]
        )
        tf.matmul(tf.reshape(total, [2, 64]), tf.ones([64, 64]), name="after")
        step = step_of(graph)
        found = cut_stages(step, 2)
        for node in step:
            for name, index in node.inputs:
                if step.nodes[name].outputs[index].dtype == tf.variant and {name, node.name} <= found.keys():
                    assert found[name] == found[node.name]
        with pytest.raises(InvalidArgumentError, match="pipeline: expected operations for 99 stages; got"):
            cut_stages(step, 99)
