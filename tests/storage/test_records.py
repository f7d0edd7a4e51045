"""TFRecord files: their bytes, compressed and not, and what a reader says to a damaged one."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowrt as tf
from flowrt.python_io import TFRecordCompressionType, TFRecordOptions, TFRecordWriter, tf_record_iterator
from flowrt.storage.records import encode_record

RECORDS = [b"first", b"", b"\0" * 70_000, b"last\0"]
OPTIONS = [
    None, "", TFRecordOptions(), TFRecordCompressionType.GZIP, "ZLIB",
    TFRecordOptions(TFRecordCompressionType.ZLIB, compression_level=9), TFRecordOptions("GZIP"),
]  # fmt: skip


def test_a_record_has_tensorflows_bytes() -> None:
    # as TensorFlow 2.21's TFRecordWriter wrote b"hello"
    assert encode_record(b"hello").hex() == "0500000000000000eab2043e68656c6c6fbb1f1c19"


@pytest.mark.parametrize(
    "options", OPTIONS, ids=lambda given: TFRecordOptions.get_compression_type_string(given) or "none"
)
def test_records_come_back_as_they_were_written(tmp_path: Path, options: object) -> None:
    path = tmp_path / "records"
    with TFRecordWriter(path, options) as writer:
        for record in RECORDS:
            writer.write(record)
        writer.flush()
    assert list(tf_record_iterator(path, options)) == RECORDS
    plain = b"".join(map(encode_record, RECORDS))
    unpack = {"": bytes, "GZIP": gzip.decompress, "ZLIB": zlib.decompress}
    assert unpack[TFRecordOptions.get_compression_type_string(options)](path.read_bytes()) == plain


@given(st.lists(st.binary(max_size=40), max_size=8), st.sampled_from(["", "GZIP", "ZLIB"]))
def test_any_records_come_back(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], kind: str
) -> None:
    path = tmp_path_factory.mktemp("any") / "records"
    with TFRecordWriter(path, kind) as writer:
        for record in records:
            writer.write(record)
    assert list(tf_record_iterator(path, kind)) == records


def test_every_damaged_byte_is_found_after_the_records_before_it(tmp_path: Path) -> None:
    path = tmp_path / "records"
    whole = encode_record(b"one") + encode_record(b"second")
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 16
        path.write_bytes(damaged)
        records = tf_record_iterator(path)
        before = [next(records)] if position >= len(encode_record(b"one")) else []
        with pytest.raises(tf.errors.DataLossError, match=f"{path}: .* record at byte {19 * len(before)}:"):
            next(records)


@pytest.mark.parametrize("kind", ["", "GZIP", "ZLIB"])
def test_a_file_that_ends_early_is_told(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "records"
    with TFRecordWriter(path, kind) as writer:
        writer.write(b"0123456789" * 3)
    whole = path.read_bytes()
    for end in range(1, len(whole), 5):
        path.write_bytes(whole[:end])
        with pytest.raises(tf.errors.DataLossError, match=str(path)):
            list(tf_record_iterator(path, kind))


def test_a_compressed_file_read_as_another_kind_is_told(tmp_path: Path) -> None:
    path = tmp_path / "records"
    with TFRecordWriter(path, "GZIP") as writer:
        writer.write(b"record")
    for kind in ("", "ZLIB"):
        with pytest.raises(tf.errors.DataLossError, match=str(path)):
            list(tf_record_iterator(path, kind))


def test_mistakes_are_typed(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="nothing_here"):
        list(tf_record_iterator(tmp_path / "nothing_here"))
    with pytest.raises(tf.errors.NotFoundError, match="no_folder"):
        TFRecordWriter(tmp_path / "no_folder" / "records")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"compression_type: expected .*'SNAPPY'"):
        TFRecordWriter(tmp_path / "records", "SNAPPY")
    writer = TFRecordWriter(tmp_path / "records")
    writer.close()
    writer.close()
    with pytest.raises(tf.errors.FailedPreconditionError, match="closed"):
        writer.write(b"late")
