"""What a user can do wrong: one typed error, with the user's line, and the graph goes on."""

from __future__ import annotations

import numpy as np
import pytest

import flowrt as tf


def below_three(i, *_):
    """The condition of all loops here."""
    return tf.less(i, 3)


def raises(error, match, function):
    """``function()`` raises ``error`` with a line of this file; the graph can be built on and run then."""
    with pytest.raises(error, match=match) as caught:
        function()
    place, _, _ = str(caught.value).partition("): ")
    assert "test_bad_input.py:" in place, str(caught.value)
    with tf.Session() as session:
        assert session.run(tf.while_loop(below_three, lambda i: i + 1, [tf.constant(0)])) == 3


TYPE, VALUE = tf.errors.InvalidArgumentError, tf.errors.InvalidArgumentError


# --- branches


@pytest.fixture
def pred():
    return tf.placeholder(tf.bool, [])


@pytest.mark.parametrize(
    "given,match",
    [
        (True, "Python bool"),
        (1, "expected a bool tensor"),
        ("yes", "expected a bool tensor"),
        (None, "got None"),
        (np.array([True, False]), "expected a scalar"),
    ],
)
def test_a_predicate_that_is_none(given, match):
    raises(TYPE, match, lambda: tf.cond(given, lambda: tf.constant(1), lambda: tf.constant(2)))


def test_a_predicate_of_unknown_shape_that_is_no_scalar_in_a_step():
    pred = tf.placeholder(tf.bool)
    y = tf.cond(pred, lambda: tf.constant(1), lambda: tf.constant(2))
    with tf.Session() as session:
        with pytest.raises(VALUE, match=r"test_bad_input\.py"):
            session.run(y, {pred: [True, False]})
        assert session.run(y, {pred: True}) == 1


@pytest.mark.parametrize(
    "true_fn,false_fn",
    [
        (lambda: 1, lambda: (1, 2)),
        (lambda: [1], lambda: 1),
        (lambda: {"a": 1}, lambda: {"b": 1}),
        (lambda: 1, lambda: None),
        (lambda: None, lambda: 1),
        (lambda: (1, (2, 3)), lambda: (1, 2, 3)),
    ],
)
def test_branches_of_different_structures(pred, true_fn, false_fn):
    raises(VALUE, "the same structure.*from true_fn.*from false_fn", lambda: tf.cond(pred, true_fn, false_fn))


def test_branches_say_where_they_part(pred):
    for true_fn, false_fn, match in (
        (lambda: {"a": (1, 2)}, lambda: {"a": (1, (2, 3))}, r"a tuple of 2 from false_fn, at \['a'\]\[1\]"),
        (lambda: (1, 2), lambda: None, "a tuple of 2 from true_fn and None from false_fn. Missing return"),
        (lambda: 1, lambda: None, "1 from true_fn and None from false_fn. Missing return"),
    ):
        raises(VALUE, match, lambda t=true_fn, f=false_fn: tf.cond(pred, t, f))


def test_branches_of_different_dtypes(pred):
    raises(TYPE, "same dtypes.*int32.*float32", lambda: tf.cond(pred, lambda: 1, lambda: 1.0))


@pytest.mark.parametrize("position", [0, 1])
def test_branches_that_are_not_callable(pred, position):
    branches = [lambda: tf.constant(1)] * 2
    branches[position] = tf.constant(1)
    raises(TYPE, ["true_fn", "false_fn"][position], lambda: tf.cond(pred, *branches))


def test_a_branch_that_is_missing(pred):
    raises(TYPE, "false_fn", lambda: tf.cond(pred, lambda: tf.constant(1)))


def test_a_branch_that_returns_no_tensor(pred):
    raises(TYPE, "converts to a tensor", lambda: tf.cond(pred, object, object))


def test_an_error_in_a_branch_is_the_users(pred):
    def branch():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        tf.cond(pred, branch, branch)
    with tf.Session() as session:
        assert session.run(tf.cond(pred, lambda: 1, lambda: 2), {pred: True}) == 1


