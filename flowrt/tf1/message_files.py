"""One protobuf message in a file, binary or as text: `read_message`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from flowrt.errors import InvalidArgumentError, ResourceExhaustedError
from flowrt.storage.durable_files import typed_os_errors
from flowrt.storage.file_kinds import described

MAX_FILE_BYTES = 2**31 - 1
"""Maximum size of a message: protobuf's limit."""

AS_TEXT = (".pbtxt", ".txt", ".prototxt")


def read_message(path: str, kind: Any) -> Any:
    """The message of class ``kind`` in the file, which is text if its name says so. Raises
    `InvalidArgumentError` for another content, `ResourceExhaustedError` for a file above `MAX_FILE_BYTES`,
    and the typed errors of reading.
    """
    data = read_bytes(path)
    return parsed_text(path, data, kind) if path.endswith(AS_TEXT) else parsed(path, data, kind)


def parsed(path: str, data: bytes, kind: Any) -> Any:
    """The message in ``data``. Raises `InvalidArgumentError`, which names ``path``."""
    try:
        return kind.FromString(data)
    except (DecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path}: expected a {kind.DESCRIPTOR.name}; got {len(data)} bytes of something else, or a "
            f"truncated one ({error}){described(data)}"
        ) from None


def parsed_text(path: str, data: bytes, kind: Any) -> Any:
    """The message of the text ``data``. Raises `InvalidArgumentError`, which names ``path``."""
    message = kind()
    try:
        text_format.Parse(data.decode(), message)
    except (text_format.ParseError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgumentError(
            f"{path}: expected a {kind.DESCRIPTOR.name} as text; got {error}"
        ) from None
    return message


def read_bytes(path: str) -> bytes:
    """The content of a file. Raises `ResourceExhaustedError` above `MAX_FILE_BYTES`, and typed OS errors."""
    with typed_os_errors(f"{path}: cannot read the file"):
        size = os.stat(path).st_size
        if size > MAX_FILE_BYTES:
            raise ResourceExhaustedError(f"{path}: expected at most {MAX_FILE_BYTES} bytes; got {size}")
        return Path(path).read_bytes()
