"""Optimisation across the borders of functions: what goes, what stays, and what is computed where."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.node import owned_subgraphs
from flowrt.graph.ops.lists.tensor_lists import empty_tensor_list, tensor_list_pop_back, tensor_list_push_back
from flowrt.graph.passes.pipeline import optimise
from flowrt.graph.passes.prepare.infer import infer_shapes
from flowrt.graph.passes.prepare.lower import lower
from flowrt.graph.passes.prepare.order_effects import order_effects
from flowrt.graph.passes.prepare.verify import verify_subgraph
from tests.graph.passes.cases import snapshot, subgraph_of


def optimised(fetches, targets=(), feeds=()):
    before = infer_shapes(order_effects(lower(subgraph_of(fetches, targets, feeds))))
    verify_subgraph(before)
    seen = snapshot(before)
    after = optimise(before)
    assert snapshot(before) == seen
    verify_subgraph(after)
    again = optimise(after)
    assert optimise(again) is again
    return after


def only(subgraph, name):
    (node,) = [node for node in subgraph if node.op.name == name]
    return node


def everywhere(subgraph):
    """The ops of the subgraph and of all functions in it."""
    found = []
    for node in subgraph:
        found.append(node.op.name)
        for function in owned_subgraphs(node.attrs):
            found += everywhere(function)
    return found


def inside(subgraph):
    """The ops in the one loop of the subgraph, without parameters and constants."""
    found = everywhere(only(subgraph, "_Loop").attrs["body"])
    return sorted(name for name in found if name not in ("_Feed", "Const"))


def outside(subgraph):
    return sorted(n.op.name for n in subgraph if n.op.name not in ("_Feed", "Const", "_Loop", "_Case"))


@pytest.fixture
def x():
    return tf.placeholder(tf.float32, [3], name="x")


@pytest.fixture
def pred():
    return tf.placeholder(tf.bool, [], name="pred")


@pytest.fixture
def n():
    return tf.placeholder(tf.int32, [], name="n")


# --- branches


@pytest.mark.parametrize("value,expected", [(True, "Exp"), (False, "Sin")])
def test_a_constant_predicate_leaves_one_branch(x, value, expected):
    y = tf.cond(tf.constant(value), lambda: tf.exp(x), lambda: tf.sin(x))
    assert outside(optimised([y], feeds=[x])) == [expected]


@pytest.mark.parametrize("index,expected", [(0, "Exp"), (1, "Sin"), (2, "Cos"), (-5, "Cos")])
def test_a_constant_index_leaves_one_branch(x, index, expected):
    y = tf.switch_case(tf.constant(index), [lambda: tf.exp(x), lambda: tf.sin(x)], default=lambda: tf.cos(x))
    assert "_Case" not in everywhere(optimised([y], feeds=[x]))
    assert outside(optimised([y], feeds=[x])) == [expected]


def test_a_branch_that_is_left_keeps_its_effects_and_its_order():
    v = tf.Variable(1.0)
    before = v.read_value()

    def write():
        with tf.control_dependencies([v.assign(5.0)]):
            return tf.constant(0.0)

    y = tf.cond(tf.constant(True), write, lambda: tf.constant(1.0))
    after = v.read_value()
    subgraph = optimised([before, y, after])
    assert before.op.name in only(subgraph, "AssignVariableOp").controls
    with tf.Session() as session:
        session.run(v.initializer)
        assert session.run([before, y, after]) == [1, 0, 5]


def test_a_result_that_nobody_reads_goes_with_what_made_it(x, pred):
    y, _ = tf.cond(pred, lambda: (x + 1.0, tf.exp(x)), lambda: (x - 1.0, tf.sin(x)))
    after = optimised([y], feeds=[x, pred])
    assert len(only(after, "_Case").outputs) == 1
    assert {"Exp", "Sin"}.isdisjoint(everywhere(after))


def test_an_effect_stays_though_nobody_reads_the_result(x, pred):
    v = tf.Variable(1.0)
    y, _ = tf.cond(pred, lambda: (x, v.assign_add(1.0)), lambda: (x, tf.constant(0.0)))
    assert "AssignAddVariableOp" in everywhere(optimised([y], feeds=[x, pred]))


def test_arguments_that_no_branch_reads_go(x, pred):
    unused = tf.exp(x)
    y, _ = tf.cond(pred, lambda: (x, unused), lambda: (x + 1.0, x))
    after = optimised([y], feeds=[x, pred])
    assert len(only(after, "_Case").inputs) == 2
    assert "Exp" not in everywhere(after)


def test_constants_are_folded_inside_branches(x, pred):
    two = tf.constant(2.0)
    y = tf.cond(pred, lambda: x * (two + 3.0), lambda: x)
    case = only(optimised([y], feeds=[x, pred]), "_Case")
    values = [n.attrs["value"].tolist() for n in case.attrs["branches"][1] if n.op.name == "Const"]
    assert values == [5.0]


def test_what_is_computed_twice_in_a_branch_is_computed_once(x, pred):
    y = tf.cond(pred, lambda: tf.exp(x) + tf.exp(x), lambda: x)
    assert everywhere(optimised([y], feeds=[x, pred])).count("Exp") == 1


def test_a_constant_predicate_that_waits_is_waited_for():
    v = tf.Variable(1.0)
    with tf.control_dependencies([tf.assert_positive(v.read_value(), name="checked")]):
        pred = tf.constant(True)
    y = tf.cond(pred, lambda: v.assign(5.0), lambda: tf.constant(1.0))
    after = optimised([y])
    assert "_Case" not in everywhere(after)
    assert only(after, "Assert").name in only(after, "AssignVariableOp").controls


# --- loops


def test_a_variable_that_nobody_needs_goes(x, n):
    _, y, _ = tf.while_loop(
        lambda i, y, z: i < n, lambda i, y, z: (i + 1, y + x, tf.exp(z)), [0, x, tf.zeros([3])]
    )
    after = optimised([y], feeds=[x, n])
    assert len(only(after, "_Loop").attrs["T"]) == 2
    assert "Exp" not in everywhere(after)


def test_a_variable_that_another_one_needs_stays(x, n):
    _, y, _ = tf.while_loop(lambda i, y, z: i < n, lambda i, y, z: (i + 1, y + z, tf.exp(z)), [0, x, x])
    assert "Exp" in inside(optimised([y], feeds=[x, n]))


def test_a_variable_that_the_condition_needs_stays(x):
    _, z = tf.while_loop(lambda y, z: tf.reduce_sum(y) < 9.0, lambda y, z: (tf.exp(y), z + 1.0), [x, x])
    assert "Exp" in inside(optimised([z], feeds=[x]))


def test_a_variable_with_an_effect_stays(n):
    v = tf.Variable(0.0)
    i, _ = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, v.assign_add(1.0)), [0, 0.0])
    assert "AssignAddVariableOp" in inside(optimised([i], feeds=[n]))


def test_a_variable_that_an_effect_needs_stays(n):
    v = tf.Variable(0.0)
    i, _, _ = tf.while_loop(
        lambda i, k, y: i < n, lambda i, k, y: (i + 1, k * 2.0, v.assign_add(k)), [0, 1.0, 0.0]
    )
    assert "Mul" in inside(optimised([i], feeds=[n]))
    with tf.Session() as session:
        session.run(v.initializer)
        session.run(i, {n: 3})
        assert session.run(v) == 1 + 2 + 4


def test_variables_that_only_feed_each_other_go(x, n):
    i, _, _ = tf.while_loop(lambda i, a, b: i < n, lambda i, a, b: (i + 1, tf.exp(b), tf.sin(a)), [0, x, x])
    assert inside(optimised([i], feeds=[x, n])) == ["AddV2", "Less"]


def test_what_a_gradient_keeps_goes_when_only_the_value_is_asked_for(x, n):
    y = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1]
    dx = tf.gradients(y, x)[0]
    kept = [name for name in everywhere(optimised([y], feeds=[x, n])) if "TensorList" in name]
    assert kept == []
    assert "TensorListPushBack" in everywhere(optimised([dx], feeds=[x, n]))


def test_an_invariant_is_not_kept_for_the_gradient(x, n):
    """Of ``y + x * w`` the gradient reads x and w, which are the same in all iterations."""
    w = tf.Variable([1.0, 2.0, 3.0])
    y = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y + x * w), [0, x])[1]
    after = optimised(tf.gradients(y, [x, w]), feeds=[x, n])
    assert "TensorListPushBack" not in everywhere(after)


def test_a_loop_whose_condition_is_false_from_the_start_goes(x):
    _, y = tf.while_loop(lambda i, y: i < 0, lambda i, y: (i + 1, tf.exp(y)), [0, x])
    after = optimised([y], feeds=[x])
    assert everywhere(after) == ["_Feed"]


def test_constants_are_copied_into_bodies(x, n):
    step = tf.constant(2.0)
    _, y = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * (step * 3.0)), [0, x])
    after = optimised([y], feeds=[x, n])
    assert inside(after) == ["AddV2", "Less", "Mul"]
    assert 6.0 in [
        n.attrs["value"].tolist() for n in only(after, "_Loop").attrs["body"] if n.op.name == "Const"
    ]


# --- invariants


@pytest.mark.parametrize("is_same", [True, False], ids=["the same", "others"])
def test_what_is_taken_from_a_list_of_one_constant_is_that_constant(n, is_same):
    """As shapes are that TensorFlow 1 keeps for gradients; not what differs from one iteration to another."""

    def push(i, stack):
        element = tf.constant([2, 3]) if is_same else tf.stack([i, i])
        return i + 1, tensor_list_push_back(stack, element)

    def pop(i, stack, total):
        stack, element = tensor_list_pop_back(stack, [-1], element_dtype=tf.int32)
        return i + 1, stack, total + tf.reduce_sum(element)

    stack = tf.while_loop(lambda i, _: i < n, push, [0, empty_tensor_list(-1, -1, element_dtype=tf.int32)])[1]
    total = tf.while_loop(lambda i, *_: i < n, pop, [0, stack, 0])[2]
    after = optimised([total], feeds=[n])
    kept = [name for name in everywhere(after) if "TensorList" in name or name == "Sum"]
    assert kept == [] if is_same else {"TensorListPushBack", "TensorListPopBack", "Sum"} <= {*kept}
    with tf.Session() as session:
        assert session.run(total, {n: 3}) == (15 if is_same else 6)


def test_what_depends_on_invariants_alone_is_computed_in_front(x, n):
    w = tf.placeholder(tf.float32, [3], name="w")
    _, y = tf.while_loop(
        lambda i, y: i < n, lambda i, y: (i + 1, tf.sin(y) * tf.exp(x + w) - tf.tanh(w)), [0, x]
    )
    after = optimised([y], feeds=[x, w, n])
    assert inside(after) == ["AddV2", "Less", "Mul", "Sin", "Sub"]
    assert {"AddV2", "Exp", "Tanh"} <= set(outside(after))


def test_what_might_fail_stays_inside(x, n):
    """The body may never run: an integer division by 0 or an index out of range may not be an error then."""
    k = tf.placeholder(tf.int32, [], name="k")
    _, y = tf.while_loop(
        lambda i, y: i < n, lambda i, y: (i + 1, y + tf.gather(x, k) + tf.to_float(7 // k)), [0, 0.0]
    )
    after = optimised([y], feeds=[x, k, n])
    assert {"GatherV2", "FloorDiv"} <= set(inside(after))
    with tf.Session() as session:
        assert session.run(y, {x: [1, 2, 3], k: 0, n: 0}) == 0
        assert session.run(y, {x: [1, 2, 3], k: 2, n: 1}) == 6
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(y, {x: [1, 2, 3], k: 5, n: 1})


def test_random_numbers_and_reads_of_what_is_written_stay_inside(n):
    v = tf.Variable([1.0, 2.0, 3.0])

    def body(i, y):
        read = v.read_value()
        with tf.control_dependencies([v.assign(read * 2.0)]):
            return i + 1, y + tf.exp(read) + tf.random.normal([3])

    _, y = tf.while_loop(lambda i, y: i < n, body, [0, tf.zeros([3])])
    found = inside(optimised([y], feeds=[n]))
    assert {"Exp", "ReadVariableOp", "AssignVariableOp"} <= set(found)
    assert any("Random" in name for name in found)


def test_what_waits_inside_stays_inside(x, n):
    v = tf.Variable(0.0)

    def body(i, y):
        with tf.control_dependencies([v.assign_add(1.0)]):
            return i + 1, y + tf.exp(x)

    _, y = tf.while_loop(lambda i, y: i < n, body, [0, x])
    assert "Exp" in inside(optimised([y], feeds=[x, n]))


def test_invariants_leave_both_of_two_loops(x, n):
    def outer(i, y):
        return i + 1, tf.while_loop(lambda j, z: j < n, lambda j, z: (j + 1, z * tf.exp(x)), [0, y])[1]

    _, y = tf.while_loop(lambda i, y: i < n, outer, [0, x])
    after = optimised([y], feeds=[x, n])
    assert outside(after).count("Exp") == 1
    assert "Exp" not in inside(after)


def test_a_constant_branch_in_a_body_goes(x, n):
    _, y = tf.while_loop(
        lambda i, y: i < n,
        lambda i, y: (i + 1, tf.cond(tf.constant(True), lambda: tf.sin(y), lambda: tf.exp(y))),
        [0, x],
    )
    assert inside(optimised([y], feeds=[x, n])) == ["AddV2", "Less", "Sin"]


# --- order


@pytest.mark.parametrize("read_inside", [False, True])
def test_the_order_of_reads_and_writes_outlives_an_argument_that_goes(x, pred, read_inside):
    """The read comes before the write in the branch, though the branches do not read it in the end."""
    v = tf.Variable([1.0, 2.0, 3.0])
    before = v.read_value()
    used = before * 2.0 if read_inside else before

    def write():
        with tf.control_dependencies([v.assign(x)]):
            return tf.identity(x), used

    y, _ = tf.cond(pred, write, lambda: (x, used))
    after = optimised([y, before], feeds=[x, pred])
    node, read = only(after, "_Case"), only(after, "ReadVariableOp")
    assert read.name not in {ref[0] for ref in node.inputs}
    assert read.name in node.controls


def test_the_order_outlives_a_loop_variable_that_goes(x, n):
    v = tf.Variable([1.0, 2.0, 3.0])
    before = v.read_value()

    def body(i, y):
        with tf.control_dependencies([v.assign(x)]):
            return i + 1, y * 2.0

    i, _ = tf.while_loop(lambda i, y: i < n, body, [0, before])
    after = optimised([i, before], feeds=[x, n])
    assert only(after, "ReadVariableOp").name in only(after, "_Loop").controls


def test_an_effect_behind_an_argument_that_goes_stays(x, n, pred):
    """The step was asked for it: TensorFlow runs what an operation reads, though its functions do not."""
    v = tf.Variable([1.0, 2.0, 3.0])
    i, _ = tf.while_loop(lambda i, y: i < n, lambda i, y: (i + 1, y * 2.0), [0, v.assign_add(x) * 2.0])
    after = optimised([i], feeds=[x, n])
    assert only(after, "AssignAddVariableOp").name in only(after, "_Loop").controls
    assert "Mul" not in everywhere(after)
    unread = tf.function(lambda y: tf.constant(1.0))(v.assign_sub(x))
    assert only(optimised([unread], feeds=[x]), "AssignSubVariableOp")


def test_a_product_of_what_does_not_change_is_computed_once() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        w, x = tf.get_variable("w", initializer=np.eye(3)), tf.constant(np.ones((3, 3)))
        y = tf.while_loop(lambda i, _: i < 5, lambda i, a: (i + 1, a + tf.matmul(w, x)), [0, x])[1]
        session.run(tf.global_variables_initializer())
        metadata = tf.RunMetadata()
        options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        np.testing.assert_array_equal(
            session.run(y, options=options, run_metadata=metadata), np.full((3, 3), 6.0)
        )
    names = [s.node_name for device in metadata.step_stats.dev_stats for s in device.node_stats]
    assert sum("MatMul" in name for name in names) == 1