@pytest.mark.parametrize(
    "build,match",
    [
        (lambda x: tf.case([]), "pairs"),
        (lambda x: tf.case(None), "a list or a dict"),
        (lambda x: tf.case([x < 1]), "pairs"),
        (lambda x: tf.case([(x < 1, 3)]), "function 0"),
        (lambda x: tf.case([(x, lambda: 1)]), "bool"),
        (lambda x: tf.case([(x < 1, lambda: 1)], default=3), "default"),
        (lambda x: tf.case([(x < 1, lambda: 1)], default=lambda: 1.0), "same dtypes"),
        (lambda x: tf.switch_case(x, []), "at least one"),
        (lambda x: tf.switch_case(x, None), "a list or a dict"),
        (lambda x: tf.switch_case(x, [3]), "branch 0"),
        (lambda x: tf.switch_case(x, {-1: lambda: 1}), "indices"),
        (lambda x: tf.switch_case(x, {"a": lambda: 1}), "indices"),
        (lambda x: tf.switch_case(x, [(0, lambda: 1), (0, lambda: 2)]), "indices"),
        (lambda x: tf.switch_case(tf.constant(0.5), [lambda: 1]), "int32"),
        (lambda x: tf.switch_case(tf.constant([0, 1]), [lambda: 1]), "scalar"),
        (lambda x: tf.switch_case(x, [lambda: 1, lambda: 1.0]), "same dtypes"),
    ],
)
def test_cases(build, match):
    x = tf.placeholder(tf.int32, [])
    raises(VALUE, match, lambda: build(x))


# --- loops


@pytest.mark.parametrize(
    "body,start,match",
    [
        (
            lambda i: None,
            [0],
            r"result of <lambda>\(\) \(\S*test_bad_input.py:\d+\); got None. Missing return",
        ),
        (lambda i, x: (i + 1, None), [0, 1.0], r"variable 1.*None"),
        (lambda i: (i, i), [0], r"1 loop variable from <lambda>\(\) \(\S*test_bad_input.py:\d+\); got 2"),
        (lambda i, x: i, [0, 0], "expected 2 loop variables from .*; got 1"),
        (lambda i, x: (i, x, x), [0, 0], "expected 2 loop variables from .*; got 3"),
        (lambda i: {"i": i}, [0], r"structure of loop_vars.*; got a dict with the keys \['i'\], at \[0\]"),
        (tf.to_float, [0], r"int32 for loop variable 0.*float32"),
        (lambda i: "text", [0], "int32 for loop variable 0"),
        (
            lambda i, x: (i, tf.stack([x, x])),
            [0, 1.0],
            r"variable 1.*enters with shape \[\].*has shape \[2\]",
        ),
        (lambda i, x: (i, tf.concat([x, x], 0)), [0, [1.0]], "shape_invariants"),
        (lambda i: tf.no_op(), [0], "converts to a tensor"),
    ],
)
def test_bodies_that_return_the_wrong_thing(body, start, match):
    start = [tf.constant(value) for value in start]
    raises(VALUE, match, lambda: tf.while_loop(below_three, body, start))


@pytest.mark.parametrize(
    "body,match",
    [
        (lambda i, s: (i, {"a": s["a"]}), r"a dict with the keys \['a', 'b'\]; got .* \['a'\], at \[1\]"),
        (lambda i, s: (i, {"a": i, "b": s["b"]}), r"a list of 2; got <.*, at \[1\]\['a'\]"),
        (lambda i, s: (i, {**s, "a": [i]}), r"a list of 2; got a list of 1, at \[1\]\['a'\]"),
        (lambda i, s: ((i, i), s), r"got a tuple of 2, at \[0\]"),
    ],
)
def test_a_body_whose_structure_parts_from_loop_vars(body, match):
    start = (tf.constant(0), {"a": [tf.constant(1), tf.constant(2)], "b": tf.constant(3)})
    raises(VALUE, f"structure of loop_vars.*{match}", lambda: tf.while_loop(below_three, body, start))


