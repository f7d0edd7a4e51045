"""Random programs over a few variables, under full sharding: results are those of one device.

They read variables and keep what they read, write them in the middle of a step, in branches and in loops,
look rows up, cast, differentiate and train; so a value that was read must stay what it was.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from tests.each import daily

SIZE, VARIABLES, STEPS = 4, 3, 2
CPUS = tf.ConfigProto(device_count={"CPU": 5})

KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "stage 1": (2, {"stage": 1}),
    "stage 2": (2, {"stage": 2}),
    "stage 3": (2, {"stage": 3}),
    "stage 3 of 3": (3, {"stage": 3}),
    "kept": (2, {"stage": 3, "reshard_after_forward": False}),
    "states on the host": (2, {"stage": 2, "offload": "optimizer"}),
    "variables on the host": (2, {"stage": 3, "offload": "parameters"}),
    "two of them stay": (1, {"stage": 3, "offload": 2 * SIZE * SIZE * 8}),
}
"""The number of devices, and the options of the strategy."""


class Program:
    """A program that the numbers of ``seed`` draw, built in the default graph: what it fetches and feeds."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.variables = [tf.get_variable(f"v{i}/w", [SIZE, SIZE], tf.float64) for i in range(VARIABLES)]
        self.x = tf.placeholder(tf.float64, [SIZE, SIZE])
        self.values: list[Any] = [self.x]
        self.updates: list[Any] = []
        for number in range(int(self.rng.integers(6, 16))):
            before = self.one_of([*self.values, *self.updates]) if self.rng.random() < 0.4 else None
            with tf.control_dependencies([] if before is None else [before]):
                getattr(self, self.one_of(CALLS))(number)
        chosen = self.rng.permutation(len(self.values))[:4]
        self.fetches = [*[self.values[i] for i in chosen], *self.updates]

    def one_of(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def variable(self) -> Any:
        return self.one_of(self.variables)

    def value(self) -> Any:
        return tf.tanh(self.one_of(self.values)) / 2

    def read(self, number: int) -> None:
        self.values.append(self.variable().read_value())

    def multiply(self, number: int) -> None:
        self.values.append(tf.matmul(self.value(), self.variable()) + self.value())

    def look_up(self, number: int) -> None:
        self.values.append(tf.nn.embedding_lookup(self.variable(), [3, 2, 1, 1]))

    def cast(self, number: int) -> None:
        narrow = tf.cast(self.variable().read_value(), tf.float32)
        self.values += [tf.cast(narrow, tf.float64), tf.cast(tf.tanh(narrow), tf.float64)]

    def assign(self, number: int) -> None:
        self.updates.append(self.variable().assign(self.value() + 0.1, read_value=False))

    def add(self, number: int) -> None:
        self.updates.append(self.variable().assign_add(self.value(), read_value=False))

    def branch(self, number: int) -> None:
        variable, value = self.variable(), self.value()
        self.values.append(
            tf.cond(
                tf.reduce_sum(self.value()) > 0,
                lambda: tf.identity(variable.assign_add(value)),
                lambda: tf.identity(variable.read_value()),
            )
        )

    def loop(self, number: int) -> None:
        variable = self.variable()

        def body(i: Any, h: Any) -> Any:
            with tf.control_dependencies([variable.assign_sub(0.1 * h, read_value=False)]):
                return i + 1, tf.tanh(tf.matmul(h, variable.read_value())) / 2

        self.values.append(tf.while_loop(lambda i, h: i < 2, body, [0, self.value()])[1])

    def train(self, number: int) -> None:
        loss = tf.reduce_mean(tf.square(tf.matmul(self.value(), self.variable()) + self.one_of(self.values)))
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9, name=f"optimizer{number}")
        pairs = [(g, v) for g, v in optimizer.compute_gradients(loss, self.variables) if g is not None]
        self.updates.append(optimizer.apply_gradients(pairs))


CALLS = ("read", "multiply", "multiply", "look_up", "cast", "assign", "add", "branch", "loop", "train")


def results(seed: int, devices: int = 0, options: Mapping[str, Any] = MappingProxyType({})) -> list[Any]:
    """What a program fetches in some steps, and its variables after them."""
    with tf.Graph() as graph:
        tf.set_random_seed(1)
        if devices:
            mesh = tf.distribute.Mesh([("dp", devices)], [f"/cpu:{i + 1}" for i in range(devices)])
            strategy = tf.distribute.FullyShardedStrategy(mesh, min_bytes=0, units=r"v\d", **options)
            with strategy.scope():
                program = Program(seed)
        else:
            program = Program(seed)
        with tf.Session(graph=graph, config=CPUS) as session:
            session.run(tf.global_variables_initializer())
            rng = np.random.default_rng(seed)
            found = []
            for _ in range(STEPS):
                feed = {program.x: rng.standard_normal((SIZE, SIZE))}
                found += [value for value in session.run(program.fetches, feed) if value is not None]
            return [*found, *session.run(program.variables)]


@functools.cache
def on_one_device(seed: int) -> list[Any]:
    return results(seed)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "end"),
    daily(
        [(0, 4), (4, 8), (100, 108), *[(n, n + 20) for n in range(200, 320, 20)]], lambda first, _: first == 0
    ),
)
def test_results_are_those_of_one_device(first: int, end: int, kind: str) -> None:
    for seed in range(first, end):
        for found, expected in zip(results(seed, *KINDS[kind]), on_one_device(seed), strict=True):
            np.testing.assert_allclose(found, expected, 1e-9, 1e-12, err_msg=f"seed {seed}, {kind}")
