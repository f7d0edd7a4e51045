"""List ops in graphs: values against NumPy, gradients of both orders against differences, jvp against vjp.

Lists cannot be samples of the test of all ops, so each program here goes from an array to an array through
lists, and together they use every list op.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import dtypes
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, Tensor
from flowrt.graph.derivatives.jvp import apply_jvp
from flowrt.graph.op_def import op_def, registered_ops
from tests.graph.evaluation import value_of

FLOAT: dict[str, Any] = {"element_dtype": dtypes.float64}
X = np.random.default_rng(0).standard_normal((4, 2))

Program = Callable[[Any], Any]


def op(name: str, *inputs: Any, **attrs: Any) -> Any:
    """A list op; those whose inputs do not tell the elements' dtype get float64."""
    definition = op_def(name)
    return definition(*inputs, **(FLOAT if "element_dtype" in definition.attrs else {}), **attrs)


def reserve(count: int) -> Tensor:
    return op("TensorListReserve", [2], count)


# --- programs: from a tensor [4, 2]; the same with NumPy


def pushed_and_popped(x: Any) -> Any:
    handle = op("EmptyTensorList", [2], -1)
    for i in range(4):
        handle = op("TensorListPushBack", handle, tf.exp(x[i]) * x[0])
    handle, last = op("TensorListPopBack", handle, -1)
    handle, third = op("TensorListPopBack", handle, -1)
    rest = op("TensorListStack", handle, -1)
    return tf.concat([rest * last, [third]], 0)


def pushed_and_popped_np(x: Any) -> Any:
    items = np.exp(x) * x[0]
    return np.concatenate([items[:2] * items[3], items[2:3]])


def popped_only(x: Any) -> Any:
    return op("TensorListPopBack", op("TensorListFromTensor", x * x, [2]), -1)[1]


def popped_rest_only(x: Any) -> Any:
    rest, _ = op("TensorListPopBack", op("TensorListFromTensor", x * x, [2]), -1)
    return op("TensorListStack", rest, -1)


def set_and_got(x: Any) -> Any:
    handle = op("TensorListFromTensor", x, [2])
    before = op("TensorListGetItem", handle, 1, -1)
    handle = op("TensorListSetItem", handle, 1, before * op("TensorListGetItem", handle, 3, -1))
    handle = op("TensorListSetItem", handle, 0, tf.sin(op("TensorListGetItem", handle, 1, -1)))
    return op("TensorListStack", handle, [2], num_elements=4) * before


def set_and_got_np(x: Any) -> Any:
    items = x.copy()
    items[1] = x[1] * x[3]
    items[0] = np.sin(items[1])
    return items * x[1]


def unset_elements(x: Any) -> Any:
    handle = op("TensorListSetItem", reserve(3), 1, x[2] ** 2, _write_once=True)
    return op("TensorListStack", handle, -1) + op("TensorListGetItem", handle, 0, -1)


def grown_by_a_write(x: Any) -> Any:
    handle = op("TensorListSetItem", reserve(1), 0, x[0] * x[1])
    handle = op("TensorListSetItem", handle, 2, x[3] ** 2, resize_if_index_out_of_bounds=True)
    return op("TensorListStack", handle, -1)


def resized(x: Any) -> Any:
    handle = op("TensorListResize", op("TensorListFromTensor", x * x, [2]), 2)
    return op("TensorListStack", op("TensorListResize", handle, 5), -1)


def gathered(x: Any) -> Any:
    handle = op("TensorListFromTensor", x * x, [2])
    return op("TensorListGather", handle, [3, 0, 3], -1) * op("TensorListGetItem", handle, 3, -1)


def scattered(x: Any) -> Any:
    handle = op("TensorListScatterV2", x[:3] * x[1:], [4, 0, 2], [2], 5)
    handle = op("TensorListScatterIntoExistingList", handle, x[:2] ** 2, [4, 6])
    return op("TensorListStack", handle, -1)


