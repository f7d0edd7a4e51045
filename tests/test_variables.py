"""Variables: names, values between runs, assignments in the order of the program, rows, errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, OutOfRangeError


def initialized() -> Any:
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    return session


def test_a_variable_is_made_of_operations_with_tensorflows_names() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    assert w.name == "w:0"
    assert [op.name for op in tf.get_default_graph().get_operations()] == [
        "w/Initializer/initial_value",
        "w",
        "w/Assign",
        "w/IsInitialized/VarIsInitializedOp",
        "w/Read/ReadVariableOp",
    ]
    assert tf.Variable(1.0).name == "Variable:0"
    assert tf.Variable(1.0, name="w").name == "w_1:0"
    assert w.shape == [2]
    assert w.dtype is tf.float32


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (np.asarray, "has no value yet: expected an array"),
        (np.array, "has no value yet: expected an array"),
        (float, "has no value yet"),
        (len, "has no len()"),
        (iter, "cannot be iterated"),
        (range, "is not a Python integer"),
    ],
)
def test_python_asks_a_variable_for_its_value_in_vain(ask: Any, said: str) -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    num_operations = len(tf.get_default_graph().get_operations())
    with pytest.raises(DTypeError, match=re.escape(f"Variable 'w:0' {said}")):
        ask(w)
    assert len(tf.get_default_graph().get_operations()) == num_operations


def test_a_variable_is_true_outside_of_functions() -> None:
    """``if v:`` asks whether there is a variable, and TensorFlow 1's are true whatever their value is."""
    w = tf.Variable(0.0)
    assert w
    assert tf.cond(tf.constant(True), lambda: tf.constant(1.0 if w else 2.0), lambda: w).dtype is tf.float32
    with pytest.raises(DTypeError, match="has no truth value"):
        tf.function(lambda: 1.0 if w else 2.0)()


