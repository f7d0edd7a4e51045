"""Datasets in the graph: what a script that was written for TensorFlow 1 does with them."""

import collections
import gc
import threading

import numpy as np
import pytest

import flowrt as tf
import flowrt.graph.ops.surface.all
from flowrt import dtypes
from flowrt.data import (
    AUTOTUNE,
    Dataset,
    Iterator,
    TextLineDataset,
    experimental,
    make_initializable_iterator,
    make_one_shot_iterator,
)
from flowrt.errors import (
    CancelledError,
    DTypeError,
    FailedPreconditionError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    UnimplementedError,
)
from flowrt.executor.session.session import Session
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.constant import constant, placeholder
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.ops.array.ranges import range as range_of
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.elementwise.comparison import greater
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.ops.text.python_calls import py_func
from flowrt.variables.variable import Variable

Point = collections.namedtuple("Point", "x y")


@pytest.fixture(autouse=True)
def graph():
    with Graph() as graph:
        yield graph


def plain(element):
    """An element with lists in place of arrays."""
    if isinstance(element, dict):
        return {key: plain(value) for key, value in element.items()}
    if isinstance(element, tuple):
        return tuple(plain(value) for value in element)
    return element.tolist() if isinstance(element, np.ndarray | np.generic) else element


def drain(session, fetches, limit=100):
    """The values of ``fetches`` until the end of the sequence."""
    found = []
    while len(found) < limit:
        try:
            found.append(plain(session.run(fetches)))
        except OutOfRangeError:
            break
    return found


def elements(dataset, limit=100):
    following = dataset.make_one_shot_iterator().get_next()
    with Session() as session:
        return drain(session, following, limit)


# --- structures


def test_elements_keep_their_structure():
    dataset = Dataset.from_tensor_slices({"a": [1, 2], "b": (np.array([1.5, 2.5]), ["x", "y"])})
    assert elements(dataset) == [{"a": 1, "b": (1.5, b"x")}, {"a": 2, "b": (2.5, b"y")}]
    assert dataset.output_types == {"a": dtypes.int32, "b": (dtypes.float64, dtypes.string)}
    assert dataset.output_shapes["b"][0].as_list() == []
    assert list(dataset.output_classes) == ["a", "b"]


def test_named_tuples_are_structures_and_one_argument_of_a_map_function():
    dataset = Dataset.from_tensor_slices(Point([1, 2], [3, 4])).map(lambda p: Point(p.y, p.x))
    following = dataset.make_one_shot_iterator().get_next()
    assert isinstance(following, Point)
    with Session() as session:
        assert session.run(following) == Point(3, 1)


def test_a_tuple_is_several_arguments_of_a_map_function_and_a_dict_is_one():
    tuples = Dataset.from_tensor_slices(([1, 2], [3, 4])).map(lambda x, y: x + y)
    dicts = Dataset.from_tensor_slices({"x": [1, 2], "y": [3, 4]}).map(lambda d: d["x"] + d["y"])
    assert elements(tuples) == elements(dicts) == [4, 6]


def test_lists_become_tensors():
    assert elements(Dataset.from_tensors([[1, 2], [3, 4]])) == [[[1, 2], [3, 4]]]
    assert elements(Dataset.range(2).map(lambda x: [x, x + 10])) == [[0, 10], [1, 11]]


def test_get_next_knows_types_and_shapes():
    image, label = (
        Dataset.from_tensor_slices((np.zeros([6, 2, 3], np.float32), np.arange(6)))
        .batch(4)
        .make_one_shot_iterator()
        .get_next()
    )
    assert (image.dtype, image.shape.as_list()) == (dtypes.float32, [None, 2, 3])
    assert (label.dtype, label.shape.as_list()) == (dtypes.int64, [None])


