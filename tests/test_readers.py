"""Readers of files that a queue names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flowrt as tf
from flowrt.errors import DataLossError, NotFoundError, OutOfRangeError


@pytest.fixture(autouse=True)
def session() -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def queue_of(session: tf.Session, *names: object) -> tf.FIFOQueue:
    queue = tf.FIFOQueue(10, [tf.string], [()])
    session.run(queue.enqueue_many([list(map(str, names))]))
    session.run(queue.close())
    return queue


def read_all(session: tf.Session, reader: Any, queue: tf.FIFOQueue) -> list[tuple[bytes, bytes]]:
    record, found = reader.read(queue), []
    while True:
        try:
            found.append(tuple(session.run(record)))
        except OutOfRangeError:
            return found


def test_lines_have_the_name_and_the_number_as_keys(session: tf.Session, tmp_path: Path) -> None:
    a, b, empty = (tmp_path / name for name in ("a", "b", "empty"))
    a.write_bytes(b"head\r\none\r\ntwo")
    b.write_bytes(b"head\nthree\n")
    empty.write_bytes(b"")
    reader = tf.TextLineReader(skip_header_lines=1)
    expected = [(f"{a}:2", "one"), (f"{a}:3", "two"), (f"{b}:2", "three")]
    found = read_all(session, reader, queue_of(session, a, empty, b))
    assert found == [(key.encode(), value.encode()) for key, value in expected]
    counts = [reader.num_records_produced(), reader.num_work_units_completed()]
    assert session.run(counts) == [3, 3]
    session.run(reader.reset())
    assert session.run(counts) == [0, 0]


def test_each_reader_gives_its_records(session: tf.Session, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"Haabbccd")
    name = str(path).encode()
    queue = queue_of(session, path)
    assert read_all(session, tf.WholeFileReader(), queue) == [(name, b"Haabbccd")]
    assert read_all(session, tf.IdentityReader(), queue_of(session, path)) == [(name, name)]
    fixed = tf.FixedLengthRecordReader(2, header_bytes=1, footer_bytes=1)
    values = [value for _, value in read_all(session, fixed, queue_of(session, path))]
    assert values == [b"aa", b"bb", b"cc"]
    hopping = tf.FixedLengthRecordReader(4, header_bytes=1, hop_bytes=2)
    values = [value for _, value in read_all(session, hopping, queue_of(session, path))]
    assert values == [b"aabb", b"bbcc"]
    with tf.python_io.TFRecordWriter(path, "GZIP") as writer:
        for record in (b"first", b"second"):
            writer.write(record)
    records = tf.TFRecordReader(options=tf.python_io.TFRecordOptions("GZIP"))
    found = read_all(session, records, queue_of(session, path))
    assert found == [(name + b":0", b"first"), (name + b":1", b"second")]


def test_several_records_are_of_one_file(session: tf.Session, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_text("1\n2\n3\n")
    names = queue_of(session, tmp_path / "a", tmp_path / "b")
    _, values = tf.TextLineReader().read_up_to(names, 2)
    assert [session.run(values).tolist() for _ in range(4)] == [[b"1", b"2"], [b"3"]] * 2


def test_missing_and_damaged_files_are_told(session: tf.Session, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        session.run(tf.TextLineReader().read(queue_of(session, tmp_path / "nowhere")))
    path = tmp_path / "records"
    path.write_bytes(b"no records")
    with pytest.raises(DataLossError, match=f"{path}: incomplete record"):
        session.run(tf.TFRecordReader().read(queue_of(session, path)))


def test_a_pipeline_of_lines_trains_as_tutorials_have_it(session: tf.Session, tmp_path: Path) -> None:
    rows = np.arange(24).reshape(8, 3)
    np.savetxt(tmp_path / "data.csv", rows, "%d", ",")
    names = tf.train.string_input_producer([str(tmp_path / "data.csv")], shuffle=False)
    _, line = tf.TextLineReader().read(names)
    columns = tf.decode_csv(line, [[0.0]] * 3)
    batch = tf.train.batch([columns[:-1], columns[-1:]], batch_size=4)
    coordinator = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(session, coordinator)
    seen = np.concatenate([np.concatenate(session.run(batch), 1) for _ in range(4)])
    coordinator.request_stop()
    coordinator.join(threads)
    np.testing.assert_array_equal(seen, np.concatenate([rows, rows]))
