"""IDX: the format of MNIST's files. Two zero bytes, a type, the number of dimensions, the dimensions as
big-endian uint32, the values in row-major order.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.errors import DataLossError
from flowrt.storage.durable_files import typed_os_errors

_UINT8 = 8


def read_idx(path: Path, rank: int) -> np.ndarray[Any, Any]:
    """The uint8 array of ``rank`` dimensions in the file at ``path``, which gzip may have compressed.

    Raises `NotFoundError` if there is no such file, `DataLossError` if it is not whole or of another kind.
    """
    with typed_os_errors(str(path)):
        data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        try:
            data = gzip.decompress(data)
        except (EOFError, OSError, zlib.error) as error:
            raise DataLossError(f"{path}: expected a whole gzip file: {error}") from None
    head = 4 + 4 * rank
    if len(data) < head or data[:4] != bytes((0, 0, _UINT8, rank)):
        raise DataLossError(f"{path}: expected an IDX file of bytes with {rank} dimensions; got {data[:4]!r}")
    shape = struct.unpack_from(f">{rank}I", data, 4)
    if len(data) != head + math.prod(shape):
        raise DataLossError(f"{path}: expected {math.prod(shape)} values; got {len(data) - head}")
    return np.frombuffer(data, np.uint8, offset=head).reshape(shape)