def scattered_np(x: Any) -> Any:
    items = np.zeros((7, 2))
    items[[4, 0, 2]] = x[:3] * x[1:]
    items[[4, 6]] = x[:2] ** 2
    return items


def split_and_joined(x: Any) -> Any:
    handle = op("TensorListSplit", x * x, [-1, 2], [1, 0, 3])
    first = op("TensorListGetItem", handle, 0, -1)
    joined, lengths = op("TensorListConcatV2", handle, [-1, 2], [0])
    return joined * first * tf.cast(lengths[2], tf.float64)


def added(x: Any) -> Any:
    handle = op("TensorListFromTensor", x, [2])
    other = op("TensorListScatterV2", x[:2] ** 2, [1, 3], [2], 4)
    total = op("TensorListAdd", handle, op("TensorListAddAt", other, 1, x[3]))
    total = op("TensorListAddAt", total, [0, 2, 0], x[1:] * x[:3])
    return op("TensorListStack", op("TensorListClearAt", total, [2]), -1)


def added_np(x: Any) -> Any:
    items = x.copy()
    items[[1, 3]] += x[:2] ** 2
    items[1] += x[3]
    items[0] += x[1] * x[0] + x[3] * x[2]
    items[2] = 0
    return items


def zeros_like_a_list(x: Any) -> Any:
    handle = op("TensorListFromTensor", x, [2])
    zeros = op("TensorListZerosLike", handle)
    return tf.concat([op("TensorListStack", op("TensorListAddAt", zeros, 2, x[0] ** 3), -1), x], 0)


def lists_of_lists(x: Any) -> Any:
    """As a loop in a loop makes them."""
    inner = op("TensorListFromTensor", x * x, [2])
    outer = op_def("EmptyTensorList")([2], -1, element_dtype=tf.variant)
    for handle in (inner, op("TensorListSetItem", inner, 1, x[0]), inner):
        outer = op_def("TensorListPushBack")(outer, handle)
    outer, last = op_def("TensorListPopBack")(outer, -1, element_dtype=tf.variant)
    second = op_def("TensorListGetItem")(outer, 1, -1, element_dtype=tf.variant)
    outer = op_def("TensorListSetItem")(outer, 0, second)
    again, left = (op_def("TensorListGetItem")(outer, i, -1, element_dtype=tf.variant) for i in (0, 1))
    return tf.add_n([op("TensorListStack", t, -1) * k for t, k in ((last, 1.0), (again, 2.0), (left, x))])


def lists_of_lists_np(x: Any) -> Any:
    changed = x * x
    changed[1] = x[0]
    return x * x + 2 * changed + x * changed


PROGRAMS: dict[Program, Program] = {
    pushed_and_popped: pushed_and_popped_np,
    popped_only: lambda x: x[3] ** 2,
    popped_rest_only: lambda x: x[:3] ** 2,
    set_and_got: set_and_got_np,
    unset_elements: lambda x: np.stack([0 * x[0], x[2] ** 2, 0 * x[0]]),
    grown_by_a_write: lambda x: np.stack([x[0] * x[1], 0 * x[0], x[3] ** 2]),
    resized: lambda x: np.concatenate([x[:2] ** 2, np.zeros((3, 2))]),
    gathered: lambda x: x[[3, 0, 3]] ** 2 * x[3] ** 2,
    scattered: scattered_np,
    split_and_joined: lambda x: x**2 * x[:1] ** 2 * 3,
    added: added_np,
    lists_of_lists: lists_of_lists_np,
    zeros_like_a_list: lambda x: np.concatenate([np.zeros((2, 2)), x[:1] ** 3, np.zeros((1, 2)), x]),
}
"""The same computation with list ops and with NumPy."""

every_program = pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
STATIC = pytest.mark.parametrize("shape", [(4, 2), (None, 2), None], ids=["static", "rows", "unknown"])


def slope(f: Callable[[Any], Any], direction: Any, step: float = 1e-6) -> Any:
    return (f(X + step * direction) - f(X - step * direction)) / (2 * step)


