"""`TensorArray`: TensorFlow 1's interface, in straight graphs, unrolled loops, and branches and loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.resources.tensor_list import TensorList


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def test_written_elements_are_read_and_stacked(session: Any) -> None:
    array = tf.TensorArray(tf.float32, size=3)
    for i in range(3):
        array = array.write(i, [float(i), 10.0 * i])
    read, stacked = array.read(1), array.stack()
    assert read.shape.as_list() == [2]
    assert stacked.shape.as_list() == [3, 2]
    value, all_values = session.run([read, stacked])
    np.testing.assert_array_equal(value, [1, 10])
    np.testing.assert_array_equal(all_values, [[0, 0], [1, 10], [2, 20]])


def test_an_array_is_not_changed_by_a_write(session: Any) -> None:
    empty = tf.TensorArray(tf.int32, 2, element_shape=[])
    first, second = empty.write(0, 1), empty.write(0, 2)
    np.testing.assert_array_equal(
        session.run([a.stack() for a in (empty, first, second)]), [[0, 0], [1, 0], [2, 0]]
    )


def test_indices_and_size_may_be_tensors(session: Any) -> None:
    size, index = tf.placeholder(tf.int32, []), tf.placeholder(tf.int32, [])
    array = tf.TensorArray(tf.float64, size).write(index, [5.0])
    found = session.run([array.stack(), array.size(), array.read(index)], {size: 3, index: 1})
    assert [np.ravel(f).tolist() for f in found] == [[0, 5, 0], [3], [5]]


def test_a_dynamic_array_grows(session: Any) -> None:
    array = tf.TensorArray(tf.int32, size=0, dynamic_size=True)
    for i in range(5):
        array = array.write(i, i * i)
    array = array.scatter([7, 6], [70, 60])
    assert array.dynamic_size
    stacked = array.stack()
    assert stacked.shape.as_list() == [None]
    assert session.run([array.size(), stacked])[1].tolist() == [0, 1, 4, 9, 16, 0, 60, 70]


def test_unstack_gather_scatter(session: Any) -> None:
    array = tf.TensorArray(tf.float64, 3).unstack(np.arange(6.0).reshape(3, 2))
    assert array.element_shape.as_list() == [2]
    assert session.run(array.gather([2, 0])).tolist() == [[4, 5], [0, 1]]
    array = tf.TensorArray(tf.float64, 3).scatter([2, 0], [[1.0], [2.0]])
    assert session.run(array.stack()).tolist() == [[2], [0], [1]]


def test_split_and_concat(session: Any) -> None:
    array = tf.TensorArray(tf.float64, 3).split(np.arange(8.0).reshape(4, 2), [1, 0, 3])
    parts = session.run([array.read(i) for i in range(3)])
    assert [p.shape for p in parts] == [(1, 2), (0, 2), (3, 2)]
    joined = array.concat()
    assert joined.shape.as_list() == [None, 2]
    np.testing.assert_array_equal(session.run(joined), np.arange(8.0).reshape(4, 2))


def test_elements_of_different_shapes(session: Any) -> None:
    array = tf.TensorArray(tf.float64, 2, infer_shape=False).write(0, [[1.0]]).write(1, [[2.0], [3.0]])
    assert array.element_shape.rank is None
    assert session.run(array.concat()).tolist() == [[1], [2], [3]]
    assert session.run(array.read(1)).tolist() == [[2], [3]]


def test_an_element_that_was_not_written_is_zeros_of_the_known_shape(session: Any) -> None:
    array = tf.TensorArray(tf.float32, 3).write(1, [7.0, 8.0])
    assert session.run(array.read(0)).tolist() == [0, 0]
    assert session.run(array.stack()).tolist() == [[0, 0], [7, 8], [0, 0]]


def test_an_array_from_the_flow_of_another(session: Any) -> None:
    array = tf.TensorArray(tf.float32, 2).write(0, 3.0)
    for copy in (
        tf.TensorArray(tf.float32, flow=array.flow, element_shape=[]),
        tf.TensorArray(tf.float32, handle=array.handle, element_shape=[]),
        array.identity(),
    ):
        assert session.run(copy.write(1, 4.0).stack()).tolist() == [3, 4]
        assert session.run(copy.size()) == 2


def test_what_a_write_tells_holds_for_the_whole_array() -> None:
    """Behind a loop, the array that went in knows what the body wrote."""
    with tf.Graph().as_default():
        before = tf.TensorArray(tf.float32, 2)
        inside = before._with_flow(before.flow).write(0, tf.placeholder(tf.float32, [None, 3]))
        inside.write(1, tf.placeholder(tf.float32, [2, None]))
        assert before.element_shape.as_list() == [2, 3]
        assert before._with_flow(inside.flow).stack().shape.as_list() == [2, 2, 3]


def test_the_rest_of_the_interface(session: Any) -> None:
    array = tf.TensorArray("float32", 2, False, True, "steps", None, None, True, [3], False, "array")
    assert (array.dtype, array.dynamic_size, array.element_shape.as_list()) == (tf.float32, False, [3])
    assert array.flow.op.name == "array"
    assert array.flow is array.handle
    assert session.run(array.close()) is None
    assert repr(array) == "<flowrt.TensorArray dtype=float32 element_shape=(3,)>"
    with pytest.raises(UnimplementedError, match="gradients are not TensorArrays"):
        array.grad("source")


# --- gradients


def unrolled(x: Any) -> Any:
    """A recurrence over the rows of ``x`` that keeps its steps: h = tanh(h * x[t])."""
    inputs = tf.TensorArray(tf.float64, 4).unstack(x)
    outputs, h = tf.TensorArray(tf.float64, 4), tf.ones([2], tf.float64)
    for t in range(4):
        h = tf.tanh(h * inputs.read(t) + inputs.read((t + 1) % 4))
        outputs = outputs.write(t, h)
    return outputs.stack()


def without_arrays(x: Any) -> Any:
    steps, h = [], tf.ones([2], tf.float64)
    for t in range(4):
        h = tf.tanh(h * x[t] + x[(t + 1) % 4])
        steps.append(h)
    return tf.stack(steps)


def test_gradients_of_an_unrolled_loop(session: Any) -> None:
    x = tf.placeholder(tf.float64, [4, 2])
    found = []
    for build in (unrolled, without_arrays):
        y = build(x)
        dx = tf.convert_to_tensor(tf.gradients(y * y, x)[0])
        found += [y, dx, tf.gradients(dx * dx, x)[0]]
    values = session.run(found, {x: np.random.default_rng(0).standard_normal((4, 2))})
    for with_array, without in zip(values[:3], values[3:], strict=True):
        np.testing.assert_allclose(with_array, without, rtol=1e-12)


def test_gradients_through_every_way_in_and_out(session: Any) -> None:
    x = tf.placeholder(tf.float64, [4, 2])
    array = tf.TensorArray(tf.float64, 6).scatter([5, 0, 2, 1], x).write(3, x[0] * x[1])
    parts = tf.TensorArray(tf.float64, 2).split(x, [1, 3])
    y = [array.gather([3, 5, 3]), array.stack()[::-1], parts.concat() * parts.read(0), array.read(1)]
    same = [
        tf.stack([x[0] * x[1], x[0], x[0] * x[1]]),
        tf.stack([x[0], 0 * x[0], x[0] * x[1], x[2], x[3], x[1]]),
        x * x[0],
        x[3],
    ]
    found = []
    for terms in (y, same):
        loss = tf.add_n([tf.reduce_sum(t**3) for t in terms])
        dx = tf.convert_to_tensor(tf.gradients(loss, x)[0])
        found += [loss, dx, tf.gradients(dx**2, x)[0]]
    values = session.run(found, {x: np.random.default_rng(0).standard_normal((4, 2))})
    for with_array, without in zip(values[:3], values[3:], strict=True):
        np.testing.assert_allclose(with_array, without, rtol=1e-12)


# --- loops and branches


def looped(x: Any) -> Any:
    """`unrolled` with a ``while_loop``."""
    inputs = tf.TensorArray(tf.float64, 4).unstack(x)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = tf.tanh(h * inputs.read(t) + inputs.read((t + 1) % 4))
        return t + 1, h, outputs.write(t, h)

    start = (0, tf.ones([2], tf.float64), tf.TensorArray(tf.float64, 4))
    outputs = tf.while_loop(lambda t, h, outputs: t < 4, body, start)[2]
    assert outputs.element_shape.as_list() == [2]  # the body's write told it
    return outputs.stack()


def looped_over_both(x: Any) -> Any:
    """The array that is read is a loop variable, too, and the other one grows."""

    def body(t: Any, h: Any, inputs: Any, outputs: Any) -> Any:
        h = tf.tanh(h * inputs.read(t) + inputs.read((t + 1) % 4))
        return t + 1, h, inputs, outputs.write(t, h)

    inputs = tf.TensorArray(tf.float64, 4).unstack(x)
    outputs = tf.TensorArray(tf.float64, 0, dynamic_size=True, element_shape=[2])
    start = (0, tf.ones([2], tf.float64), inputs, outputs)
    return tf.while_loop(lambda t, *_: t < 4, body, start)[3].stack()


def looped_over_its_own_steps(x: Any) -> Any:
    """The step before is read from the array that is written."""

    def body(t: Any, steps: Any) -> Any:
        h = tf.tanh(steps.read(t) * tf.gather(x, t) + tf.gather(x, (t + 1) % 4))
        return t + 1, steps.write(t + 1, h)

    steps = tf.TensorArray(tf.float64, 5, element_shape=[2]).write(0, tf.ones([2], tf.float64))
    return tf.while_loop(lambda t, steps: t < 4, body, (0, steps))[1].stack()[1:]


def looped_in_a_loop(x: Any) -> Any:
    """Two loops: what the inner one keeps for its gradient are lists, of which the outer one keeps a list."""

    def inner(t: Any, h: Any, outputs: Any) -> Any:
        h = tf.tanh(h * tf.gather(x, t) + tf.gather(x, (t + 1) % 4))
        return t + 1, h, outputs.write(t, h)

    def outer(t: Any, h: Any, outputs: Any) -> Any:
        return tf.while_loop(lambda s, *_: s < t + 2, inner, (t, h, outputs))

    start = (0, tf.ones([2], tf.float64), tf.TensorArray(tf.float64, 4, element_shape=[2]))
    return tf.while_loop(lambda t, *_: t < 4, outer, start)[2].stack()


PROGRAMS = (looped, looped_over_both, looped_over_its_own_steps, looped_in_a_loop)


@pytest.mark.parametrize("build", PROGRAMS)
def test_a_loop_gives_what_the_unrolled_one_gives(session: Any, build: Callable[[Any], Any]) -> None:
    x = tf.placeholder(tf.float64, [4, 2])
    found = []
    for program in (build, without_arrays):
        y = program(x)
        dx = tf.convert_to_tensor(tf.gradients(y * y, x)[0])
        found += [y, dx, tf.convert_to_tensor(tf.gradients(dx * dx, x)[0])]
    values = session.run(found, {x: np.random.default_rng(0).standard_normal((4, 2))})
    for with_loop, without in zip(values[:3], values[3:], strict=True):
        np.testing.assert_allclose(with_loop, without, rtol=1e-12)


def test_a_branch_may_write(session: Any) -> None:
    x, is_first = tf.placeholder(tf.float64, [2]), tf.placeholder(tf.bool, [])
    array = tf.TensorArray(tf.float64, 2, element_shape=[2])
    flow = tf.cond(is_first, lambda: array.write(0, x * x), lambda: array.write(1, x**3))
    y = flow.stack()
    dx = tf.gradients(y, x)[0]
    for choice, value, gradient in ((True, [[4, 9], [0, 0]], [4, 6]), (False, [[0, 0], [8, 27]], [12, 27])):
        found = session.run([y, dx], {x: [2.0, 3.0], is_first: choice})
        np.testing.assert_allclose(found[0], value)
        np.testing.assert_allclose(found[1], gradient)


def test_the_size_is_that_of_the_array_which_the_step_makes(session: Any) -> None:
    fixed, grown = tf.TensorArray(tf.float32, size=2), tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    rows, holds = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.bool, [])
    arrays = [
        fixed.unstack(rows),
        grown.unstack(tf.ones([3])).write(5, 7.0),
        tf.cond(holds, lambda: fixed.unstack(tf.ones([3])), lambda: fixed.unstack(tf.ones([5]))),
        tf.while_loop(lambda i, _: i < 1, lambda i, a: (i + 1, a.unstack(tf.ones([5]))), [0, fixed])[1],
    ]
    sizes = session.run([array.size() for array in arrays], {rows: np.ones(4), holds: False})
    stacked = session.run([array.stack() for array in arrays], {rows: np.ones(4), holds: False})
    assert sizes == [len(rows) for rows in stacked] == [4, 6, 5, 5]


def test_a_second_write_in_a_loop_says_where(session: Any) -> None:
    array = tf.TensorArray(tf.float64, 4)
    loop = tf.while_loop(lambda t, a: t < 4, lambda t, a: (t + 1, a.write(t // 2, 1.0)), (0, array))
    with pytest.raises(InvalidArgumentError, match="not written yet; got 0") as raised:
        session.run(loop[1].stack())
    assert "test_tensor_array.py" in str(raised.value)


class Work:
    """How many elements of lists are moved or copied inside it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.elements = 0
        take_over, make = TensorList._take_over, TensorList.__init__

        def counted_take_over(handle: TensorList) -> Any:
            self.elements += 1
            return take_over(handle)

        def counted_make(handle: TensorList, spec: Any, elements: Any = ()) -> None:
            make(handle, spec, elements)
            self.elements += handle.length

        monkeypatch.setattr(TensorList, "_take_over", counted_take_over)
        monkeypatch.setattr(TensorList, "__init__", counted_make)


