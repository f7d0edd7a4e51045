"""Readers of files, of which a queue gives the names: handles, and operations that read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.node import Node
from flowrt.graph.op_def import Effect, Effects, OpDef, Privilege, define_handle, define_op
from flowrt.graph.ops.text.strings import string_array
from flowrt.graph.resources.element_queue import ElementQueue
from flowrt.graph.resources.file_reader import FileReader
from flowrt.storage import plain_records

_READS = Effects(Effect.WRITE, waits=True, privilege=lambda attrs: Privilege.READS_FILES)


def _define_reader(name: str, records: Callable[..., Any], attrs: str, doc: str) -> OpDef[Tensor]:
    """A handle of readers that open a file by ``records(path, *attributes)``."""
    own = [part.split(":")[0].strip() for part in attrs.split(",") if part]

    def new_reader(node: Node) -> FileReader:
        options = [node.attrs[key] for key in own]
        return FileReader(lambda path: records(path, *options))

    kinds = ", ".join(filter(None, [attrs, "container: string = '', shared_name: string = ''"]))
    return define_handle(name, new_reader, doc, output="reader_handle: resource", attrs=kinds)


text_line_reader_op = _define_reader(
    "TextLineReaderV2", plain_records.lines, "skip_header_lines: int = 0", "The handle of a reader of lines."
)
whole_file_reader_op = _define_reader(
    "WholeFileReaderV2", plain_records.whole_file, "", "The handle of a reader of whole files."
)
identity_reader_op = _define_reader(
    "IdentityReaderV2", plain_records.names, "", "The handle of a reader that gives the names themselves."
)
tf_record_reader_op = _define_reader(
    "TFRecordReaderV2",
    plain_records.keyed_records,
    "compression_type: string = ''",
    "The handle of a reader of TFRecord files.",
)


def _fixed(path: str, record: int, header: int, footer: int, hop: int) -> Any:
    if record < 1 or min(header, footer, hop) < 0:
        raise InvalidArgumentError(
            f"expected at least 1 byte a record, 0 in header, footer and hop; got {record}, {header}, "
            f"{footer}, {hop}"
        )
    return plain_records.fixed_records(path, record, header, footer, hop or record)


fixed_length_record_reader_op = _define_reader(
    "FixedLengthRecordReaderV2",
    _fixed,
    "record_bytes: int, header_bytes: int = 0, footer_bytes: int = 0, hop_bytes: int = 0",
    "The handle of a reader of records of one length.",
)


def _read(xp: Any, reader_handle: FileReader, queue_handle: ElementQueue) -> tuple[Any, Any]:
    ((key, value),) = reader_handle.read(queue_handle)
    return string_array([key], ()), string_array([value], ())


reader_read_op: OpDef[list[Tensor]] = define_op(
    "ReaderReadV2",
    "reader_handle: resource, queue_handle: resource -> key: string, value: string",
    shape=lambda s: [(), ()],
    kernel=_read,
    effects=_READS,
    doc="The next record, with its key; the queue has the names of the files.",
)


def _read_up_to(
    xp: Any, reader_handle: FileReader, queue_handle: ElementQueue, num_records: Any
) -> tuple[Any, Any]:
    most = int(num_records)
    if most < 1:
        raise InvalidArgumentError(f"num_records: expected at least 1; got {most}")
    found = reader_handle.read(queue_handle, most)
    keys, values = zip(*found, strict=True)
    return string_array(keys, (len(found),)), string_array(values, (len(found),))


reader_read_up_to_op: OpDef[list[Tensor]] = define_op(
    "ReaderReadUpToV2",
    "reader_handle: resource, queue_handle: resource, num_records: host int64 "
    "-> keys: string, values: string",
    shape=lambda s: [(None,), (None,)],
    kernel=_read_up_to,
    effects=_READS,
    doc="The next records of a file, at most ``num_records``, with their keys.",
)


def _define_count(name: str, output: str, count: Callable[[FileReader], int], doc: str) -> OpDef[Tensor]:
    return define_op(
        name,
        f"reader_handle: resource -> {output}: int64",
        shape=lambda s: [()],
        kernel=lambda xp, reader_handle: np.array(count(reader_handle), np.int64),
        effects=Effects(Effect.READ),
        doc=doc,
    )


reader_produced_op = _define_count(
    "ReaderNumRecordsProducedV2",
    "records_produced",
    lambda reader: reader.produced,
    "The number of records that were read.",
)
reader_completed_op = _define_count(
    "ReaderNumWorkUnitsCompletedV2",
    "units_completed",
    lambda reader: reader.completed,
    "The number of files that were read to their ends.",
)

reader_reset_op: OpDef[Operation] = define_op(
    "ReaderResetV2",
    "reader_handle: resource ->",
    kernel=lambda xp, reader_handle: reader_handle.reset(),
    effects=Effects(Effect.WRITE),
    doc="Makes a reader begin with another file, as a new one.",
)
