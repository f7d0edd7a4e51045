"""The checkpoint format: the manifest's contents and an array's layout in a shard. No file access here.

A checkpoint with prefix ``P`` is one manifest and, for each of its n shards, one safetensors file::

    P.index.json                               the manifest
    P.<save id>-00000-of-0000n.safetensors     a shard; the id is 16 random hex digits per save

    Rule 1: a file belongs to the checkpoint only if the manifest names it.
    Rule 2: the manifest holds no path. Shard names are derived from the prefix, so it cannot point elsewhere.
    Rule 3: every byte is under a checksum: the shards' in the manifest, the manifest's in its first line.
    Rule 4: a manifest's claims are checked against its shards' sizes before anything is allocated.

safetensors has no strings and not all complex types. In a shard, a complex array is an array of floats with a
last dimension of 2; a string array is one uint8 array: all lengths as little-endian uint64, then all
elements, concatenated. The true dtype and shape are in the manifest.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from flowrt.dtypes import COMPLEX, NUMERIC, DType, as_dtype, bool_, string
from flowrt.errors import DataLossError, DTypeError, InvalidArgumentError, UnimplementedError

Array = np.ndarray[Any, Any]

FORMAT, VERSION = "flowrt.checkpoint", 1
STORABLE = NUMERIC | {bool_, string}
SAVE_ID = re.compile(r"[0-9a-f]{16}")
CRC = re.compile(r"[0-9a-f]{8}")
MAX_RANK, MAX_EXTENT = 64, 2**59  # NumPy's: dimensions; elements of at most 16 bytes in a signed 64-bit size
RESERVED_NAME = "__metadata__"  # a key of every safetensors header

_CODES = {
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64",
    "uint8": "U8", "uint16": "U16", "uint32": "U32", "uint64": "U64",
}  # fmt: skip


@final
@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard file: its size in bytes and the CRC-32 of the whole file, as 8 hex digits."""

    nbytes: int
    crc32: str


@final
@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its true dtype and shape, and the number of the shard that holds it."""

    dtype: DType
    shape: tuple[int, ...]
    shard: int

    @property
    def least_nbytes(self) -> int:
        """Bytes the shard has to hold for it; a string's length counts 8, the string itself can be empty."""
        return math.prod(self.shape) * self.dtype.size

    def check_stored(self, where: str, code: str, shape: tuple[int, ...]) -> None:
        """Raise `DataLossError` unless a shard entry of dtype ``code`` and ``shape`` can hold this tensor."""
        if self.dtype is string:
            fits, expected = code == "U8" and len(shape) == 1, "U8 [bytes]"
        else:
            want = self.shape + (2,) * self.dtype.is_complex
            want_code = _CODES[self.dtype.real_dtype.name]
            fits, expected = (code, shape) == (want_code, want), f"{want_code} {list(want)}"
        if not fits:
            raise DataLossError(f"{where}: the manifest says {expected}; the shard has {code} {list(shape)}")


@final
@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of a checkpoint's contents."""

    save_id: str
    shards: tuple[ShardEntry, ...]
    tensors: Mapping[str, TensorEntry]


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON text. Its first line holds the CRC-32 of all bytes after that line's comma."""
    body = {
        "format": FORMAT,
        "version": VERSION,
        "save_id": manifest.save_id,
        "shards": [{"bytes": s.nbytes, "crc32": s.crc32} for s in manifest.shards],
        "tensors": {
            name: {"dtype": t.dtype.name, "shape": list(t.shape), "shard": t.shard}
            for name, t in manifest.tensors.items()
        },
    }
    lines = json.dumps(body, indent=1)[1:].encode() + b"\n"  # the opening brace is in the first line
    return _first_line(lines) + lines


def _first_line(rest: bytes) -> bytes:
    return b'{"crc32": "%s",' % checksum(rest).encode()


