"""The graph that users build: names, scopes, devices, order, collections, and what it refuses."""

from __future__ import annotations

import inspect
import threading

import numpy as np
import pytest

import flowrt as tf
from flowrt.graph.construction.build import constant_tensor


@pytest.fixture
def graph():
    with tf.Graph() as made:
        yield made


def line_here(offset=0):
    return f"{__file__}:{inspect.currentframe().f_back.f_lineno + offset}"


# --- names


def test_names_are_made_unique_without_regard_to_case(graph):
    names = [tf.constant(1.0, name=n).op.name for n in ("a", "a", "A", "a_1", "b", "a")]
    assert names == ["a", "a_1", "A_2", "a_1_1", "b", "a_3"]
    assert len({n.lower() for n in names}) == len(names)


def test_operations_without_a_name_have_their_types(graph):
    x = tf.placeholder(tf.float32)
    assert [x.name, (x + 1.0).name, (x + 1.0).op.name] == ["Placeholder:0", "add:0", "add_1"]
    assert [o.name for o in tf.get_default_graph().get_operations()][1] == "add/y"


@pytest.mark.parametrize("name", ["a b", "_x", "ä", "a:0", "-a", "/a"])
def test_a_name_with_other_characters_is_refused(graph, name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="name"):
        tf.constant(1.0, name=name)
    assert graph.get_operations() == []


def test_name_scopes_nest_and_are_entered_anew_or_again(graph):
    with tf.name_scope("outer") as outer:
        a = tf.constant(1.0, name="a")
        with tf.name_scope("inner"):
            b = tf.constant(1.0, name="b")
        with tf.name_scope("inner"):
            c = tf.constant(1.0, name="b")
        with tf.name_scope(None):
            d = tf.constant(1.0, name="d")
    with tf.name_scope("outer"):
        e = tf.constant(1.0, name="a")
    with tf.name_scope(outer):
        f = tf.constant(1.0, name="a")
    found = [t.op.name for t in (a, b, c, d, e, f)]
    assert found == ["outer/a", "outer/inner/b", "outer/inner_1/b", "d", "outer_1/a", "outer/a_1"]
    assert outer == "outer/"
    assert graph.get_name_scope() == ""


def test_a_name_scope_is_left_on_errors(graph):
    with pytest.raises(ZeroDivisionError), tf.name_scope("s"):
        raise ZeroDivisionError
    assert tf.constant(1.0, name="x").op.name == "x"
    with pytest.raises(tf.errors.InvalidArgumentError, match="scope"), tf.name_scope("a b"):
        pass


def test_elements_are_found_by_name(graph):
    x = tf.constant([1.0], name="x")
    parts = tf.split(tf.constant([1.0, 2.0]), 2, name="parts")
    assert graph.get_tensor_by_name("parts:1") is parts[1]
    assert graph.get_operation_by_name("x") is x.op
    assert graph.as_graph_element("x:0") is x
    with pytest.raises(KeyError, match="Nearest: parts"):
        graph.get_operation_by_name("part")
    for wrong, kind in (("x", ValueError), ("x:1", KeyError), ("x:a", ValueError), ("y:0", KeyError)):
        with pytest.raises(kind):
            graph.get_tensor_by_name(wrong)
    with pytest.raises(TypeError):
        graph.as_graph_element(5)
    with pytest.raises(TypeError):
        graph.as_graph_element("x:0", allow_tensor=False)


# --- where an operation was made


def test_a_constant_holds_an_array_also_of_a_number_that_numpy_computed(graph):
    made = constant_tensor(np.zeros((), np.int32) + np.ones((), np.int32))
    assert isinstance(made.op.node.attrs["value"], np.ndarray)


def test_operations_know_the_users_line(graph):
    x = tf.placeholder(tf.float32, [2])
    y, here = tf.nn.softmax(x), line_here()
    assert y.op.source == here
    w, here = tf.get_variable("w", [2, 2]), line_here()
    assert w.op.source == here
    z, here = sum([x, x], start=x), line_here()
    assert z.op.source == here


