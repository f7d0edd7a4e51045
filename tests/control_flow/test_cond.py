"""`cond`, `case` and `switch_case`: which branch runs, what it gives, what it reads and changes."""

from __future__ import annotations

import collections

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.construction.func_graph import FuncGraph
from flowrt.graph.op_def import op_def
from tests.control_flow.counting import counted

Pair = collections.namedtuple("Pair", ["first", "second"])


# --- values


@pytest.mark.parametrize("value", [False, True])
def test_a_branch_reads_what_is_around_it(run, value):
    x = tf.placeholder(tf.float32, [3])
    pred = tf.placeholder(tf.bool, [])
    offset = tf.Variable(10.0)
    y = tf.cond(pred, lambda: x * 2.0 + offset, lambda: x - 1.0)
    expected = [12, 14, 16] if value else [0, 1, 2]
    np.testing.assert_array_equal(run(y, {x: [1, 2, 3], pred: value}), expected)


def test_a_branch_may_return_what_is_around_it_as_it_is(run):
    x, y = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.float32, [2])
    pred = tf.placeholder(tf.bool, [])
    both = tf.cond(pred, lambda: [x, y], lambda: [y, x])
    for value, expected in ((True, [[1, 2], [3, 4]]), (False, [[3, 4], [1, 2]])):
        np.testing.assert_array_equal(run(both, {x: [1, 2], y: [3, 4], pred: value}), expected)


def test_one_tensor_several_times(run):
    x = tf.placeholder(tf.float32, [2])
    pred = tf.placeholder(tf.bool, [])
    a, b, c = tf.cond(pred, lambda: [x, x, x + 1.0], lambda: [x + 1.0, x, x])
    found = run([a, b, c], {x: [1, 2], pred: False})
    np.testing.assert_array_equal(found, [[2, 3], [1, 2], [1, 2]])


def test_a_constant_predicate_and_constant_branches(run):
    y = tf.cond(tf.constant(1) < 2, lambda: tf.constant([1, 2]), lambda: tf.constant([3, 4]))
    np.testing.assert_array_equal(run(y), [1, 2])


def test_a_fetched_result_is_the_callers(session):
    x, pred = tf.placeholder(tf.float32, [2]), tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: x + 1.0, lambda: x * 2.0)
    first = session.run(y, {x: [1, 2], pred: True})
    session.run(y, {x: [5, 6], pred: False})
    np.testing.assert_array_equal(first, [2, 3])


def test_branches_of_different_shapes(session):
    pred = tf.placeholder(tf.bool, [])
    x = tf.placeholder(tf.float32, [None])
    y = tf.cond(pred, lambda: tf.concat([x, x], 0), lambda: tf.zeros([3]))
    z = tf.cond(pred, lambda: tf.ones([2, 2]), lambda: tf.constant(1.0))
    assert y.shape.as_list() == [None]
    assert z.shape.ndims is None
    np.testing.assert_array_equal(session.run(y * 2.0, {pred: True, x: [1, 2]}), [2, 4, 2, 4])
    np.testing.assert_array_equal(session.run(y * 2.0, {pred: False, x: [1]}), [0, 0, 0])
    np.testing.assert_array_equal(session.run(y * 2.0, {pred: True, x: [1, 2, 3]}), [2, 4, 6] * 2)
    assert session.run(z + 1.0, {pred: False}).shape == ()
    assert session.run(z + 1.0, {pred: True}).shape == (2, 2)


def test_all_dtypes(run):
    pred = tf.placeholder(tf.bool, [])
    values = [b"text", True, 7, 1 + 2j, np.int64(1 << 40), np.float64(0.1), np.uint8(255)]
    others = [b"", False, 0, 0j, np.int64(0), np.float64(0), np.uint8(0)]
    found = tf.cond(pred, lambda: [tf.constant(v) for v in values], lambda: [tf.constant(v) for v in others])
    assert run(found, {pred: True}) == values
    assert run(found, {pred: False}) == others