def checksum(data: bytes | memoryview, start: int = 0) -> str:
    """The CRC-32 of ``data`` as 8 hex digits."""
    return f"{zlib.crc32(data, start):08x}"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read what `encode_manifest` wrote. ``where`` names the file in messages.

    Raises `DataLossError` for any other text; `UnimplementedError` for a later version.
    """
    head_size = len(_first_line(b""))
    head, rest = data[:head_size], data[head_size:]
    if head != _first_line(rest):
        raise DataLossError(f"{where}: expected its checksum, {_first_line(rest)!r}; got {head!r}")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataLossError(f"{where}: expected JSON; got {error}") from error
    return _Schema(where).manifest(body)


@final
@dataclass(frozen=True, slots=True)
class _Schema:
    """Converts parsed JSON into entries, or reports which part of ``where`` is malformed."""

    where: str

    def need(self, holds: bool, part: str, expected: str, got: object) -> None:
        if not holds:
            raise DataLossError(f"{self.where}: {part}: expected {expected}; got {got!r:.200}")

    def mapping(self, value: Any, part: str) -> dict[str, Any]:
        self.need(type(value) is dict, part, "an object", value)
        return value

    def items(self, value: Any, part: str) -> list[Any]:
        self.need(type(value) is list, part, "a list", value)
        return value

    def count(self, value: Any, part: str) -> int:
        self.need(type(value) is int and 0 <= value < 2**63, part, "a count", value)
        return value

    def text(self, value: Any, part: str, pattern: re.Pattern[str]) -> str:
        self.need(type(value) is str and bool(pattern.fullmatch(value)), part, pattern.pattern, value)
        return value

    def manifest(self, body: Any) -> Manifest:
        body = self.mapping(body, "the manifest")
        self.need(body.get("format") == FORMAT, "format", repr(FORMAT), body.get("format"))
        if self.count(body.get("version"), "version") != VERSION:
            raise UnimplementedError(
                f"{self.where}: expected version {VERSION}; got {body['version']}. It was written by a "
                "later flowrt."
            )
        listed = enumerate(self.items(body.get("shards"), "shards"))
        shards = tuple(self.shard(value, f"shard {number}") for number, value in listed)
        claimed, tensors = [0] * len(shards), {}
        for name, value in self.mapping(body.get("tensors"), "tensors").items():
            tensor = tensors[name] = self.tensor(value, f"tensor {name!r}", len(shards))
            claimed[tensor.shard] += tensor.least_nbytes
        for number, shard in enumerate(shards):
            expected = f"at least the {claimed[number]} of its tensors"
            self.need(claimed[number] <= shard.nbytes, f"shard {number} bytes", expected, shard.nbytes)
        return Manifest(self.text(body.get("save_id"), "save_id", SAVE_ID), shards, tensors)

    def shard(self, value: Any, part: str) -> ShardEntry:
        value = self.mapping(value, part)
        crc32 = self.text(value.get("crc32"), f"{part} crc32", CRC)
        return ShardEntry(self.count(value.get("bytes"), f"{part} bytes"), crc32)

    def tensor(self, value: Any, part: str, shards: int) -> TensorEntry:
        value = self.mapping(value, part)
        dtype, shard = value.get("dtype"), self.count(value.get("shard"), f"{part} shard")
        known = type(dtype) is str and dtype in {d.name for d in STORABLE}
        self.need(known, f"{part} dtype", "the name of a storable dtype", dtype)
        self.need(shard < shards, f"{part} shard", f"a number below {shards}", shard)
        return TensorEntry(as_dtype(dtype), self.shape(value.get("shape"), f"{part} shape"), shard)

    def shape(self, value: Any, part: str) -> tuple[int, ...]:
        value = self.items(value, part)
        self.need(len(value) <= MAX_RANK, part, f"at most {MAX_RANK} dimensions", value)
        shape = tuple(self.count(dim, part) for dim in value)
        extent = math.prod(max(dim, 1) for dim in shape)  # NumPy bounds it even where a dimension is 0
        self.need(extent < MAX_EXTENT, part, f"at most {MAX_EXTENT} elements", value)
        return shape


def check_tensor(name: object, array: object) -> None:
    """Raise `InvalidArgumentError` or `DTypeError` unless this array can be saved under this name."""
    if not isinstance(name, str) or name == RESERVED_NAME or not _is_text(name):
        raise InvalidArgumentError(f"checkpoint: expected text that can be a tensor's name; got {name!r}")
    if not isinstance(array, np.ndarray | np.generic):
        raise DTypeError(f"checkpoint: tensor {name!r}: expected a NumPy array; got {type(array).__name__}")
    try:
        as_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(f"checkpoint: tensor {name!r}: {error}") from error


def _is_text(text: str) -> bool:
    """Whether it has a UTF-8 form: half a surrogate pair has none."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def entry(array: Array, shard: int) -> TensorEntry:
    """The manifest's entry for an array in this shard."""
    return TensorEntry(as_dtype(array.dtype), array.shape, shard)


def to_stored(name: str, array: Array) -> Array:
    """The array as a shard holds it: C-contiguous, native byte order; itself if it is so already."""
    dtype = as_dtype(array.dtype)
    if dtype is string:
        return _pack_strings(name, array)
    dense = np.asarray(array, dtype=dtype.np, order="C")
    return dense[..., np.newaxis].view(dtype.real_dtype.np) if dtype in COMPLEX else dense


def from_stored(entry: TensorEntry, stored: Array, where: str) -> Array:
    """The array that `to_stored` was given; ``stored`` has passed `TensorEntry.check_stored`."""
    if entry.dtype is string:
        return _unpack_strings(stored, entry.shape, where)
    return stored.view(entry.dtype.np)[..., 0] if entry.dtype in COMPLEX else stored


def _pack_strings(name: str, array: Array) -> Array:
    elements = [_as_bytes(name, e) for e in np.asarray(array).ravel().tolist()]
    lengths = np.array([len(e) for e in elements], "<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(elements), np.uint8)


def _as_bytes(name: str, element: object) -> bytes:
    if isinstance(element, str) and _is_text(element):
        return element.encode()
    if not isinstance(element, bytes):
        raise DTypeError(f"checkpoint: tensor {name!r}: expected bytes or text; got {element!r:.80}")
    return element


def _unpack_strings(blob: Array, shape: tuple[int, ...], where: str) -> Array:
    data, count = blob.tobytes(), math.prod(shape)
    if len(data) < 8 * count:
        raise DataLossError(f"{where}: expected {count} string lengths of 8 bytes; got {len(data)} bytes")
    lengths = np.frombuffer(data, "<u8", count).tolist()
    if sum(lengths) != len(data) - 8 * count:
        raise DataLossError(f"{where}: expected {sum(lengths)} bytes of strings; got {len(data) - 8 * count}")
    out, at = np.empty(count, object), 8 * count
    for i, length in enumerate(lengths):
        out[i], at = data[at : at + length], at + length
    return out.reshape(shape)


def plan_shards(nbytes: Mapping[str, int], max_shard_bytes: int) -> list[list[str]]:
    """Each shard's names, in order, filled up to ``max_shard_bytes``; a larger tensor has its own shard."""
    shards: list[list[str]] = []
    used = 0
    for name, size in nbytes.items():
        if not shards or used + size > max_shard_bytes:
            shards.append([])
            used = 0
        shards[-1].append(name)
        used += size
    return shards
