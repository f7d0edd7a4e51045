"""The short way of a step: values that need no conversion, all feeds and results in buffers."""

from __future__ import annotations

import gc
import sys
import threading

import numpy as np
import pytest

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels.fused_kernel import FusedKernel
from flowrt.executor.plan.plan import Plan
from flowrt.executor.plan.tiers import RUNS_BEFORE_COMPILING, compile_beside

MAX_CALLS = 10
"""Functions of Python that one call of a callable enters."""


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "eager")
    with tf.Session() as opened:
        yield opened


@pytest.fixture
def direct(monkeypatch):
    """What `Plan.run_direct` returned, in order."""
    returned = []
    run = Plan.run_direct

    def noted(plan, values):
        returned.append(run(plan, values))
        return returned[-1]

    monkeypatch.setattr(Plan, "run_direct", noted)
    return returned


def _idle(session):
    (request,) = session._requests.values()
    (plan,) = request.plans.values()
    return plan._idle


@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64, tf.int64, tf.bool])
def test_plain_values_go_the_short_way(session, direct, dtype, shape):
    x = tf.placeholder(dtype, shape)
    call = session.make_callable([tf.stack([x, x]), tf.equal(x, x)], [x])
    value = np.ones(shape, dtype.as_numpy_dtype)
    results = [call(value) for _ in range(3)]
    assert len(direct) == 2  # the first run has no plan yet
    assert None not in direct
    for twice, is_equal in results:
        np.testing.assert_array_equal(twice, np.stack([value, value]))
        assert twice.dtype == value.dtype
        assert is_equal.shape == shape


@pytest.mark.parametrize("value", [2, 2.0, True, np.float32(2), np.float64(2), np.array(2), np.array(2.0)])
def test_a_value_that_needs_a_conversion_gives_the_same(session, value):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable(x + 1.0, [x])
    for _ in range(3):
        result = call(value)
        assert result == np.float32(value) + 1
        assert type(result) is np.float32


def test_a_wrong_value_is_a_typed_error_and_loses_nothing(session, direct):
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [])
    call = session.make_callable(x + y, [x, y])
    right = np.float32([1, 2])
    call(right, 1.0)
    (instance,) = _idle(session)
    for wrong, error in (
        ((right[:1], 1.0), tf.errors.InvalidArgumentError),
        ((right, right), tf.errors.InvalidArgumentError),
        ((right, "a"), tf.errors.DTypeError),
        ((right, 1j), tf.errors.DTypeError),
        ((right, x), tf.errors.DTypeError),
        ((right,), tf.errors.InvalidArgumentError),
    ):
        with pytest.raises(error):
            call(*wrong)
        assert _idle(session) == [instance]
    np.testing.assert_array_equal(call(right, 1.0), [2, 3])
    assert direct[-1] is not None


def test_arrays_of_other_bytes_are_converted(session):
    x = tf.placeholder(tf.float32, [2])
    call = session.make_callable(x * 2.0, [x])
    swapped, strided = np.array([1, 2], ">f4"), np.arange(8, dtype=np.float32)[2:6:2]
    masked = np.ma.masked_array(np.float32([1, 2]), [True, False])
    for _ in range(3):
        np.testing.assert_array_equal(call(swapped), [2, 4])
        np.testing.assert_array_equal(call(strided), [4, 8])
        with pytest.raises(tf.errors.InvalidArgumentError, match="mask"):
            call(masked)


def test_what_is_fed_and_fetched_is_the_callers(session):
    x = tf.placeholder(tf.float32, [3])
    doubled = x * 2.0
    call = session.make_callable([doubled, tf.reshape(doubled, [3, 1]), tf.reduce_sum(doubled)], [x])
    call(np.zeros(3, np.float32))
    fed = np.ones(3, np.float32)
    first = call(fed)
    assert not any(np.shares_memory(a, b) for a, b in [(first[0], first[1]), (first[0], fed)])
    fed[:] = 100
    first[1][:] = 50
    again = call(np.full(3, 4, np.float32))
    np.testing.assert_array_equal(first[0], [2, 2, 2])
    assert (first[2], again[2]) == (6, 24)
    np.testing.assert_array_equal(again[1], [[8], [8], [8]])