def test_collections_say_what_is_trained_and_saved() -> None:
    trained, kept = tf.Variable(1.0), tf.Variable(1.0, trainable=False)
    local = tf.Variable(1.0, trainable=False, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    assert tf.trainable_variables() == [trained]
    assert tf.global_variables() == [trained, kept]
    assert tf.local_variables() == [local]


def test_a_value_stays_between_runs_and_belongs_to_the_session() -> None:
    w = tf.Variable(1.0)
    more = w.assign_add(2.0)
    with initialized() as one, initialized() as two:
        assert one.run(more) == 3.0
        assert one.run(more) == 5.0
        assert two.run(w) == 1.0


def test_what_a_run_returned_does_not_change_with_the_variable() -> None:
    w = tf.Variable([1.0, 2.0])
    add = w.assign_add([1.0, 1.0])
    with initialized() as session:
        before = session.run(w)
        session.run(add)
        assert before.tolist() == [1.0, 2.0]


def test_reads_and_writes_happen_in_the_order_of_the_program() -> None:
    w = tf.Variable(1.0)
    first = w.read_value()
    second = w.assign(10.0)
    third = w + 0.0
    fourth = w.assign_sub(4.0)
    fifth = w * 1.0
    with initialized() as session:
        assert session.run([fifth, first, third, second, fourth]) == [6.0, 1.0, 10.0, 10.0, 6.0]


def test_operators_and_functions_read_the_variable() -> None:
    w = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    with initialized() as session:
        assert session.run(w[1]).tolist() == [3.0, 4.0]
        assert session.run(1.0 - w).tolist() == [[0.0, -1.0], [-2.0, -3.0]]
        assert session.run(w @ w).tolist() == [[7.0, 10.0], [15.0, 22.0]]
        assert session.run(tf.reduce_sum(-w)) == -10.0
        assert session.run(np.float32(2) * w).tolist() == [[2.0, 4.0], [6.0, 8.0]]
        assert session.run(w > 2.0).tolist() == [[False, False], [True, True]]


def test_a_variable_may_start_from_another() -> None:
    a = tf.Variable(tf.random_normal([3]))
    b = tf.Variable(a.initialized_value() * 2.0)
    c = tf.Variable(b)
    with initialized() as session:
        first, second, third = session.run([a, b, c])
        np.testing.assert_allclose(second, 2 * first)
        np.testing.assert_allclose(third, second)


def test_a_function_gives_an_initial_value_in_its_own_scope() -> None:
    w = tf.Variable(lambda: tf.ones([2]), name="w")
    assert w.initial_value.op.name == "w/Initializer/ones"


def test_a_variable_is_initialized_outside_of_control_dependencies() -> None:
    outer = tf.Variable(1.0)
    with tf.control_dependencies([outer.assign_add(1.0)]):
        inner = tf.Variable(5.0)
    with tf.Session() as session:
        session.run(inner.initializer)
        assert session.run(inner) == 5.0


def test_load_sets_the_value_without_new_operations() -> None:
    w = tf.Variable([1.0, 2.0])
    with initialized() as session:
        size = len(tf.get_default_graph().get_operations())
        w.load([5.0, 6.0], session)
        assert session.run(w).tolist() == [5.0, 6.0]
        assert w.eval(session).tolist() == [5.0, 6.0]
        assert len(tf.get_default_graph().get_operations()) == size


def test_load_of_another_shape_names_the_variable() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    with initialized() as session:
        for value, shape in (([1.0, 2.0, 3.0], r"\(3,\)"), (np.float32(1), r"\(\)")):
            with pytest.raises(
                InvalidArgumentError, match=rf"variable 'w': load: expected .* shape \(2,\); got {shape}"
            ):
                w.load(value, session)
        assert session.run(w).tolist() == [1.0, 2.0]


def test_an_uninitialized_variable_is_named() -> None:
    w = tf.Variable(1.0, name="w")
    missing = tf.report_uninitialized_variables()
    with tf.Session() as session:
        assert session.run(missing).tolist() == [b"w"]
        assert not session.run(tf.is_variable_initialized(w))
        with pytest.raises(FailedPreconditionError, match="variable 'w' has no value yet"):
            session.run(w + 1.0)
        session.run(w.initializer)
        assert session.run(missing).tolist() == []
        assert session.run(w.is_initialized())


def test_assignments_check_shape_and_dtype() -> None:
    w = tf.Variable([1.0, 2.0], name="w")
    with pytest.raises(
        InvalidArgumentError, match=r"expected a value of the variable's shape \[2\]; got \[3\]"
    ):
        w.assign([1.0, 2.0, 3.0])
    with pytest.raises(DTypeError):
        w.assign(tf.constant([1, 2]))
    with pytest.raises(InvalidArgumentError, match="expected an initial_value; got None"):
        tf.Variable()
    with pytest.raises(InvalidArgumentError, match="Pass validate_shape=False"):
        tf.Variable(tf.placeholder(tf.float32))


def test_a_variable_without_a_fixed_shape_takes_any() -> None:
    w = tf.Variable([1.0], validate_shape=False)
    new = tf.placeholder(tf.float32)
    assign = w.assign(new)
    with initialized() as session:
        assert session.run(assign, {new: [[1.0, 2.0]]}).tolist() == [[1.0, 2.0]]
        assert session.run(w).shape == (1, 2)
    w.set_shape([None, 2])
    assert w.read_value().shape.as_list() == [None, 2]
    with pytest.raises(InvalidArgumentError):
        w.set_shape([3])


SCATTERS = {
    "update": [[7.0, 8.0], [5.0, 6.0], [1.0, 1.0]],  # of equal indices the last one
    "add": [[10.0, 12.0], [6.0, 7.0], [1.0, 1.0]],
    "sub": [[-8.0, -10.0], [-4.0, -5.0], [1.0, 1.0]],
    "mul": [[14.0, 24.0], [5.0, 6.0], [1.0, 1.0]],
    "div": [[1 / 14, 1 / 24], [1 / 5, 1 / 6], [1.0, 1.0]],
    "min": [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]],
    "max": [[7.0, 8.0], [5.0, 6.0], [1.0, 1.0]],
}


