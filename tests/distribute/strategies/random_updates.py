"""Random programs that read, set and update variables in one step, from a seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

import flowrt as tf

ROWS, WIDTH = 6, 5
"""Of the batch."""

SIZES = (1, 2, 3, 4, 5, 6, 8)

OPTIMIZERS: Sequence[Callable[[], Any]] = (
    lambda: tf.train.GradientDescentOptimizer(0.1),
    lambda: tf.train.MomentumOptimizer(0.1, 0.9, use_nesterov=True),
    lambda: tf.train.AdamOptimizer(0.05, epsilon=0.01),
    lambda: tf.train.AdamWOptimizer(0.01, 0.05, epsilon=0.01),
    lambda: tf.train.AdagradOptimizer(0.1),
    lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5, epsilon=0.1),
    lambda: tf.train.FtrlOptimizer(0.1),
    lambda: tf.train.LAMBOptimizer(0.05, epsilon=0.1),
)

MESHES: Sequence[tuple[Sequence[tuple[str, int]], Any]] = (
    ((("dp", 2),), "dp"),
    ((("dp", 3),), "dp"),
    ((("dp", 4),), "dp"),
    ((("dp", 2), ("tp", 2)), "dp"),
    ((("replica", 2), ("shard", 2)), ("replica", "shard")),
    ((("replica", 2), ("shard", 3)), ("replica", "shard")),
)
"""The axes of the mesh, and those that share the batch."""


class Built(NamedTuple):
    """A program in the default graph."""

    x: Any
    ids: Any
    flag: Any
    variables: Sequence[Any]
    results: Sequence[Any]
    """What steps fetch, some of them at a time."""


class RandomUpdates:
    """A program of ``count`` statements, for a mesh of at most 6 devices.

    Two programs of a seed do the same, whether or not their variables are in parts.
    """

    def __init__(self, seed: int, count: int = 7) -> None:
        rng = np.random.default_rng(seed)
        self.seed, self._count = seed, count
        self._axes, self._axis = MESHES[int(rng.integers(len(MESHES)))]
        self.stage = int(rng.choice([1, 2, 3], p=[0.4, 0.5, 0.1]))
        self._min_bytes = int(rng.choice([0, 0, 100]))

    @property
    def num_devices(self) -> int:
        return math.prod(size for _, size in self._axes)

    def strategy(self, devices: Sequence[str] | None = None, **options: Any) -> Any:
        mesh = tf.distribute.Mesh([*self._axes], None if devices is None else devices[: self.num_devices])
        return tf.distribute.FullyShardedStrategy(
            mesh, self._axis, stage=self.stage, min_bytes=self._min_bytes, **options
        )

    def build(self, strategy: Any = None) -> Built:
        """The program in the default graph, for one device without a ``strategy``."""
        tf.set_random_seed(1)
        with nullcontext() if strategy is None else strategy.scope():
            return _Builder(self.seed, [name for name, _ in self._axes], strategy is not None).run(
                self._count
            )

    def history(self, session: Any, built: Built, steps: int = 4) -> list[Any]:
        """What ``steps`` steps of a new session give, and then the variables."""
        session.run(tf.global_variables_initializer())
        found = [session.run(self.fetches(built, n), self.feeds(built, n)) for n in range(steps)]
        return [value for values in found for value in values if value is not None] + session.run(
            [*built.variables]
        )

    def feeds(self, built: Built, step: int) -> Mapping[Any, Any]:
        rng = np.random.default_rng([self.seed, step])
        return {
            built.x: rng.uniform(-1, 1, (ROWS, WIDTH)),
            built.ids: rng.integers(0, 2, ROWS),
            built.flag: bool(rng.random() < 0.5),
        }

    def fetches(self, built: Built, step: int) -> list[Any]:
        """Some of the results: steps of one session have different parts of the graph."""
        rng = np.random.default_rng([self.seed, step, 1])
        if rng.random() < 0.4:
            return [*built.results]
        count = int(rng.integers(1, len(built.results) + 1))
        return [built.results[i] for i in sorted(rng.choice(len(built.results), count, replace=False))]


class _Builder:
    def __init__(self, seed: int, axes: Sequence[str], has_layouts: bool) -> None:
        self._rng = np.random.default_rng([seed, 2])
        self._axes, self._has_layouts = axes, has_layouts
        self._variables: list[Any] = []
        self._others: list[Any] = []
        """Variables that no optimizer updates."""
        self._results: list[Any] = []
        self._reads: list[Any] = []
        """Values that were read, to be used later."""
        self._x = tf.placeholder(tf.float64, [ROWS, WIDTH])
        self._ids = tf.placeholder(tf.int32, [ROWS])
        self._flag = tf.placeholder(tf.bool, [])

    def run(self, count: int) -> Built:
        for number in range(self._int(2, 5)):
            self._add_variable(f"v{number}")
        self._others = [tf.get_variable("frozen", initializer=self._values([4, 3]), trainable=False)]
        statements = (
            self._read, self._use, self._train, self._train, self._train_after_reading, self._write,
            self._write, self._scatter, self._branch, self._loop, self._average, self._look_up, self._slice,
            self._fetch, self._accumulate, self._recompute, self._train_in_turns,
        )  # fmt: skip
        for _ in range(count):
            statements[self._int(0, len(statements))]()
        if not self._results:
            self._train()
        variables = [*tf.global_variables()]
        return Built(self._x, self._ids, self._flag, variables, self._results)

    # --- draws

    def _int(self, low: int, high: int) -> int:
        return int(self._rng.integers(low, high))

    def _values(self, shape: Sequence[int]) -> Any:
        return self._rng.uniform(-1, 1, shape)

    def _one(self, found: Sequence[Any]) -> Any:
        return found[self._int(0, len(found))]

    def _some(self, found: Sequence[Any]) -> list[Any]:
        count = self._int(1, len(found) + 1)
        return [found[i] for i in sorted(self._rng.choice(len(found), count, replace=False))]

    # --- variables

    def _add_variable(self, name: str) -> None:
        shape = [int(self._rng.choice(SIZES)) for _ in range(self._int(1, 4))]
        shape[0] = max(shape[0], 2)  # of as many rows look-ups are sure
        clipped = self._rng.random() < 0.2
        constraint = (lambda w: tf.clip_by_value(w, -0.8, 0.8)) if clipped else None
        initial, layouts = self._values(shape), self._layouts(shape)
        if not self._has_layouts:
            layouts = {}
        self._variables.append(tf.get_variable(name, initializer=initial, constraint=constraint, **layouts))

    def _layouts(self, shape: Sequence[int]) -> dict[str, Any]:
        """Sometimes the layouts that a script asks for."""
        if self._rng.random() < 0.7:
            return {}
        used, stored = [None] * len(shape), [None] * len(shape)
        axes = [*self._axes]
        found = {"layout": self._placed(used, axes)}
        if self._rng.random() < 0.5:
            found["stored"] = self._placed(stored, axes)
        return found

    def _placed(self, entries: list[Any], axes: Sequence[str]) -> list[Any]:
        by_dim: list[list[str]] = [[] for _ in entries]
        for axis in axes:
            if self._rng.random() < 0.5:
                by_dim[self._int(0, len(entries))].append(axis)
        return [tuple(names) or None for names in by_dim]

    # --- losses

    def _term(self, w: Any, value: Any = None) -> Any:
        """A loss of the batch and ``w``."""
        shape = w.shape.as_list()
        value = w.read_value() if value is None else value
        mixed = tf.tanh(self._x @ tf.constant(self._values([WIDTH, shape[0]])))
        if len(shape) == 1:
            return tf.reduce_mean(tf.square(mixed * value - 0.3))
        return tf.reduce_mean(tf.square(mixed @ tf.reshape(value, [shape[0], -1]) - 0.3))

    def _sparse_term(self, w: Any) -> Any:
        rows = tf.gather(w, self._ids)
        return tf.reduce_mean(tf.square(rows - self._x[0, 0]))

    def _loss(self, variables: Sequence[Any]) -> Any:
        terms = [self._sparse_term(w) if self._rng.random() < 0.2 else self._term(w) for w in variables]
        loss = tf.add_n(terms)
        if self._rng.random() < 0.2:
            loss += tf.reduce_mean(tf.nn.dropout(self._x, 0.7, seed=3)) * terms[0]
        return loss

    # --- statements

    def _read(self) -> None:
        w = self._one([*self._variables, *self._others])
        value = w.read_value()
        self._reads.append(value)
        self._results.append(value if self._rng.random() < 0.5 else tf.reduce_sum(value) * 2)

    def _use(self) -> None:
        if self._reads:
            self._results.append(tf.reduce_sum(tf.sin(self._one(self._reads))))

    def _fetch(self) -> None:
        self._results.append(self._one([*self._variables, *self._others]))

    def _train(self) -> Any:
        variables = self._some(self._variables)
        loss = self._loss(variables)
        train = self._one(OPTIMIZERS)().minimize(loss, var_list=variables)
        self._results += [loss, train]
        return train

    def _train_after_reading(self) -> None:
        before = self._one(self._variables).read_value()
        with tf.control_dependencies([self._train()]):
            after = self._one(self._variables).read_value()
            self._results.append(tf.reduce_sum(before) + 3 * tf.reduce_sum(after))

    def _train_in_turns(self) -> None:
        """Two updates of one step, of which the second sees the first."""
        w = self._one(self._variables)
        optimizer = self._one(OPTIMIZERS)()
        first = optimizer.minimize(self._term(w), var_list=[w])
        with tf.control_dependencies([first]):
            self._results.append(optimizer.minimize(self._term(w), var_list=[w]))

    def _written(self, w: Any) -> Any:
        kind = self._int(0, 5)
        amount = tf.reduce_mean(self._x) * tf.constant(self._values(w.shape.as_list()))
        if kind == 0:
            return w.assign_add(amount)
        if kind == 1:
            return w.assign_sub(amount)
        if kind == 2:
            return w.assign(0.9 * w + amount)
        if kind == 3:
            return w.assign(amount)
        return w.assign(w[::-1])

    def _write(self) -> None:
        self._results.append(self._written(self._one([*self._variables, *self._others])))

    def _scatter(self) -> None:
        w = self._one(self._variables)
        rows = w.shape.as_list()[0]
        indices = self._rng.permutation(rows)[: self._int(1, rows + 1)]
        updates = self._values([len(indices), *w.shape.as_list()[1:]]) * tf.reduce_mean(self._x)
        scatter = self._one([tf.scatter_update, tf.scatter_add, tf.scatter_sub])
        self._results.append(scatter(w, indices, updates))

    def _branch(self) -> None:
        w, other = self._one(self._variables), self._one(self._variables)
        optimizer, loss = self._one(OPTIMIZERS)(), self._term(w)
        optimizer.minimize(loss, var_list=[w])  # makes the states
        trains = self._rng.random() < 0.5

        def taken() -> Any:
            write = optimizer.minimize(self._term(w), var_list=[w]) if trains else self._written(w)
            with tf.control_dependencies([write]):
                return tf.reduce_sum(w.read_value())

        self._results.append(tf.cond(self._flag, taken, lambda: tf.reduce_sum(other.read_value())))

    def _loop(self) -> None:
        w, other = self._one(self._variables), self._one(self._variables)

        def body(i: Any, total: Any) -> Any:
            with tf.control_dependencies([self._written(w)]):
                return i + 1, total + tf.reduce_sum(w.read_value()) + tf.reduce_sum(other.read_value())

        self._results.append(tf.while_loop(lambda i, _: i < 3, body, [0, tf.zeros([], tf.float64)])[1])

    def _average(self) -> None:
        w = self._some(self._variables)
        average = tf.train.ExponentialMovingAverage(0.7, name=f"average{len(self._results)}")
        self._results.append(average.apply(w))
        self._results.append(average.average(w[0]))

    def _look_up(self) -> None:
        self._results.append(tf.reduce_sum(tf.gather(self._one(self._variables), self._ids)))

    def _slice(self) -> None:
        part = self._one(self._variables)[1:]
        self._reads.append(part)
        self._results.append(part)

    def _accumulate(self) -> None:
        """Gradients of several steps, added up."""
        w = self._one(self._variables)
        name = f"sum{len(self._results)}"
        total = tf.get_variable(name, initializer=np.zeros(w.shape.as_list()), trainable=False)
        (gradient,) = tf.gradients(self._term(w), [w])
        optimizer = tf.train.MomentumOptimizer(0.1, 0.5)
        optimizer.apply_gradients([(total.read_value(), w)])  # makes the states
        with tf.control_dependencies([total.assign_add(gradient)]):
            self._results.append(tf.cond(self._flag, lambda: self._applied(optimizer, total, w), tf.no_op))

    def _applied(self, optimizer: Any, total: Any, w: Any) -> Any:
        with tf.control_dependencies([optimizer.apply_gradients([(total.read_value(), w)])]):
            return tf.group(total.assign(0 * total))

    def _recompute(self) -> None:
        w = self._one(self._variables)
        optimizer = self._one(OPTIMIZERS)()
        loss = tf.recompute_grad(lambda value: self._term(w, tf.tanh(value)))(w.read_value())
        self._results.append(optimizer.minimize(loss, var_list=[w]))
