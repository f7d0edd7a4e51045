"""What Python gets to know of tensors while a function is traced: what the call has, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, TracerWarning


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def warned(call: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    return result, [w for w in caught if w.category is TracerWarning]


def halves(x):
    while tf.reduce_sum(x) > 1.0:
        x = x / 2.0
    return x if x[0] > 0.3 else -x


def test_a_trace_keeps_the_way_of_its_call_and_warns_once_a_line(session):
    function = tf.function(halves)
    y, caught = warned(lambda: function(np.array([3.0, 2.0])))
    np.testing.assert_array_equal(session.run(y), [0.375, 0.25])
    first = halves.__code__.co_firstlineno
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, first + 1), (__file__, first + 3)]
    message = str(caught[0].message)
    assert f"({__file__}:{first + 1}): function halves(x): tensor " in message
    assert "is True in the traced call" in message
    assert "also for calls with other values" in message
    assert "flowrt.cond()" in message
    assert "autograph=True" in message


def test_the_trace_serves_calls_with_other_values(session):
    function = tf.function(halves)
    warned(lambda: function(np.array([3.0, 2.0])))
    x = tf.placeholder(tf.float64, [2])
    (array, fed), caught = warned(lambda: (function(np.array([0.5, 0.1])), function(x)))
    assert (function.experimental_get_tracing_count(), caught) == (1, [])
    np.testing.assert_array_equal(
        session.run([array, fed], {x: [-8.0, 4.0]}), [[0.0625, 0.0125], [-1.0, 0.5]]
    )


def test_numbers_indices_and_ranges():
    def numbers(n, x):
        seen = [int(n), float(x), bool(x - x), [10, 20, 30][n - 1], list(range(n)), int(x * 2.0)]
        return seen + [f"{float(tf.cast(n, tf.float16))}"]

    seen: list[Any] = []
    _, caught = warned(
        lambda: tf.function(lambda n, x: seen.extend(numbers(n, x)))(np.int64(2), np.float32(1.5))
    )
    assert seen == [2, 1.5, False, 20, [0, 1], 3, "2.0"]
    assert len(caught) == 2


def asked(tensor: Any) -> Any:
    return tf.function(lambda: tf.constant(1) if tensor() else tf.constant(2))()


KNOWN = {
    "captured": lambda: tf.constant(3) > 2,
    "of a call": lambda: tf.function(lambda x: x * 2)(tf.constant(3)) > 2,
    "of a branch": lambda: tf.cond(tf.constant(3) > 2, lambda: tf.constant(7), lambda: tf.constant(0)) > 2,
    "of a case": lambda: tf.switch_case(tf.constant(9), [lambda: tf.constant(0), lambda: tf.constant(5)]) > 2,
    "of an array of lists": lambda: tf.TensorArray(tf.int32, 2).write(0, 1).write(1, 7).read(1) > 2,
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
def test_what_depends_on_constants_alone_is_known(session, make):
    inside, caught = warned(lambda: asked(make))
    outer = make()
    captured, more = warned(lambda: asked(lambda: outer))
    assert session.run([inside, captured]) == [1, 1]
    assert (len(caught), len(more)) == (1, 1)


def read_again() -> Any:
    v = tf.get_variable("v", initializer=3, use_resource=True)
    return tf.function(lambda: v + 1)() > 2


UNKNOWN = {
    "a placeholder": lambda: tf.placeholder(tf.int32, []) > 2,
    "one with a default": lambda: tf.placeholder_with_default(3, []) > 2,
    "a variable": lambda: tf.get_variable("w", initializer=3, use_resource=True) > 2,
    "a variable in a call": read_again,
    "a random number": lambda: tf.random.uniform([]) < 2.0,
    "a call of Python": lambda: tf.py_func(lambda: True, [], tf.bool),
    "a pure call of Python": lambda: tf.numpy_function(lambda: True, [], tf.bool, stateful=False),
    "what takes more than 10 MiB": lambda: tf.reduce_sum(tf.ones([20_000, 20_000])) > 2.0,
    "what prints": tf.function(lambda: [tf.print("x"), tf.constant(True)][1]),
    "a loop, which might not end": lambda: tf.while_loop(lambda i: i < 3, lambda i: i + 1, [0]) > 2,
    "what cannot run": lambda: tf.constant([1, 2])[tf.constant(0) : 1 // tf.constant(0)][0] > 2,
    "several elements": lambda: tf.constant([1, 2]) > 2,
    "a string": lambda: tf.constant("yes"),
}


def test_the_size_may_be_an_argument(session):
    """20,000 x 20,000 floats would take 1.6 GB, which nobody knows when the operation is made."""
    function = tf.function(lambda n: n if tf.reduce_sum(tf.ones([n, n])) > 2.0 else -n)
    y, caught = warned(lambda: function(np.int32(1_000)))
    assert (session.run(y), len(caught)) == (1_000, 1)
    with pytest.raises(DTypeError, match="has no truth value"):
        tf.function(lambda n: n if tf.reduce_sum(tf.ones([n, n])) > 2.0 else -n)(np.int32(20_000))


@pytest.mark.parametrize("make", UNKNOWN.values(), ids=UNKNOWN)
def test_what_only_a_run_knows_is_an_error(make):
    with pytest.raises(DTypeError, match="has no truth value") as error:
        asked(make)
    assert __file__ in str(error.value)


def test_the_variable_of_a_loop_has_no_value_but_what_the_body_captures_has(session):
    def body(i, x, of_loop):
        if of_loop:
            return i + 1, (x if i > 0 else -x)
        return i + 1, (x if x0 > 1.0 else -x)

    x0 = tf.constant(2.0)

    @tf.function
    def loop(of_loop):
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: body(i, x, of_loop), [0, x0])[1]

    with pytest.raises(DTypeError, match="has no truth value"):
        loop(True)
    y, caught = warned(lambda: loop(False))
    assert session.run(y) == 2.0
    assert len(caught) == 1


def test_a_trace_in_a_trace_knows_what_its_call_has(session):
    inner = tf.function(lambda x: x if x > 1.0 else -x)
    y, caught = warned(lambda: tf.function(lambda x: inner(x * 2.0))(np.float32(0.6)))
    assert session.run(y) == np.float32(1.2)
    assert len(caught) == 1
    with pytest.raises(DTypeError, match="has no truth value"):  # another spec, so another trace
        tf.function(lambda x: inner(x * 2.0))(tf.placeholder(tf.float64, []))


def test_a_gradient_in_the_trace_may_be_asked_for(session):
    @tf.function
    def step(x):
        (slope,) = tf.gradients(tf.cond(x > 0.0, lambda: x * x, lambda: x), x)
        return x - slope if slope > 1.0 else x

    y, _ = warned(lambda: step(np.float32(2.0)))
    assert session.run(y) == -2.0


def test_outside_traces_and_in_converted_functions_nothing_is_known():
    for use in (bool, int, float, range):
        with pytest.raises(DTypeError, match=r"has no (truth )?value|is not a Python integer"):
            use(tf.constant(1))
    asking = tf.function(lambda x: [1, 2][x], autograph=True)
    with pytest.raises(DTypeError, match="is not a Python integer"):
        asking(np.int32(1))


def test_flowrt_itself_asks_for_nothing(session):
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected a shape"):
        tf.function(lambda n: tf.placeholder(tf.float32, [n]))(np.int32(3))

    @tf.function
    def shaped(x, n):
        rows = tf.reshape(x, [n, -1])
        return (
            tf.reduce_sum(tf.zeros([n, 2]))
            + tf.reduce_sum(rows[: n - 1])
            + tf.cast(tf.reduce_sum(tf.range(n)), tf.float32)
        )

    y, caught = warned(lambda: shaped(np.ones(6, np.float32), np.int32(3)))
    assert caught == []
    assert session.run(y) == 4.0 + 3.0
