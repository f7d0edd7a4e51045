"""Dataset trees on the host against straightforward Python models."""

import gzip
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowrt import dtypes
from flowrt.base.structure import flatten
from flowrt.data.batching import Batch, PaddedBatch, Unbatch
from flowrt.data.node import ElementIterator, Node, bind
from flowrt.data.pipeline import (
    Cache,
    Concatenate,
    Filter,
    Interleave,
    Map,
    Prefetch,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Take,
    Zip,
)
from flowrt.data.record_files import TextLines
from flowrt.data.sources import FromGenerator, Range, Tensors, TensorSlices
from flowrt.data.spec import TensorSpec
from flowrt.errors import CancelledError, DTypeError, InvalidArgumentError, NotFoundError

INT = TensorSpec((), dtypes.int64)


def elements(node: Node, limit: int = 10_000) -> list:
    """The elements as plain Python values; a lone component without its tuple."""
    iterator = ElementIterator(node)
    found = [
        tuple(c.tolist() for c in element) if len(element) > 1 else element[0].tolist()
        for element in itertools.islice(iterator, limit)
    ]
    iterator.close()
    return found


def opaque(node: Node) -> Node:
    """The same elements through an identity map, so that nothing is known of rows."""
    return Map(node, lambda *components: components, node.spec)


def generated(values, spec=INT) -> Node:
    return FromGenerator(lambda: iter(values), spec)


