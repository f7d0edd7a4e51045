"""Kernels on large arrays in parts: the bits and the errors of the whole call, on all threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.host import shared_calls
from flowrt.device.host.shared_calls import run_shared
from flowrt.executor.bind import bind_kernel
from flowrt.executor.bind.awaited_loops import AwaitedLoops
from flowrt.executor.kernels import split_call
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING
from tests.executor.fused_sessions import fused_of, wait_for_loops
from tests.executor.test_verified_programs import UserProgram, check

PROGRAMS = 3


class Counted:
    """The number of calls that were made in parts."""

    calls = 0


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Everything that can be split is, among three threads; loops are not compiled."""
    counted = Counted()

    def run(calls: Any) -> None:
        counted.calls += 1
        run_shared(calls)

    monkeypatch.setenv("FLOWRT_JIT", "off")
    monkeypatch.setattr(bind_kernel, "MIN_BYTES", 0)
    monkeypatch.setattr(split_call, "num_threads", lambda: 3)
    monkeypatch.setattr(shared_calls, "num_threads", lambda: 3)
    monkeypatch.setattr(split_call, "run_shared", run)
    return counted


def _floats(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


SPLIT: dict[str, Callable[[Any], list[Any]]] = {
    "unary": lambda x: [tf.exp(x)],
    "broadcast of columns": lambda x: [x * x[:, :1]],
    "broadcast of rows": lambda x: [x + x[0]],
    "broadcast of a number": lambda x: [x**3.0],
    "more rows than the input": lambda x: [tf.reshape(x, [7, 1, 33]) - x[:5]],
    "several inputs": lambda x: [tf.add_n([x, x * 2.0, x[::-1]])],
    "where": lambda x: [tf.where(x > 0.5, x, tf.zeros_like(x))],
    "sum of rows": lambda x: [tf.reduce_sum(x, 1)],
    "mean of rows": lambda x: [tf.reduce_mean(x, [1], keepdims=True)],
    "softmax": lambda x: [tf.nn.softmax(x)],
    "cross entropy": lambda x: list(_cross_entropy(x, tf.range(7))),
    "gradient": lambda x: [tf.gradients(tf.tanh(x), x)[0]],
}


def _cross_entropy(x: Any, labels: Any) -> Any:
    op = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=x).op
    return op.outputs


