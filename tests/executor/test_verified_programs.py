"""Random programs as users write them: verified, and equal to the reference interpreter in every step.

They have variables, updates, gathers and scatters, views, loops, branches, small and large feeds, up to three
devices, few fetches, and requests that extend earlier ones or drop nodes; in three modes of compiled loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.executor.analysis import streams
from tests.executor.fused_sessions import wait_for_loops
from tests.executor.random_programs import _small
from tests.executor.test_growth import Growing
from tests.executor.test_remote_device import config as gpus
from tests.executor.test_remote_device import plug_in

PROGRAMS, MANY_PROGRAMS = 10, 5000
ONCE_WRONG = (32, 266)
"""Seeds of programs that found a step that hung, and a fetch that was verified at another output's place."""

VIEWS_ONCE_WRONG = (41, 111)
"""Seeds of programs that found a view that a function took and returned, and whose memory was used again."""

GPU_PROGRAMS, MANY_GPU_PROGRAMS = 3, 200
STEPS = 7
ROWS = 5_000
"""Rows of four elements in a feed that is too large for a buffer."""


class UserProgram(Growing):
    """A random program and its configuration, from ``seed``."""

    def __init__(self, seed: int, kind: str = "cpu") -> None:
        choose = np.random.default_rng([seed, 1]).choice
        devices, self.threads = int(choose([1, 1, 1, 2, 3])), int(choose([1, 1, 1, 3]))
        self.mode = str(choose(["off", "off", "eager", "background"]))
        self.large: Any = None
        super().__init__(seed, devices if kind == "cpu" else min(devices, 2), kind)
        self.compiled_at = int(self.rng.integers(STEPS))

    @property
    def config(self) -> Any:
        if self._kind == "gpu":
            found = gpus(self.threads, gpus=self._devices)
            found.allow_soft_placement = True  # calls of Python run on the host
            return found
        return tf.ConfigProto(device_count={"CPU": self._devices}, inter_op_parallelism_threads=self.threads)

    def check(self) -> None:
        """Each step gives what the reference interpreter gives."""
        self.initialize()
        with tf.Session(graph=self.graph, config=self.config) as session:
            session.run(self.initializer)
            for step in range(STEPS):
                fetches, targets, feed = self.next_step()
                expected = self.evaluate(fetches, targets, feed)
                found, _ = session.run((fetches, targets), feed)
                for position, (value, right) in enumerate(zip(found, expected, strict=True)):
                    np.testing.assert_array_equal(value, right, err_msg=f"step {step}, fetch {position}")
                    if isinstance(value, np.ndarray):
                        value[...] = -77
                if step == self.compiled_at and self.mode == "background":
                    wait_for_loops()

    # --- calls

    def branched(self) -> Any:
        """One of two results, the first of which may update a variable."""
        variable = self._choose(self.variables)
        value = self._pick(tuple(variable.shape.as_list()))
        writes = self.rng.random() < 0.5
        predicate = tf.equal(self.axis, 0) if self.rng.random() < 0.5 else tf.reduce_sum(value) > 0.0

        def first() -> Any:
            return tf.identity(variable.assign(value)) if writes else value - variable

        return _small(tf.cond(predicate, first, lambda: tf.negative(value) + variable))

    def of_large_feed(self) -> Any:
        """Some rows of a large feed, or of a result of its size."""
        if self.large is None:
            self.large = tf.placeholder(tf.float32, [ROWS, 4])
        rows = self._choose((self.large, tf.negative(self.large), tf.reverse(self.large, [0])))
        begin = int(self.rng.integers(100))
        return rows[begin : begin + 4]

    kinds = (*Growing.kinds, *[branched] * 2, *[of_large_feed] * 2)

    def _feed(self) -> dict[Any, Any]:
        feed = super()._feed()
        return feed if self.large is None else {**feed, self.large: self._array((ROWS, 4))}


class ViewingProgram(UserProgram):
    """One with branches and loops that take, make and return views with bounds that are fed."""

    def __init__(self, seed: int, kind: str = "cpu") -> None:
        self._views: list[Any] = []
        super().__init__(seed, kind)

    def viewed(self) -> Any:
        """The sum of such a view, or of an earlier one, whose memory may have been used again."""
        x, begin = self._pick((4, 4)), self.axis
        taken = x[begin:]
        if self.rng.random() < 0.5:
            branches = [lambda: taken, lambda: x[begin:], lambda: taken[begin:], lambda: -taken]
            made = tf.cond(tf.equal(begin, 0), self._choose(branches), self._choose(branches))
        else:
            results = [
                lambda v, _: v,
                lambda v, _: v[begin:],
                lambda _, w: w[begin:],
                lambda *_: taken[begin:],
            ]
            result = self._choose(results)
            shapes = [tf.TensorShape([]), tf.TensorShape([None, 4]), tf.TensorShape([4, 4])]
            made = tf.while_loop(
                lambda i, *_: i < 3, lambda i, v, w: (i + 1, result(v, w), -w), [0, taken, x], shapes
            )[1]
        self._views.append(made)
        return _small(tf.reduce_sum(self._choose(self._views), axis=0))

    kinds = (*UserProgram.kinds, *[viewed] * 6)


Kind = type[UserProgram]


def check(
    monkeypatch: pytest.MonkeyPatch, seed: int, kind: str = "cpu", program_type: Kind = UserProgram
) -> None:
    if kind == "gpu":
        plug_in(monkeypatch, seed)
    program = program_type(seed, kind)
    monkeypatch.setenv("FLOWRT_JIT", program.mode)
    try:
        program.check()
    except Exception as error:
        error.add_note(f"check(monkeypatch, {seed}, {kind!r}, {program_type.__name__}) repeats it")
        raise


@pytest.fixture(autouse=True)
def _verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs are verified, and every independent node is on a stream of its own choice."""
    monkeypatch.setenv("FLOWRT_CHECK", "1")
    monkeypatch.setattr(streams, "SWITCH_SECONDS", 0.0)
    monkeypatch.setattr(streams, "MIN_GAIN", -1e9)


def test_random_programs_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (*range(PROGRAMS), *ONCE_WRONG):
        check(monkeypatch, seed)


def test_random_programs_with_views_in_functions_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (*range(PROGRAMS), *VIEWS_ONCE_WRONG):
        check(monkeypatch, seed, program_type=ViewingProgram)


def test_random_programs_on_pretended_gpus_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(GPU_PROGRAMS):
        check(monkeypatch, seed, "gpu")


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(10))
def test_many_random_programs_are_right(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    for seed in range(block, MANY_PROGRAMS, 10):
        check(monkeypatch, seed)
        check(monkeypatch, seed, program_type=ViewingProgram)
    for seed in range(block, MANY_GPU_PROGRAMS, 10):
        check(monkeypatch, seed, "gpu")
