"""`map_fn`, `scan`, `foldl`, `foldr`: values, structures, shapes, derivatives, what fn may hold, errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError

X = np.random.default_rng(0).uniform(0.5, 2.0, (4, 3))


@pytest.fixture
def session() -> Iterator[tf.Session]:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def unrolled_map(fn: Callable[..., Any], x: Any) -> Any:
    return tf.stack([fn(row) for row in tf.unstack(x)])


def unrolled_scan(fn: Callable[..., Any], x: Any, reverse: bool = False) -> Any:
    rows = tf.unstack(x)[:: -1 if reverse else 1]
    found = [rows[0]]
    for row in rows[1:]:
        found.append(fn(found[-1], row))
    return tf.stack(found[:: -1 if reverse else 1])


def recurrence(a: Any, row: Any) -> Any:
    return tf.tanh(a * row) + row


LOOPS = {
    "map": (
        lambda x: tf.map_fn(lambda row: tf.sin(row) * tf.reduce_sum(row), x),
        lambda x: unrolled_map(lambda row: tf.sin(row) * tf.reduce_sum(row), x),
    ),
    "scan": (lambda x: tf.scan(recurrence, x), lambda x: unrolled_scan(recurrence, x)),
    "scan, reverse": (
        lambda x: tf.scan(recurrence, x, reverse=True),
        lambda x: unrolled_scan(recurrence, x, reverse=True),
    ),
    "foldl": (lambda x: tf.foldl(recurrence, x), lambda x: unrolled_scan(recurrence, x)[-1]),
    "foldr": (lambda x: tf.foldr(recurrence, x), lambda x: unrolled_scan(recurrence, x, reverse=True)[0]),
}


@pytest.mark.parametrize(("loop", "unrolled"), LOOPS.values(), ids=list(LOOPS))
def test_values_and_derivatives_are_those_of_the_unrolled_graph(
    session: tf.Session, loop: Any, unrolled: Any
) -> None:
    x = tf.placeholder(tf.float64, X.shape)
    for order, ways in enumerate(zip(derivatives(loop(x), x), derivatives(unrolled(x), x), strict=True)):
        found, expected = session.run(ways, {x: X})
        if order == 0:
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-13)


def derivatives(y: Any, x: Any) -> list[Any]:
    first = tf.gradients(y * y, x)[0]
    return [y, first, tf.gradients(first * first, x)[0]]


@pytest.mark.parametrize("loop", [loop for loop, _ in LOOPS.values()], ids=list(LOOPS))
def test_derivatives_agree_with_finite_differences(session: tf.Session, loop: Any) -> None:
    x = tf.placeholder(tf.float64, [None, 3])
    rng, step = np.random.default_rng(1), 1e-6
    values = derivatives(loop(x), x)
    for lower, higher in zip([tf.reduce_sum(values[0] ** 2), values[1]], values[1:], strict=True):
        direction = rng.standard_normal(X.shape)
        ahead, behind = (session.run(lower, {x: X + s * direction}) for s in (step, -step))
        weight = 1.0 if np.ndim(ahead) == 0 else 2 * session.run(values[1], {x: X})
        numeric = np.sum(weight * (ahead - behind)) / (2 * step)
        exact = np.sum(session.run(higher, {x: X}) * direction)
        np.testing.assert_allclose(exact, numeric, rtol=1e-6)


# --- what goes in and out


def test_structures_of_elements_and_results(session: tf.Session) -> None:
    x, n = tf.constant(X), tf.constant([1, 2, 3, 4])
    rows, flags = tf.map_fn(
        lambda e: (e["x"] * 2.0, e["deep"][0] > 2), {"x": x, "deep": (n,)}, dtype=(tf.float64, tf.bool)
    )
    assert (rows.shape.as_list(), flags.shape.as_list()) == ([4, 3], [4])
    found = session.run([rows, flags])
    np.testing.assert_array_equal(found[0], 2 * X)
    assert found[1].tolist() == [False, False, True, True]
    total, count = session.run(tf.foldl(lambda a, e: (a[0] + e, a[1] + 1), n, initializer=(0, 0)))
    assert (total, count) == (10, 4)
    pairs = session.run(tf.scan(lambda a, e: {"s": a["s"] + e[0]}, (n, x), initializer={"s": tf.constant(0)}))
    assert pairs["s"].tolist() == [1, 3, 6, 10]


def test_a_signature_of_dtypes_and_specs(session: tf.Session) -> None:
    signature = {"twice": tf.float64, "large": tf.TensorSpec([None], tf.bool)}
    found = tf.map_fn(
        lambda row: {"twice": 2 * row, "large": tf.py_func(lambda r: r > 1, [row], tf.bool)},
        tf.constant(X),
        fn_output_signature=signature,
    )
    assert found["twice"].shape.as_list() == [4, 3]
    assert found["large"].shape.as_list() == [4, None]
    values = session.run(found)
    np.testing.assert_array_equal(values["twice"], 2 * X)
    np.testing.assert_array_equal(values["large"], X > 1)


def test_elements_are_unstacked_in_front_of_the_loop() -> None:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None])
        tf.map_fn(tf.sin, x)
        for loop in (tf.scan, tf.foldl, tf.foldr):
            loop(tf.add, x)
            loop(tf.add, x, initializer=0.0)
        loops = [op for op in graph.get_operations() if op.type == "While"]
        inside = [node.op.name for op in loops for node in op.get_attr("body")]
    assert len(loops) == 7
    assert "TensorListGetItem" in inside
    assert "TensorListFromTensor" not in inside


def test_fibonacci_and_factorials(session: tf.Session) -> None:
    start = (np.array(1), np.array(0))
    fibonaccis = tf.scan(lambda a, _: (a[0] + a[1], a[0]), np.zeros(10), start)
    assert session.run(fibonaccis[0]).tolist() == [1, 2, 3, 5, 8, 13, 21, 34, 55, 89]
    assert session.run(tf.foldl(lambda a, x: a * x, np.arange(1, 6))) == 120
    assert session.run(tf.foldr(lambda a, x: x - a, np.arange(1, 5))) == -2


def test_lengths_known_in_the_step(session: tf.Session) -> None:
    x, known = tf.placeholder(tf.float32, [None, 2]), tf.placeholder(tf.float32, [3, 2])
    mapped = tf.map_fn(lambda row: tf.concat([row, row], 0), x)
    both = tf.map_fn(lambda rows: rows[0] + rows[1], (x, known), dtype=tf.float32)
    assert mapped.shape.as_list() == [None, 4]
    assert both.shape.as_list() == [3, 2]
    assert tf.scan(tf.add, x).shape.as_list() == [None, 2]
    for n in (0, 1, 5):
        assert session.run(mapped, {x: np.ones((n, 2))}).shape == (n, 4)


def test_no_rows(session: tf.Session) -> None:
    empty = tf.zeros([0, 2])
    mapped, gradient = tf.map_fn(lambda row: tf.reduce_sum(row)[None], empty), None
    gradient = tf.gradients(mapped, empty)[0]
    scanned = tf.scan(tf.add, empty, initializer=tf.zeros([2]))
    folded = tf.foldl(tf.add, empty, initializer=tf.ones([2]))
    values = session.run([mapped, gradient, scanned, folded])
    assert [v.shape for v in values[:3]] == [(0, 1), (0, 2), (0, 2)]
    assert values[3].tolist() == [1, 1]


def test_shapes_may_stay_open(session: tf.Session) -> None:
    mapped = tf.map_fn(lambda n: tf.fill([2], n), tf.constant([1, 2]), infer_shape=False)
    assert mapped.shape.ndims is None or None in mapped.shape.as_list()
    assert session.run(mapped).tolist() == [[1, 1], [2, 2]]


# --- what a function may hold


def test_variables_and_captured_tensors(session: tf.Session) -> None:
    w, scale, x = tf.Variable(X[0]), tf.placeholder(tf.float64, []), tf.constant(X)
    y = tf.map_fn(lambda row: tf.reduce_sum(row * w) * scale, x)
    session.run(w.initializer)
    dw, dscale = session.run(tf.gradients(y, [w, scale]), {scale: 3.0})
    np.testing.assert_allclose(dw, 3 * X.sum(0))
    np.testing.assert_allclose(dscale, (X @ X[0]).sum())


def test_control_flow_and_python_inside(session: tf.Session) -> None:
    x, calls = tf.constant([3, 0, 2]), []

    def triangle(n: Any) -> Any:
        _, total = tf.while_loop(lambda i, _: i < n, lambda i, s: (i + 1, s + i + 1), (0, 0))
        return tf.cond(total > 3, lambda: -total, lambda: total)

    def note(n: Any) -> Any:
        calls.append(int(n))
        return n

    assert session.run(tf.map_fn(triangle, x)).tolist() == [-6, 0, 3]
    nested = tf.map_fn(lambda n: tf.map_fn(lambda m: m * n, x), x)
    assert session.run(nested).tolist() == np.outer([3, 0, 2], [3, 0, 2]).tolist()
    session.run(tf.map_fn(lambda n: tf.py_func(note, [n], tf.int32), x, infer_shape=False))
    assert calls == [3, 0, 2]


def test_options_reach_the_loop(session: tf.Session) -> None:
    x = tf.constant(X)
    stopped = tf.map_fn(tf.sin, x, back_prop=False, parallel_iterations=2)
    assert tf.gradients(stopped, x) == [None]
    swapped = tf.scan(recurrence, x, swap_memory=True)
    np.testing.assert_allclose(
        *session.run([tf.gradients(y, x)[0] for y in (swapped, tf.scan(recurrence, x))])
    )


def test_names() -> None:
    for function, name in ((tf.map_fn, "map"), (tf.scan, "scan"), (tf.foldl, "foldl"), (tf.foldr, "foldr")):
        arguments = (lambda *rows: rows[0], tf.zeros([2]))
        assert function(*arguments).name.startswith(f"{name}/")
        assert function(*arguments, name="mine").name.startswith("mine")


# --- wrong uses

WRONG: dict[str, tuple[type[Exception], str, Callable[[Any], Any]]] = {
    "no function": (DTypeError, "callable", lambda x: tf.map_fn(3, x)),
    "a scalar": (InvalidArgumentError, "at least one dimension", lambda x: tf.scan(tf.add, 1.0)),
    "nothing": (InvalidArgumentError, "at least one tensor", lambda x: tf.foldl(tf.add, [])),
    "lengths": (
        InvalidArgumentError,
        "elems of equal length",
        lambda x: tf.map_fn(lambda e: e[0], (x, x[:2]), tf.float64),
    ),
    "structure": (InvalidArgumentError, "a structure like", lambda x: tf.map_fn(lambda e: (e, e), x)),
    "a list": (InvalidArgumentError, "a structure like", lambda x: tf.map_fn(lambda e: [e], x)),
    "keys": (
        InvalidArgumentError,
        "keys",
        lambda x: tf.foldl(lambda a, e: {"b": e}, x, initializer={"a": x[0]}),
    ),
    "more levels": (
        InvalidArgumentError,
        r"like dtype from <lambda>\(\) .*expected one tensor at \[1\]; got a tuple of 2",
        lambda x: tf.map_fn(lambda e: (e, (e, e)), x, dtype=(tf.float64, tf.float64)),
    ),
    "fewer results": (
        InvalidArgumentError,
        "like fn_output_signature from .*expected 2 items; got 1",
        lambda x: tf.map_fn(lambda e: (e,), x, fn_output_signature=(tf.float64, tf.float64)),
    ),
    "dtype": (DTypeError, "Give dtype=", lambda x: tf.map_fn(lambda e: e > 1, x)),
    "accumulator's dtype": (
        DTypeError,
        r"scan: expected float64 like the accumulator from <lambda>\(\)",
        lambda x: tf.scan(lambda a, e: tf.to_int32(e), x),
    ),
    "accumulator's shape": (
        InvalidArgumentError,
        r"foldr: expected float64\[3\] like the accumulator from <lambda>\(\) .*; got <.*shape=\(6,\)",
        lambda x: tf.foldr(lambda a, e: tf.concat([a, e], 0), x),
    ),
    "shape of a part of the accumulator": (
        InvalidArgumentError,
        r"scan: expected float64\[\] like the accumulator\['sum'\]",
        lambda x: tf.scan(lambda a, e: {"sum": e}, x, initializer={"sum": tf.constant(0.0, tf.float64)}),
    ),
    "shape of a row": (
        InvalidArgumentError,
        r"map_fn: expected float64\[2\] like fn_output_signature",
        lambda x: tf.map_fn(lambda e: e, x, fn_output_signature=tf.TensorSpec([2], tf.float64)),
    ),
    "None": (
        DTypeError,
        r"map_fn: expected a result of <lambda>\(\) \(\S*:\d+\); got None. Missing return\?",
        lambda x: tf.map_fn(lambda e: None, x),
    ),
    "no accumulator": (DTypeError, "scan: .*got None. Missing", lambda x: tf.scan(lambda a, e: None, x)),
}


@pytest.mark.parametrize(("error", "message", "call"), WRONG.values(), ids=list(WRONG))
def test_wrong_uses_are_typed_errors_with_the_users_line(error: Any, message: str, call: Any) -> None:
    with pytest.raises(error, match=message) as caught:
        call(tf.constant(X))
    assert "test_functional_ops.py" in str(caught.value)
