"""Readers: the records of files, of which a queue has the names, as steps ask for them.

names = flowrt.train.string_input_producer(["a.csv", "b.csv"])
key, line = flowrt.TextLineReader(skip_header_lines=1).read(names)
"""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.state import readers as ops
from flowrt.python_io.tf_records import TFRecordOptions

__all__ = [
    "FixedLengthRecordReader", "IdentityReader", "ReaderBase", "TFRecordReader", "TextLineReader",
    "WholeFileReader",
]  # fmt: skip


class ReaderBase:
    """The operations of a reader. A step that reads waits for a name where the queue is empty; it raises
    `OutOfRangeError` if the queue is closed, `NotFoundError` for a missing file, and `DataLossError` for a
    damaged one.
    """

    supports_serialize = False

    def __init__(self, reader_ref: Tensor) -> None:
        self._reader_ref = reader_ref

    @property
    def reader_ref(self) -> Tensor:
        """The reader's handle."""
        return self._reader_ref

    def read(self, queue: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The key and the value of the next record: string scalars. ``queue`` is a queue of strings."""
        with get_default_graph().colocate_with(self._reader_ref):
            key, value = ops.reader_read_op(self._reader_ref, _handle(queue), name=name)
        return key, value

    def read_up_to(self, queue: Any, num_records: Any, name: str | None = None) -> tuple[Tensor, Tensor]:
        """The keys and values of at most ``num_records`` records of a file, and at least one: vectors."""
        with get_default_graph().colocate_with(self._reader_ref):
            keys, values = ops.reader_read_up_to_op(self._reader_ref, _handle(queue), num_records, name=name)
        return keys, values

    def num_records_produced(self, name: str | None = None) -> Tensor:
        """The number of records that were read, an int64 scalar."""
        return ops.reader_produced_op(self._reader_ref, name=name)

    def num_work_units_completed(self, name: str | None = None) -> Tensor:
        """The number of files that were read to their ends, an int64 scalar."""
        return ops.reader_completed_op(self._reader_ref, name=name)

    def reset(self, name: str | None = None) -> Operation:
        """The operation that makes the reader as it was when it was new."""
        return ops.reader_reset_op(self._reader_ref, name=name)


def _handle(queue: Any) -> Tensor:
    return getattr(queue, "queue_ref", queue)


class TextLineReader(ReaderBase):
    """The lines of text files without their ends; of each file ``skip_header_lines`` are left out."""

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        super().__init__(ops.text_line_reader_op(skip_header_lines=skip_header_lines or 0, name=name))


class WholeFileReader(ReaderBase):
    """Whole files; the key is the name."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(ops.whole_file_reader_op(name=name))


class IdentityReader(ReaderBase):
    """The names of the queue themselves, as keys and values."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(ops.identity_reader_op(name=name))


class TFRecordReader(ReaderBase):
    """The records of TFRecord files. ``options``: see `flowrt.python_io.TFRecordOptions`."""

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        kind = TFRecordOptions.get_compression_type_string(options)
        super().__init__(ops.tf_record_reader_op(compression_type=kind, name=name))


class FixedLengthRecordReader(ReaderBase):
    """Records of ``record_bytes`` bytes, each ``hop_bytes`` behind the one before (by default its length),
    without each file's first ``header_bytes`` and last ``footer_bytes``.
    """

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            ops.fixed_length_record_reader_op(
                record_bytes=record_bytes, header_bytes=header_bytes or 0, footer_bytes=footer_bytes or 0,
                hop_bytes=hop_bytes or 0, name=name,
            )
        )  # fmt: skip