# --- transformations


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda d: d.batch(2), [[0, 1], [2, 3], [4]]),
        (lambda d: d.batch(2, drop_remainder=True), [[0, 1], [2, 3]]),
        (lambda d: d.batch(2).unbatch(), [0, 1, 2, 3, 4]),
        (lambda d: d.map(lambda x: x * 2), [0, 2, 4, 6, 8]),
        (lambda d: d.map(lambda x: x * 2, num_parallel_calls=AUTOTUNE), [0, 2, 4, 6, 8]),
        (lambda d: d.filter(lambda x: greater(x, 2)), [3, 4]),
        (lambda d: d.take(2).repeat(2), [0, 1, 0, 1]),
        (lambda d: d.skip(3).repeat(-1).take(3), [3, 4, 3]),
        (lambda d: d.batch(2).skip(2**62), []),
        (lambda d: d.shard(2, 1), [1, 3]),
        (lambda d: d.concatenate(Dataset.range(7, 9)), [0, 1, 2, 3, 4, 7, 8]),
        (lambda d: d.skip(3).enumerate(start=5), [(5, 3), (6, 4)]),
        (lambda d: d.take(2).cache().repeat(2).prefetch(1), [0, 1, 0, 1]),
        (lambda d: d.apply(lambda other: other.take(1)), [0]),
        (lambda d: d.take(3).flat_map(Dataset.range), [0, 0, 1]),
        (lambda d: d.take(2).interleave(lambda x: Dataset.from_tensors(x).repeat(2), 2), [0, 1, 0, 1]),
        (lambda d: Dataset.zip((d, Dataset.range(8, 10))), [(0, 8), (1, 9)]),
        (lambda d: d.shuffle(5, seed=1).batch(5).map(reduce_sum), [10]),
        (lambda d: Dataset.range(10, 0, -5), [10, 5]),
    ],
)  # fmt: skip
def test_a_transformation(build, expected):
    assert elements(build(Dataset.range(5))) == expected


def test_padded_batch_pads_to_the_longest():
    ragged = Dataset.range(1, 4).map(
        lambda n: reshape(py_func(lambda m: np.full(m, m), [n], dtypes.int64), [-1])
    )
    assert elements(ragged.padded_batch(3, padded_shapes=[None])) == [[[1, 0, 0], [2, 2, 0], [3, 3, 3]]]
    padded = ragged.padded_batch(2, [4], padding_values=np.int64(-1), drop_remainder=True)
    assert elements(padded) == [[[1, -1, -1, -1], [2, 2, -1, -1]]]
    assert padded.output_shapes.as_list() == [2, 4]


def test_padded_batch_refuses_another_rank():
    with pytest.raises(InvalidArgumentError, match="expected a padded shape of rank 0"):
        Dataset.range(3).padded_batch(2, [None])


