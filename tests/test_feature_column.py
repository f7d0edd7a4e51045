"""Feature columns; `tests/twins/feature_columns.py` has TensorFlow's values of each kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt import feature_column as fc
from flowrt.errors import DTypeError, InvalidArgumentError


def run(*fetches: Any) -> Any:
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        return session.run(fetches if len(fetches) > 1 else fetches[0])


def test_columns_lie_side_by_side_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("red\ngreen\n")
    words = fc.categorical_column_with_vocabulary_file("color", tmp_path / "words.txt", num_oov_buckets=1)
    ages = fc.bucketized_column(fc.numeric_column("age"), [10, 20])
    features = {"age": [[10.0], [25.0]], "color": [["green", "red"], ["blue", ""]], "x": [1.0, 2.0]}
    found = fc.input_layer(features, {fc.numeric_column("x"), fc.indicator_column(words), ages})
    assert found.shape.as_list() == [2, 7]
    np.testing.assert_array_equal(run(found), [[0, 1, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 1, 2]])


def test_an_empty_batch_has_no_rows() -> None:
    age, kind = tf.placeholder(tf.float32, [None, 1]), tf.placeholder(tf.string, [None])
    words = fc.categorical_column_with_vocabulary_list("kind", ["a", "b"])
    bucketized = fc.bucketized_column(fc.numeric_column("age"), [10, 20])
    features = {"age": age, "kind": kind}
    tables = [bucketized, fc.indicator_column(words), fc.embedding_column(words, 4)]
    found = fc.input_layer(features, tables), fc.linear_model(features, [bucketized, words])
    with tf.Session() as session:
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        layer, score = session.run(found, {age: np.zeros([0, 1]), kind: np.array([], object)})
    assert (layer.shape, score.shape) == ((0, 9), (0, 1))


@pytest.mark.parametrize("layer", [fc.input_layer, fc.linear_model], ids=["input_layer", "linear_model"])
def test_numbers_of_another_shape_do_not_become_other_examples(layer: Any) -> None:
    column, numbers = fc.numeric_column("x", 3), np.zeros([3, 2])
    for each in column, fc.bucketized_column(column, [1]):
        with pytest.raises(InvalidArgumentError, match=r"'x': expected 3 numbers for each example"):
            layer({"x": numbers}, [each])
        fed = tf.placeholder(tf.float32, [None, None])
        found = layer({"x": fed}, [each])
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            assert session.run(found, {fed: numbers.T}).shape[0] == 2
            with pytest.raises(InvalidArgumentError, match="expected a shape of 6 elements"):
                session.run(found, {fed: numbers})


def test_embeddings_and_linear_models_are_looked_up_in_their_variables() -> None:
    kind = fc.categorical_column_with_identity("kind", 3)
    weighted = fc.weighted_categorical_column(kind, "weight")
    table = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
    start = tf.constant_initializer(table)
    features = {"kind": [[0, 2], [1, -1]], "weight": [[3.0, 1.0], [2.0, -1.0]], "x": [[1.0], [2.0]]}
    columns = [
        fc.embedding_column(kind, 2, initializer=start),
        fc.embedding_column(weighted, 2, "sum", start),
    ]
    owners: dict[Any, Any] = {}
    layer = fc.input_layer(features, columns, cols_to_vars=owners)
    model = fc.linear_model(features, [fc.numeric_column("x"), kind], cols_to_vars=owners)
    assert [v.name for v in owners[columns[0]]] == ["input_layer/kind_embedding/embedding_weights:0"]
    sets = [owners[kind][0].assign([[10], [20], [30]]), owners["bias"][0].assign([5])]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(sets)
        np.testing.assert_array_equal(session.run(layer), [[3, 4, 8, 12], [3, 4, 6, 8]])
        np.testing.assert_array_equal(session.run(model), [[45], [25]])


def test_shared_embeddings_are_one_variable() -> None:
    a, b = (fc.categorical_column_with_hash_bucket(key, 4) for key in "ab")
    columns = fc.shared_embedding_columns([a, b], 3)
    layer = fc.input_layer({"a": [["x"], ["y"]], "b": [["y"], ["x"]]}, columns)
    assert len(tf.trainable_variables()) == 1
    found = run(layer)
    np.testing.assert_array_equal(found[0, :3], found[1, 3:])


def test_examples_are_read_as_the_columns_say() -> None:
    age = fc.numeric_column("age", default_value=7)
    word = fc.categorical_column_with_vocabulary_list("word", ["a", "b"])
    number = fc.categorical_column_with_identity("number", 3)
    columns = [age, fc.indicator_column(word), fc.indicator_column(number)]
    spec = fc.make_parse_example_spec([*columns, fc.crossed_column(["other", word], 5)])
    assert spec == {
        "age": tf.FixedLenFeature((1,), tf.float32, (7,)), "word": tf.VarLenFeature(tf.string),
        "number": tf.VarLenFeature(tf.int64), "other": tf.VarLenFeature(tf.string),
    }  # fmt: skip

    def example(**features: Any) -> bytes:
        feature = {key: tf.train.Feature(**value) for key, value in features.items()}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    first = example(
        age=dict(float_list=tf.train.FloatList(value=[3])),
        word=dict(bytes_list=tf.train.BytesList(value=[b"b", b"b"])),
    )
    second = example(number=dict(int64_list=tf.train.Int64List(value=[2])))
    read = tf.parse_example([first, second], spec)
    np.testing.assert_array_equal(
        run(fc.input_layer(read, columns)), [[3, 0, 0, 0, 0, 2], [7, 0, 0, 1, 0, 0]]
    )


def test_mistakes_are_told() -> None:
    kind, x = fc.categorical_column_with_identity("kind", 3), fc.numeric_column("x")
    for call, message in (
        (lambda: fc.input_layer({"kind": [[1]]}, [kind]), "'kind' is categorical: use embedding_column or"),
        (lambda: fc.input_layer({"y": [[1.0]]}, [x]), r"features: expected 'x'; there are \['y'\]"),
        (lambda: fc.input_layer({"x": [[1.0]]}, [x, x]), "expected different feature columns"),
        (lambda: fc.bucketized_column(x, [3, 1]), r"sorted list; got \[3, 1\]"),
        (lambda: fc.numeric_column("x", 2, default_value=[1, 2, 3]), r"shape \(2,\); got \[1, 2, 3\]"),
        (lambda: fc.crossed_column(["a"], 5), "expected two keys, a size above 0"),
        (lambda: fc.embedding_column(x, 5), "expected a categorical column"),
        (lambda: fc.shared_embedding_columns([kind, fc.categorical_column_with_hash_bucket("a", 9)], 2),
         r"one number of categories; got \[3, 9\]"),
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match=message):
            call()
    with pytest.raises(DTypeError, match="feature 'kind': expected strings or integers; got float32"):
        fc.linear_model({"kind": [[1.0]]}, [kind])
    with pytest.raises(InvalidArgumentError):
        run(fc.linear_model({"kind": [[3]]}, [kind]))
