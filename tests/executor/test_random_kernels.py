"""Uniform numbers by compiled loops are those of the operation's own kernel, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels import random_kernels
from flowrt.executor.kernels.random_kernels import MIN_BLOCKS, RANDOM_KERNELS
from flowrt.graph.ops.random.random_ops import random_uniform_op
from flowrt.graph.resources.random_stream import Draw

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))

WORDS = st.integers(0, 2**64 - 1)


@given(
    st.tuples(WORDS, WORDS),
    st.integers(0, 2**40),
    st.integers(0, 2**60),
    st.integers(0, 8 * (MIN_BLOCKS + 9)),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_blocks_are_those_of_numpys_philox(
    key: tuple[int, int], number: int, block: int, size: int, dtype: Any, is_parallel: bool
) -> None:
    draw = Draw(np.array(key, np.uint64), number)
    expected, found = np.empty(size, dtype), np.full(size, 7, dtype)
    draw.generator(block=block).random(out=expected, dtype=dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_kernels, "PARALLEL_NS", 0.0 if is_parallel else np.inf)
        patch.setattr(random_kernels, "GRAIN", 3)
        random_kernels._fill(draw, block, found)
    np.testing.assert_array_equal(found, expected)


def drawn(monkeypatch: pytest.MonkeyPatch, mode: str) -> Any:
    monkeypatch.setenv("FLOWRT_JIT", mode)
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(3)
        shapes: list[list[int]] = [[40, 77], [3], [0], [100, 100, 5]]
        dtypes = (tf.float32, tf.float64, tf.float16, tf.bfloat16)
        draws = [tf.random_uniform(shape, dtype=dtype) for shape in shapes for dtype in dtypes]
        kept = tf.nn.dropout(tf.ones([50, 60]), 0.7)
        return [session.run([*draws, kept]) for _ in range(3)]


def test_sessions_draw_the_same_with_loops_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    fill = random_kernels._fill
    monkeypatch.setattr(random_kernels, "_fill", lambda *a: (used.append(a[2].size), fill(*a)))
    plain = drawn(monkeypatch, "off")
    assert not used
    compiled = drawn(monkeypatch, "eager")
    assert max(used) == 50_000
    for step, other in zip(plain, compiled, strict=True):
        for value, same in zip(step, other, strict=True):
            np.testing.assert_array_equal(value, same)


@pytest.mark.parametrize("begin", [(0, 0), (3, 40), (7, 8)])
def test_a_part_of_a_draw_is_a_slice_of_it(begin: tuple[int, int]) -> None:
    class Stream:
        def draw(self) -> Draw:
            return Draw(np.array([5, 6], np.uint64), 0)

    def kernel(shape: tuple[int, int], **part: Any) -> Any:
        own = RANDOM_KERNELS[random_uniform_op]
        return own(random_uniform_op, np, shape, dtype=tf.float32, state=Stream(), **part)

    whole = kernel((20, 900))
    found = kernel((10, 800), of=(20, 900), begin=begin)
    i, j = begin
    np.testing.assert_array_equal(found, whole[i : i + 10, j : j + 800])