def test_a_loop_and_its_gradient_take_linear_work(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(monkeypatch)
    x = tf.placeholder(tf.float64, [None])
    inputs = tf.TensorArray(tf.float64, tf.size(x)).unstack(x)

    def body(t: Any, h: Any, outputs: Any) -> Any:
        h = tf.sin(h * inputs.read(t))
        return t + 1, h, outputs.write(t, h)

    start = (0, tf.constant(1.0, tf.float64), tf.TensorArray(tf.float64, tf.size(x)))
    y = tf.while_loop(lambda t, *_: t < tf.size(x), body, start)[2].stack()
    dx = tf.convert_to_tensor(tf.gradients(y, x)[0])
    counts = []
    for n in (100, 200):
        before = work.elements
        session.run(dx, {x: np.linspace(0.5, 1.5, n)})
        counts.append(work.elements - before)
    assert 1.8 < counts[1] / counts[0] < 2.2


# --- bad input


BUILDING: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "neither size nor flow": (lambda: tf.TensorArray(tf.int32), InvalidArgumentError, "either size or flow"),
    "both": (
        lambda: tf.TensorArray(tf.int32, 3, flow=tf.TensorArray(tf.int32, 3).flow),
        InvalidArgumentError,
        "either size or flow",
    ),
    "no flow": (
        lambda: tf.TensorArray(tf.int32, flow=tf.constant(1.0)),
        DTypeError,
        "flow of another TensorArray",
    ),
    "another dtype": (
        lambda: tf.TensorArray(tf.int32, 3).write(0, tf.constant(1.5)),
        DTypeError,
        "expected dtype int32",
    ),
    "a value of another kind": (
        lambda: tf.TensorArray(tf.int32, 3).write(0, 1.5),
        DTypeError,
        "int32; got 1.5",
    ),
    "another shape": (
        lambda: tf.TensorArray(tf.float32, 3).write(0, [1.0]).write(1, [1.0, 2.0]),
        InvalidArgumentError,
        r"expected two compatible shapes; got \[1\] and \[2\]",
    ),
    "not the shape that was said": (
        lambda: tf.TensorArray(tf.float32, 3, element_shape=[2], infer_shape=False).unstack([[1.0]]),
        InvalidArgumentError,
        r"\[2\] and \[1\]",
    ),
    "a scalar for rows": (
        lambda: tf.TensorArray(tf.float32, 3).unstack(1.0),
        InvalidArgumentError,
        "expected a tensor of rows",
    ),
    "a size that is no integer": (lambda: tf.TensorArray(tf.float32, 2.5), DTypeError, "expected int32"),
    "an index that is no integer": (
        lambda: tf.TensorArray(tf.float32, 2).read(tf.constant(1.0)),
        DTypeError,
        "expected dtype int32",
    ),
}