def test_text_lines_come_as_strings(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text(f"{name}1\n{name}2\r\n")
    dataset = TextLineDataset([str(tmp_path / "a"), str(tmp_path / "b")]).skip(1)
    assert elements(dataset) == [b"a2", b"b1", b"b2"]


def test_a_missing_file_is_not_found_when_its_turn_comes(tmp_path):
    following = TextLineDataset(str(tmp_path / "none")).make_one_shot_iterator().get_next()
    with Session() as session, pytest.raises(NotFoundError, match="expected a file at"):
        session.run(following)


def test_a_generator_is_called_for_every_pass_with_its_arguments():
    calls = []

    def generate(n):
        calls.append(n.tolist())
        yield from ({"x": i, "y": [i] * int(n)} for i in range(2))

    dataset = Dataset.from_generator(
        generate, {"x": dtypes.int32, "y": dtypes.float32}, {"x": [], "y": [None]}, args=(2,)
    ).repeat(2)
    once = [{"x": 0, "y": [0.0, 0.0]}, {"x": 1, "y": [1.0, 1.0]}]
    assert elements(dataset) == once * 2
    assert calls == [2, 2]


def test_a_generator_gets_scalars_as_values():
    def generate(name, n):
        yield [{2: name.decode()}[n]] * n

    def of(*args):
        return Dataset.from_generator(generate, dtypes.string, [None], args=args)

    names = Dataset.from_tensor_slices(["b", "c"])
    assert elements(of("a", 2)) == elements(of(constant("a"), constant(2))) == [[b"a", b"a"]]
    assert elements(names.flat_map(lambda name: of(name, 2))) == [[b"b", b"b"], [b"c", b"c"]]


def test_a_generator_that_breaks_its_word_is_named():
    following = (
        Dataset.from_generator(lambda: iter([1, "two"]), dtypes.int32).make_one_shot_iterator().get_next()
    )
    with Session() as session:
        assert session.run(following) == 1
        with pytest.raises(DTypeError, match="from_generator: element 1: expected int32"):
            session.run(following)


# --- functions


def test_python_functions_run_in_a_map():
    dataset = Dataset.range(3).map(lambda x: py_func(lambda v: v * 10, [x], dtypes.int64))
    assert elements(dataset) == [0, 10, 20]


def test_random_ops_in_a_map_draw_anew_for_each_element():
    dataset = Dataset.range(4).map(lambda x: random_uniform([3]))
    draws = np.array(elements(dataset))
    assert len({tuple(row) for row in draws.tolist()}) == 4


def test_a_seeded_graph_gives_equal_datasets(graph):
    def run():
        with Graph() as inner:
            inner.seed = 7
            return elements(Dataset.range(20).shuffle(20).map(lambda x: (x, random_uniform([]))))

    assert run() == run()


def test_unseeded_shuffles_differ_from_run_to_run():
    iterator = Dataset.range(50).shuffle(50).batch(50).make_initializable_iterator()
    following = iterator.get_next()
    orders = set()
    with Session() as session:
        for _ in range(3):
            session.run(iterator.initializer)
            orders.add(tuple(session.run(following)))
    assert len(orders) == 3


def test_a_map_function_is_traced_once_with_what_is_known():
    shapes = []
    Dataset.from_tensor_slices(np.zeros([4, 3])).batch(2).map(lambda x: shapes.append(x.shape.as_list()) or x)
    assert shapes == [[None, 3]]


def test_a_tensor_around_a_map_function_has_its_value_of_when_the_iterator_began():
    around = convert_to_tensor(np.array([3, 5, 7]))
    fed = placeholder(np.int64, [])
    dataset = Dataset.range(3).map(lambda i: around[i] + fed).filter(lambda x: x > around[0])
    padded = dataset.map(lambda x: range_of(x - 5)).padded_batch(2, [None], padding_values=fed)
    iterators = [one.make_initializable_iterator() for one in (dataset, padded)]
    following = [one.get_next() for one in iterators]
    one_shot = Dataset.range(2).map(lambda i: around[i]).make_one_shot_iterator().get_next()
    with Session() as session:
        session.run([one.initializer for one in iterators], {fed: 1})
        assert session.run(following[0]) == 4
        assert session.run(following[0]) == 6
        session.run(iterators[0].initializer, {fed: 2})
        assert session.run(following[0]) == 5
        session.run(iterators[1].initializer, {fed: 2})
        assert session.run(following[1]).tolist() == [[2, 2], [0, 1]]
        assert session.run(one_shot) == 3


def test_a_variable_around_a_map_function_is_refused():
    outside = Variable(1.0)
    with pytest.raises(UnimplementedError, match="expected a function of its arguments"):
        Dataset.from_tensors(1.0).map(lambda x: x + outside)
    with pytest.raises(UnimplementedError, match="expected a function of its arguments"):
        Dataset.from_tensors(1.0).map(lambda x: convert_to_tensor(outside))


def test_an_error_in_a_map_names_the_users_line():
    dataset = Dataset.from_tensors(np.arange(3)).map(
        lambda x: reshape(x, [2, -1]) if x.shape is None else refuse(x)
    )
    following = dataset.make_one_shot_iterator().get_next()
    with Session() as session, pytest.raises(InvalidArgumentError, match=r"test_dataset.py:.*no good"):
        session.run(following)


def refuse(x):
    def function(value):
        raise ValueError("no good")

    return py_func(function, [x], dtypes.int64)


@pytest.mark.parametrize(
    ("function", "is_pure"),
    [
        pytest.param(lambda x: tf.cast(x, tf.float32) * 2.0, True, id="arithmetic"),
        pytest.param(lambda x: tf.random_uniform([2]), False, id="random"),
        pytest.param(lambda x: tf.py_func(lambda y: y, [x], tf.int64), False, id="python"),
        pytest.param(lambda x: tf.Print(x, [x]), False, id="print"),
        pytest.param(
            lambda x: tf.cond(x > 0, lambda: tf.random_uniform([]), lambda: 0.0),
            False,
            id="random in a branch",
        ),
    ],
)
def test_only_functions_without_effects_need_not_be_called(function, is_pure):
    assert Dataset.range(3).map(function).node.is_pure is is_pure


def test_a_predicate_must_give_a_bool():
    with pytest.raises(DTypeError, match="expected predicate to return a bool scalar; got int64"):
        Dataset.range(3).filter(lambda x: x + 1)


def test_a_function_that_should_return_a_dataset_must():
    with pytest.raises(DTypeError, match="flat_map: map_func's result: expected a Dataset"):
        Dataset.range(3).flat_map(lambda x: x)


def test_a_map_in_a_flat_map_works():
    dataset = Dataset.range(3).flat_map(
        lambda n: Dataset.range(n + 1).map(lambda x: x * 10).filter(lambda x: x > 0)
    )
    assert elements(dataset) == [10, 10, 20]


# --- iterators


def test_an_initializable_iterator_reads_its_placeholders_when_it_begins():
    data, size = placeholder("float32", [None]), placeholder("int64", [])
    iterator = make_initializable_iterator(Dataset.from_tensor_slices(data).batch(size))
    following = iterator.get_next()
    fed = np.arange(3, dtype=np.float32)
    with Session() as session:
        session.run(iterator.initializer, {data: fed, size: 2})
        fed[:] = -1  # the caller's array again
        assert drain(session, following) == [[0, 1], [2]]
        session.run(iterator.initializer, {data: [7, 8, 9], size: 3})
        assert drain(session, following) == [[7, 8, 9]]


def test_an_initializer_can_read_a_variable():
    variable = Variable(np.arange(3))
    iterator = make_initializable_iterator(Dataset.from_tensor_slices(variable))
    following = iterator.get_next()
    with Session() as session:
        session.run(variable.initializer)
        session.run(iterator.initializer)
        assert drain(session, following) == [0, 1, 2]


def test_an_iterator_that_has_not_begun_says_so_and_can_begin_then():
    iterator = make_initializable_iterator(Dataset.range(1))
    following = iterator.get_next()
    with Session() as session:
        with pytest.raises(FailedPreconditionError, match=r"IteratorGetNext.*not initialized"):
            session.run(following)
        session.run(iterator.initializer)
        assert session.run(following) == 0


def test_a_bad_argument_that_is_fed_fails_the_initializer():
    size = placeholder("int64", [])
    iterator = make_initializable_iterator(Dataset.range(3).batch(size))
    with (
        Session() as session,
        pytest.raises(InvalidArgumentError, match=r"MakeIterator.*batch_size: expected at least 1"),
    ):
        session.run(iterator.initializer, {size: 0})


def test_an_iterator_from_a_structure_goes_through_several_datasets():
    train, test = Dataset.range(2), Dataset.range(10, 12).map(lambda x: x + 1)
    iterator = Iterator.from_structure(
        train.output_types, train.output_shapes, output_classes=train.output_classes
    )
    with pytest.raises(UnimplementedError, match="expected components that are tensors; got <class 'int'>"):
        Iterator.from_structure(dtypes.int64, output_classes=int)
    begin_train, begin_test = iterator.make_initializer(train), iterator.make_initializer(test)
    following = iterator.get_next()
    with Session() as session:
        for begin, expected in [(begin_train, [0, 1]), (begin_test, [11, 12]), (begin_train, [0, 1])]:
            session.run(begin)
            assert drain(session, following) == expected
    with pytest.raises(FailedPreconditionError, match="make_initializer"):
        _ = iterator.initializer


def test_a_string_that_is_fed_names_the_iterator_of_a_step():
    train, test = Dataset.range(3).repeat(), Dataset.range(10, 12)
    handle = placeholder(dtypes.string, [])
    following = Iterator.from_string_handle(handle, train.output_types, train.output_shapes).get_next()
    forever, begun = train.make_one_shot_iterator(), test.make_initializable_iterator()
    with Session() as session:
        a, b = session.run([forever.string_handle(), begun.string_handle()])
        with pytest.raises(FailedPreconditionError, match="not initialized"):
            session.run(following, {handle: b})
        got = []
        for _ in range(2):
            session.run(begun.initializer)
            got += [session.run(following, {handle: name}) for name in (a, b, b, a)]
            with pytest.raises(OutOfRangeError):
                session.run(following, {handle: b})
        assert got == [0, 10, 11, 1, 2, 10, 11, 0]
        assert session.run(forever.string_handle()) == a


def test_a_string_that_names_no_iterator_of_these_components():
    handle = placeholder(dtypes.string, [])
    elements = Dataset.range(3).make_one_shot_iterator()
    same = Iterator.from_string_handle(handle, dtypes.int64).get_next()
    other = Iterator.from_string_handle(handle, (dtypes.int64, dtypes.float32), ([], [2])).get_next()
    with Session() as session:
        name = session.run(elements.string_handle())
        with pytest.raises(InvalidArgumentError, match=r"int64\[\], float32\[2\]; got one with int64\[\]"):
            session.run(other, {handle: name})
        with pytest.raises(NotFoundError, match=r"test_dataset\.py.*string_handle.*got b'another'"):
            session.run(same, {handle: b"another"})
        assert session.run(same, {handle: name}) == 0
    with Session() as session, pytest.raises(NotFoundError, match="of a session of this process that is"):
        session.run(same, {handle: name})
    with pytest.raises(InvalidArgumentError, match=r"expected one string; got shape \[2\]"):
        Iterator.from_string_handle(["a", "b"], dtypes.int64)


@pytest.mark.parametrize(
    ("dataset", "error", "message"),
    [
        (lambda: Dataset.from_tensors(1.0), DTypeError, "expected int64.*got float32"),
        (lambda: Dataset.range(2).batch(1), InvalidArgumentError, r"expected int64\[\]; got int64"),
        (lambda: Dataset.range(2).enumerate(), InvalidArgumentError, "iterator's structure"),
    ],
)
def test_a_dataset_of_another_structure_does_not_initialize(dataset, error, message):
    iterator = Iterator.from_structure(dtypes.int64, [])
    with pytest.raises(error, match=message):
        iterator.make_initializer(dataset())


def test_an_element_of_a_shape_that_was_not_declared_is_refused():
    def wrong(x):
        y = py_func(lambda v: np.zeros(3), [x], dtypes.float64)
        y.set_shape([2])
        return y

    following = Dataset.range(1).map(wrong).make_one_shot_iterator().get_next()
    with Session() as session, pytest.raises(InvalidArgumentError, match=r"expected shape \[2\]; got \[3\]"):
        session.run(following)


def test_a_one_shot_iterator_computes_its_sources_but_refuses_state():
    source = add(convert_to_tensor([1, 2]), 10)
    assert elements(Dataset.from_tensor_slices(source)) == [11, 12]
    with pytest.raises(InvalidArgumentError, match="make_initializable_iterator"):
        make_one_shot_iterator(Dataset.from_tensor_slices(Variable([1, 2])))
    with pytest.raises(InvalidArgumentError, match="placeholder"):
        make_one_shot_iterator(Dataset.from_tensor_slices(placeholder("float32", [2])))


def test_the_end_stays_the_end():
    following = Dataset.range(1).make_one_shot_iterator().get_next()
    with Session() as session:
        session.run(following)
        for _ in range(2):
            with pytest.raises(OutOfRangeError, match=r"IteratorGetNext.*end of sequence"):
                session.run(following)


def test_readers_of_one_get_next_see_the_same_element():
    x = Dataset.range(100).make_one_shot_iterator().get_next()
    a, b = add(x, 1), multiply(x, 2)
    with Session() as session:
        for i in range(3):
            assert session.run([a, b, x]) == [i + 1, i * 2, i]


def test_two_get_nexts_take_two_elements_in_the_order_of_creation():
    iterator = Dataset.range(100).make_one_shot_iterator()
    first, second = iterator.get_next(), iterator.get_next()
    with Session() as session:
        assert session.run([second, first]) == [1, 0]
        assert session.run([first, second]) == [2, 3]


def test_sessions_have_iterators_of_their_own():
    following = Dataset.range(5).make_one_shot_iterator().get_next()
    with Session() as one, Session() as other:
        assert one.run([following, following]) == [0, 0]
        assert (one.run(following), other.run(following)) == (1, 0)


def test_a_fetched_element_is_the_callers():
    data = np.arange(6).reshape(3, 2)
    following = Dataset.from_tensor_slices(data).repeat().make_one_shot_iterator().get_next()
    with Session() as session:
        first = session.run(following)
        first[:] = -1
        assert drain(session, following, 3) == [[2, 3], [4, 5], [0, 1]]


def test_the_dataset_keeps_a_copy_of_its_arrays():
    data = np.arange(3)
    dataset = Dataset.from_tensor_slices(data)
    data[:] = -1
    assert elements(dataset) == [0, 1, 2]


def test_an_iterator_beside_a_device_scope_stays_on_the_first_cpu(graph):
    with graph.device("/device:CPU:1"):
        iterator = Dataset.range(3).make_initializable_iterator()
        following = iterator.get_next()
    assert {op.device for op in (following.op, iterator.initializer)} == {"/device:CPU:0"}


def test_names_are_tensorflows(graph):
    iterator = Dataset.range(3).make_initializable_iterator()
    iterator.get_next()
    Dataset.range(3).make_one_shot_iterator().get_next(name="batch")
    types = {op.name: op.type for op in graph.get_operations() if op.type != "Const"}
    assert types == {
        "IteratorV2": "IteratorV2",
        "MakeIterator": "MakeIterator",
        "IteratorGetNext": "IteratorGetNext",
        "OneShotIterator": "OneShotIterator",
        "batch": "IteratorGetNext",
    }


# --- ending


def prefetch_threads():
    return [t for t in threading.enumerate() if t.name.startswith(("flowrt-prefetch", "flowrt-map"))]


def test_closing_the_session_ends_the_threads():
    following = Dataset.range(10**9).map(lambda x: x + 1, 2).prefetch(2).make_one_shot_iterator().get_next()
    with Session() as session:
        assert session.run(following) == 1
        assert prefetch_threads()
    assert not prefetch_threads()


def test_initializing_again_ends_the_threads_of_the_run_before():
    iterator = Dataset.range(10**9).prefetch(2).make_initializable_iterator()
    following = iterator.get_next()
    with Session() as session:
        for _ in range(3):
            session.run(iterator.initializer)
            assert session.run(following) == 0
        assert len(prefetch_threads()) == 1


def test_a_session_that_is_dropped_ends_its_threads():
    following = Dataset.range(10**9).prefetch(2).make_one_shot_iterator().get_next()
    session = Session()
    session.run(following)
    assert prefetch_threads()
    del session
    gc.collect()
    assert not prefetch_threads()


def test_closing_the_session_ends_a_step_that_waits_for_an_element():
    started = threading.Event()

    def never(x):
        started.set()
        return False

    endless = Dataset.range(10**18).filter(lambda x: py_func(never, [x], "bool"))
    following = endless.make_one_shot_iterator().get_next()
    session, errors = Session(), []

    def step():
        try:
            session.run(following)
        except CancelledError as error:
            errors.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    assert started.wait(30)
    session.close()
    thread.join(30)
    assert len(errors) == 1


def test_steps_on_several_threads_share_out_the_elements():
    following = Dataset.range(200).map(lambda x: x * 3, 2).prefetch(4).make_one_shot_iterator().get_next()
    found = []
    with Session() as session:
        threads = [
            threading.Thread(target=lambda: found.extend(drain(session, following, 300))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(found) == [x * 3 for x in range(200)]


# --- bad input


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Dataset.from_tensor_slices(1), InvalidArgumentError, "got a scalar"),
        (lambda: Dataset.from_tensor_slices(([1], [1, 2])), InvalidArgumentError, "same number of rows"),
        (lambda: Dataset.range(3).batch(0), InvalidArgumentError, "batch_size: expected at least 1; got 0"),
        (lambda: Dataset.range(3).batch(2.5), DTypeError, "batch_size: expected an integer; got 2.5"),
        (lambda: Dataset.range(3).shard(2, 2), InvalidArgumentError, r"expected an index in \[0, 2\)"),
        (Dataset.range, InvalidArgumentError, "expected 1 to 3 arguments"),
        (lambda: Dataset.range(3).cache("/tmp/x"), UnimplementedError, "cached in memory"),
        (lambda: Dataset.range(3).concatenate(3), DTypeError, "concatenate: expected a Dataset"),
        (lambda: Dataset.zip(()), InvalidArgumentError, "zip"),
        (lambda: Dataset.from_generator(3, dtypes.int32), DTypeError, "expected a function"),
        (lambda: Dataset.range(3).map(lambda x: None), DTypeError, "got None"),
        (lambda: TextLineDataset(3), DTypeError, "expected filenames"),
    ],
)
def test_bad_arguments_raise_where_the_dataset_is_built(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_autotune_is_tensorflows_number():
    assert experimental.AUTOTUNE == AUTOTUNE == -1


def test_get_next_of_another_graph_is_refused():
    iterator = Dataset.range(3).make_one_shot_iterator()
    with Graph(), pytest.raises(InvalidArgumentError):
        iterator.get_next()
    assert get_default_graph() is not None


def test_casts_in_a_map_change_the_declared_type():
    dataset = Dataset.from_tensor_slices(np.array([0, 128, 255], np.uint8)).map(
        lambda x: cast(x, "float32") / 255.0
    )
    assert dataset.output_types is dtypes.float32
    assert elements(dataset)[2] == 1.0


def test_a_graph_with_iterators_can_be_exported(graph):
    iterator = Dataset.from_tensor_slices(([1, 2], [[0.5], [1.5]])).make_initializable_iterator()
    iterator.get_next()
    Dataset.range(3).make_one_shot_iterator().get_next()
    exported = {node.name: node for node in graph.as_graph_def(add_shapes=True).node}
    shapes = exported["IteratorGetNext"].attr["output_shapes"].list.shape
    assert [[dim.size for dim in shape.dim] for shape in shapes] == [[], [1]]


def test_files_are_listed_when_an_epoch_begins(tmp_path) -> None:
    names = [str(tmp_path / name).encode() for name in ("a.txt", "b.txt", "c.txt", "d.csv")]
    listed = Dataset.list_files([str(tmp_path / "*.txt"), f"{tmp_path}/d*"], shuffle=False)
    shuffled = Dataset.list_files(str(tmp_path / "*"), seed=3)
    with pytest.raises(InvalidArgumentError, match=r"expected files that match '.*txt' or '.*d\*'; got none"):
        elements(listed)
    for name in reversed(names):
        open(name, "w").close()
    assert elements(listed) == names
    orders = {tuple(elements(Dataset.list_files(f"{tmp_path}/*", seed=seed))) for seed in range(8)}
    assert {tuple(sorted(order)) for order in orders} == {tuple(names)}
    assert len(orders) > 1
    assert elements(shuffled) == elements(shuffled)
    with pytest.raises(DTypeError, match="list_files: expected filenames; got 3"):
        Dataset.list_files(3)