def test_a_shape_error_says_which_operation_where_and_what_came(graph):
    x, y = tf.placeholder(tf.float32, [2, 3]), tf.placeholder(tf.float32, [4, 5])
    count = len(graph.get_operations())
    with pytest.raises(ValueError, match="MatMul") as caught:
        tf.matmul(x, y, name="product")
    assert caught.value.op == "product"
    assert caught.value.source == line_here(-2)
    assert "[2, 3]" in str(caught.value)
    assert len(graph.get_operations()) == count


# --- devices


def test_device_scopes_merge_field_by_field(graph):
    with tf.device("/job:worker/task:3/cpu:0"):
        a = tf.constant(1.0)
        with tf.device("/cpu:2"):
            b = tf.constant(1.0)
        with tf.device("/job:ps"):
            c = tf.constant(1.0)
        with tf.device(None):
            d = tf.constant(1.0)
    found = [t.device for t in (a, b, c, d, tf.constant(1.0))]
    assert found == [
        "/job:worker/task:3/device:CPU:0",
        "/job:worker/task:3/device:CPU:2",
        "/job:ps/task:3/device:CPU:0",
        "",
        "",
    ]


def test_a_device_function_sees_each_operation(graph):
    def by_type(op):
        return "/cpu:1" if op.type == "MatMul" else None

    with tf.device("/job:worker"), tf.device(by_type):
        x = tf.ones([2, 2])
        y = tf.matmul(x, x)
        with tf.device("/task:7"):
            z = tf.matmul(x, x)
    assert x.device == "/job:worker"
    assert y.device == "/job:worker/device:CPU:1"
    assert z.device == "/job:worker/task:7/device:CPU:1"


def test_a_device_that_does_not_parse_is_refused(graph):
    with pytest.raises(tf.errors.InvalidArgumentError, match="device"), tf.device("/nonsense:x:y"):
        pass


def test_colocated_operations_share_device_and_group(graph):
    with tf.device("/cpu:1"):
        a = tf.constant(1.0, name="a")
    with graph.colocate_with(a):
        b = tf.constant(1.0)
        with graph.colocate_with(tf.constant(2.0, name="c").op):
            d = tf.constant(1.0)
    assert b.device == a.device
    assert b.op.colocation_groups() == ["loc:@a"]
    assert "loc:@a" in d.op.colocation_groups()
    assert a.op.colocation_groups() == ["loc:@a"]


# --- order


def test_control_dependencies_reach_what_is_made_in_them(graph):
    a, b = tf.no_op(name="a"), tf.constant(1.0, name="b")
    with tf.control_dependencies([a]):
        c = tf.constant(2.0)
        with tf.control_dependencies([b]):
            d = tf.constant(3.0)
        with tf.control_dependencies(None):
            e = tf.constant(4.0)
        f = c + 1.0  # waits through c
    assert c.op.control_inputs == (a,)
    assert set(d.op.control_inputs) == {a, b.op}
    assert e.op.control_inputs == ()
    assert f.op.control_inputs == ()
    assert (tf.constant(1.0) + 1.0).op.control_inputs == ()


def test_control_inputs_can_be_added_but_not_in_circles(graph):
    a = tf.constant(1.0)
    b = a + 1.0
    c = tf.no_op()
    before = graph.mutations
    b.op._add_control_input(c)
    assert graph.mutations > before
    with pytest.raises(tf.errors.InvalidArgumentError, match="cycle"):
        a.op._add_control_input(b.op)
    with tf.Graph().as_default():
        foreign = tf.no_op()
    with pytest.raises(tf.errors.InvalidArgumentError, match="another graph"):
        a.op._add_control_input(foreign)


# --- tensors


def test_set_shape_adds_facts_and_refuses_contradictions(graph):
    x = tf.placeholder(tf.float32, [None, None])
    x.set_shape([2, None])
    x.set_shape([None, 3])
    assert x.shape.as_list() == [2, 3]
    for wrong in ([4, 3], [2, 3, 1]):
        with pytest.raises(ValueError, match="shape"):
            x.set_shape(wrong)
    assert x.shape.as_list() == [2, 3]


