"""Every stage on every kind of mesh, with dropout, micro-batches, narrow products and frozen variables: 20
steps are those of one device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.distribute.strategies.nets_with_layouts import COLUMNS, NETS, Net, of_net
from tests.distribute.strategies.standing_workers import Answers
from tests.distribute.strategies.test_fully_sharded import trained_under
from tests.each import daily

Mesh, Axis, Precision = tf.distribute.Mesh, tf.distribute.Axis, tf.distribute.Precision

AXES: dict[str, tuple[list[Any], Any]] = {
    "dp": ([("dp", 2)], "dp"),
    "hsdp": ([("replica", 2), ("shard", 2)], ("replica", "shard")),
    "dp x tp": ([("dp", 2), ("tp", 2)], "dp"),
}
"""The axes of the mesh, and which of them share the batch."""

TURNS = Axis("turn", 2, is_time=True)

IN_FLOAT32 = Precision("float32", "float64", "float64")
"""Products in a narrower dtype, of which one device's results are still known to 5 digits."""

LAYERS, WIDTH = 6, 8


def half_frozen() -> Net:
    """Equal layers with dropout, of which every second one is frozen."""
    x = tf.placeholder(tf.float64, [8, WIDTH])
    h = x
    for layer in range(LAYERS):
        w = tf.get_variable(f"layer{layer}/w", [WIDTH, WIDTH], tf.float64, trainable=layer % 2 == 0)
        h = tf.nn.dropout(tf.nn.tanh(h @ w), 0.9, seed=layer)
    loss = tf.reduce_mean(tf.square(h - x))
    feeds = {x: np.random.default_rng(0).standard_normal((8, WIDTH))}
    return Net(feeds, loss, tf.train.AdamOptimizer(0.01).minimize(loss))


BUILT: dict[str, Callable[[], Net]] = {"mlp": NETS["mlp"], "gpt": NETS["gpt"], "half frozen": half_frozen}
COLUMNS_OF = {**COLUMNS, "layer[024]/w": [None, "tp"], "layer[135]/w": ["tp", None]}


def sharded(what: str, stage: int, build: Callable[[], Net], turns: bool, policy: Any, **workers: Any) -> Any:
    axes, axis = AXES[what]
    names = (axis,) if isinstance(axis, str) else axis
    mesh, batch = (Mesh([*axes, TURNS]), (*names, "turn")) if turns else (Mesh(axes), names)
    strategy = tf.distribute.FullyShardedStrategy(
        mesh, axis, stage, units=r"block\d|layer\d|\w+", min_bytes=0, batch=batch, policy=policy, **workers
    )
    strategy.variable_layouts(of_net(build, COLUMNS_OF) if "tp" in what else {})
    return strategy


@functools.cache
def on_one_device(net: str, policy: Any) -> list[float]:
    return trained_under(tf.distribute.LayoutStrategy(Mesh([("dp", 1)]), policy=policy), BUILT[net])[0]


def is_for_every_run(net: str, stage: int, turns: bool, policy: Any) -> bool:
    """Of the small nets, all at once where weights are in parts; else one thing at a time."""
    return net != "gpt" and (
        turns and bool(policy) if stage == 3 else bool(turns) + bool(policy) == stage % 2
    )


@pytest.mark.parametrize(
    ("net", "what", "stage", "turns", "policy"),
    [
        pytest.param(*case, marks=[] if is_for_every_run(case[0], *case[2:]) else pytest.mark.slow)
        for case in product(BUILT, AXES, (0, 1, 2, 3), (False, True), (None, IN_FLOAT32))
    ],
)
def test_training_is_that_of_one_device(net: str, what: str, stage: int, turns: bool, policy: Any) -> None:
    found, _ = trained_under(sharded(what, stage, BUILT[net], turns, policy), BUILT[net])
    np.testing.assert_allclose(found, on_one_device(net, policy), 1e-12 if policy is None else 1e-4)
    assert len(found) == 20
    if policy is not None:
        assert not np.allclose(found, on_one_device(net, None), 1e-12)


@pytest.mark.parametrize(
    ("net", "what", "stage", "turns", "is_narrow"),
    daily(
        product(BUILT, AXES, (1, 2, 3), (False, True), (False, True)),
        lambda net, what, stage, turns, is_narrow: (
            (net == "gpt" and stage == 3 and turns and what != "hsdp" and not is_narrow)
            or (net == "half frozen" and what == "hsdp" and stage == 3 and not turns)
        ),
    ),
)
def test_so_is_training_in_processes(
    answers: Answers, net: str, what: str, stage: int, turns: bool, is_narrow: bool
) -> None:
    """In which a unit is gathered in one call; those that share a replica's parts are of two processes."""
    policy = IN_FLOAT32 if is_narrow else None
    case = f"combined:{net}:{what}:{stage}:{turns:d}:{is_narrow:d}"
    expected = on_one_device(net, policy)
    for losses in answers(case, 4 if what == "hsdp" else 2):
        np.testing.assert_allclose(losses, expected, 1e-4 if is_narrow else 1e-12)
