"""`Example` messages, lines and records, parsed; `tests/twins` compares values with TensorFlow's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DataLossError, DTypeError, InvalidArgumentError, NotFoundError


def example(**features: Any) -> bytes:
    """An encoded example; a feature is a list of floats, integers or byte strings."""
    lists = {float: "float_list", int: "int64_list", bytes: "bytes_list"}
    message = tf.train.Example()
    for name, values in features.items():
        getattr(message.features.feature[name], lists[type(values[0])]).value.extend(values)
    return message.SerializeToString()


def run(fetches: Any) -> Any:
    with tf.Session() as session:
        return session.run(fetches)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def test_shapes_are_known_while_building() -> None:
    features = {
        "a": tf.FixedLenFeature([2, 3], tf.float32), "b": tf.VarLenFeature(tf.string),
        "c": tf.FixedLenSequenceFeature([4], tf.int64, allow_missing=True),
    }  # fmt: skip
    many = tf.parse_example(tf.placeholder(tf.string, [None]), features)
    one = tf.parse_single_example(tf.placeholder(tf.string, []), features)
    assert [many[key].shape.as_list() for key in "abc"] == [[None, 2, 3], [None, None], [None, None, 4]]
    assert [one[key].shape.as_list() for key in "abc"] == [[2, 3], [None], [None, 4]]
    assert many["b"].dtype is tf.string


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        (
            tf.FixedLenFeature([2], tf.float32),
            r"example 1 \(second\), feature 'x': expected 2 values.*; got 3",
        ),
        (
            tf.FixedLenFeature([1], tf.int64),
            r"example 0 \(first\), feature 'x': expected values of int64; got f",
        ),
        (tf.VarLenFeature(tf.string), "feature 'x': expected values of string; got float32"),
        (tf.FixedLenSequenceFeature([2], tf.float32, True), r"example 1 .*for rows of shape \[2\]; got 3"),
    ],
)
def test_a_feature_that_does_not_fit_says_which(feature: Any, message: str) -> None:
    texts = [example(x=[1.0, 2.0]), example(x=[1.0, 2.0, 3.0])]
    parsed = tf.parse_example(texts, {"x": feature}, example_names=["first", "second"])
    with pytest.raises(InvalidArgumentError, match=message):
        run(parsed["x"])


def test_a_missing_feature_and_a_message_that_is_none_are_told() -> None:
    needed = {"y": tf.FixedLenFeature([], tf.float32)}
    with pytest.raises(InvalidArgumentError, match="feature 'y': expected values of float32; it has none"):
        run(tf.parse_single_example(example(x=[1]), needed))
    with pytest.raises(InvalidArgumentError, match="example 1: expected an Example message; got 3 bytes"):
        run(tf.parse_example([example(y=[1.0]), b"\xff\xff\xff"], needed))


@pytest.mark.parametrize(
    ("features", "error", "message"),
    [
        ({}, InvalidArgumentError, "expected features"),
        ({"x": tf.float32}, DTypeError, "feature 'x': expected a FixedLenFeature"),
        ({"x": tf.FixedLenFeature([], tf.int32)}, DTypeError, "float32, int64 or string; got int32"),
        ({"x": tf.FixedLenFeature([None], tf.int64)}, InvalidArgumentError, "expected a known shape"),
        ({"x": tf.FixedLenSequenceFeature([], tf.int64)}, InvalidArgumentError, "allow_missing=True"),
        ({"x": tf.FixedLenFeature([3], tf.int64, [1, 2])}, InvalidArgumentError, "shape"),
    ],
)
def test_features_that_cannot_be_are_refused(features: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tf.parse_example([example(x=[1])], features)


def test_records_are_a_dataset(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with tf.python_io.TFRecordWriter(tmp_path / name) as writer:
            for i in range(3):
                writer.write(example(number=[i], name=[name.encode()]))
    names = tf.data.Dataset.from_tensor_slices([str(tmp_path / "b"), str(tmp_path / "a")])
    features = {"number": tf.FixedLenFeature([], tf.int64), "name": tf.FixedLenFeature([], tf.string)}
    for files in ([str(tmp_path / "b"), str(tmp_path / "a")], names):
        dataset = tf.data.TFRecordDataset(files).map(lambda record: tf.parse_single_example(record, features))
        batch = run(dataset.batch(6).make_one_shot_iterator().get_next())
        np.testing.assert_array_equal(batch["number"], [0, 1, 2, 0, 1, 2])
        assert batch["name"].tolist() == [b"b"] * 3 + [b"a"] * 3


def test_damaged_and_missing_files_are_errors_of_the_step(tmp_path: Path) -> None:
    path = tmp_path / "records"
    with tf.python_io.TFRecordWriter(path) as writer:
        writer.write(b"good")
        writer.write(b"damaged")
    path.write_bytes(path.read_bytes()[:-1])
    record = tf.data.TFRecordDataset(str(path)).make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(record) == b"good"
        with pytest.raises(DataLossError, match=f"{path}: incomplete record at byte 20"):
            session.run(record)
    with pytest.raises(NotFoundError, match="nowhere"):
        run(tf.data.TFRecordDataset([str(tmp_path / "nowhere")]).make_one_shot_iterator().get_next())
    with pytest.raises(DTypeError, match="TFRecordDataset: expected filenames; got 3"):
        tf.data.TFRecordDataset(3)
    with pytest.raises(InvalidArgumentError, match=r"compression.*'BZ2'"):
        run(tf.data.TFRecordDataset([str(path)], "BZ2").make_one_shot_iterator().get_next())


def test_records_of_fixed_length_leave_headers_and_footers_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"HHaabbccF")
    (tmp_path / "b").write_bytes(b"HHddF")
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    dataset = tf.data.FixedLengthRecordDataset(files, 2, header_bytes=2, footer_bytes=1)
    assert run(dataset.batch(9).make_one_shot_iterator().get_next()).tolist() == [b"aa", b"bb", b"cc", b"dd"]
    dataset = tf.data.FixedLengthRecordDataset(files[1], 2, header_bytes=2)
    record = dataset.make_one_shot_iterator().get_next()
    with tf.Session() as session:
        assert session.run(record) == b"dd"
        with pytest.raises(DataLossError, match="records of 2 bytes; 1 are left"):
            session.run(record)


def test_values_in_lines_have_the_dtypes_of_their_defaults() -> None:
    lines = tf.constant([["1,x,2.5"], [',"a,""b""",']])
    number, text, share = tf.decode_csv(lines, [[7], ["none"], [0.5]])
    assert [t.dtype for t in (number, text, share)] == [tf.int32, tf.string, tf.float32]
    assert number.shape.as_list() == [2, 1]
    np.testing.assert_array_equal(run(number), [[1], [7]])
    assert run(text).tolist() == [[b"x"], [b'a,"b"']]
    np.testing.assert_array_equal(run(share), np.array([[2.5], [0.5]], np.float32))
    (picked,) = tf.decode_csv(lines[0], [[0.0]], select_cols=[2])
    assert run(picked).tolist() == [2.5]
    assert run(tf.decode_csv("1|-", [[0], [5]], "|", na_value="-")) == [1, 5]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1,2", "record 0: expected 3 fields; got 2"), ("a,b,1", "field 0: expected int32; got b'a'"),
        (",b,1", "field 0: expected a value; it is missing and has no default"),
        ('1,"b,1', "record 0: expected a line of values"), ("9999999999,b,1", "expected int32; got b'9"),
    ],
)  # fmt: skip
def test_a_line_that_does_not_fit_says_where(line: str, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        run(tf.decode_csv(line, [tf.constant([], tf.int32), [""], [0.0]]))


def test_what_no_line_can_be_is_refused() -> None:
    for options, message in (
        ({"field_delim": ",,"}, "expected one character"),
        ({"select_cols": [2, 1]}, "places in ascending order"),
        ({"record_defaults": [[True], [0]]}, "record_defaults: expected float32"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            tf.decode_csv("1,2", **{"record_defaults": [[0], [0]], **options})


def test_the_steps_of_a_sequence_and_its_context() -> None:
    message = tf.train.SequenceExample()
    message.context.feature["id"].int64_list.value.append(7)
    for count in (2, 0):
        message.feature_lists.feature_list["word"].feature.add().bytes_list.value.extend([b"w"] * count)
        message.feature_lists.feature_list["point"].feature.add().float_list.value.extend([count, 1])
    text, parse = message.SerializeToString(), tf.parse_single_sequence_example
    step = tf.FixedLenSequenceFeature
    asked = {
        "word": tf.VarLenFeature(tf.string), "point": step([2], tf.float32),
        "other": step([3], tf.int64, allow_missing=True),
    }  # fmt: skip
    with tf.Session() as session:
        context, steps = session.run(parse(text, {"id": tf.FixedLenFeature([], tf.int64)}, asked))
        assert context == {"id": 7}
        assert steps["word"].dense_shape.tolist() == [2, 2]
        assert steps["word"].indices.tolist() == [[0, 0], [0, 1]]
        assert steps["point"].tolist() == [[2, 1], [0, 1]]
        assert steps["other"].shape == (0, 3)
        for feature, message_ in (
            ({"other": step([3], tf.int64)}, "feature list 'other': expected in the message"),
            ({"point": step([3], tf.float32)}, r"example 0, feature 'point': expected 3 values"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message_):
                session.run(parse(text, None, feature))
        with pytest.raises(tf.errors.InvalidArgumentError, match="expected a SequenceExample message; got 3"):
            session.run(parse(b"\xff\xff\xff", None, asked))
    with pytest.raises(tf.errors.InvalidArgumentError, match="'a' is a FixedLenFeature"):
        parse(text, None, {"a": tf.FixedLenFeature([], tf.int64)})
