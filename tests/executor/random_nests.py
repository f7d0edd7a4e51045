"""Random nests of loops and branches over variables of several dtypes and shapes.

All floats are small integers, so that their arithmetic is exact, in whatever order and contracted or not;
integers wrap. So a result has one right value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import flowrt as tf

DTYPES = (tf.float32, tf.float64, tf.int32, tf.int64, tf.bool)

MAX_DEPTH = 3


class RandomNest:
    """A nest from ``seed``: of scalars alone in one of three, else of small tensors too."""

    def __init__(self, seed: int, has_branches: bool = True) -> None:
        self._seed, self._has_branches = seed, has_branches

    def build_gradient(self) -> tuple[list[Any], dict[Any, Any]]:
        """As `build`, and the gradients of what is a float by what was one; they may become large."""
        fetches, feeds = self.build()
        wanted = [x for x in fetches if x.dtype.is_floating]
        found = tf.gradients(wanted, self._floats) if wanted else []
        return [*fetches, *[g for g in found if g is not None]], feeds

    def build(self) -> tuple[list[Any], dict[Any, Any]]:
        """The fetches, and what is to be fed, in the current graph. The same each time."""
        self._rng = np.random.default_rng(self._seed)
        shapes = [()] if self._below(3) == 0 else [(), (3,), (2, 3)]
        state = []
        for _ in range(2 + self._below(3)):
            dtype, shape = self._choose(DTYPES), self._choose(shapes)
            state.append(tf.constant(self._rng.integers(-3, 4, shape).astype(dtype.as_numpy_dtype)))
        self._floats = [x for x in state if x.dtype.is_floating]
        self._limit = tf.placeholder(tf.int32, [])
        fetches = self._loop(state, self._limit, 0)
        return fetches, {self._limit: np.int32(self._below(5))}

    # --- control

    def _loop(self, state: Sequence[Any], limit: Any, depth: int) -> list[Any]:
        """Up to ``limit`` iterations."""
        stop = self._below(3) == 0

        def goes_on(i: Any, *state: Any) -> Any:
            more = i < limit
            return tf.logical_and(more, self._truth(state[0])) if stop else more

        def body(i: Any, *state: Any) -> list[Any]:
            return [i + 1, *self._block(list(state), i, depth)]

        return list(tf.while_loop(goes_on, body, [tf.constant(0), *state])[1:])

    def _block(self, state: list[Any], i: Any, depth: int) -> list[Any]:
        for _ in range(1 + self._below(3)):
            kind = self._below(4) if depth < MAX_DEPTH - 1 else 3
            if kind == 0:
                limit = self._choose((i, i - 1, tf.constant(2), self._limit))
                state = self._loop(state, limit, depth + 1)
            elif kind == 1 and self._has_branches:
                state = self._branches(state, i, depth + 1)
            else:
                state = self._step(state, i)
        return self._step(state, i)

    def _branches(self, state: list[Any], i: Any, depth: int) -> list[Any]:
        def branch() -> list[Any]:
            return self._block(list(state), i, depth)

        if self._below(2):
            return list(tf.cond(self._truth(self._choose(state)), branch, branch))
        return list(tf.switch_case(i - self._below(3), [branch] * 3))

    # --- arithmetic

    def _step(self, state: list[Any], i: Any) -> list[Any]:
        """One or two variables become something else; two change places at times."""
        state = list(state)
        for _ in range(1 + self._below(2)):
            k = self._below(len(state))
            state[k] = self._changed(state[k], state, i)
        j, k = self._below(len(state)), self._below(len(state))
        if (state[j].dtype, state[j].shape.as_list()) == (state[k].dtype, state[k].shape.as_list()):
            state[j], state[k] = state[k], state[j]
        return state

    def _changed(self, x: Any, state: Sequence[Any], i: Any) -> Any:
        other = self._like(x, self._choose(state))
        if x.dtype == tf.bool:
            op = self._choose((tf.logical_and, tf.logical_or, tf.logical_xor, tf.not_equal))
            return op(tf.logical_not(x) if self._below(2) else x, other)
        op = self._choose((tf.add, tf.subtract, tf.maximum, tf.minimum, tf.multiply))
        made = op(x, other if self._below(2) else self._like(x, i))
        return made if x.dtype.is_integer else tf.clip_by_value(made, -8.0, 8.0)

    def _like(self, x: Any, y: Any) -> Any:
        """``y`` in the dtype of ``x``, of its shape or a scalar."""
        if y.shape.as_list() not in ([], x.shape.as_list()):
            y = self._scalar(y)
        if y.dtype == x.dtype:
            return y
        if x.dtype == tf.bool:
            return y > self._like(y, tf.constant(0))
        if x.dtype.is_integer and y.dtype.is_floating:
            y = y > self._like(y, tf.constant(0))
        elif y.dtype.is_integer:
            y = tf.clip_by_value(y, -8, 8)
        return tf.cast(y, x.dtype)

    def _scalar(self, y: Any) -> Any:
        if y.dtype == tf.bool:
            return tf.reduce_max(tf.cast(y, tf.int32)) > 0
        return tf.reduce_max(y)

    def _truth(self, x: Any) -> Any:
        y = self._scalar(x) if x.shape.as_list() else x
        return y if y.dtype == tf.bool else y < self._like(y, tf.constant(3))

    def _below(self, n: int) -> int:
        return int(self._rng.integers(n))

    def _choose(self, items: Sequence[Any]) -> Any:
        return items[self._below(len(items))]