@pytest.mark.parametrize("name", SPLIT)
def test_parts_have_the_bits_of_the_whole(parts: Counted, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    value, found = _floats(7, 33), []
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [7, 33])
        results = [tf.negative(tf.negative(y)) for y in SPLIT[name](x)]
        for threads in (3, 1):
            monkeypatch.setattr(split_call, "num_threads", lambda threads=threads: threads)
            with tf.Session() as session:
                parts.calls = 0
                found.append(session.run(results, {x: value}))
            assert (parts.calls > 0) == (threads > 1)
    for a, b in zip(*found, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("n_results", [1, 2])
def test_a_group_that_awaits_its_loop_has_parts(
    parts: Counted, monkeypatch: pytest.MonkeyPatch, n_results: int
) -> None:
    monkeypatch.setenv("FLOWRT_JIT", "background")
    monkeypatch.setattr(AwaitedLoops, "compile", lambda self: iter(()))
    x = tf.placeholder(tf.float32, [7, 33])
    y = tf.tanh(x)
    products = [tf.matmul(each, tf.ones([33, 2])) for each in (y * 2.0 + x, y)[:n_results]]
    with tf.Session() as session:
        before = [session.run(products, {x: _floats(7, 33)}) for _ in range(RUNS_BEFORE_COMPILING)]
        wait_for_loops()
        parts.calls = 0
        grouped = session.run(products, {x: _floats(7, 33)})
        assert [len(group) for group in fused_of(session)] == [3]
        assert parts.calls == 1
    for a, b in zip(before[0], grouped, strict=True):
        np.testing.assert_allclose(a, b, 1e-5)


@pytest.mark.parametrize("shape", [(1, 33), (7, 1)])
def test_a_group_that_is_told_its_shape_is_whole(
    parts: Counted, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    """The gradient of batch normalization has such a group: a mean is spread over the batch, and added."""
    monkeypatch.setenv("FLOWRT_JIT", "background")
    monkeypatch.setattr(AwaitedLoops, "compile", lambda self: iter(()))
    x, spread = tf.placeholder(tf.float32, [7, 33]), tf.placeholder(tf.float32, shape)
    y = tf.add_n([tf.tanh(x), x * 2.0, tf.broadcast_to(tf.exp(spread), [7, 33])])
    product = tf.matmul(y, tf.ones([33, 2]))
    feed = {x: _floats(7, 33), spread: _floats(*shape)}
    with tf.Session() as session:
        before = [session.run(product, feed) for _ in range(RUNS_BEFORE_COMPILING)]
        wait_for_loops()
        grouped = session.run(product, feed)
        assert any("BroadcastTo" in group for group in fused_of(session)), fused_of(session)
    np.testing.assert_allclose(before[0], grouped, 1e-5)


def test_sums_over_rows_are_whole(parts: Counted) -> None:
    x = tf.placeholder(tf.float32, [4000, 3])
    y = tf.reduce_sum(x, 0)
    with tf.Session() as session:
        assert session.run(-tf.negative(y), {x: np.ones([4000, 3])}).tolist() == [4000.0] * 3


def test_an_error_names_the_place_in_the_whole(parts: Counted) -> None:
    x, labels = tf.placeholder(tf.float32, [7, 3]), tf.placeholder(tf.int32, [7])
    loss = tf.reduce_sum(_cross_entropy(x, labels)[0])
    with tf.Session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"labels\[5\]"):
            session.run(loss, {x: _floats(7, 3), labels: [0, 1, 2, 0, 1, 9, 2]})
        assert parts.calls == 1
        assert np.isfinite(session.run(loss, {x: _floats(7, 3), labels: [0] * 7}))


def test_what_an_output_overlaps_otherwise_is_whole(parts: Counted) -> None:
    x = np.arange(16.0).reshape(4, 4)
    assert split_call._are_apart([x, np.ones(4)], [x])
    assert not split_call._are_apart([x, x.T], [x])
    assert not split_call._are_apart([x[0]], [x])


def test_random_programs_in_parts_are_right(parts: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain(UserProgram):
        def __init__(self, seed: int, kind: str = "cpu") -> None:
            super().__init__(seed, kind)
            self.mode = "off"

    monkeypatch.setenv("FLOWRT_CHECK", "1")
    for seed in range(PROGRAMS):
        check(monkeypatch, seed, program_type=Plain)
    assert parts.calls > 5 * PROGRAMS


# --- threads


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_calls, "num_threads", lambda: 3)


def test_each_call_is_made_once(three_threads: None) -> None:
    made: list[int] = []
    run_shared([lambda number=number: made.append(number) for number in range(100)])
    assert sorted(made) == list(range(100))


def test_other_threads_take_part_in_the_callers_context(three_threads: None) -> None:
    met, found = threading.Barrier(2), []

    def call() -> None:
        met.wait(60)
        found.append((threading.get_ident(), np.geterr()["divide"]))

    with np.errstate(divide="raise"):
        run_shared([call, call])
    assert len({thread for thread, _ in found}) == 2
    assert {mode for _, mode in found} == {"raise"}


def test_an_error_is_raised_when_all_calls_have_ended(three_threads: None) -> None:
    met, ended = threading.Barrier(2), []

    def fail() -> None:
        met.wait(60)
        raise tf.errors.InvalidArgumentError(None, None, "here")

    def end() -> None:
        met.wait(60)
        ended.append(1)

    with pytest.raises(tf.errors.InvalidArgumentError, match="here"):
        run_shared([fail, end])
    assert ended == [1]


def test_after_ctrl_c_calls_that_have_begun_end(three_threads: None, ctrl_c: None) -> None:
    """They write to memory of the caller's, which waits for them."""
    begun, made = threading.Event(), []

    def call() -> None:
        if threading.current_thread() is threading.main_thread():
            begun.wait(60)
            return
        begun.set()
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        made.append(1)

    with pytest.raises(KeyboardInterrupt):
        run_shared([call, call])
    assert made == [1]


def test_a_fork_has_threads_of_its_own(three_threads: None) -> None:
    test_other_threads_take_part_in_the_callers_context(three_threads)
    child = os.fork()
    if child == 0:
        try:
            test_other_threads_take_part_in_the_callers_context(three_threads)
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