@pytest.mark.parametrize(
    "condition,match",
    [
        (lambda i: i, "bool"),
        (lambda i: None, r"result of <lambda>\(\).*got None. Missing return"),
        (lambda i: tf.stack([i < 3, i < 4]), "scalar"),
        (lambda i: "yes", "bool"),
        (3, "callable"),
        (None, "callable"),
    ],
)
def test_conditions(condition, match):
    raises(VALUE, match, lambda: tf.while_loop(condition, lambda i: i + 1, [tf.constant(0)]))


@pytest.mark.parametrize(
    "start,options,match",
    [
        ([], {}, "at least one loop variable"),
        (None, {}, "None"),
        ([None], {}, "None"),
        ([0], {"maximum_iterations": 1.5}, "maximum_iterations"),
        ([0], {"maximum_iterations": "many"}, "maximum_iterations"),
        ([0], {"maximum_iterations": [1, 2]}, "maximum_iterations"),
        ([0], {"parallel_iterations": 0}, "parallel_iterations"),
        ([0], {"parallel_iterations": "all"}, "parallel_iterations"),
        ([0], {"shape_invariants": [[3]]}, "a shape invariant compatible with the initial value"),
        ([0], {"shape_invariants": [[None], []]}, "the structure of loop_vars"),
        ([0], {"shape_invariants": [["a"]]}, "loop variable 0"),
        ([0], {"shape_invariants": "a"}, "the structure of loop_vars"),
        ([{"i": 0}], {"shape_invariants": [{"j": []}]}, "the structure of loop_vars"),
    ],
)
def test_arguments_of_a_loop(start, options, match):
    raises(VALUE, match, lambda: tf.while_loop(below_three, lambda i: i + 1, start, **options))


def test_a_body_that_is_not_callable():
    raises(TYPE, "body", lambda: tf.while_loop(below_three, [tf.constant(1)], [tf.constant(0)]))


def test_an_invariant_narrower_than_the_first_value():
    x = tf.placeholder(tf.float32)
    raises(
        VALUE,
        "a shape invariant compatible with the initial value",
        lambda: tf.while_loop(below_three, lambda i, y: (i + 1, y), [0, x], shape_invariants=[[], [2]]),
    )


# --- placeholders, which a step can feed only outside


def test_a_placeholder_made_in_a_branch(pred):
    def branch():
        return tf.placeholder(tf.int32, [], name="fed")

    inside = "created inside a branch of 'c'. Create it"
    raises(VALUE, inside, lambda: tf.cond(pred, branch, lambda: 1, name="c"))
    raises(VALUE, "'c_1/fed'", lambda: tf.cond(pred, lambda: 1, branch, name="c"))


def test_a_placeholder_made_in_a_loop():
    def more(i):
        return i + tf.placeholder(tf.int32, [])

    inside = r"^Placeholder '\S+' \(\S*test_bad_input.py:\d+\): .* inside {} of 'w'".format
    start = [tf.constant(0)]
    raises(VALUE, inside("the body"), lambda: tf.while_loop(below_three, more, start, name="w"))
    raises(
        VALUE, inside("the condition"), lambda: tf.while_loop(lambda i: more(i) < 3, more, start, name="w/")
    )


def test_a_placeholder_made_outside_is_captured():
    step = tf.placeholder(tf.int32, [])
    y = tf.while_loop(below_three, lambda i: i + step, [tf.constant(0)])
    with tf.Session() as session:
        assert session.run(y, {step: 2}) == 4


# --- tensors in the wrong place


@pytest.fixture
def foreign():
    with tf.Graph().as_default():
        return tf.constant(1)


