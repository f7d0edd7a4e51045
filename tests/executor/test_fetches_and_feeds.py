"""What `Session.run` accepts, what it returns, and what it says to the rest."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple

import numpy as np
import pytest

import flowrt as tf

Pair = namedtuple("Pair", "left right")


@pytest.fixture
def session():
    with tf.Session() as opened:
        yield opened


# --- fetches


def test_results_have_the_structure_of_the_fetches(session):
    a, b, op = tf.constant(1.0, name="a"), tf.constant([2, 3]), tf.no_op(name="nothing")
    fetches = {"x": [a, (b, op)], "y": Pair(a, {"z": "a:0"}), "n": "nothing"}
    found = session.run(fetches)
    assert found["x"][0] == 1.0
    assert isinstance(found["x"][1], tuple)
    assert found["x"][1][0].tolist() == [2, 3]
    assert found["x"][1][1] is None
    assert found["y"] == Pair(1.0, {"z": 1.0})
    assert found["n"] is None


def test_mappings_come_back_as_their_own_kind(session):
    a = tf.constant(1.0)
    ordered = session.run(OrderedDict([("z", a), ("b", a)]))
    assert type(ordered) is OrderedDict
    assert list(ordered) == ["z", "b"]
    default = session.run(defaultdict(list, k=a))
    assert default == {"k": 1.0}
    assert default["missing"] == []


def test_empty_structures_and_single_operations(session):
    assert session.run([]) == []
    assert session.run(()) == ()
    assert session.run({}) == {}
    assert session.run(tf.no_op()) is None
    assert session.run([[], {"a": []}]) == [[], {"a": []}]


def test_scalars_come_as_numpy_scalars_and_strings_as_bytes(session):
    assert isinstance(session.run(tf.constant(1.0)), np.float32)
    assert session.run(tf.constant("text")) == b"text"
    assert session.run(tf.constant(["a", "b"])).tolist() == [b"a", b"b"]


def test_strings_keep_their_last_zeros(session):
    """A serialized message often ends in them; NumPy's own strings do not."""
    text, texts = tf.placeholder(tf.string, []), tf.placeholder(tf.string, [2])
    longer = tf.strings.join([text, b"!\0"])
    found = session.run(
        [text, longer, texts, tf.constant(b"a\0"), tf.constant([b"\0", b"b"])],
        {text: b"x\0", texts: [b"y\0", "z"]},
    )
    assert found[:2] == [b"x\0", b"x\0!\0"]
    assert found[2].tolist() == [b"y\0", b"z"]
    assert found[3] == b"a\0"
    assert found[4].tolist() == [b"\0", b"b"]


@pytest.mark.parametrize("texts", [[np.array("a"), "b"], [[np.array(b"a")], ["b"]], np.array(["a", "b"])])
def test_strings_may_be_arrays_of_one(session, texts):
    fed = tf.placeholder(tf.string)
    for found in session.run([tf.constant(texts), fed], {fed: texts}):
        assert found.ravel().tolist() == [b"a", b"b"]


def test_the_same_tensor_may_be_fetched_often(session):
    a = tf.constant([1.0]) + 1
    first, (second, third) = session.run([a, (a, a)])
    first[0] = 9
    assert second[0] == third[0] == 2.0


def test_sparse_gradients_and_variables_can_be_fetched(session):
    v = tf.Variable([[1.0], [2.0], [3.0]])
    (gradient,) = tf.gradients(tf.gather(v, [2, 0]), [v])
    session.run(v.initializer)
    found = session.run({"v": v, "g": gradient})
    assert found["v"].ravel().tolist() == [1, 2, 3]
    assert found["g"].indices.tolist() == [2, 0]
    assert found["g"].dense_shape.tolist() == [3, 1]


@pytest.mark.parametrize("wrong", [None, 5, [None], {"a": 3.5}, {1, 2}, np.zeros(2)])
def test_what_cannot_be_fetched_is_a_type_error(session, wrong):
    with pytest.raises(TypeError, match="expected"):
        session.run(wrong)


def test_an_error_in_a_nested_fetch_names_its_place(session):
    with pytest.raises(tf.errors.DTypeError, match=r"fetches\['a'\]\[1\]"):
        session.run({"a": [tf.constant(1.0), None]})