# Every transformation that has a one-line model on lists, with small arguments.
small = st.integers(-1, 9)
TRANSFORMATIONS = st.one_of(
    small.map(lambda n: (lambda d: Take(d, n), lambda xs: xs if n < 0 else xs[:n])),
    small.map(lambda n: (lambda d: Skip(d, n), lambda xs: [] if n < 0 else xs[n:])),
    st.integers(0, 3).map(lambda n: (lambda d: Repeat(d, n), lambda xs: xs * n)),
    st.integers(0, 2).map(lambda i: (lambda d: Shard(d, 3, i), lambda xs: xs[i::3])),
    st.just((lambda d: Repeat(Cache(d), 2), lambda xs: xs * 2)),
    st.just((lambda d: Concatenate(d, Range(90, 93)), lambda xs: [*xs, 90, 91, 92])),
    st.just((lambda d: Filter(d, lambda x: x % 2 == 0), lambda xs: [x for x in xs if x % 2 == 0])),
    st.just((lambda d: Map(d, lambda x: (x * 3,), INT), lambda xs: [x * 3 for x in xs])),
    st.just((lambda d: Map(d, lambda x: (x + 1,), INT, 2), lambda xs: [x + 1 for x in xs])),
    st.integers(1, 4).map(lambda n: (lambda d: Unbatch(Batch(d, n)), lambda xs: xs)),
    st.integers(1, 4).map(
        lambda n: (lambda d: Unbatch(Batch(d, n, True)), lambda xs: xs[: len(xs) // n * n])
    ),
    st.integers(0, 3).map(lambda n: (lambda d: Prefetch(d, n), lambda xs: xs)),
    st.just(
        (
            lambda d: Interleave(d, lambda x: Repeat(Tensors(x), 2), INT),
            lambda xs: [x for x in xs for _ in "ab"],
        )
    ),
)


@given(st.integers(0, 12), st.lists(TRANSFORMATIONS, max_size=5), st.booleans())
def test_any_chain_of_transformations_equals_its_model_on_lists(size, chain, by_rows):
    node: Node = TensorSlices(np.arange(size)) if by_rows else Range(0, size)
    model = list(range(size))
    for transform, on_lists in chain:
        node, model = transform(node), on_lists(model)
    assert elements(node) == model


@given(
    st.integers(0, 20),
    st.integers(1, 25),
    st.integers(0, 2**70),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)
def test_batches_gathered_from_rows_equal_batches_of_stacked_elements(size, buffer, seed, batch, drop, again):
    data = {"x": np.arange(3 * size, dtype=np.float32).reshape(size, 3), "y": np.arange(size)}

    def pipeline(source: Node) -> Node:
        return Batch(Skip(Repeat(Shuffle(source, buffer, (seed, -1), again), 2), 1), batch, drop)

    assert pipeline(TensorSlices(data)).input.rows is not None
    assert elements(pipeline(TensorSlices(data))) == elements(pipeline(opaque(TensorSlices(data))))


@given(
    st.integers(0, 7),
    st.lists(st.sampled_from(["repeat 2", "repeat", "shuffle", "take", "cache", "shard"]), max_size=2),
    st.integers(0, 40),
    st.integers(1, 3),
)
def test_skipped_batches_are_those_that_would_have_come(size, chain, skipped, batch):
    """Also where whole epochs of rows, each of its own order, are not read."""
    node: Node = TensorSlices(np.arange(size))
    for number, name in enumerate(["shuffle", *chain]):
        node = {
            "repeat 2": Repeat(node, 2),
            "repeat": Take(Repeat(node), 90),
            "shuffle": Shuffle(node, 4, (number, -1)),
            "take": Take(node, 5),
            "cache": Cache(node),
            "shard": Shard(node, 2, 1),
        }[name]
    node = Prefetch(Batch(Repeat(node), batch), 0)
    assert elements(Skip(node, skipped), 9) == elements(node, skipped + 9)[skipped:]


def test_epochs_of_rows_that_are_skipped_are_not_read():
    """10**15 batches would take years."""
    rows = Shuffle(TensorSlices(np.arange(5)), 5, (3, -1), False)
    batches = Prefetch(Batch(Repeat(Repeat(rows, 3)), 2), 1)
    assert elements(Skip(batches, 10**15 + 1), 5) == elements(Skip(batches, 1), 5)


@pytest.mark.parametrize("workers", [None, 2], ids=["here", "threads"])
def test_a_function_without_effects_is_not_called_for_what_is_skipped(workers):
    rows, called = TensorSlices(np.arange(5)), []

    def first_after_10_batches(is_pure: bool) -> list:
        called.clear()
        mapped = Map(Repeat(rows), lambda x: called.append(int(x)) or (x * 10,), INT, workers, is_pure)
        return elements(Skip(Batch(mapped, 2), 10), 1)

    assert first_after_10_batches(is_pure=True) == first_after_10_batches(is_pure=False) == [[0, 10]]
    assert len(called) >= 22
    first_after_10_batches(is_pure=True)
    assert len(called) < 22


# --- shuffle


@given(st.integers(0, 30), st.integers(1, 35), st.integers(0, 1000))
def test_shuffle_is_a_permutation_in_which_no_element_comes_before_its_buffer_slot(size, buffer_size, seed):
    shuffled = elements(Shuffle(Range(0, size), buffer_size, (seed, 0)))
    assert sorted(shuffled) == list(range(size))
    assert all(value < place + buffer_size for place, value in enumerate(shuffled))


def test_shuffle_draws_every_order_equally_often():
    orders = [tuple(elements(Shuffle(Range(0, 3), 3, (seed, 0)))) for seed in range(1200)]
    counts = [orders.count(order) for order in itertools.permutations(range(3))]
    assert sum(counts) == 1200
    assert min(counts) > 150  # 200 expected, standard deviation 13


def test_shuffle_with_a_buffer_of_one_keeps_the_order():
    assert elements(Shuffle(Range(0, 9), 1, (1, 2))) == list(range(9))


def test_shuffle_fills_its_buffer_and_no_more_before_the_first_element():
    pulled = []
    source = FromGenerator(lambda: (pulled.append(i) or i for i in range(100)), INT)
    iterator = ElementIterator(Shuffle(source, 7, (1, 2)))
    next(iterator)
    assert len(pulled) == 7
    next(iterator)
    assert len(pulled) == 8
    iterator.close()


def test_the_same_seed_gives_the_same_order_and_another_seed_another():
    def order(*seed):
        return elements(Shuffle(Range(0, 50), 20, seed))

    assert order(1, 2) == order(1, 2)
    assert order(1, 2) != order(2, 1)
    assert order(-1, 2) != order(1, 2)


def test_every_epoch_has_its_own_order_unless_told_otherwise():
    first, second = np.split(np.array(elements(Repeat(Shuffle(Range(0, 40), 40, (7, 0)), 2))), 2)
    assert sorted(first) == sorted(second)
    assert first.tolist() != second.tolist()
    first, second = np.split(np.array(elements(Repeat(Shuffle(Range(0, 40), 40, (7, 0), False), 2))), 2)
    assert first.tolist() == second.tolist()
    nested = elements(Repeat(Repeat(Shuffle(Range(0, 40), 40, (7, 0)), 2), 2))
    assert len({tuple(epoch) for epoch in np.split(np.array(nested), 4)}) == 4


def test_equal_shuffles_that_are_zipped_stay_aligned():
    left, right = (Repeat(Shuffle(Range(0, 20), 20, (3, 4)), 2) for _ in range(2))
    assert all(a == b for a, b in elements(Zip((left, right))))


# --- zip, concatenate, interleave, cache


def test_zip_ends_with_its_shortest_input_and_keeps_structure():
    node = Zip({"b": Range(0, 3), "a": (Batch(Range(0, 5), 2), Tensors(np.zeros(2)))})
    assert node.spec["a"][1] == TensorSpec((2,), dtypes.float64)
    assert elements(node) == [([0, 1], [0.0, 0.0], 0)]


def test_zipped_slices_are_rows_of_the_shorter_one():
    node = Zip((TensorSlices(np.arange(5)), TensorSlices(np.arange(4) * 10)))
    assert node.rows is not None
    assert elements(Batch(node, 3)) == [([0, 1, 2], [0, 10, 20]), ([3], [30])]
    assert elements(node) == elements(Zip(tuple(map(opaque, node.inputs))))


def test_concatenate_keeps_what_both_shapes_share_and_refuses_other_dtypes():
    node = Concatenate(Tensors(np.zeros((2, 3))), Tensors(np.ones((4, 3))))
    assert node.spec == TensorSpec((None, 3), dtypes.float64)
    assert [len(x) for x in elements(node)] == [2, 4]
    with pytest.raises(DTypeError, match="expected int64; got float64"):
        Concatenate(Range(0, 2), Tensors(1.0))
    with pytest.raises(InvalidArgumentError, match="one structure"):
        Concatenate(Range(0, 2), Zip((Range(0, 2), Range(0, 2))))


def test_interleave_takes_blocks_in_turn_and_refills_a_place_when_its_turn_comes():
    node = Interleave(Range(1, 6), lambda x: Repeat(Tensors(x), 6), INT, cycle_length=2, block_length=4)
    # the worked example of TensorFlow's documentation
    assert (
        elements(node)
        == [1] * 4 + [2] * 4 + [1] * 2 + [2] * 2 + [3] * 4 + [4] * 4 + [3] * 2 + [4] * 2 + [5] * 6
    )


@given(st.lists(st.integers(0, 5), max_size=6), st.integers(1, 4), st.integers(1, 3))
def test_interleave_keeps_all_elements_and_each_datasets_order(sizes, cycle, block):
    node = Interleave(Range(0, len(sizes)), lambda i: Range(100 * i, 100 * i + sizes[i]), INT, cycle, block)
    found = elements(node)
    for i, size in enumerate(sizes):
        assert [x for x in found if x // 100 == i] == list(range(100 * i, 100 * i + size))
    assert len(found) == sum(sizes)


def test_cache_reads_its_input_once_a_run_and_keeps_the_first_order():
    opened = []
    source = FromGenerator(lambda: opened.append(1) or iter(range(6)), INT)
    first, second, third = np.split(np.array(elements(Repeat(Cache(Shuffle(source, 6, (1, 1))), 3))), 3)
    assert first.tolist() == second.tolist() == third.tolist()
    assert len(opened) == 1
    elements(Take(Cache(source), 2))
    assert elements(Cache(source)) == list(range(6))  # the part read before was not kept
    assert len(opened) == 3


# --- batches


def test_specs_follow_the_transformations():
    rows = TensorSlices({"x": np.zeros((5, 3), np.float32), "y": np.zeros(5, np.int32)})
    assert rows.spec == {"x": TensorSpec((3,), dtypes.float32), "y": TensorSpec((), dtypes.int32)}
    assert Batch(rows, 2).spec["x"] == TensorSpec((None, 3), dtypes.float32)
    assert Batch(rows, 2, True).spec["y"] == TensorSpec((2,), dtypes.int32)
    assert Unbatch(Batch(rows, 2)).spec == rows.spec
    assert PaddedBatch(Range(0, 3), 2, ((),), (None,)).spec == TensorSpec((None,), dtypes.int64)
    for node in (Prefetch(rows), Take(rows, 1), Shuffle(rows, 2, (0, 0)), Filter(rows, lambda *_: True)):
        assert node.spec == rows.spec


def test_batches_of_slices_are_read_only_views_of_the_source():
    source = np.arange(12.0).reshape(6, 2)
    (batch,) = next(ElementIterator(Batch(TensorSlices(source), 4)))
    assert np.shares_memory(batch, source)
    with pytest.raises(ValueError, match="read-only"):
        batch[0] = 0
    source[0] = 5  # the caller's own array stays writable


def test_strings_are_batched_as_bytes():
    words = np.array([b"a", b"bc\0", b""], object)
    for source in (TensorSlices(words), opaque(TensorSlices(words))):
        (batch,) = next(ElementIterator(Batch(source, 3)))
        assert batch.tolist() == [b"a", b"bc\0", b""]
        assert all(type(word) is bytes for word in batch)


def test_elements_of_different_shapes_are_refused_by_batch_and_padded_by_padded_batch():
    spec = {"a": TensorSpec((), dtypes.int64), "b": TensorSpec((None,), dtypes.int64)}
    source = generated([{"a": i, "b": [i] * i} for i in range(5)], spec)
    with pytest.raises(InvalidArgumentError, match=r"\['b'\]: expected shape \[0\].*got \[1\] at position 1"):
        elements(Batch(source, 2))
    padded = PaddedBatch(source, 2, ((), (None,)), (None, -1))
    assert elements(padded) == [([0, 1], [[-1], [1]]), ([2, 3], [[2, 2, -1], [3, 3, 3]]), ([4], [[4] * 4])]
    assert elements(PaddedBatch(source, 2, ((), (4,)), (None, None), True))[0] == (
        [0, 1],
        [[0, 0, 0, 0], [1, 0, 0, 0]],
    )
    with pytest.raises(InvalidArgumentError, match=r"\['b'\].*fit into \[2\]; got \[3\] at position 1"):
        elements(PaddedBatch(source, 2, ((), (2,)), (None, None)))
    with pytest.raises(InvalidArgumentError, match="padded shape of rank 0"):
        PaddedBatch(Range(0, 3), 2, ((None,),), (None,))


def test_padded_strings_are_filled_with_empty_ones():
    source = generated([["a"], ["b", "c"]], TensorSpec((None,), dtypes.string))
    assert elements(PaddedBatch(source, 2, ((None,),), (None,))) == [[[b"a", b""], [b"b", b"c"]]]


def test_components_with_different_row_counts_are_refused():
    with pytest.raises(InvalidArgumentError, match=r"same number of rows.*\[3\], \[4, 2\]"):
        TensorSlices((np.zeros(3), np.zeros((4, 2))))
    with pytest.raises(InvalidArgumentError, match="got a scalar"):
        TensorSlices(np.float32(3))
    with pytest.raises(InvalidArgumentError, match="got a scalar"):
        Unbatch(Range(0, 3))
    ragged = generated([([1, 2], [1, 2, 3])], (TensorSpec((None,), dtypes.int64),) * 2)
    with pytest.raises(InvalidArgumentError, match=r"same number of rows in all components.*\[2\], \[3\]"):
        elements(Unbatch(ragged))


# --- generators, text files


@pytest.mark.parametrize(
    ("dtype", "given", "stored"),
    [
        (dtypes.int32, [1, 2], [1, 2]),
        (dtypes.uint8, 255, 255),
        (dtypes.float32, np.float64(0.5), 0.5),
        (dtypes.float32, 3, 3.0),
        (dtypes.int64, 2.0, 2),
        (dtypes.string, "ä", "ä".encode()),
        (dtypes.string, [b"a\0", "b"], [b"a\0", b"b"]),
        (dtypes.bool_, np.True_, True),
    ],
)
def test_generated_values_are_converted_to_the_declared_dtype(dtype, given, stored):
    node = generated([given], TensorSpec(None, dtype))
    (array,) = next(ElementIterator(node))
    assert array.dtype == dtype.np
    assert array.tolist() == stored


@pytest.mark.parametrize(
    ("dtype", "given"),
    [
        (dtypes.int32, 2.5),
        (dtypes.int32, "x"),
        (dtypes.int8, 300),
        (dtypes.uint8, -1),
        (dtypes.int64, 2**70),
        (dtypes.int32, np.int64(2**40)),
        (dtypes.float32, 1j),
        (dtypes.float32, None),
        (dtypes.float32, [[1.0], [1.0, 2.0]]),
        (dtypes.string, 5),
    ],
)
def test_a_generated_value_of_a_wrong_type_is_refused_with_its_element_number(dtype, given):
    node = generated(
        [np.zeros((), dtype.np) if dtype is not dtypes.string else "", given], TensorSpec(None, dtype)
    )
    iterator = ElementIterator(node)
    next(iterator)
    with pytest.raises(DTypeError, match=f"element 1: expected {dtype.name}"):
        next(iterator)


def test_a_generated_value_of_a_wrong_shape_or_structure_is_refused_with_its_place():
    spec = {"x": TensorSpec((2, None), dtypes.int64)}
    with pytest.raises(InvalidArgumentError, match=r"element 1\['x'\]: expected shape \[2, \?\]; got \[3\]"):
        elements(generated([{"x": [[1], [2]]}, {"x": [1, 2, 3]}], spec))
    with pytest.raises(InvalidArgumentError, match=r"element 0: .*expected keys \['x'\]; got \['y'\]"):
        elements(generated([{"y": 1}], spec))


def test_a_generator_gets_its_arguments_and_is_closed_with_the_iterator():
    log = []

    def count_from(start):
        try:
            yield from itertools.count(start)
        finally:
            log.append("closed")

    generators = []  # a second owner: dropping a generator would close it too

    def make(start):
        generators.append(count_from(start))
        return generators[-1]

    iterator = ElementIterator(Take(FromGenerator(make, INT, (np.int64(5),)), 10))
    assert next(iterator) == (5,)
    iterator.close()
    assert log == ["closed"]


def test_lines_of_text_files_come_without_their_ends(tmp_path):
    (tmp_path / "a").write_bytes(b"one\r\n\ntwo")
    (tmp_path / "b").write_bytes(gzip.compress(b"three\n"))
    assert elements(TextLines(str(tmp_path / "a"))) == [b"one", b"", b"two"]
    assert elements(TextLines([str(tmp_path / "b").encode()], "GZIP")) == [b"three"]
    with pytest.raises(NotFoundError, match="gone"):
        elements(TextLines(np.array([str(tmp_path / "a").encode(), b"/gone"], object)))
    with pytest.raises(InvalidArgumentError, match="'ZIP'"):
        elements(TextLines(str(tmp_path / "a"), "ZIP"))


# --- arguments, binding, the iterator


@pytest.mark.parametrize(
    "build",
    [
        lambda d: Batch(d, 0),
        lambda d: PaddedBatch(d, np.int64(0), ((),), (None,)),
        lambda d: Shuffle(d, 0, (0, 0)),
        lambda d: Shard(d, 2, 2),
        lambda d: Shard(d, 0, 0),
        lambda d: Prefetch(d, -2),
        lambda d: Map(d, lambda x: (x,), INT, 0),
        lambda d: Interleave(d, lambda x: d, INT, 0),
        lambda d: Interleave(d, lambda x: d, INT, 1, 0),
        lambda d: Range(0, 3, 0),
        lambda d: Zip(()),
    ],
)
def test_an_argument_out_of_range_is_refused_when_the_node_is_made(build):
    with pytest.raises(InvalidArgumentError, match=r"expected .*; got"):
        build(Range(0, 3))


class Symbol:
    """What stands in a tree for a value that is not known yet."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, dtype


def test_symbolic_leaves_have_specs_and_are_bound_everywhere():
    data, size, count = Symbol((None, 2), dtypes.int64), Symbol((), dtypes.int64), Symbol((), dtypes.int64)
    tree = Batch(Zip({"x": Take(Shuffle(TensorSlices((data,)), 1, (size, 0)), count)}), size, True)
    assert tree.spec == {"x": (TensorSpec((None, 2), dtypes.int64),)}
    values = {data: np.arange(8).reshape(4, 2), size: np.array(3), count: np.int64(4)}
    bound = bind(tree, lambda leaf: values[leaf] if isinstance(leaf, Symbol) else leaf)
    assert flatten(bound.spec) == [TensorSpec((3, 2), dtypes.int64)]
    assert elements(bound) == [[[0, 1], [2, 3], [4, 5]]]


def test_the_end_is_final():
    iterator = ElementIterator(Range(0, 1))
    assert list(iterator) == [(0,)]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)


def test_an_error_is_final_and_closes_the_inputs():
    log = []

    def source():
        try:
            yield from range(5)
        finally:
            log.append("closed")

    iterator = ElementIterator(Map(FromGenerator(source, INT), lambda x: (1 // (int(x) - 1),), INT))
    next(iterator)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            next(iterator)
        assert log == ["closed"]


def test_a_closed_iterator_says_so():
    iterator = ElementIterator(Range(0, 9))
    next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(CancelledError, match="closed"):
        next(iterator)


def test_repeating_an_empty_dataset_for_ever_ends():
    assert elements(Repeat(Take(Range(0, 3), 0))) == []
    assert elements(Take(Repeat(Range(0, 2)), 5)) == [0, 1, 0, 1, 0]


def test_a_generator_may_fill_one_array_again_and_again() -> None:
    import flowrt as tf

    buffer = np.zeros(2, np.float32)

    def generate():
        for i in range(4):
            buffer[:] = i
            yield buffer

    with tf.Graph(), tf.Session() as session:
        dataset = tf.data.Dataset.from_generator(generate, tf.float32, [2]).prefetch(3)
        element = dataset.make_one_shot_iterator().get_next()
        assert [session.run(element)[0] for _ in range(4)] == [0, 1, 2, 3]