def test_large_results_are_not_mixed_up(session):
    x, pred = tf.placeholder(tf.float32, [300, 300]), tf.placeholder(tf.bool, [])
    y, z = tf.cond(pred, lambda: (x + 1.0, x), lambda: (x, x + 1.0))
    data = np.arange(90_000, dtype=np.float32).reshape(300, 300)
    for value in (True, False, True):
        found = session.run([y, z, y - z], {x: data, pred: value})
        np.testing.assert_array_equal(found[0], data + value)
        np.testing.assert_array_equal(found[1], data + (not value))
        np.testing.assert_array_equal(found[2], np.full_like(data, 1 if value else -1))


# --- structures


def test_nested_structures(run):
    pred = tf.placeholder(tf.bool, [])

    def branch(x):
        return lambda: {"a": [tf.constant(x), (tf.constant(x + 1),)], "b": Pair(tf.constant(x + 2), x + 3)}

    found = tf.cond(pred, branch(0), branch(10))
    assert isinstance(found["b"], Pair)
    assert isinstance(found["a"][1], tuple)
    assert run(found, {pred: False}) == {"a": [10, (11,)], "b": Pair(12, 13)}


def test_a_list_of_one_comes_back_as_the_tensor_unless_strict(run):
    pred = tf.placeholder(tf.bool, [])
    loose = tf.cond(pred, lambda: [tf.constant(1)], lambda: [tf.constant(2)])
    strict = tf.cond(pred, lambda: [tf.constant(1)], lambda: [tf.constant(2)], strict=True)
    assert isinstance(loose, tf.Tensor)
    assert isinstance(strict, list)
    assert run([loose, strict], {pred: True}) == [1, [1]]


def test_a_tensor_array_comes_out_of_a_branch(run):
    pred = tf.placeholder(tf.bool, [])
    array = tf.TensorArray(tf.float32, 2, element_shape=[]).write(0, 1.0)
    chosen = tf.cond(pred, lambda: array.write(1, 2.0), lambda: array.write(1, 3.0))
    np.testing.assert_array_equal(run(chosen.stack(), {pred: False}), [1, 3])


def test_branches_that_return_nothing_are_an_operation(session):
    v = tf.Variable(0)
    pred = tf.placeholder(tf.bool, [])

    def add():
        v.assign_add(1)

    op = tf.cond(pred, add, lambda: None)
    session.run(v.initializer)
    for value in (True, False, True):
        session.run(op, {pred: value})
    assert session.run(v) == 0  # TensorFlow 1 as well: a branch runs what its results need

    done = tf.cond(pred, lambda: v.assign_add(1).op, tf.no_op)
    for value in (True, False, True):
        session.run(done, {pred: value})
    assert session.run(v) == 2


# --- only the branch taken runs


def test_only_the_branch_taken_runs(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])
    x = tf.constant(1.0)
    y = tf.cond(pred, lambda: counted(x, calls, "true"), lambda: counted(x, calls, "false"))
    for value in (True, False, False):
        session.run(y, {pred: value})
    assert calls == ["true", "false", "false"]


def test_what_is_around_runs_whichever_branch_is_taken(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])
    outside = counted(tf.constant(1.0), calls, "outside")
    y = tf.cond(pred, lambda: outside + 1.0, lambda: tf.constant(0.0))
    session.run(y, {pred: False})
    assert calls == ["outside"]


def test_what_no_result_needs_does_not_run(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])

    def branch():
        counted(tf.constant(1.0), calls, "unused")
        return counted(tf.constant(2.0), calls, "used")

    session.run(tf.cond(pred, branch, lambda: tf.constant(0.0)), {pred: True})
    assert calls == ["used"]


def test_a_result_that_nobody_reads_still_has_its_effect(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])
    y, _ = tf.cond(
        pred,
        lambda: (tf.constant(1.0), counted(tf.constant(2.0), calls, "true")),
        lambda: (tf.constant(3.0), tf.constant(4.0)),
    )
    session.run(y, {pred: True})
    assert calls == ["true"]


def test_nested(session):
    calls = []
    a, b = tf.placeholder(tf.bool, []), tf.placeholder(tf.bool, [])
    x = tf.placeholder(tf.float32, [])

    def inner(name):
        return lambda: tf.cond(
            b, lambda: counted(x * 2.0, calls, name + "1"), lambda: counted(x * 3.0, calls, name + "0")
        )

    y = tf.cond(a, inner("1"), inner("0"))
    for p in (False, True):
        for q in (False, True):
            assert session.run(y, {a: p, b: q, x: 5.0}) == (10 if q else 15)
    assert calls == ["00", "01", "10", "11"]