def test_a_loop_variable_of_another_graph(foreign):
    raises(VALUE, "graph", lambda: tf.while_loop(below_three, lambda i: i + 1, [foreign]))
    raises(
        VALUE, "graph", lambda: tf.while_loop(below_three, lambda i, j: (i + 1, j), [tf.constant(0), foreign])
    )


def test_a_capture_of_another_graph(foreign, pred):
    raises(VALUE, "graph", lambda: tf.while_loop(below_three, lambda i: i + foreign, [tf.constant(0)]))
    raises(VALUE, "graph", lambda: tf.cond(pred, lambda: tf.constant(1), lambda: foreign))


def test_a_predicate_of_another_graph():
    with tf.Graph().as_default():
        foreign = tf.constant(True)
    raises(VALUE, "graph", lambda: tf.cond(foreign, lambda: tf.constant(1), lambda: tf.constant(2)))


@pytest.fixture
def leaked():
    """A tensor of a body, and an operation."""
    found = []

    def body(i):
        found.extend([tf.multiply(i, 2, name="inner"), tf.no_op(name="op")])
        return i + 1

    tf.while_loop(below_three, body, [tf.constant(0)], name="loop")
    return found


INSIDE = r"inside the body of 'loop'.*"


def test_a_tensor_of_a_body_used_outside(leaked, pred):
    tensor, _ = leaked
    raises(VALUE, INSIDE, lambda: tensor + 1)
    raises(VALUE, INSIDE, lambda: tf.constant(1) + tensor)
    raises(VALUE, INSIDE, lambda: tf.stack([tf.constant(1), tensor]))
    raises(VALUE, INSIDE, lambda: tf.cond(pred, lambda: tensor, lambda: tf.constant(1)))
    raises(VALUE, INSIDE, lambda: tf.while_loop(below_three, lambda i: i + tensor, [tf.constant(0)]))
    raises(VALUE, INSIDE, lambda: tf.while_loop(below_three, lambda i: i + 1, [tensor]))
    raises(VALUE, INSIDE, lambda: tf.gradients(tf.to_float(1), tensor))


def test_a_float_of_a_body_differentiated_outside():
    found = []
    x = tf.constant(1.0)

    def body(i, y):
        found.append(y * x)
        return i + 1, found[0]

    tf.while_loop(below_three, body, [tf.constant(0), x], name="loop")
    raises(VALUE, INSIDE, lambda: tf.gradients(found[0], x))


def test_an_operation_of_a_body_waited_for_outside(leaked):
    def wait():
        with tf.control_dependencies([leaked[1]]):
            tf.constant(1)

    raises(VALUE, INSIDE, wait)


def test_a_tensor_of_one_branch_used_in_the_other(pred):
    found = []

    def first():
        found.append(tf.constant(1) * 2)
        return found[0]

    raises(VALUE, "inside a branch of 'c'", lambda: tf.cond(pred, first, lambda: found[0] + 1, name="c"))


@pytest.mark.parametrize("which", [0, 1])
def test_an_element_of_a_body_fetched(leaked, which):
    with tf.Session() as session, pytest.raises(VALUE, match=INSIDE):
        session.run(leaked[which])


def test_a_tensor_of_a_body_fed(leaked):
    with tf.Session() as session, pytest.raises(VALUE, match=INSIDE):
        session.run(tf.constant(1), {leaked[0]: 1})


def test_a_tensor_of_a_body_by_name(leaked):
    with tf.Session() as session, pytest.raises(tf.errors.NotFoundError, match="inner"):
        session.run("loop/inner:0")


def test_a_variable_that_begins_with_a_tensor_of_a_body():
    def body(i):
        tf.Variable(i * 2)
        return i + 1

    match = "not depend on the arguments of the body of 'loop'"
    raises(VALUE, match, lambda: tf.while_loop(below_three, body, [tf.constant(0)], name="loop"))


def test_building_in_a_body_that_is_finished(leaked):
    def build():
        with leaked[0].graph.as_default():
            tf.constant(1)

    raises(tf.errors.FailedPreconditionError, "finalized", build)
