"""Records of files that are no TFRecord files, with keys: lines, parts of fixed length, whole files."""

from __future__ import annotations

from collections.abc import Iterator

from flowrt.errors import DataLossError
from flowrt.storage.durable_files import typed_os_errors
from flowrt.storage.records import read_records

Keyed = Iterator[tuple[bytes, bytes]]


def _key(path: str, number: int) -> bytes:
    return f"{path}:{number}".encode()


def lines(path: str, skipped: int) -> Keyed:
    """Lines without their ends; the first ``skipped`` are left out. Keys: ``path:line``, from 1 on."""
    with typed_os_errors(path), open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if number > skipped:
                yield _key(path, number), line.replace(b"\r", b"").removesuffix(b"\n")


def fixed_records(path: str, size: int, header: int, footer: int, hop: int) -> Keyed:
    """Records of ``size`` bytes, each ``hop`` behind the one before, between a header and a footer. Keys:
    ``path:record``, from 0 on. Raises `DataLossError` for a file with less than a header and a footer.
    """
    with typed_os_errors(path), open(path, "rb") as file:
        data = file.read()
    end = len(data) - footer
    if end < header:
        raise DataLossError(f"{path}: expected at least {header + footer} bytes; got {len(data)}")
    for number, start in enumerate(range(header, end - size + 1, hop)):
        yield _key(path, number), data[start : start + size]


def whole_file(path: str) -> Keyed:
    """The contents, with the path as the key."""
    with typed_os_errors(path), open(path, "rb") as file:
        yield path.encode(), file.read()


def keyed_records(path: str, compression: str) -> Keyed:
    """The records of a TFRecord file. Keys: ``path:record``, from 0 on."""
    for number, record in enumerate(read_records(path, compression)):
        yield _key(path, number), record


def names(path: str) -> Keyed:
    """The path itself, as key and value."""
    yield path.encode(), path.encode()