def test_a_loop_in_a_branch_that_is_not_taken_does_not_run(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])

    def loop():
        return tf.while_loop(lambda i: i < 3.0, lambda i: counted(i, calls, "body") + 1.0, [tf.constant(0.0)])

    y = tf.cond(pred, loop, lambda: tf.constant(-1.0))
    assert session.run(y, {pred: False}) == -1
    assert calls == []
    assert session.run(y, {pred: True}) == 3
    assert calls == ["body"] * 3


# --- order


def test_a_branch_waits_for_what_its_operations_wait_for(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])
    outside = counted(tf.constant(1.0), calls, "outside")

    def branch():
        with tf.control_dependencies([outside]):
            return counted(tf.constant(2.0), calls, "inside")

    session.run(tf.cond(pred, branch, lambda: tf.constant(0.0)), {pred: True})
    assert calls == ["outside", "inside"]


def test_control_dependencies_around_and_behind(session):
    calls = []
    pred = tf.placeholder(tf.bool, [])
    first = counted(tf.constant(1.0), calls, "first")
    with tf.control_dependencies([first]):
        y = tf.cond(pred, lambda: counted(tf.constant(2.0), calls, "inside"), lambda: tf.constant(0.0))
    with tf.control_dependencies([y]):
        last = counted(tf.constant(3.0), calls, "last")
    session.run(last, {pred: True})
    assert calls == ["first", "inside", "last"]


@pytest.mark.parametrize("value", [False, True])
def test_reads_and_writes_happen_in_the_order_of_the_program(session, value):
    v = tf.Variable(1.0)
    pred = tf.placeholder(tf.bool, [])
    before = v.read_value()

    def add():
        inside = v.read_value()
        with tf.control_dependencies([v.assign_add(10.0)]):
            return inside, v.read_value()

    def scale():
        with tf.control_dependencies([v.assign(v.read_value() * 100.0)]):
            return v.read_value() - v.read_value(), v.read_value()

    results = tf.cond(pred, add, scale)
    after = v.read_value()
    late = v.assign_add(1000.0)
    session.run(v.initializer)
    found = session.run([before, *results, after, late], {pred: value})
    assert found == ([1, 1, 11, 11, 1011] if value else [1, 0, 100, 100, 1100])


def test_a_branch_that_reads_and_one_that_writes(session):
    v = tf.Variable([1.0, 2.0])
    pred = tf.placeholder(tf.bool, [])
    y = tf.cond(pred, lambda: v.assign_add([1.0, 1.0]), v.read_value)
    z = tf.cond(pred, v.read_value, lambda: v.assign([7.0, 7.0]))
    session.run(v.initializer)
    for value, expected in ((True, [[2, 3], [2, 3]]), (False, [[2, 3], [7, 7]])):
        np.testing.assert_array_equal(session.run([y, z], {pred: value}), expected)


# --- case and switch_case


@pytest.mark.parametrize("value,expected", [(-1, 5), (0, 1), (1, 2), (2, 5), (99, 5)])
def test_switch_case(session, value, expected):
    calls = []
    index = tf.placeholder(tf.int32, [])
    one = tf.constant(1)
    y = tf.switch_case(
        index,
        [lambda: counted(one, calls, 0), lambda: counted(one, calls, 1) * 2],
        default=lambda: counted(one, calls, "default") * 5,
    )
    assert session.run(y, {index: value}) == expected
    assert calls == [{1: 0, 2: 1, 5: "default"}[expected]]


@pytest.mark.parametrize("value", [-7, -1, 2, 99])
def test_a_case_takes_its_last_branch_for_an_index_out_of_range(session, value):
    branches = []
    for number in range(2):
        function = FuncGraph(tf.get_default_graph(), "a branch")
        with function:
            branches.append(function.subgraph([tf.constant(number)]))
    index = tf.placeholder(tf.int32, [])
    (y,) = op_def("Case")(index, [], branches=tuple(branches), Tout=[tf.int32])
    assert session.run(y, {index: value}) == 1