def weights_of(program: Program) -> Any:
    return np.random.default_rng(1).standard_normal(PROGRAMS[program](X).shape)


@every_program
@STATIC
def test_value_and_gradient(program: Program, shape: Any) -> None:
    weights, direction = weights_of(program), np.random.default_rng(2).standard_normal(X.shape)
    with Graph() as graph:
        x = placeholder(tf.float64, shape)
        y = program(x)
        dx = tf.gradients(y, x, weights)[0]
        with tf.Session(graph=graph) as session:
            value, gradient = session.run([y, dx], {x: X})
        assert not isinstance(dx, Tensor) or dx.shape.is_compatible_with([4, 2])
        for found, tensor in ((value, y), (gradient, dx)):  # a compiled loop rounds a * b + c once
            np.testing.assert_array_max_ulp(found, value_of(tensor, {x: X}), 2)
    np.testing.assert_allclose(value, PROGRAMS[program](X), rtol=1e-12)
    numeric = slope(lambda at: float(np.sum(PROGRAMS[program](at) * weights)), direction)
    np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=1e-6, atol=1e-8)


@every_program
def test_second_derivative(program: Program) -> None:
    weights = weights_of(program)
    first, second = (np.random.default_rng(seed).standard_normal(X.shape) for seed in (2, 3))
    with Graph() as graph:
        x = placeholder(tf.float64, [4, 2])
        dx = tf.convert_to_tensor(tf.gradients(program(x), x, weights)[0])
        ddx = tf.gradients(dx, x, constant(first), unconnected_gradients="zero")[0]
        with tf.Session(graph=graph) as session:
            exact = np.sum(session.run(ddx, {x: X}) * second)
            numeric = slope(lambda at: np.sum(session.run(dx, {x: at}) * first), second)
    np.testing.assert_allclose(exact, numeric, rtol=1e-6, atol=1e-7)


@every_program
def test_jvp_agrees_with_vjp(program: Program) -> None:
    weights, direction = weights_of(program), np.random.default_rng(2).standard_normal(X.shape)
    with Graph() as graph:
        x = placeholder(tf.float64, [4, 2])
        y = program(x)
        dx = tf.gradients(y, x, weights)[0]
        tangents = {x: constant(direction)}
        for operation in [o for o in graph.get_operations() if not o.name.startswith("gradients")]:
            known = [tangents.get(t) for t in operation.inputs]
            if any(t is not None for t in known):
                found = zip(operation.outputs, apply_jvp(operation, known), strict=True)
                tangents.update({output: t for output, t in found if t is not None})
        forward = np.sum(value_of(tangents[y], {x: X}) * weights)
        reverse = np.sum(value_of(dx, {x: X}) * direction)
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)


def test_the_programs_use_every_list_op() -> None:
    with Graph() as graph:
        for program, with_numpy in PROGRAMS.items():
            x = placeholder(tf.float64)
            tf.gradients(program(x), x, with_numpy(X))
    used = {operation.type for operation in graph.get_operations()}
    of_lists = {
        o.name
        for o in registered_ops().values()
        if any(a.dtype is dtypes.variant for a in (*o.inputs, *o.outputs))
    }
    assert of_lists <= used
    assert len(of_lists) == 19


# --- cost of gradients


def test_n_reads_of_a_list_sum_to_n_additions_to_one_gradient() -> None:
    with Graph() as graph:
        x = placeholder(tf.float64, [50])
        handle = op("TensorListFromTensor", x, [])
        y = tf.add_n([op("TensorListGetItem", handle, i, -1) ** 2 for i in range(50)])
        dx = tf.gradients(y, x)[0]
        types = [operation.type for operation in graph.get_operations()]
        np.testing.assert_allclose(value_of(dx, {x: np.arange(50.0)}), 2 * np.arange(50.0))
    assert types.count("TensorListAddAt") == 50
    assert types.count("TensorListZerosLike") == 1
    assert "TensorListAdd" not in types