def test_an_unknown_name_is_tensorflows_error(session):
    with pytest.raises(ValueError, match="expected the name of a tensor"):
        session.run("nothing:0")
    with pytest.raises(TypeError, match="expected the name of a tensor"):
        session.run(tf.constant(1.0), {"nothing:0": 1})


def test_strings_that_spell_numbers_may_be_fed(session):
    x, i = tf.placeholder(tf.float32), tf.placeholder(tf.int64)
    fed = {x: [["1.5", b"-2"], ["1e3", " nan"]], i: np.array(["7", "-1"])}
    values, whole = session.run((x + 0, i + 0), fed)
    np.testing.assert_array_equal(values, [[1.5, -2], [1000, np.nan]])
    assert whole.tolist() == [7, -1]
    half = tf.placeholder(tf.bfloat16)
    assert session.run(half + 0, {half: ["1.5", "-2"]}).tolist() == [1.5, -2]
    for tensor, wrong in ((x, ["1", "two"]), (i, "1.5"), (x, ["1", None]), (half, "two")):
        with pytest.raises(ValueError, match="expected"):
            session.run(tensor + 0, {tensor: wrong})


def test_unknown_names_and_foreign_elements_are_refused(session):
    tf.constant(1.0, name="known")
    with pytest.raises(KeyError, match="known"):
        session.run("knowm:0")
    with pytest.raises(tf.errors.NotFoundError):
        session.run("known:1")
    with tf.Graph().as_default():
        foreign = tf.constant(1.0)
    with pytest.raises(ValueError, match="not an element of this graph"):
        session.run(foreign)
    with pytest.raises(ValueError, match="not an element of this graph"):
        session.run("known:0", {foreign: 2.0})


def test_a_variable_is_fetched_by_its_name_too(session):
    v = tf.Variable(1.0, name="scope/v")
    session.run(v.initializer)
    assert session.run([v, v.name, "scope/v:0", v.handle]) == [1.0] * 4


def test_a_handle_of_something_else_cannot_be_fetched(session):
    iterator = tf.data.Dataset.range(3).make_initializable_iterator()
    with pytest.raises(tf.errors.InvalidArgumentError, match="resource cannot be fetched"):
        session.run(iterator.initializer.inputs[0])


# --- feeds


def test_any_tensor_can_be_fed(session):
    a = tf.constant(1.0)
    b = a + 1
    c = b * 10
    left, right = tf.split(tf.constant([1.0, 2.0, 3.0, 4.0]), 2)
    assert session.run([b, c], {b: 5.0}) == [5.0, 50.0]
    assert session.run(c, {a: 2.0}) == 30.0
    assert session.run(c.name, {b.name: 7.0}) == 70.0
    found = session.run([left, right + 0], {right: [9, 9]})  # one output of two
    assert [f.tolist() for f in found] == [[1, 2], [9, 9]]


def test_a_fed_tensors_producer_does_not_run(session):
    called = []
    y = tf.py_func(lambda: called.append(1) or np.float32(1), [], tf.float32)
    y.set_shape([])
    assert session.run(y + 1, {y: 4.0}) == 5.0
    assert called == []


def test_feeds_are_converted_to_the_tensors_dtype(session):
    x, n, flag, text = (tf.placeholder(d) for d in (tf.float32, tf.int32, tf.bool, tf.string))
    found = session.run([x, n, flag, text], {x: [1, 2], n: np.array([3.0]), flag: True, text: ["a", b"b"]})
    assert [f.dtype for f in found] == [np.float32, np.int32, np.bool_, object]
    assert found[3].tolist() == [b"a", b"b"]


def test_an_array_of_objects_may_have_texts(session):
    texts = tf.placeholder(tf.string, [2])
    fetched = [tf.identity(texts), tf.strings.join([texts, "."])]
    same, longer = session.run(fetched, {texts: np.array(["a", b"b"], object)})
    assert same.tolist() == [b"a", b"b"]
    assert longer.tolist() == [b"a.", b"b."]
    with pytest.raises(tf.errors.DTypeError, match="got 1 of type int"):
        session.run(fetched, {texts: np.array(["a", 1], object)})