def test_switch_case_with_gaps_and_without_a_default(run):
    index = tf.placeholder(tf.int32, [])
    y = tf.switch_case(index, {3: lambda: tf.constant("three"), 1: lambda: tf.constant("one")})
    assert [run(y, {index: i}) for i in range(5)] == [b"three", b"one", b"three", b"three", b"three"]


def test_case_takes_the_first_that_holds(session):
    calls = []
    x = tf.placeholder(tf.int32, [])
    y = tf.case(
        [
            (x < 2, lambda: counted(x, calls, "small") * 10),
            (x < 5, lambda: counted(x, calls, "middle") * 100),
        ],
        default=lambda: counted(x, calls, "large"),
    )
    assert [session.run(y, {x: v}) for v in (1, 3, 8)] == [10, 300, 8]
    assert calls == ["small", "middle", "large"]


def test_an_exclusive_case_in_which_two_hold_is_an_error(session):
    x = tf.placeholder(tf.int32, [])
    y = tf.case([(x < 2, lambda: tf.constant(1)), (x < 5, lambda: tf.constant(2))], exclusive=True)
    assert session.run(y, {x: 4}) == 2
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclusive"):
        session.run(y, {x: 1})
    with pytest.raises(tf.errors.InvalidArgumentError, match="no default"):
        session.run(y, {x: 9})
    assert session.run(y, {x: 4}) == 2


@pytest.mark.parametrize("level", [0, -1])
@pytest.mark.parametrize("kind", ["cond", "handed on", "switch_case", "while_loop"])
def test_what_a_constant_decision_waits_for_runs(kind, level):
    with tf.Graph().as_default():
        v, a = tf.get_variable("v", initializer=0.0), tf.constant(5.0)
        with tf.control_dependencies([v.assign_add(1.0)]):
            pred, index = tf.identity(tf.constant(True)), tf.identity(tf.constant(0))
            never = tf.identity(tf.constant(False))
        y = {
            "cond": lambda: tf.cond(pred, lambda: a * 2.0, lambda: a),
            "handed on": lambda: tf.cond(pred, lambda: a, lambda: a * 2.0),
            "switch_case": lambda: tf.switch_case(index, [lambda: a * 2.0, lambda: a]),
            "while_loop": lambda: tf.while_loop(lambda _: never, lambda b: b * 2.0, [a]),
        }[kind]()
        options = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=level))
        with tf.Session(config=tf.ConfigProto(graph_options=options)) as session:
            session.run(tf.global_variables_initializer())
            session.run(y)
            assert session.run(v) == 1.0


CONSTANT_OR_FED = [tf.constant, lambda value: tf.placeholder_with_default(value, [])]


@pytest.mark.parametrize("predicate", CONSTANT_OR_FED, ids=["constant", "fed"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("values", [[False], [False, False]])
def test_a_case_without_a_default_in_which_none_holds_is_an_error(session, values, exclusive, predicate):
    written = tf.Variable(0)
    pairs = [(predicate(value), lambda: written.assign_add(1)) for value in values]
    y = tf.case(pairs, exclusive=exclusive)
    session.run(written.initializer)
    with pytest.raises(tf.errors.InvalidArgumentError, match="no default"):
        session.run(y)
    assert session.run(written) == 0


@pytest.mark.parametrize("predicate", CONSTANT_OR_FED, ids=["constant", "fed"])
@pytest.mark.parametrize("default", [None, lambda: tf.constant(0)])
def test_an_exclusive_case_in_which_all_hold_is_an_error(session, default, predicate):
    pairs = [(predicate(True), lambda i=i: tf.constant(i)) for i in range(2)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclusive"):
        session.run(tf.case(pairs, default, exclusive=True))


@pytest.mark.parametrize("predicate", CONSTANT_OR_FED, ids=["constant", "fed"])
def test_a_case_of_one_function(session, predicate):
    x = tf.constant(3.0)
    pred = predicate(True)
    y, same = tf.case([(pred, lambda: x * x)]), tf.case([(pred, lambda: [x])])
    (strict,) = tf.case([(pred, lambda: [x])], strict=True)
    assert session.run([y, same, strict, *tf.gradients(y, x)]) == [9, 3, 3, 6]
    with pytest.raises(tf.errors.InvalidArgumentError, match="no default"):
        session.run(tf.case([(predicate(False), lambda: x)]))