def test_the_gradient_of_a_list_may_be_given_and_asked_for() -> None:
    """As loops do: their variables and results are lists."""
    with Graph() as graph:
        x = placeholder(tf.float64, [3])
        handle = op("TensorListFromTensor", x, [])
        after = op("TensorListSetItem", handle, 1, x[0] * op("TensorListGetItem", handle, 2, -1))
        given = op("TensorListFromTensor", constant(np.array([1.0, 10.0, 100.0])), [])
        dhandle, dx = tf.gradients(after, [handle, x], given)
        unconnected = tf.gradients(x, handle, unconnected_gradients="zero")[0]
        lists = [op("TensorListStack", t, []) for t in (dhandle, unconnected)]
        with tf.Session(graph=graph) as session:
            found = session.run([*lists, dx], {x: [2.0, 3.0, 5.0]})
    np.testing.assert_allclose(found[0], [1, 0, 120])
    np.testing.assert_allclose(found[1], [0, 0, 0])
    np.testing.assert_allclose(found[2], [51, 0, 120])
    with pytest.raises(DTypeError, match="expected ys of floating or complex dtype"):
        tf.gradients(after, x)


def test_lists_of_integers_have_no_gradient() -> None:
    with Graph():
        x = placeholder(tf.float64, [3])
        handle = op("TensorListFromTensor", tf.cast(x, tf.int32), [])
        handle = op_def("TensorListPushBack")(handle, 7)
        y = tf.cast(op_def("TensorListGetItem")(handle, 3, -1, element_dtype=tf.int32), tf.float64)
        assert tf.gradients(y * y, x) == [None]
        assert value_of(y, {x: np.zeros(3)}) == 7


# --- memory that the plan uses again


def test_elements_outlive_the_buffers_that_they_came_from() -> None:
    """All values here have one shape: the plan uses few buffers."""
    with Graph() as graph:
        x = placeholder(tf.float64, [3])
        handle, value, items = op("EmptyTensorList", [3], -1), x, []
        for i in range(10):
            value = tf.tanh(tf.sin(value)) + float(i)
            items.append(value)
            handle = op("TensorListPushBack", handle, value)
        y = op("TensorListStack", handle, -1)
        with tf.Session(graph=graph) as session:
            expected = np.stack([value_of(item, {x: np.ones(3)}) for item in items])
            for _ in range(2):
                np.testing.assert_allclose(session.run(y, {x: np.ones(3)}), expected)


def test_what_is_fetched_is_the_callers() -> None:
    with Graph() as graph:
        handle = op("TensorListFromTensor", placeholder(tf.float64, [2, 3], name="x"), [3])
        first = op("TensorListGetItem", handle, 0, -1)
        shorter, last = op("TensorListPopBack", handle, -1)
        again = op("TensorListGetItem", op("TensorListPushBack", shorter, last), 0, [3])
        late = op("TensorListPopBack", handle, [3])[1]
        pushed = op("TensorListPushBack", op("EmptyTensorList", [3], -1), last)
        alike = [op("TensorListGetItem", pushed, 0, shape) for shape in (-1, [3])]
        with tf.Session(graph=graph) as session:
            fetched = session.run([first, again, last, late, *alike], {"x:0": np.ones((2, 3))})
            for position, array in enumerate(fetched):
                array[...] = position
    assert [a.tolist() for a in fetched] == [[float(position)] * 3 for position in range(6)]


def test_several_steps_at_once_and_several_streams() -> None:
    config = tf.ConfigProto(inter_op_parallelism_threads=2)
    with Graph() as graph:
        x = placeholder(tf.float64, [200, 200])
        handle = op("TensorListFromTensor", x, [200])
        parts = [op("TensorListSetItem", handle, i, tf.reduce_sum(tf.matmul(x, x) * i, 0)) for i in range(6)]
        y = tf.stack([tf.reduce_sum(op("TensorListStack", p, -1)) for p in parts])
        value = np.random.default_rng(0).random((200, 200))
        with tf.Session(graph=graph, config=config) as session:
            sums = value.sum(1)
            expected = [sums.sum() - sums[i] + (value @ value).sum() * i for i in range(6)]
            for _ in range(3):
                np.testing.assert_allclose(session.run(y, {x: value}), expected)