def test_tensors_have_no_values_while_the_graph_is_built(graph):
    x = tf.placeholder(tf.float32, [3])
    for use in (bool, list, len, np.array, lambda t: 1 if t > 0 else 2):
        with pytest.raises(TypeError):
            use(x)
    with pytest.raises(TypeError, match="where"):
        bool(x)
    assert np.float32(2) * x is not None
    assert (np.ones(3, np.float32) * x).shape.as_list() == [3]


def test_consumers_are_the_operations_that_read(graph):
    x = tf.constant(1.0)
    y, z = x + 1.0, x * x
    assert x.consumers() == [y.op, z.op]
    assert z.consumers() == []


def test_inputs_of_another_graph_are_refused(graph):
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    mine = tf.constant(1.0)
    with pytest.raises(ValueError, match="graph"):
        tf.add(mine, foreign)
    with pytest.raises(ValueError, match="graph"), tf.control_dependencies([foreign]):
        pass


# --- collections


def test_collections_keep_their_order_and_filter_by_scope(graph):
    for name in ("a/x", "a/y", "b/x"):
        graph.add_to_collection("things", tf.constant(1.0, name=name))
    graph.add_to_collections(["things", "others", "others"], "text")
    assert [getattr(t, "name", t) for t in graph.get_collection("things")] == [
        "a/x:0",
        "a/y:0",
        "b/x:0",
        "text",
    ]
    assert [t.name for t in graph.get_collection("things", "a/")] == ["a/x:0", "a/y:0"]
    assert graph.get_collection("others") == ["text"]
    graph.get_collection("things").clear()  # a copy
    assert len(graph.get_collection_ref("things")) == 4
    graph.clear_collection("things")
    assert graph.get_collection("things") == []
    assert "others" in graph.get_all_collection_keys()


# --- freezing


def test_a_finalized_graph_refuses_every_change(graph):
    x = tf.placeholder(tf.float32, None)
    y = x + 1.0
    waiting = tf.no_op()
    graph.finalize()
    assert graph.finalized
    for change in (
        lambda: tf.constant(1.0),
        lambda: x.set_shape([2]),
        lambda: y.op._add_control_input(waiting),
        lambda: graph.add_to_collection("c", 1),
    ):
        with pytest.raises(RuntimeError, match="finalized"):
            change()
    assert len(graph.get_operations()) == 4
    with tf.Session() as session:
        assert session.run(y, {x: [1, 2]}).tolist() == [2, 3]
        session.run(y, {x: 1.0})


# --- default graphs


def test_default_graphs_nest_and_are_of_one_thread():
    a, b = tf.Graph(), tf.Graph()
    outermost = tf.get_default_graph()
    with a, b.as_default():
        assert tf.get_default_graph() is b
        with a.as_default():
            assert tf.get_default_graph() is a
        seen = []
        thread = threading.Thread(target=lambda: seen.append(tf.get_default_graph()))
        thread.start()
        thread.join()
        assert seen == [outermost]
        with pytest.raises(RuntimeError, match="reset_default_graph"):
            tf.reset_default_graph()
    assert tf.get_default_graph() is outermost
    tf.reset_default_graph()
    assert tf.get_default_graph() is not outermost


def test_many_threads_build_one_graph(graph):
    errors = []

    def build(number):
        try:
            with graph.as_default(), tf.name_scope("s"), tf.device(f"/cpu:{number}"):
                total = tf.constant(0.0, name="x")
                for _ in range(200):
                    total = tf.add(total, 1.0, name="x")
        except BaseException as error:  # noqa: BLE001 (given to the test)
            errors.append(error)

    threads = [threading.Thread(target=build, args=[i]) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    operations = graph.get_operations()
    assert len({op.name.lower() for op in operations}) == len(operations) == 8 * 401
    for op in operations:  # scopes did not leak between threads
        assert len({op.device, *[t.device for t in op.inputs]}) == 1
    seen = set()
    for op in operations:
        assert all(t.op in seen for t in op.inputs)
        seen.add(op)
