"""A step's memory has any bytes before it: every kernel writes all of its result, in every step, and works in
memory that the step before had.
"""

from __future__ import annotations

import ctypes
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.dtypes import NARROW
from flowrt.graph.op_def import Effect, OpDef, Sample, registered_ops
from tests.graph.evaluation import assert_equal, values_of
from tests.graph.test_all_ops import build, feeds_of, flat_inputs


class Poison:
    """Sees to it that each piece of a pool begins with bytes that make NaNs."""

    def __init__(self) -> None:
        self.pieces: dict[int, int] = {}
        self.given = 0
        """How many pieces."""

    def allocated(self, address: int, nbytes: int) -> None:
        self.pieces[address] = nbytes
        self.given += 1
        ctypes.memset(address, 0xFF, nbytes)

    def deallocated(self, address: int) -> None:
        del self.pieces[address]

    def again(self) -> None:
        """Where nothing is kept from step to step."""
        for address, nbytes in self.pieces.items():
            ctypes.memset(address, 0xFF, nbytes)


def poison(session: tf.Session) -> Poison:
    observer = session.devices[0].pool.observer = Poison()
    return observer


@pytest.fixture(autouse=True)
def plain_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "off")


def samples() -> list[tuple[OpDef, Sample]]:
    return [
        (op, sample)
        for op in registered_ops().values()
        if op.takes_out and op.effect is Effect.PURE
        for sample in op.samples(np.random.default_rng(0))
    ]


def test_every_operation_writes_all_of_its_result() -> None:
    tensors, feeds, expected = [], {}, []
    with tf.Graph() as graph:
        for op, sample in samples():
            operation, flat = build(op, sample)
            fed = feeds_of(flat, flat_inputs(op, sample))
            tensors += operation.outputs
            expected += values_of(list(operation.outputs), fed)
            feeds.update(fed)
    with tf.Session(graph=graph) as session:
        poisoned = poison(session)
        for _ in range(2):
            found = session.run(tensors, feeds)
            poisoned.again()
            for tensor, value, e in zip(tensors, found, expected, strict=True):
                check(tensor, value, e)
    assert poisoned.given > 0


def check(tensor: Any, value: Any, expected: Any) -> None:
    if tensor.dtype.np.kind in "fc" or tensor.dtype is tf.bfloat16:
        wide = np.complex128 if tensor.dtype.np.kind == "c" else np.float64
        value, expected = (np.asarray(v).astype(wide) for v in (value, expected))
        np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5, err_msg=str(tensor))
    elif tensor.dtype in NARROW:
        assert_equal(value, expected, str(tensor))
    else:
        np.testing.assert_array_equal(value, expected, str(tensor))


# --- what kernels work in


def convolutions(batch: int | None = 3) -> tuple[Any, list[Any]]:
    """Images, and kinds of convolution of them with their gradients, which work in more than 64 KiB."""
    rng = np.random.default_rng(0)
    images = tf.placeholder(tf.float64, [batch, 20, 21, 4])
    filter, separate = (tf.constant(rng.standard_normal((3, 3, 4, n))) for n in (6, 2))
    ys = [
        tf.nn.conv2d(images, filter, 1, "SAME"),
        tf.nn.conv2d(images, filter, 2, "SAME"),
        tf.nn.depthwise_conv2d(images, separate, [1, 1, 1, 1], "SAME"),
    ]
    return images, [
        tf.reduce_sum(g**2)
        for y in ys
        for g in (y, *tf.gradients(y, [images, filter, separate]))
        if g is not None
    ]


def drawn(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((3, 20, 21, 4))


@pytest.mark.parametrize("batch", [3, None])
def test_a_kernel_works_where_it_worked_in_the_step_before(batch: int | None) -> None:
    images, results = convolutions(batch)
    with tf.Session() as session:
        poisoned = poison(session)
        expected = values_of(results, {images: drawn(0)})
        for step in range(5):
            if step == 3:  # the workspace has grown to what the largest kernel needs
                given = poisoned.given
            np.testing.assert_allclose(session.run(results, {images: drawn(0)}), expected, rtol=1e-9)
            poisoned.again()
        assert poisoned.given == given
        assert "workspace" in session.devices[0].pool.report()


def test_steps_that_run_at_once_work_in_memory_of_their_own() -> None:
    images, results = convolutions()
    with tf.Session() as session, ThreadPoolExecutor(2) as pool:
        poison(session)
        expected = [session.run(results, {images: drawn(seed)}) for seed in range(2)]

        def steps(seed: int) -> bool:
            return all(session.run(results, {images: drawn(seed)}) == expected[seed] for _ in range(30))

        assert all(pool.map(steps, range(2)))


def test_a_closed_sessions_workspace_is_given_back() -> None:
    images, results = convolutions()
    session = tf.Session()
    pool = session.devices[0].pool
    for _ in range(3):
        session.run(results, {images: drawn(0)})
    assert pool.stats().bytes_in_use > 0
    session.close()
    gc.collect()
    assert pool.stats().bytes_in_use == 0