# --- static facts


def test_what_is_known_of_elements() -> None:
    with Graph():
        handle = op("TensorListReserve", [-1, 3], 4)
        assert handle.shape.as_list() == [None, 3]
        assert op("TensorListGetItem", handle, 0, [2, -1]).shape.as_list() == [2, 3]
        assert op("TensorListStack", handle, -1, num_elements=4).shape.as_list() == [4, None, 3]
        assert op("TensorListGather", handle, [0, 1], -1).shape.as_list() == [2, None, 3]
        joined, lengths = op("TensorListConcatV2", handle, -1, [0])
        assert (joined.shape.as_list(), lengths.shape.as_list()) == ([None, 3], [None])
        handle = op("TensorListSetItem", handle, 0, np.zeros((5, 3)))
        assert handle.shape.as_list() == [None, 3]  # the others may be longer
        assert op("TensorListFromTensor", np.zeros((5, 2, 3)), -1).shape.as_list() == [2, 3]
        assert op("TensorListSplit", np.zeros((5, 3)), -1, [2, 3]).shape.as_list() == [None, 3]
        assert op("TensorListReserve", placeholder(tf.int32), 4).shape.rank is None
        assert op("TensorListLength", handle).dtype is tf.int32


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: op("TensorListPushBack", reserve(1), np.zeros(3)), r"\[2\] and \[3\]"),
        (lambda: op("TensorListSetItem", reserve(1), 0, np.zeros(3)), r"\[2\] and \[3\]"),
        (lambda: op("TensorListGetItem", reserve(1), 0, [3]), r"\[2\] and \[3\]"),
        (lambda: op("TensorListFromTensor", np.zeros((2, 3)), [2]), r"\[3\] and \[2\]"),
        (lambda: op("TensorListFromTensor", np.float64(1), -1), "at least one dimension; got a scalar"),
        (lambda: op("TensorListAddAt", reserve(1), [[0]], np.zeros((1, 2))), "a scalar or a vector"),
        (lambda: op("TensorListReserve", 3, 1), "expected a vector, or -1; got 3"),
    ],
)
def test_shapes_that_cannot_fit_are_refused_when_they_are_built(build: Any, message: str) -> None:
    with Graph(), pytest.raises(InvalidArgumentError, match=message) as raised:
        build()
    assert "test_ops_tensor_lists.py" in str(raised.value)


# --- errors of a step


def scalars(*numbers: float) -> Tensor:
    return op("TensorListFromTensor", np.array(numbers, np.float64), [])


def unknown(count: int) -> Tensor:
    return op("TensorListReserve", -1, count)


