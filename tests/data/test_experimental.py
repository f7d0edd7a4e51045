"""`data.experimental`, `contrib.data`: functions for what datasets have as methods."""

from __future__ import annotations

from typing import Any

import flowrt as tf
from flowrt.contrib import data


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
