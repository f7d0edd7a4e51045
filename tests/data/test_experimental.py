"""`data.experimental`, `contrib.data`: functions for what datasets have as methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.contrib import data
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError


def elements(dataset: tf.data.Dataset) -> list[Any]:
    following = dataset.make_one_shot_iterator().get_next()
    found = []
    with tf.Session() as session:
        while True:
            try:
                found.append(session.run(following).tolist())
            except tf.errors.OutOfRangeError:
                return found


def test_transformations_are_the_methods() -> None:
    numbers = tf.data.Dataset.range(5)
    batched = numbers.apply(tf.data.experimental.map_and_batch(lambda x: x * x, 2, drop_remainder=True))
    assert elements(batched) == [[0, 1], [4, 9]]
    assert elements(numbers.apply(data.batch_and_drop_remainder(2)).apply(data.unbatch())) == [0, 1, 2, 3]
    mixed = numbers.apply(
        data.parallel_interleave(
            lambda x: tf.data.Dataset.from_tensors(x).repeat(2), cycle_length=2, sloppy=True
        )
    )
    assert elements(mixed) == [0, 1, 0, 1, 2, 3, 2, 3, 4, 4]
    assert sorted(elements(numbers.apply(data.shuffle_and_repeat(5, 2, seed=1)))) == sorted([*range(5)] * 2)
    padded = numbers.map(tf.range).apply(data.padded_batch_and_drop_remainder(2, [None]))
    assert elements(padded) == [[[0], [0]], [[0, 1, 0], [0, 1, 2]]]


def test_a_counter_has_no_end() -> None:
    assert elements(tf.data.experimental.Counter(10, -2, tf.int32).take(3)) == [10, 8, 6]


def test_elements_with_a_state_and_up_to_an_end() -> None:
    numbers = tf.data.Dataset.range(5)
    assert elements(numbers.apply(tf.data.experimental.take_while(lambda x: x * x < 7))) == [0, 1, 2]
    grown = tf.data.experimental.scan(
        np.zeros([0], np.int64), lambda state, x: (tf.concat([state, [x]], 0), tf.reduce_sum(state))
    )
    assert elements(numbers.apply(grown)) == [0, 0, 1, 3, 6]
    rests = numbers.map(lambda x: x % 2).apply(tf.data.experimental.unique())
    assert elements(rests) == [0, 1]


def test_elements_of_several_datasets() -> None:
    ones, twos = (tf.data.Dataset.from_tensors(number).repeat(3) for number in (1, 2))
    choices = tf.data.Dataset.from_tensor_slices(np.int64([1, 0, 1, 1, 1, 0, 0, 0]))
    chosen = tf.data.experimental.choose_from_datasets([ones, twos], choices)
    assert elements(chosen) == [2, 1, 2, 2, 1, 1]
    drawn = tf.data.experimental.sample_from_datasets([ones, twos], [0.5, 0.5], seed=3)
    first = elements(drawn)
    assert sorted(first) == [1, 1, 1, 2, 2, 2]
    assert elements(drawn) == first
    only = tf.data.experimental.sample_from_datasets([ones, twos], [0.0, 1.0])
    assert elements(only) == [2, 2, 2]
    with pytest.raises(InvalidArgumentError, match="expected 2 weights"):
        tf.data.experimental.sample_from_datasets([ones, twos], [1.0])
    with pytest.raises(DTypeError, match="int64 scalars"):
        tf.data.experimental.choose_from_datasets([ones, twos], ones)


def test_a_single_element_is_read_anew_and_must_be_alone() -> None:
    single = tf.data.experimental.get_single_element(tf.data.Dataset.range(3).batch(3))
    several = tf.data.experimental.get_single_element(tf.data.Dataset.range(3))
    none = tf.data.experimental.get_single_element(tf.data.Dataset.range(0))
    with tf.Session() as session:
        assert [session.run(single).tolist() for _ in range(2)] == [[0, 1, 2]] * 2
        for wrong, found in ((several, "several"), (none, "none")):
            with pytest.raises(InvalidArgumentError, match=f"expected one element; got {found}"):
                session.run(wrong)


def test_options_change_no_element() -> None:
    options = tf.data.Options()
    options.experimental_optimization.map_fusion = True
    assert elements(tf.data.Dataset.range(2).with_options(options)) == [0, 1]
    with pytest.raises(AttributeError, match="expected one of"):
        options.experimental_determinism = True
    options.experimental_distribute.auto_shard = False
    with pytest.raises(UnimplementedError, match="InputOptions"):
        tf.data.Dataset.range(2).with_options(options)


def test_a_reducer_makes_one_element_of_each_key() -> None:
    """The average of the even and of the odd numbers, by a state of two; keys in ascending order."""
    average = tf.data.experimental.Reducer(
        lambda key: (0.0, 0.0),
        lambda state, x: (state[0] + x, state[1] + 1),
        lambda total, count: total / count,
    )
    numbers = tf.data.Dataset.from_tensor_slices(np.array([5, 2, 4, 1], np.float32))
    grouped = tf.data.experimental.group_by_reducer(lambda x: tf.cast(x, tf.int64) % 2, average)
    assert elements(numbers.apply(grouped)) == [3, 3]
    lists = tf.data.experimental.Reducer(
        lambda key: [[key]],
        lambda state, x: tf.concat([state, [[tf.cast(x, tf.int64)]]], 0),
        lambda state: state,
    )
    grown = tf.data.experimental.group_by_reducer(lambda x: tf.cast(x, tf.int64) % 3, lists)
    assert elements(numbers.apply(grown)) == [[[1], [4], [1]], [[2], [5], [2]]]


def test_a_state_of_another_dtype_is_an_error_of_reduce_func() -> None:
    other = tf.data.experimental.Reducer(lambda _: 0.0, lambda state, x: x, lambda state: state)
    with pytest.raises(DTypeError, match="reduce_func: component: expected float32; got int64"):
        tf.data.Dataset.range(4).apply(tf.data.experimental.group_by_reducer(lambda x: x, other))


@pytest.mark.parametrize("initial", [None, [0.8, 0.2]], ids=["estimated", "known"])
def test_resampled_classes_have_the_wanted_proportions(initial: Any) -> None:
    """8,000 elements of class 0, 2,000 of class 1: 60 standard deviations are between the two proportions."""
    values = np.random.default_rng(0).permutation(np.repeat([0, 1], [8000, 2000])).astype(np.int32)
    resample = tf.data.experimental.rejection_resample(lambda x: x, [0.5, 0.5], initial, seed=7)
    batch = tf.data.Dataset.from_tensor_slices(values).apply(resample).batch(10000)
    classes, found = batch.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        classes_of, found_values = session.run([classes, found])
    np.testing.assert_array_equal(classes_of, found_values)
    assert 3600 < len(found_values) < 4400
    assert abs(np.mean(found_values) - 0.5) < 0.05


def test_resampling_says_what_it_expects() -> None:
    with pytest.raises(InvalidArgumentError, match="expected proportions of as many classes"):
        tf.data.experimental.rejection_resample(lambda x: x, [0.5, 0.5], [1.0])
    for target in ([], [0.0, 0.0], [0.5, float("nan")], [[0.5, 0.5]]):
        with pytest.raises(InvalidArgumentError, match="target_dist: expected a list of numbers from 0 on"):
            tf.data.experimental.rejection_resample(lambda x: x, target)
    resample = tf.data.experimental.rejection_resample(lambda x: x + 1, [0.5, 0.5])
    with pytest.raises(InvalidArgumentError, match=r"expected a class in \[0, 2\); got 2"):
        elements(tf.data.Dataset.range(4).apply(resample).map(lambda number, _: number))
