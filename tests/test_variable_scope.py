"""`get_variable`, `variable_scope` and `make_template`: names, sharing, inherited defaults, errors."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DTypeError, InvalidArgumentError


def test_variables_are_named_by_variable_scopes_and_operations_by_name_scopes() -> None:
    with tf.name_scope("name"), tf.variable_scope("scope") as scope:
        assert tf.get_variable("w", [2]).name == "scope/w:0"
        assert tf.constant(1.0).name == "name/scope/Const:0"
        assert scope.name == "scope"
        assert scope.original_name_scope == "name/scope/"
        with tf.variable_scope("inner"):
            assert tf.get_variable("w", [2]).name == "scope/inner/w:0"
            assert tf.get_variable_scope().name == "scope/inner"
    assert tf.get_variable_scope().name == ""


def test_entering_again_keeps_the_variables_name_and_makes_a_new_name_scope() -> None:
    with tf.variable_scope("s") as scope:
        first = tf.get_variable("w", [2])
    with tf.variable_scope("s", reuse=True):
        assert tf.get_variable("w") is first
        assert tf.constant(1.0).name == "s_1/Const:0"
    with tf.variable_scope(scope, reuse=True) as again:
        assert tf.get_variable("w", [2]) is first
        assert tf.constant(1.0).name == "s_2/Const:0"
        assert again.original_name_scope == "s/"
    with tf.variable_scope(scope, auxiliary_name_scope=False):
        assert tf.constant(1.0).name == "Const:0"


def test_default_names_are_made_unique() -> None:
    names = []
    for _ in range(3):
        with tf.variable_scope(None, default_name="layer"):
            names.append(tf.get_variable("w", [1]).name)
            with tf.variable_scope(None, "sub"):
                names.append(tf.get_variable("w", [1]).name)
    assert names == [
        "layer/w:0", "layer/sub/w:0", "layer_1/w:0", "layer_1/sub/w:0", "layer_2/w:0", "layer_2/sub/w:0",
    ]  # fmt: skip


def test_default_names_start_anew_when_their_scope_is_entered_again() -> None:
    def net() -> Any:
        with tf.variable_scope("net", reuse=tf.AUTO_REUSE), tf.variable_scope(None, "layer"):
            return tf.get_variable("w", [1])

    assert net() is net()


def test_a_scope_object_is_jumped_to_from_anywhere() -> None:
    with tf.variable_scope("a") as a:
        pass
    with tf.variable_scope("b"):
        with tf.variable_scope(a):
            assert tf.get_variable("w", [1]).name == "a/w:0"
        assert tf.get_variable("w", [1]).name == "b/w:0"


def test_reuse_is_inherited_and_cannot_be_taken_back() -> None:
    with tf.variable_scope("outer"), tf.variable_scope("inner"):
        w = tf.get_variable("w", [1])
    with tf.variable_scope("outer", reuse=True), tf.variable_scope("inner", reuse=False) as inner:
        assert inner.reuse is True
        assert tf.get_variable("w") is w
    with tf.variable_scope("outer") as outer:
        outer.reuse_variables()
        with tf.variable_scope("inner"):
            assert tf.get_variable("w") is w


def test_auto_reuse_makes_what_is_missing() -> None:
    made = []
    for _ in range(2):
        with tf.variable_scope("s", reuse=tf.AUTO_REUSE):
            made.append(tf.get_variable("w", [1]))
    assert made[0] is made[1]


def test_sharing_against_the_scope_names_the_variable_and_its_line() -> None:
    tf.get_variable("w", [2])
    with pytest.raises(ValueError, match=r"variable 'w': expected a new name; .*test_variable_scope.py:"):
        tf.get_variable("w", [2])
    with tf.variable_scope("", reuse=True):
        with pytest.raises(ValueError, match=r"expected shape \[2\], as .*; got \[3\].*test_variable_scope"):
            tf.get_variable("w", [3])
        with pytest.raises(ValueError, match=r"expected dtype float32, as .*; got int32"):
            tf.get_variable("w", [2], tf.int32)
        with pytest.raises(ValueError, match=r"variable 'v': expected an existing one.*AUTO_REUSE"):
            tf.get_variable("v", [2])


def test_variables_made_without_get_variable_are_not_shared() -> None:
    tf.Variable(1.0, name="w")
    assert tf.get_variable("w", [1]).name == "w_1:0"


def test_defaults_are_inherited_and_overridden() -> None:
    def twice(shape: Any, dtype: Any = None) -> Any:
        return tf.fill(shape, tf.constant(2.0, dtype))

    with tf.variable_scope("s", initializer=twice, dtype=tf.float64):
        two = tf.get_variable("two", [1])
        three = tf.get_variable("three", [1], initializer=tf.constant_initializer(3.0))
        with tf.variable_scope("t", initializer=tf.zeros_initializer()) as t:
            zero = tf.get_variable("zero", [1])
            t.set_initializer(tf.ones_initializer())
            one = tf.get_variable("one", [1], tf.float32)
    assert [v.dtype.name for v in (two, three, zero, one)] == ["float64"] * 3 + ["float32"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert [v.tolist() for v in session.run([two, three, zero, one])] == [[2.0], [3.0], [0.0], [1.0]]


def half_ones(shape: Any) -> Any:
    return tf.fill(shape, 0.5)


def test_initializers_may_be_values_classes_and_functions() -> None:
    made = [
        tf.get_variable("array", initializer=np.array([1.0, 2.0])),
        tf.get_variable("list", initializer=[1, 2]),
        tf.get_variable("tensor", initializer=tf.constant([3.0])),
        tf.get_variable("class", [1], initializer=tf.ones_initializer),
        tf.get_variable("function", initializer=lambda: tf.constant(7.0)),
        tf.get_variable("shaped", [2], initializer=half_ones),
        tf.get_variable("int", [2], tf.int32),
    ]
    assert [v.dtype.name for v in made] == ["float64", "int32", *["float32"] * 4, "int32"]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = [v.tolist() for v in session.run(made)]
    assert values == [[1.0, 2.0], [1, 2], [3.0], [1.0], 7.0, [0.5, 0.5], [0, 0]]


def test_floats_start_with_glorots_uniform() -> None:
    tf.set_random_seed(1)
    w = tf.get_variable("w", [200, 100])
    with tf.Session() as session:
        session.run(w.initializer)
        drawn = session.run(w)
    limit = np.sqrt(6 / 300)
    assert 0.95 * limit < np.abs(drawn).max() <= limit * (1 + 1e-6)


def test_a_regularizer_adds_one_loss_a_new_variable() -> None:
    with tf.variable_scope("s", regularizer=lambda v: tf.reduce_sum(v * v), reuse=tf.AUTO_REUSE):
        w = tf.get_variable("w", [2], initializer=tf.constant_initializer(3.0))
        assert tf.get_variable("w", [2]) is w
        tf.get_variable("free", [2], regularizer=tf.no_regularizer)
    losses = tf.get_collection(tf.GraphKeys.REGULARIZATION_LOSSES)
    assert [loss.op.name for loss in losses] == ["s/w/Regularizer/Sum"]
    with tf.Session() as session:
        session.run(w.initializer)
        assert session.run(losses) == [18.0]


def test_custom_getters_nest_with_the_inner_one_first() -> None:
    calls = []

    def getter(tag: str) -> Any:
        def get(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
            calls.append((tag, name))
            return getter(name, *args, **kwargs)

        return get

    with (
        tf.variable_scope("a", custom_getter=getter("outer")),
        tf.variable_scope("b", custom_getter=getter("inner")),
    ):
        w = tf.get_variable("w", [1])
    assert calls == [("inner", "a/b/w"), ("outer", "a/b/w")]
    assert w.name == "a/b/w:0"


def test_a_custom_getter_may_return_something_else() -> None:
    def doubled(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        return getter(name, *args, **kwargs) * 2.0

    w = tf.get_variable("w", initializer=np.float32(4.0), custom_getter=doubled)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        assert session.run(w) == 8.0


def test_local_variables_are_neither_trained_nor_global() -> None:
    v = tf.get_local_variable("v", [1])
    assert tf.local_variables() == [v]
    assert not tf.global_variables()
    assert not tf.trainable_variables()


def test_collections_of_a_scope_are_those_below_it() -> None:
    with tf.variable_scope("s") as s:
        w = tf.get_variable("w", [1])
    with tf.variable_scope("s2"):
        tf.get_variable("w", [1])
    assert s.global_variables() == s.trainable_variables() == [w]
    assert s.local_variables() == []


def test_an_error_inside_leaves_the_scope() -> None:
    with pytest.raises(RuntimeError, match="inside"), tf.variable_scope("s"):
        raise RuntimeError("inside")
    assert tf.get_variable_scope().name == ""


def test_threads_have_scopes_of_their_own() -> None:
    graph = tf.get_default_graph()
    seen: list[str] = []

    def look() -> None:
        with graph.as_default():
            seen.append(tf.get_variable_scope().name)

    with tf.variable_scope("s"):
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [""]


def test_graphs_have_variables_of_their_own() -> None:
    w = tf.get_variable("w", [1])
    with tf.Graph():
        assert tf.get_variable("w", [1]) is not w


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="got None for both"), tf.variable_scope(None):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="default names are new ones"),
        tf.variable_scope(None, "s", reuse=True),
    ):
        pass
    with (
        pytest.raises(InvalidArgumentError, match="expected reuse True"),
        tf.variable_scope("s", reuse="yes"),
    ):
        pass
    with pytest.raises(DTypeError, match="expected a name or a VariableScope"), tf.variable_scope(3):
        pass
    with pytest.raises(InvalidArgumentError, match=r"shape without unknown dimensions .*; got none"):
        tf.get_variable("w")
    with pytest.raises(InvalidArgumentError, match=r"shape without unknown dimensions .*; got \[\?\]"):
        tf.get_variable("w", [None])
    with pytest.raises(InvalidArgumentError, match=r"expected a value of shape \[3\]; got \[2\]"):
        tf.get_variable("w", [3], initializer=[1.0, 2.0])
    with pytest.raises(InvalidArgumentError, match="initializer of dtype float32; got int32"):
        tf.get_variable("w", dtype=tf.float32, initializer=tf.constant(1))
    with pytest.raises(InvalidArgumentError, match="expected an initializer, as its dtype is string"):
        tf.get_variable("w", [1], tf.string)
    assert not tf.global_variables()


def test_a_variable_with_a_partitioner_stays_one() -> None:
    with tf.variable_scope("s", partitioner=tf.fixed_size_partitioner(2)):
        variable = tf.get_variable("w", [4, 3])
    assert (variable.name, variable.shape.as_list()) == ("s/w:0", [4, 3])


@pytest.mark.parametrize(
    ("partitioner", "shape", "dtype", "parts"),
    [
        (tf.fixed_size_partitioner(3, axis=1), [4, 2], tf.float32, [1, 2]),
        (tf.variable_axis_size_partitioner(100), [10, 10], tf.float32, [5, 1]),
        (tf.variable_axis_size_partitioner(100, max_shards=3), [10, 10], tf.float64, [3, 1]),
        (tf.variable_axis_size_partitioner(40, axis=1), [2, 6], tf.string, [1, 6]),
        (tf.variable_axis_size_partitioner(40), [0, 6], tf.float32, [0, 1]),
        (tf.min_max_variable_partitioner(16), [1024, 1024], tf.float32, [16, 1]),
        (tf.min_max_variable_partitioner(64, min_slice_size=1 << 20), [1024, 1024], tf.float32, [4, 1]),
    ],
    ids=["fixed", "axis_size", "most", "strings", "empty", "most_parts", "least_size"],
)
def test_partitioners_say_into_how_many_parts(partitioner: Any, shape: Any, dtype: Any, parts: Any) -> None:
    """Numbers by hand from TensorFlow's rules."""
    assert partitioner(shape=tf.TensorShape(shape), dtype=dtype) == parts