@pytest.mark.parametrize(
    "dtype, value",
    [
        (tf.int32, 1.5), (tf.int32, [1, 2.5]), (tf.int32, 2**40), (tf.uint8, 300), (tf.uint8, -1),
        (tf.float32, "x"), (tf.float32, 1j), (tf.float32, None), (tf.string, 3.0), (tf.float32, object()),
        (tf.int64, np.array([2.0**70])), (tf.float32, 10**400),
    ],
)  # fmt: skip
def test_a_value_that_the_dtype_cannot_hold_is_refused(session, dtype, value):
    x = tf.placeholder(dtype)
    with pytest.raises(TypeError, match="expected"):
        session.run(tf.identity(x), {x: value})


@pytest.mark.parametrize(
    ("dtype", "value", "wrong"),
    [(tf.int32, -7, 2**40), (tf.uint8, 255, -1), (tf.bool, True, "x"), (tf.bfloat16, 2, 10**400)],
    ids=["int32", "uint8", "bool", "bfloat16"],
)
def test_a_number_that_goes_to_its_buffer_unconverted_is_checked_too(session, dtype, value, wrong):
    x = tf.placeholder(dtype, [])
    y = tf.stack([x, x])
    for given in (value, value, np.asarray(value, dtype.as_numpy_dtype)):
        assert session.run(y, {x: given}).tolist() == [value, value]
    with pytest.raises(TypeError, match=f"expected {dtype.name}"):
        session.run(y, {x: wrong})


@pytest.mark.parametrize(("dtype", "value"), [(tf.int32, [2**40]), (tf.uint8, [300, 1]), (tf.uint8, [3, -1])])
def test_an_array_that_the_dtype_cannot_hold_is_no_constant(dtype, value):
    with pytest.raises(TypeError, match=rf"of {dtype.name}; got {value[0] if value[0] > 3 else -1}"):
        tf.constant(np.array(value), dtype)


def test_a_feed_error_names_the_placeholder_and_the_users_line(session):
    x = tf.placeholder(tf.float32, [None, 3], name="images")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        session.run(x, {x: np.zeros((2, 4))})
    assert caught.value.op == "images"
    assert "test_fetches_and_feeds.py" in caught.value.source
    assert "[?, 3]" in str(caught.value)
    assert "[2, 4]" in str(caught.value)
    with pytest.raises(tf.errors.InvalidArgumentError, match="ragged"):
        session.run(x, {x: [[1, 2, 3], [1]]})
    with pytest.raises(tf.errors.DTypeError, match="graph element"):
        session.run(x, {x: x})


def test_an_unfed_placeholder_is_named_with_the_users_line(session):
    x = tf.placeholder(tf.float32, [2], name="needed")
    y = x + 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"'needed'.*test_fetches_and_feeds\.py"):
        session.run(y)
    assert session.run(y, {x: [1, 2]}).tolist() == [2, 3]


def test_what_may_not_be_fed_is_refused(session):
    a, v = tf.constant(1.0), tf.Variable(1.0)
    a.graph.prevent_feeding(a)
    for key in (a, v, v.handle):
        with pytest.raises(tf.errors.InvalidArgumentError, match="feed"):
            session.run(tf.no_op(), {key: 1.0})
    with pytest.raises(TypeError):
        session.run(tf.no_op(), {tf.no_op(): 1.0})
    b = tf.constant(1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="once"):
        session.run(b, {b: 1.0, b.name: 2.0})


@pytest.mark.parametrize("wrong", [5, [1], "x", [("a", 1)]])
def test_a_feed_dict_that_is_none_is_a_type_error(session, wrong):
    with pytest.raises(TypeError, match="feed_dict"):
        session.run(tf.constant(1.0), wrong)


def test_feeds_of_another_shape_make_a_plan_of_their_own_up_to_a_limit(session):
    x = tf.placeholder(tf.float32, [None])
    y = tf.reduce_sum(tf.reshape(x, [-1, 1]) * 2.0)
    for n in list(range(1, 80)) * 2:
        assert session.run(y, {x: np.ones(n)}) == 2 * n
    (request,) = [r for r in session._requests.values() if r.feeds == (x,)]
    assert len(request.plans) <= 34


def test_shapes_that_do_not_fit_are_found_when_they_are_fed(session):
    x, y = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.float32, [None])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        session.run(x + y, {x: np.ones(2), y: np.ones(3)})
    assert caught.value.op_type == "AddV2"
    assert "test_fetches_and_feeds.py" in caught.value.source
    assert session.run(x + y, {x: np.ones(2), y: np.ones(1)}).tolist() == [2, 2]
