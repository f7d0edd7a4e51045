"""Random programs with shapes that fed numbers decide, verified and equal to the reference interpreter in
every step: with values that runs repeat, vary and take up again, while the graph grows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.plan.size_feeds import RUNS_BEFORE_COMPILING
from tests.executor.fused_sessions import wait_for_loops
from tests.executor.random_programs import _small
from tests.executor.test_verified_programs import UserProgram

PROGRAMS, MANY_PROGRAMS = 5, 4000
STEPS = 14
SIZES = (1, 2, 3, 4)


class SizedProgram(UserProgram):
    """A random program with tensors of as many rows of four elements as a feed says."""

    def __init__(self, seed: int) -> None:
        self.sizes: list[Any] = []
        self._sized: list[Any] = []
        self._given: dict[Any, Any] = {}
        self.num_sized_plans = 0
        super().__init__(seed)

    def check(self) -> None:
        """Each step gives what the reference interpreter gives."""
        self.initialize()
        ready = int(self.rng.integers(RUNS_BEFORE_COMPILING, STEPS))
        with tf.Session(graph=self.graph, config=self.config) as session:
            session.run(self.initializer)
            fetches, targets, _ = self.next_step()
            for step in range(STEPS):
                if self.rng.random() < 0.1:
                    fetches, targets, _ = self.next_step()
                feed = self._feed()
                expected = self.evaluate(fetches, targets, feed)
                found, _ = session.run((fetches, targets), feed)
                for position, (value, right) in enumerate(zip(found, expected, strict=True)):
                    np.testing.assert_array_equal(value, right, err_msg=f"step {step}, fetch {position}")
                    assert np.shape(value) == np.shape(right)
                    if isinstance(value, np.ndarray):
                        value[...] = -77
                if step == ready and self.mode == "background":
                    wait_for_loops()
            self.num_sized_plans = sum(len(request.sized) for request in session._requests.values())

    def _feed(self) -> dict[Any, Any]:
        if not self._given or self.rng.random() < 0.25:
            self._given = {size: self._size(size) for size in self.sizes}
        new = [size for size in self.sizes if size not in self._given]
        self._given |= {size: self._size(size) for size in new}
        return {**super()._feed(), **self._given}

    def _size(self, feed: Any) -> Any:
        rows = int(self._choose(SIZES))
        return np.array([rows, 4] if feed.shape.ndims else rows, feed.dtype.as_numpy_dtype)

    # --- calls

    def _fed_rows(self) -> Any:
        """A feed that says how many rows there are: a number, or a shape."""
        if len(self.sizes) < 3 and (not self.sizes or self.rng.random() < 0.2):
            dtype = self._choose((tf.int32, tf.int64))
            self.sizes.append(tf.placeholder(dtype, self._choose(([], [2]))))
        return self._choose(self.sizes)

    def of_fed_size(self) -> Any:
        """New rows, as many as a feed says, added up, or written to a variable."""
        feed = self._fed_rows()
        size = feed[0] if feed.shape.ndims else feed
        row, square = self._pick((4,)), self._pick((4, 4))
        shape = feed if feed.shape.ndims else tf.stack([size, 4])
        makers = (
            lambda: tf.fill(shape, row[1]) + row,
            lambda: tf.tile(row[None], tf.stack([size, 1])),
            lambda: tf.broadcast_to(row, shape),
            lambda: square[:size],
            lambda: tf.slice(square, [0, 0], tf.cast(shape, tf.int32)),
            lambda: tf.gather(square, tf.range(size)),
            lambda: tf.reshape(tf.tile(row, [size]), tf.stack([size, -1])),
            lambda: tf.zeros(shape) - row,
            lambda: tf.one_hot(tf.range(size), 4) * row,
            lambda: tf.pad(square[:1], [[0, tf.cast(size, tf.int32) - 1], [0, 0]]),
        )
        made = self._choose(makers)()
        if self.rng.random() < 0.5:
            made.set_shape([None, 4])
        return self._changed((size, made))

    def of_rows(self) -> Any:
        """Rows that were made before, changed, added up, or written to a variable."""
        return self._changed(self._choose(self._sized)) if self._sized else self.of_fed_size()

    def _changed(self, sized: tuple[Any, Any]) -> Any:
        size, x = sized
        y = self._choose([other for count, other in self._sized if count is size] or [x])
        row, square = self._pick((4,)), self._pick((4, 4))
        changes = (
            lambda: x + row,
            lambda: x + y,
            lambda: tf.maximum(x, -y),
            lambda: tf.reverse(x, [0]),
            lambda: tf.matmul(x, square),
            lambda: tf.transpose(tf.transpose(x)),
            lambda: tf.concat([x, y], 0)[:size],
            lambda: tf.where(x > 0, x, y),
            lambda: tf.cond(tf.equal(size, 2), lambda: x - row, lambda: tf.negative(y)),
            lambda: tf.cond(size > 2, lambda: x[:3] + row, lambda: x * 2)[:1] + x,
            lambda: tf.while_loop(lambda i, _: i > 0, lambda i, v: (i - 1, _small(v + y)), [size, x])[1],
            lambda: tf.while_loop(lambda i, v: i < 3, lambda i, v: (i + 1, _small(v - row)), [0, x])[1],
            lambda: tf.cumsum(x, 0),
            lambda: tf.expand_dims(x, 1)[:, 0],
            lambda: tf.stack(tf.unstack(x, 4, axis=1), axis=1),
            lambda: tf.map_fn(lambda v: v - row, x),
            lambda: tf.gradients(tf.reduce_sum(x * y), x)[0],
        )
        self._sized.append((size, _small(self._choose(changes)())))
        size, x = self._choose(self._sized)
        if self.rng.random() < 0.15:
            return self.variables[0].assign_add(_small(tf.reduce_sum(x, 0)))
        ends = (
            lambda: tf.reduce_sum(x, 0),
            lambda: tf.reduce_max(x, 0),
            lambda: tf.matmul(x, x, transpose_a=True),
            lambda: tf.pad(x, [[0, 4 - tf.shape(x)[0]], [0, 0]]),
            lambda: tf.scatter_nd(tf.range(tf.shape(x)[0])[:, None], x, [4, 4]),
        )
        end = self._choose(range(len(ends)))
        made = _small(ends[end]())
        made.set_shape([4] if end < 2 else [4, 4])
        return made

    kinds = (*UserProgram.kinds, *[of_fed_size] * 6, *[of_rows] * 12)


def check(monkeypatch: pytest.MonkeyPatch, seed: int) -> int:
    """Return the number of plans for certain sizes."""
    program = SizedProgram(seed)
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    monkeypatch.setenv("FLOWRT_JIT", program.mode)
    try:
        program.check()
    except Exception as error:
        error.add_note(f"check(monkeypatch, {seed}) repeats it")
        raise
    return program.num_sized_plans


def test_random_programs_with_fed_sizes_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sum(check(monkeypatch, seed) for seed in range(PROGRAMS)) > PROGRAMS / 2


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(10))
def test_many_random_programs_with_fed_sizes_are_right(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    for seed in range(block, MANY_PROGRAMS, 10):
        check(monkeypatch, seed)