def test_threads_that_call_at_once_have_their_own_results(session):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable((x + 1.0) * 2.0, [x])
    call(0.0)
    wrong = []

    def work(first):
        wrong.extend(n for n in range(first, first + 2000) if call(float(n)) != (n + 1) * 2)

    threads = [threading.Thread(target=work, args=(10_000 * k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_a_deadline_and_a_trace_take_the_long_way(session, direct):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable(x + 1.0, [x], accept_options=True)
    call(1.0)
    assert call(1.0, options=tf.RunOptions(timeout_in_ms=60_000)) == 2.0
    assert call(1.0, run_metadata=tf.RunMetadata()) == 2.0
    assert not direct
    limited = tf.Session(config=tf.ConfigProto(operation_timeout_in_ms=60_000))
    with limited:
        call = limited.make_callable(x + 1.0, [x])
        assert [call(1.0) for _ in range(3)] == [2.0] * 3
    assert not direct


def test_a_closed_session_and_a_changed_graph_are_noticed(session):
    x = tf.placeholder(tf.float32, [None])
    y = x + 1.0
    fixed = tf.placeholder(tf.float32, [])
    z = fixed + 1.0
    call = session.make_callable(z, [fixed])
    assert [call(1.0), call(1.0)] == [2.0, 2.0]
    y.set_shape([2])  # replaces a node: plans are stale
    assert call(1.0) == 2.0
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        call(1.0)


def test_a_kernel_that_fails_names_its_operation_and_the_next_call_works(session, direct):
    x = tf.placeholder(tf.int32, [])
    call = session.make_callable(tf.floordiv(6, x, name="divided"), [x])
    assert call(np.array(2, np.int32)) == 3
    with pytest.raises(tf.errors.InvalidArgumentError, match="divided"):
        call(np.array(0, np.int32))
    assert call(np.array(3, np.int32)) == 2


@pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))
def test_the_plan_with_loops_is_run_the_short_way_too(monkeypatch):
    monkeypatch.setenv("FLOWRT_JIT", "background")
    x, value = tf.placeholder(tf.float32, [4]), np.arange(4, dtype=np.float32)
    with tf.Session() as session:
        call = session.make_callable(tf.tanh(x) * x + 1.0, [x])
        for _ in range(RUNS_BEFORE_COMPILING + 1):
            np.testing.assert_allclose(call(value), np.tanh(value) * value + 1, rtol=1e-6)
        (request,) = session._requests.values()
        compiled = threading.Event()
        compile_beside(compiled.set, 0)  # behind the plan's loops
        assert compiled.wait(60)
        (plan,) = request.plans.values()
        assert plan.has_loops
        assert plan.is_direct
        assert any("group" in node.attrs for subgraph in plan.subgraphs for node in subgraph)
        np.testing.assert_allclose(call(value), np.tanh(value) * value + 1, rtol=1e-6)


def test_a_call_enters_few_functions(session):
    x = tf.placeholder(tf.float32, [])
    call = session.make_callable(x + 1.0, [x])
    call(1.0)
    entered = []
    gc.disable()  # it calls what garbage has to be told
    sys.setprofile(lambda frame, event, _: entered.append(frame.f_code.co_name) if event == "call" else None)
    try:
        call(1.0)
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(entered) <= MAX_CALLS, entered


def test_a_fetched_groups_loop_is_bound_once(session, monkeypatch):
    """It writes to a buffer, of which the caller gets a copy."""
    x, value = tf.placeholder(tf.float32, [64]), np.linspace(-1, 1, 64, dtype=np.float32)
    y = tf.tanh(x) * x + 1.0
    calls = [session.make_callable(fetch, [x]) for fetch in (y, tf.reduce_sum(y))]
    before = [call(value) for call in calls]
    monkeypatch.setattr(FusedKernel, "bind", lambda *_: pytest.fail("a loop was bound in a step"))
    for call, result in zip(calls, before, strict=True):
        np.testing.assert_array_equal(call(value), result)