@pytest.mark.parametrize("case", BUILDING)
def test_building_says_what_is_wrong_and_where(case: str) -> None:
    build, error, message = BUILDING[case]
    with tf.Graph().as_default(), pytest.raises(error, match=message) as raised:
        build()
    assert "test_tensor_array.py" in str(raised.value)


RUNNING: dict[str, tuple[Callable[[], Any], str]] = {
    "read behind the end": (
        lambda: tf.TensorArray(tf.float32, 2, element_shape=[]).read(2),
        r"expected an index in \[0, 2\); got 2",
    ),
    "write behind the end": (
        lambda: tf.TensorArray(tf.float32, 2).write(-1, 1.0).stack(),
        r"expected an index in \[0, 2\); got -1",
    ),
    "scatter behind the end": (
        lambda: tf.TensorArray(tf.float32, 2).scatter([0, 2], [1.0, 2.0]).stack(),
        r"expected an index in \[0, 2\); got 2",
    ),
    "a second write": (
        lambda: tf.TensorArray(tf.float32, 2).write(1, 1.0).write(1, 2.0).stack(),
        "expected an index that was not written yet; got 1",
    ),
    "a second write by scatter": (
        lambda: tf.TensorArray(tf.float32, 2).write(1, 1.0).scatter([0, 1], [1.0, 2.0]).stack(),
        "expected an index that was not written yet; got 1",
    ),
    "never written and of unknown shape": (
        lambda: tf.TensorArray(tf.float32, 2).read(0),
        "element 0: expected it to be written, or a known element_shape; got <unknown>",
    ),
    "a negative size": (
        lambda: tf.TensorArray(tf.float32, tf.constant(-1)).stack(),
        "expected a length of at least 0; got -",
    ),
}


@pytest.mark.parametrize("case", RUNNING)
def test_a_step_says_what_is_wrong_and_where(session: Any, case: str) -> None:
    build, message = RUNNING[case]
    tensor = build()
    with pytest.raises(InvalidArgumentError, match=message) as raised:
        session.run(tensor)
    assert "test_tensor_array.py" in str(raised.value)
