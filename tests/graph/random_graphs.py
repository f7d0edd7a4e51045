"""Random graphs of differentiable operations in float64, from a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf

SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (2, 3), (3, 3))


class RandomGraph:
    """``calls`` random calls of ``kinds`` (`CALLS`) on ``xs``: placeholders and a variable, one of each
    shape, with values in ``point``. ``ys`` are some of the results, each of which depends on an x.

    What is made stays between -1 and 1, so that no derivative grows out of hand.
    """

    def __init__(self, seed: int, calls: int = 12, kinds: Sequence[Any] | None = None) -> None:
        self.rng = np.random.default_rng(seed)
        kinds = kinds or CALLS
        with tf.Graph() as self.graph:
            self.variable = tf.Variable(self.rng.uniform(-1, 1, (3, 3)))
            placeholders = [tf.placeholder(tf.float64, shape) for shape in SHAPES]
            self.xs: list[Any] = [*placeholders, self.variable]
            self.made: list[Any] = [*placeholders, self.variable.read_value()]
            for _ in range(calls):
                made = self._choose(kinds)(self)
                self.made += [tf.tanh(t) for t in (made if isinstance(made, list) else [made])]
            ends = self.made[-3:]
            self.ys = [y for y in ends if any(g is not None for g in tf.gradients(y, self.xs))]
        self.point = {x: self.rng.uniform(-1, 1, x.shape.as_list()) for x in placeholders}

    def directions(self, tensors: Sequence[Any]) -> list[Any]:
        """A random array for each of ``tensors``."""
        return [self.rng.standard_normal(t.shape.as_list()) for t in tensors]

    def run(self, fetches: Any, step: float = 0.0, along: Sequence[Any] | None = None) -> Any:
        """The values of ``fetches``, with the xs moved ``step`` times ``along``."""
        along = along or [np.zeros(x.shape.as_list()) for x in self.xs]
        move = dict(zip(self.xs[:-1], along, strict=False))
        feeds = {x: value + step * move[x] for x, value in self.point.items()}
        with self.graph, tf.Session() as session:
            session.run(self.variable.initializer)
            start = session.run(self.variable)
            self.variable.load(start + step * along[-1], session)
            return session.run(fetches, feeds)

    # --- calls

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[int(self.rng.integers(len(items)))]

    def _pick(self, shape: tuple[int, ...]) -> Any:
        """Something of this shape, rather a recent one."""
        found = [t for t in self.made if tuple(t.shape.as_list()) == shape]
        return self._choose(found[-4:] if self.rng.random() < 0.7 else found)

    def _pair(self) -> tuple[Any, Any]:
        """Two that broadcast, in any order."""
        shape = self._choose(SHAPES)
        narrow = self._choose([narrow for narrow in SHAPES if narrow in (shape, (), shape[1:])])
        pair = self._pick(shape), self._pick(narrow)
        return pair if self.rng.random() < 0.5 else pair[::-1]

    def binary(self) -> Any:
        op = self._choose((tf.add, tf.subtract, tf.multiply, tf.maximum, tf.squared_difference))
        return op(*self._pair())

    def quotient(self) -> Any:
        x, y = self._pair()
        return x / (2.0 + y)

    def unary(self) -> Any:
        op = self._choose((tf.sin, tf.exp, tf.sigmoid, tf.square, tf.nn.softplus, tf.abs, tf.nn.elu, tf.atan))
        return op(self._pick(self._choose(SHAPES)))

    def product(self) -> Any:
        return tf.matmul(self._pick((2, 3)), self._pick((3, 3)), transpose_b=self.rng.random() < 0.5)

    def einsum(self) -> Any:
        return tf.einsum("ij,j->i", self._pick((3, 3)), self._pick((3,)))

    def reduction(self) -> Any:
        op = self._choose((tf.reduce_sum, tf.reduce_mean, tf.reduce_max, tf.reduce_prod, tf.reduce_logsumexp))
        return op(self._pick((3, 3)), axis=self._choose((None, 0, 1)))

    def rows(self) -> Any:
        return tf.gather(self._choose((self.variable, self._pick((3, 3)))), [2, 0])

    def pieces(self) -> Any:
        """Two outputs of one operation: a vector and a matrix."""
        first, second = tf.split(self._pick((3, 3)), [1, 2])
        return [tf.reshape(first, [3]), second]

    def joined(self) -> Any:
        return tf.concat([self._pick((2, 3)), self._pick((3,))[None]], 0)

    def moved(self) -> Any:
        return self._choose((tf.transpose, lambda x: tf.cumsum(x, 1), lambda x: x[::-1]))(self._pick((3, 3)))

    def softmax(self) -> Any:
        return self._choose((tf.nn.softmax, tf.nn.log_softmax))(self._pick(self._choose(SHAPES[1:])))

    def chosen(self) -> Any:
        x, y = self._pick((2, 3)), self._pick((2, 3))
        return tf.where(x > y, x * y, x + y)

    def piecewise_constant(self) -> Any:
        """What moves with its argument in jumps only. (Differences would see through a stop_gradient.)"""
        x = self._pick((3, 3))
        step = self._choose((tf.floor, lambda t: tf.cast(tf.cast(t, tf.int32), tf.float64)))
        return (step(9.0 * x) + 0.5) / 9.0 * x  # no exact zeros: the gradient of cumprod has none there

    def state(self) -> Any:
        return self.variable * self._pick((3,))

    # --- draws

    def noise(self) -> Any:
        draw = self._choose((tf.random_uniform, tf.random_normal, tf.truncated_normal))
        shape = self._choose(SHAPES[1:])
        return self._pick(shape) + 0.1 * draw(shape, dtype=tf.float64, seed=int(self.rng.integers(1, 99)))

    def dropped(self) -> Any:
        return tf.nn.dropout(self._pick((3, 3)), 0.8, seed=int(self.rng.integers(1, 99)))

    # --- control flow

    def loop(self) -> Any:
        """A recurrence, a sum over its steps, and its steps as rows."""
        start, step, other = self._pick((2, 3)), self._pick((3, 3)), self._pick((3,))
        count = int(self.rng.integers(4))

        def body(i: Any, x: Any, total: Any, rows: Any) -> Any:
            after = tf.tanh(tf.matmul(x, step) + other)
            return i + 1, after, total + tf.reduce_sum(after, 0), rows.write(i, after[1])

        rows = tf.TensorArray(tf.float64, size=count, element_shape=[3])
        loop_vars = [0, start, tf.zeros([3], tf.float64), rows]
        _, x, total, rows = tf.while_loop(lambda i, *_: i < count, body, loop_vars)
        joined = tf.concat([rows.stack(), tf.zeros([3, 3], tf.float64)], 0)[:3]
        return [x, total / 4, tf.reshape(joined, [3, 3])]

    def until(self) -> Any:
        """A loop that ends by what it computes, which differs between rows."""
        x, m = self._pick((3, 3)), self._pick((3, 3))

        def body(i: Any, x: Any) -> Any:
            return i + 1, x / 2.0 + 0.1 * m

        return tf.while_loop(lambda i, x: (tf.reduce_sum(x * x) > 0.5) & (i < 5), body, [0, x])[1]

    def branch(self) -> Any:
        x, y, z = self._pick((3, 3)), self._pick((3,)), self._pick((2, 3))
        return tf.cond(
            tf.reduce_sum(y) > 0.0, lambda: [x * y, tf.matmul(z, x)], lambda: [self.variable + y, z]
        )

    def mapped(self) -> Any:
        """Sums along the rows of one matrix, each with all of another."""
        xs, m = self._pick((3, 3)), self._pick((3, 3))
        return tf.map_fn(lambda row: tf.reduce_sum(m * row, 0), xs)

    def scanned(self) -> Any:
        return tf.scan(lambda a, x: tf.tanh(a * x + 0.5), self._pick((3, 3)), initializer=self._pick((3,)))


_R = RandomGraph
CALLS = (
    *[_R.binary] * 3, *[_R.unary] * 3, _R.quotient, _R.product, _R.einsum, _R.reduction, _R.rows, _R.pieces,
    _R.joined, _R.moved, _R.softmax, _R.chosen, _R.piecewise_constant, _R.state,
)  # fmt: skip

NOISE = (_R.noise, _R.dropped)
"""Draws, which two sessions make alike."""

CONTROL_FLOW = (_R.loop, _R.until, _R.branch, _R.mapped, _R.scanned)
"""Loops and branches, with other calls."""