FAILING: dict[str, tuple[Callable[[], Any], str]] = {
    "read behind the end": (lambda: op("TensorListGetItem", scalars(1), 1, -1), r"in \[0, 1\); got 1"),
    "read before the start": (lambda: op("TensorListGetItem", scalars(1), -1, -1), r"in \[0, 1\); got -1"),
    "write behind the end": (lambda: op("TensorListSetItem", scalars(1), 1, 2.0), r"in \[0, 1\); got 1"),
    "gather behind the end": (lambda: op("TensorListGather", scalars(1), [0, 1], -1), r"\[0, 1\); got 1"),
    "pop of nothing": (lambda: op("TensorListPopBack", scalars(), -1)[1], "got an empty one"),
    "push on a full list": (
        lambda: op("TensorListPushBack", op("EmptyTensorList", [], 0), np.float64(1)),
        "got a full one",
    ),
    "unset of unknown shape": (
        lambda: op("TensorListGetItem", unknown(2), 1, -1),
        "element 1: expected it to be written, or a known element_shape; got <unknown>",
    ),
    "stack of unset": (lambda: op("TensorListStack", unknown(2), [-1]), r"element 0: .* got \[\?\]"),
    "stack of nothing": (lambda: op("TensorListStack", unknown(0), -1), "a stack of no elements"),
    "stack of different shapes": (
        lambda: op("TensorListStack", op("TensorListSplit", np.zeros((3, 1)), -1, [1, 2]), -1),
        "expected two compatible shapes",
    ),
    "stack of another length": (
        lambda: op("TensorListStack", scalars(1, 2), -1, num_elements=3),
        "expected a list of 3 elements; got 2",
    ),
    "concatenation of nothing": (
        lambda: op("TensorListConcatV2", unknown(0), -1, [0])[0],
        "a concatenation of no elements",
    ),
    "lengths that do not add up": (
        lambda: op("TensorListStack", op("TensorListSplit", np.zeros((3, 1)), -1, [1, 1]), -1),
        r"that sum to 3, the number of rows; got \[1, 1\]",
    ),
    "scatter to one index twice": (
        lambda: op("TensorListScatterV2", np.zeros((2, 2)), [1, 1], [2], -1),
        r"expected 2 different ones; got \[1, 1\]",
    ),
    "another dtype": (
        lambda: op_def("TensorListGetItem")(scalars(1), 0, -1, element_dtype=tf.int32),
        "expected a list of int32; got one of float64",
    ),
    "sum of different lengths": (
        lambda: op("TensorListAdd", scalars(1), scalars(1, 2)),
        "expected lists of equal length; got 1 and 2",
    ),
    "second write": (
        lambda: op("TensorListSetItem", scalars(1), 0, 2.0, _write_once=True),
        "expected an index that was not written yet; got 0",
    ),
}


@pytest.mark.parametrize("case", FAILING)
def test_a_step_says_what_is_wrong_and_where(case: str) -> None:
    build, message = FAILING[case]
    with Graph() as graph:
        tensor = build()
        target = op("TensorListLength", tensor) if tensor.dtype is dtypes.variant else tensor
        with tf.Session(graph=graph) as session, pytest.raises(InvalidArgumentError, match=message) as raised:
            session.run(target)
    assert "test_ops_tensor_lists.py" in str(raised.value)


def test_lists_are_neither_fed_nor_fetched() -> None:
    with Graph() as graph, tf.Session(graph=graph) as session:
        handle = scalars(1, 2)
        with pytest.raises(InvalidArgumentError, match="variant cannot be fetched"):
            session.run(handle)
        with pytest.raises(InvalidArgumentError):
            session.run(op("TensorListLength", handle), {handle: [1]})


# --- other forms of the graph


def test_lists_of_strings_and_bools() -> None:
    with Graph():
        names = op_def("TensorListFromTensor")(np.array([b"a", b"b"], object), [])
        names = op_def("TensorListResize")(names, 3)
        stacked = op_def("TensorListStack")(names, -1, element_dtype=tf.string)
        assert value_of(stacked).tolist() == [b"a", b"b", b""]
        flags = op_def("TensorListReserve")([2], 1, element_dtype=tf.bool)
        assert (
            value_of(op_def("TensorListGetItem")(flags, 0, -1, element_dtype=tf.bool)).tolist() == [False] * 2
        )


def test_a_graph_with_gradients_of_lists_goes_through_graph_def() -> None:
    with Graph() as graph:
        x = placeholder(tf.float64, [4, 2], name="x")
        y = tf.identity(set_and_got(x), name="y")
        tf.identity(tf.gradients(y, x)[0], name="dx")
        graph_def = graph.as_graph_def()
    with Graph() as copy:
        tf.import_graph_def(graph_def, name="")
        with tf.Session(graph=copy) as session:
            value, gradient = session.run(["y:0", "dx:0"], {"x:0": X})
    np.testing.assert_allclose(value, set_and_got_np(X))
    assert gradient.shape == X.shape