@pytest.mark.parametrize("kind", SCATTERS)
def test_scatters_write_rows_one_after_the_other(kind: str) -> None:
    w = tf.Variable(np.ones((3, 2), np.float32))
    values = tf.constant([[2.0, 3.0], [5.0, 6.0], [7.0, 8.0]])
    method = getattr(w, f"scatter_{kind}")(tf.IndexedSlices(values, tf.constant([0, 1, 0])))
    function = getattr(tf, f"scatter_{kind}")
    with initialized() as session:
        np.testing.assert_allclose(session.run(method), SCATTERS[kind], rtol=1e-6)
        session.run(w.initializer)
        written = function(w, [0, 1, 0], values)
        np.testing.assert_allclose(session.run(written), SCATTERS[kind], rtol=1e-6)


def test_a_scatter_with_a_wrong_index_changes_nothing() -> None:
    w = tf.Variable(np.ones((3, 2), np.float32))
    rows = tf.placeholder(tf.int32, [2])
    add = tf.scatter_add(w, rows, np.ones((2, 2), np.float32))
    with initialized() as session:
        with pytest.raises(InvalidArgumentError, match=r"expected an index in \[0, 3\); got -1"):
            session.run(add, {rows: [0, -1]})
        assert session.run(w).tolist() == [[1.0, 1.0]] * 3


def test_assign_functions_return_the_new_value() -> None:
    w = tf.Variable(1.0)
    results = [tf.assign(w, 5.0), tf.assign_add(w, 2.0), tf.assign_sub(w, 4.0)]
    with initialized() as session:
        assert session.run(results) == [5.0, 7.0, 3.0]


def test_rows_are_read_without_the_rest() -> None:
    w = tf.Variable(np.arange(6.0).reshape(3, 2))
    with initialized() as session:
        assert session.run(w.sparse_read([2, 0, 2])).tolist() == [[4, 5], [0, 1], [4, 5]]


def test_count_up_to_counts_and_ends() -> None:
    count = tf.Variable(0)
    tick = count.count_up_to(3)
    with initialized() as session:
        assert [int(session.run(tick)) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(OutOfRangeError, match="below the limit 3"):
            session.run(tick)
        assert session.run(count) == 3


def test_a_reference_stands_for_its_variable() -> None:
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    assert {a.ref(): 1}[a.ref()] == 1
    assert a.ref() != b.ref()
    assert a.ref().deref() is a


def test_a_variable_lives_where_its_scope_says_whatever_scope_reads_it() -> None:
    with tf.device("/cpu:1"):
        w = tf.Variable(1.0)
    with tf.device("/cpu:0"):
        read = w.read_value()
    assert read.device == w.device == "/device:CPU:1"
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
        session.run(w.initializer)
        with tf.device("/cpu:0"):
            assert session.run(w + 1.0) == 2.0


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int8", "uint64", "bool", "complex64", "string"]
)
def test_variables_hold_every_dtype(dtype: str) -> None:
    value = tf.constant([b"a", b"b"]) if dtype == "string" else tf.cast([0, 1], dtype)
    w = tf.Variable(value)
    with initialized() as session:
        assert session.run(w).tolist() == session.run(value).tolist()


def test_a_slice_of_a_variable_sets_its_part() -> None:
    v, row = tf.Variable(np.arange(12.0).reshape(3, 4)), tf.placeholder(tf.int32)
    corners = v[::2, ::3].assign([[-1, -2], [-3, -4]])
    with tf.control_dependencies([v[row].assign(v[row] + 10)]):
        then = tf.identity(v[row, 0])
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(corners), [[-1, 1, 2, -2], [4, 5, 6, 7], [-3, 9, 10, -4]])
        assert session.run(then, {row: 1}) == 14
        np.testing.assert_array_equal(session.run(v), [[-1, 1, 2, -2], [14, 15, 16, 17], [-3, 9, 10, -4]])
        np.testing.assert_array_equal(session.run(v[:2].assign([7.0]))[:, 3], [7, 7, -4])  # as TensorFlow's
    with pytest.raises(InvalidArgumentError, match=r"expected shape \(2, 4\), the slice's; got \(2,\)"):
        v[:2].assign([1.0, 2.0])
    fed = tf.placeholder(tf.float64)
    with initialized() as session, pytest.raises(InvalidArgumentError, match=r"slice's shape .*\[2, 4\]"):
        session.run(v[:2].assign(fed), {fed: [1.0, 2.0]})
    assert not hasattr(v + 1, "assign")
    assert not hasattr((v + 1)[0], "assign")
