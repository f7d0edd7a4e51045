"""The leaves of a dataset tree that read files: lines of text, TFRecord files, records of fixed length; and
the names of files.
"""

from __future__ import annotations

import glob
import gzip
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import IO, Any, final

import numpy as np

from flowrt import dtypes
from flowrt.base.structure import Structure
from flowrt.data.node import Element, Iteration, Node, Stream
from flowrt.data.spec import TensorSpec
from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError
from flowrt.storage.records import read_records


@final
@dataclass(frozen=True, eq=False)
class FileNames(Node):
    """The names of the files that match one of the ``patterns`` when an epoch begins, sorted."""

    patterns: Any

    @property
    def spec(self) -> Structure:
        return TensorSpec((), dtypes.string)

    def open(self, iteration: Iteration) -> Stream[Element]:
        patterns = [_text(pattern) for pattern in np.asarray(self.patterns, object).flat]
        names = sorted({name for pattern in patterns for name in glob.glob(pattern)})
        if not names:
            raise InvalidArgumentError(
                f"list_files: expected files that match {' or '.join(map(repr, patterns))}; got none"
            )
        for name in names:
            yield (np.array(name.encode(), object),)


@dataclass(frozen=True, eq=False)
class Files(Node):
    """String scalars from ``filenames``, one file after the other. A missing file raises `NotFoundError` when
    it is reached.
    """

    filenames: Any
    compression_type: Any = ""

    @property
    def spec(self) -> Structure:
        return TensorSpec((), dtypes.string)

    def open(self, iteration: Iteration) -> Stream[Element]:
        kind = _text(self.compression_type)
        for name in np.asarray(self.filenames, object).flat:
            with closing(self._read(_text(name), kind)) as records:
                for record in records:
                    yield (np.array(record, object),)

    def _read(self, name: str, compression: str) -> Any:
        """A generator of the records of one file."""
        raise NotImplementedError


@final
@dataclass(frozen=True, eq=False)
class TextLines(Files):
    """The lines of text files without carriage returns and line feeds. ``compression_type`` is ``""`` or
    ``"GZIP"``.
    """

    def _read(self, name: str, compression: str) -> Iterator[bytes]:
        with _opened(name, compression, "TextLineDataset") as file:
            for line in file:
                yield line.replace(b"\r", b"").removesuffix(b"\n")


@final
@dataclass(frozen=True, eq=False)
class Records(Files):
    """The records of TFRecord files. ``compression_type`` is ``""``, ``"GZIP"`` or ``"ZLIB"``."""

    def _read(self, name: str, compression: str) -> Iterator[bytes]:
        return read_records(name, compression)


@final
@dataclass(frozen=True, eq=False)
class FixedRecords(Files):
    """Records of ``record_bytes`` bytes, between a header and a footer that are left out."""

    record_bytes: Any = 1
    header_bytes: Any = 0
    footer_bytes: Any = 0

    def _read(self, name: str, compression: str) -> Iterator[bytes]:
        size, header, footer = map(int, (self.record_bytes, self.header_bytes, self.footer_bytes))
        if size < 1 or header < 0 or footer < 0:
            raise InvalidArgumentError(
                "FixedLengthRecordDataset: expected at least 1 byte a record, 0 in header and footer; "
                f"got {size}, {header}, {footer}"
            )
        with _opened(name, compression, "FixedLengthRecordDataset") as file:
            file.read(header)
            ahead = file.read(size + footer)
            while len(ahead) == size + footer:
                yield ahead[:size]
                ahead = ahead[size:] + file.read(size)
            if len(ahead) != footer:
                raise DataLossError(
                    f"{name}: expected records of {size} bytes; {len(ahead) - footer} are left at the end"
                )


@contextmanager
def _opened(name: str, compression: str, dataset: str) -> Iterator[IO[bytes]]:
    kinds: dict[str, Callable[[str, str], Any]] = {"": open, "GZIP": gzip.open}
    if compression not in kinds:
        raise InvalidArgumentError(f"{dataset}: compression_type: expected '' or 'GZIP'; got {compression!r}")
    try:
        with kinds[compression](name, "rb") as file:
            yield file
    except FileNotFoundError:
        raise NotFoundError(f"{dataset}: expected a file at {name!r}; got none there") from None
    except (EOFError, gzip.BadGzipFile) as error:
        raise DataLossError(f"{dataset}: {name}: expected a whole GZIP stream: {error}") from None


def _text(value: Any) -> str:
    """A Python string from a ``str``, ``bytes``, or a string scalar."""
    item = value.item() if isinstance(value, np.ndarray) else value
    return item.decode() if isinstance(item, bytes) else str(item)
