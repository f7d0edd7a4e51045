"""Tables: what they find, when they may be asked, and what stands for unknown words."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowrt as tf
from flowrt.contrib import lookup
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, NotFoundError

WORDS = ["emerson", "lake", "palmer"]


def test_words_become_numbers_and_numbers_words(tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS) + "\n")
    asked = tf.constant([["lake", "palmer"], ["and", "emerson"]])
    tables = [
        lookup.index_table_from_tensor(WORDS, default_value=-2),
        lookup.index_table_from_file(str(path), default_value=-2),
    ]
    back = [
        lookup.index_to_string_table_from_file(str(path), default_value="?"),
        lookup.index_to_string_table_from_tensor(WORDS, default_value="?"),
    ]
    few = lookup.index_table_from_file(str(path), vocab_size=2)
    with tf.Session() as session:
        with pytest.raises(FailedPreconditionError, match="has no entries yet"):
            session.run(tables[0].lookup(asked))
        session.run(tf.tables_initializer())
        for table in tables:
            assert session.run(table.lookup(asked)).tolist() == [[1, 2], [-2, 0]]
            assert session.run(table.size()) == 3
        for table in back:
            assert session.run(table.lookup(tf.constant([1, 5], tf.int64))).tolist() == [b"lake", b"?"]
        assert session.run(few.lookup(tf.constant(WORDS))).tolist() == [0, 1, -1]


def test_unknown_words_are_spread_over_buckets() -> None:
    table = lookup.index_table_from_tensor(WORDS, num_oov_buckets=4)
    unknown = ["and", "the", "", "a"]
    sparse = tf.SparseTensor([[0, 0], [1, 2]], ["lake", "and"], [2, 3])
    numbers = lookup.index_table_from_tensor([10, 20], num_oov_buckets=1, dtype=tf.int32)
    buckets = tf.strings.to_hash_bucket_fast(tf.constant(unknown), 4)
    ids, size, places = table.lookup(tf.constant([*WORDS, *unknown])), table.size(), table.lookup(sparse)
    of_numbers = numbers.lookup(tf.constant([20, 7, 10]))
    with tf.train.MonitoredSession() as session:
        found, expected = session.run((ids, buckets))
        assert found[:3].tolist() == [0, 1, 2]
        assert (found[3:] == expected + 3).all()
        assert session.run(size) == 7
        of_sparse = session.run(places)
        assert of_sparse.values.tolist() == [1, found[3]]
        assert of_sparse.indices.tolist() == [[0, 0], [1, 2]]
        assert session.run(of_numbers).tolist() == [1, 2, 0]


def test_a_table_of_any_values_and_one_that_changes() -> None:
    fixed = lookup.HashTable(lookup.KeyValueTensorInitializer(["a", "b"], [1.5, 2.5]), -1.0)
    changing = lookup.MutableHashTable(tf.string, tf.int64, 0)
    with tf.Session() as session:
        session.run(fixed.init)
        assert session.run(fixed.lookup(tf.constant(["b", "c"]))).tolist() == [2.5, -1.0]
        session.run(changing.insert(["x", "y"], tf.constant([3, 4], tf.int64)))
        assert session.run(changing.lookup(tf.constant(["y", "z"]))).tolist() == [4, 0]
        session.run(changing.remove(["y"]))
        keys, values = session.run(changing.export())
        assert (keys.tolist(), values.tolist()) == ([b"x"], [3])


def test_functions_of_datasets_have_the_entries_of_when_the_iterator_began() -> None:
    table = lookup.index_table_from_tensor(WORDS, default_value=9)
    end = table.lookup(tf.constant("palmer"))
    lines = tf.data.Dataset.from_tensor_slices(["lake and palmer", "lake"])
    words = lines.map(lambda line: table.lookup(tf.string_split([line]).values) + 0 * table.size())
    iterator = words.padded_batch(2, [None], padding_values=end).make_initializable_iterator()
    following = iterator.get_next()
    windows = words.apply(
        tf.contrib.data.group_by_window(
            lambda ids: tf.constant(0, tf.int64),
            lambda key, window: window.padded_batch(2, [None], padding_values=end),
            window_size=2,
        )
    )
    grouped = windows.make_initializable_iterator()
    batch = grouped.get_next()
    with tf.Session() as session:
        with pytest.raises(FailedPreconditionError, match="has no entries yet"):
            session.run(iterator.initializer)
        session.run(tf.tables_initializer())
        session.run(iterator.initializer)
        assert session.run(following).tolist() == [[1, 9, 2], [1, 2, 2]]
        session.run(grouped.initializer)
        assert session.run(batch).tolist() == [[1, 9, 2], [1, 2, 2]]


def test_mistakes_are_typed(tmp_path: Path) -> None:
    table = lookup.index_table_from_tensor(WORDS)
    with pytest.raises(DTypeError):
        table.lookup(tf.constant([1]))
    with pytest.raises(InvalidArgumentError, match="expected num_oov_buckets of 0 or more"):
        lookup.index_table_from_tensor(WORDS, num_oov_buckets=-1)
    with pytest.raises(DTypeError, match="expected int64 for numbers of lines"):
        lookup.TextFileInitializer("f", tf.string, lookup.TextFileIndex.LINE_NUMBER, tf.int64, 0)
    absent = lookup.index_table_from_file(str(tmp_path / "none.txt"))
    with tf.Session() as session, pytest.raises(NotFoundError, match=r"none\.txt"):
        session.run(absent.init)
    twice = lookup.index_table_from_tensor(["a", "a"])
    with tf.Session() as session, pytest.raises(InvalidArgumentError, match="expected one value of"):
        session.run(twice.init)


def test_a_table_is_made_of_an_initializer() -> None:
    with pytest.raises(InvalidArgumentError, match=r"HashTable: expected an initializer, such as .*; got 3"):
        tf.lookup.StaticHashTable(3, -1)
