"""Branches in loops over scalars: the loop is one function of machine code, and gives what its kernels do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flowrt as tf
from flowrt.device.llvm import host_jit
from flowrt.executor.kernels import scalar_code
from flowrt.loops import llvm_nest
from tests.executor.test_compiled_body import loops_of

pytestmark = pytest.mark.skipif(not host_jit.is_available(), reason=str(host_jit.why_unavailable()))


def both(monkeypatch, build, feeds=()):
    """What a loop's kernels give, what its machine code gives, and whether that is one call."""
    found = []
    for mode in ("off", "eager"):
        monkeypatch.setenv("FLOWRT_JIT", mode)
        with tf.Graph().as_default(), tf.Session() as session:
            fed = [tf.placeholder(value.dtype, value.shape) for value in feeds]
            found.append(session.run(build(*fed), dict(zip(fed, feeds, strict=True))))
            are_whole = loops_of(session)
    return *found, are_whole


def repeated(step, *first, count=20):
    """``first``, after ``count`` times ``step(i, *values)``."""
    return tf.while_loop(lambda i, *_: i < count, lambda i, *v: (i + 1, *step(i, *v)), [0, *first])


def halved_or_grown(i, x):
    return (tf.cond(x > 1.0, lambda: x * 0.5, lambda: x + 1.0),)


def one_in_the_other(i, x):
    inner = lambda: tf.cond(x > 3.0, lambda: -x, lambda: x * 3.0)  # noqa: E731
    return (tf.cond(x < 2.0, lambda: x + 1.5, inner),)


def several_values(i, x):
    a, b = tf.cond(x > 1.0, lambda: (x, tf.constant(0.25)), lambda: (tf.constant(2.0), x))
    return (a * 0.75 + b,)


def by_number(i, x):
    """From -2 on, and beyond the last branch."""
    branches = [lambda: x + 1.0, lambda: x * 2.0, lambda: x - 0.5]
    return (tf.switch_case(i - 2, branches),)


def no_number_in_what_is_not_taken(i, x):
    return (tf.cond(x > 0.0, lambda: tf.sqrt(x) + 0.5, lambda: 1.0 - x),)


STEPS = [halved_or_grown, one_in_the_other, several_values, by_number, no_number_in_what_is_not_taken]


@pytest.mark.parametrize("first", [0.0, 2.5, -7.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_loop_with_branches_is_one_function(monkeypatch, step, dtype, first):
    def build(x):
        return repeated(lambda i, x: [tf.cast(v, dtype) for v in step(i, tf.cast(x, tf.float32))], x)

    plain, compiled, is_whole = both(monkeypatch, build, [np.array(first, dtype)])
    assert is_whole == [True]
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_array_max_ulp(np.asarray(one), np.asarray(other), 4)


@settings(max_examples=20)
@given(
    st.lists(st.sampled_from(["x", "y", "sum", "larger", "flip"]), min_size=2, max_size=5), st.integers(0, 9)
)
def test_integers_and_booleans_are_exact(kinds, first):
    """A branch for each of ``kinds``, by the number and by a truth value, which branches change too."""

    def step(i, x, y, flag):
        results = {
            "x": lambda: (x + 3, y, flag),
            "y": lambda: (y, x - 1, flag),
            "sum": lambda: (x + y, y + 1, tf.logical_not(flag)),
            "larger": lambda: (tf.maximum(x, y), x, x > y),
            "flip": lambda: (-x, y, tf.logical_not(flag)),
        }
        other = tf.switch_case(x, [results[kind] for kind in kinds])
        return tf.cond(flag, lambda: other, lambda: (y - 2, x, x < y))

    with pytest.MonkeyPatch.context() as patch:
        start = [np.array(first, np.int32), np.array(2, np.int32), np.array(True)]
        plain, compiled, is_whole = both(patch, lambda *v: repeated(step, *v, count=9), start)
    assert is_whole == [True]
    assert plain == compiled


def test_a_branch_that_calls_python_does_so_as_often_as_it_is_taken(monkeypatch):
    seen = []

    def note(x):
        seen.append(float(x))
        return x

    def noted(x):
        y = tf.py_func(note, [x], tf.float32)
        y.set_shape(())
        return y

    def build():
        step = lambda i, x: (tf.cond(i < 3, lambda: noted(x + 1.0), lambda: x * 2.0),)  # noqa: E731
        return repeated(step, tf.constant(0.0), count=5)

    plain, compiled, is_whole = both(monkeypatch, build)
    assert is_whole == [False]
    assert plain == compiled == [5, 12.0]
    assert seen == [1.0, 2.0, 3.0] * 2


@pytest.mark.parametrize("limit", [(scalar_code, "MAX_INSTRUCTIONS"), (llvm_nest, "MAX_SELECTED")])
def test_long_branches_are_calls_and_jumps(monkeypatch, limit):
    """The results do not depend on it."""

    def build():
        long = lambda x: tf.sqrt(x * 0.5 + 3.0) * x - 1.0  # noqa: E731
        return repeated(lambda i, x: (tf.cond(x > 1.0, lambda: long(x), lambda: x + 1.0),), tf.constant(0.0))

    plain, compiled, is_whole = both(monkeypatch, build)
    monkeypatch.setattr(*limit, 3)
    _, called, _ = both(monkeypatch, build)
    assert is_whole == [True]
    assert called == compiled
    np.testing.assert_allclose(compiled, plain, rtol=1e-6)
