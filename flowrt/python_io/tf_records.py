"""TFRecord files, written and read by Python.

with flowrt.python_io.TFRecordWriter("train.tfrecord") as writer:
    writer.write(example.SerializeToString())
for record in flowrt.python_io.tf_record_iterator("train.tfrecord"): ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.storage.records import COMPRESSIONS, RecordFile, read_records

__all__ = ["TFRecordCompressionType", "TFRecordOptions", "TFRecordWriter", "tf_record_iterator"]


class TFRecordCompressionType:
    """Kinds of compression of a file of records."""

    NONE, ZLIB, GZIP = range(3)


_NAMES = {
    TFRecordCompressionType.NONE: "",
    TFRecordCompressionType.ZLIB: "ZLIB",
    TFRecordCompressionType.GZIP: "GZIP",
}


class TFRecordOptions:
    """Compression of a file: ``compression_type`` is a `TFRecordCompressionType`, its name, or None for none;
    ``compression_level`` is from 0 to 9. The sizes of buffers are accepted and not used.

    Raises `InvalidArgumentError` for another type.
    """

    def __init__(
        self,
        compression_type: Any = None,
        flush_mode: Any = None,
        input_buffer_size: Any = None,
        output_buffer_size: Any = None,
        window_bits: Any = None,
        compression_level: int | None = None,
        compression_method: Any = None,
        mem_level: Any = None,
        compression_strategy: Any = None,
    ) -> None:
        self.get_compression_type_string(compression_type)
        self.compression_type, self.compression_level = compression_type, compression_level

    @classmethod
    def get_compression_type_string(cls, options: Any) -> str:
        """``""``, ``"GZIP"`` or ``"ZLIB"`` of options, a `TFRecordCompressionType`, a name, or None."""
        kind = options.compression_type if isinstance(options, TFRecordOptions) else options
        name = "" if kind is None else _NAMES.get(kind, kind)
        if name not in COMPRESSIONS:
            raise InvalidArgumentError(f"compression_type: expected one of {COMPRESSIONS}; got {kind!r}")
        return str(name)


class TFRecordWriter:
    """Writes records to a file. Closed at the end of a ``with`` block.

    Args:
        path: The file, which is replaced.
        options: `TFRecordOptions`, a `TFRecordCompressionType`, its name, or None.

    Raises:
        NotFoundError: There is no such directory.
        PermissionDeniedError: The file may not be written.

    Example:
        >>> with tf.python_io.TFRecordWriter('data.tfrecord') as writer:
        ...     writer.write(b'one')
        >>> list(tf.python_io.tf_record_iterator('data.tfrecord'))
        [b'one']
    """

    def __init__(self, path: Any, options: Any = None) -> None:
        level = getattr(options, "compression_level", None)
        kind = TFRecordOptions.get_compression_type_string(options)
        self._file = RecordFile(os.fspath(path), kind, -1 if level is None else level)
        self._is_open = True

    def write(self, record: bytes | str) -> None:
        """Append a record; text becomes UTF-8. Raises `FailedPreconditionError` after `close`."""
        if not self._is_open:
            raise FailedPreconditionError("TFRecordWriter: expected an open writer; got a closed one")
        self._file.write(record.encode() if isinstance(record, str) else record)

    def flush(self) -> None:
        """Hand the records to the operating system, as far as compression lets them go."""
        self._file.flush()

    def close(self) -> None:
        """Write all records and close the file. A second call does nothing."""
        self._is_open = False
        self._file.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tf_record_iterator(path: Any, options: Any = None) -> Iterator[bytes]:
    """The records of the file ``path``, one after the other.

    Raises `NotFoundError` if there is none, and `DataLossError`, with the byte at which it is, for a damaged
    record, after those before it.
    """
    return read_records(os.fspath(path), TFRecordOptions.get_compression_type_string(options))