# --- templates


def scaled(x: Any, shape: Any = (2,)) -> Any:
    return x * tf.get_variable("w", shape)


def test_a_template_makes_its_variables_once() -> None:
    template = tf.make_template("scale", scaled)
    assert template.variables == []
    a, b = template(tf.ones([2])), template(tf.ones([2]))
    assert [t.op.name for t in (a, b)] == ["scale/mul", "scale_1/mul"]
    assert [v.name for v in template.variables] == ["scale/w:0"]
    assert template.trainable_variables == template.global_variables == template.variables
    other = tf.make_template("scale", scaled)
    other(tf.ones([2]))
    assert [v.name for v in other.variables] == ["scale_1/w:0"]


def test_a_template_binds_arguments_and_its_scope_early_if_asked() -> None:
    early = tf.make_template("t", scaled, create_scope_now_=True, shape=(3,))
    late = tf.make_template("t", scaled, unique_name_="mine")
    late(tf.ones([2]))
    early(tf.ones([3]))
    assert [v.name for v in tf.global_variables()] == ["mine/w:0", "t/w:0"]
    assert early.variable_scope.name == "t"


def test_a_template_refuses_new_variables_later() -> None:
    template = tf.make_template("t", lambda: tf.Variable(1.0))
    template()
    with pytest.raises(InvalidArgumentError, match="no new variables after the first call"):
        template()
