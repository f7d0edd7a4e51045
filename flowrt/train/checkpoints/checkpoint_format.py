"""The checkpoint format: the manifest's contents. No file access here.

A checkpoint with prefix ``P`` is one manifest and, for each of its n shards, one safetensors file::

    P.index.json                               the manifest
    P.<save id>-00000-of-0000n.safetensors     a shard; the id is 16 random hex digits per save

A tensor is a list of pieces, blocks of it, each in a shard: `piece_key` is its name there. A shard is checked
in blocks of bytes, so that a reader of a part need not read the rest.

    Rule 1: a file belongs to the checkpoint only if the manifest names it.
    Rule 2: the manifest holds no path. Shard names are derived from the prefix, so it cannot point elsewhere.
    Rule 3: every byte is under a checksum: the shards' in the manifest, the manifest's in its first line.
    Rule 4: a manifest's claims are checked against its shards' sizes before anything is allocated.
    Rule 5: each element of a tensor is in exactly one piece. A tensor without elements has no pieces.

Version 1 had one piece per tensor, and one checksum per shard. It can still be read.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from flowrt.dtypes import DType, as_dtype
from flowrt.errors import DataLossError, UnimplementedError
from flowrt.train.checkpoints.pieces import count, format_slices, overlapping, slices_of
from flowrt.train.checkpoints.stored_arrays import STORABLE

FORMAT, VERSION = "flowrt.checkpoint", 2
SAVE_ID = re.compile(r"[0-9a-f]{16}")
CRC = re.compile(r"[0-9a-f]{8}")
MAX_RANK, MAX_EXTENT = 64, 2**59  # NumPy's: dimensions; elements of at most 16 bytes in a signed 64-bit size


@final
@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard file: its size in bytes, and the CRC-32, as 8 hex digits, of each ``block_bytes`` of it; the
    last block may be shorter.
    """

    nbytes: int
    block_bytes: int
    crc32: tuple[str, ...]


@final
@dataclass(frozen=True, slots=True)
class PieceEntry:
    """One piece of a tensor: the offset of its first element, its shape, and the number of its shard."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    shard: int


@final
@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: its true dtype and shape, and its pieces."""

    dtype: DType
    shape: tuple[int, ...]
    pieces: tuple[PieceEntry, ...]

    def least_nbytes(self, piece: PieceEntry) -> int:
        """Bytes a shard has to hold for it; a string's length counts 8, the string itself can be empty."""
        return count(piece.shape) * self.dtype.size


@final
@dataclass(frozen=True, slots=True)
class Manifest:
    """The list of a checkpoint's contents."""

    save_id: str
    shards: tuple[ShardEntry, ...]
    tensors: Mapping[str, TensorEntry]


def piece_key(name: str, piece: PieceEntry, tensor_shape: tuple[int, ...]) -> str:
    """The name in its shard of a piece of the tensor ``name``: ``w``, or ``w[0:2, 0:4]`` for a part."""
    return name if piece.shape == tensor_shape else f"{name}{format_slices(slices_of(piece))}"


# --- as text


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest as JSON text. Its first line holds the CRC-32 of all bytes after that line's comma."""
    body = {"format": FORMAT, "version": VERSION, **manifest_body(manifest)}
    lines = json.dumps(body, indent=1)[1:].encode() + b"\n"  # the opening brace is in the first line
    return _first_line(lines) + lines


def manifest_body(manifest: Manifest) -> dict[str, Any]:
    """The manifest as values for JSON, which `joined_manifest` reads."""
    return {
        "save_id": manifest.save_id,
        "shards": [
            {"bytes": s.nbytes, "block_bytes": s.block_bytes, "crc32": list(s.crc32)} for s in manifest.shards
        ],
        "tensors": {
            name: {
                "dtype": t.dtype.name,
                "shape": list(t.shape),
                "pieces": [
                    {"offset": list(p.offset), "shape": list(p.shape), "shard": p.shard} for p in t.pieces
                ],
            }
            for name, t in manifest.tensors.items()
        },
    }


def joined_manifest(bodies: Sequence[Any], where: str) -> Manifest:
    """The manifest of a save to which each of ``bodies``, of one process, adds its shards and pieces.

    Raises `DataLossError` if they do not fit together.
    """
    shards: list[Any] = []
    tensors: dict[str, Any] = {}
    for body in bodies:
        shards += body["shards"]
        for name, tensor in body["tensors"].items():
            known = tensors.setdefault(name, {**tensor, "pieces": []})
            facts = [(t["dtype"], t["shape"]) for t in (known, tensor)]
            if facts[0] != facts[1]:
                raise DataLossError(f"{where}: tensor {name!r}: expected one dtype and shape; got {facts}")
            known["pieces"] += tensor["pieces"]
    body = {"format": FORMAT, "version": VERSION, **bodies[0], "shards": shards, "tensors": tensors}
    return _Schema(where).manifest(body)


def _first_line(rest: bytes) -> bytes:
    return b'{"crc32": "%s",' % checksum(rest).encode()


def checksum(data: bytes | memoryview, start: int = 0) -> str:
    """The CRC-32 of ``data`` as 8 hex digits."""
    return f"{zlib.crc32(data, start):08x}"


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Read what `encode_manifest` wrote, or version 1. ``where`` names the file in messages.

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
        version = self.count(body.get("version"), "version")
        if version not in (1, VERSION):
            raise UnimplementedError(
                f"{self.where}: expected version 1 or {VERSION}; got {version}. It was written by a later "
                "flowrt."
            )
        listed = enumerate(self.items(body.get("shards"), "shards"))
        shards = tuple(self.shard(value, f"shard {number}", version) for number, value in listed)
        claimed, tensors = [0] * len(shards), {}
        for name, value in self.mapping(body.get("tensors"), "tensors").items():
            tensor = tensors[name] = self.tensor(value, f"tensor {name!r}", len(shards), version)
            for piece in tensor.pieces:
                claimed[piece.shard] += tensor.least_nbytes(piece)
        for number, shard in enumerate(shards):
            expected = f"at least the {claimed[number]} of its tensors"
            self.need(claimed[number] <= shard.nbytes, f"shard {number} bytes", expected, shard.nbytes)
        return Manifest(self.text(body.get("save_id"), "save_id", SAVE_ID), shards, tensors)

    def shard(self, value: Any, part: str, version: int) -> ShardEntry:
        value = self.mapping(value, part)
        nbytes, crc32 = self.count(value.get("bytes"), f"{part} bytes"), value.get("crc32")
        if version == 1:
            return ShardEntry(nbytes, max(nbytes, 1), (self.text(crc32, f"{part} crc32", CRC),))
        block = self.count(value.get("block_bytes"), f"{part} block_bytes")
        self.need(block > 0, f"{part} block_bytes", "at least 1", block)
        found = tuple(self.text(each, f"{part} crc32", CRC) for each in self.items(crc32, f"{part} crc32"))
        blocks = -(-nbytes // block)
        self.need(len(found) == blocks, f"{part} crc32", f"one for each of {blocks} blocks", len(found))
        return ShardEntry(nbytes, block, found)

    def tensor(self, value: Any, part: str, shards: int, version: int) -> TensorEntry:
        value = self.mapping(value, part)
        dtype = value.get("dtype")
        known = type(dtype) is str and dtype in {d.name for d in STORABLE}
        self.need(known, f"{part} dtype", "the name of a storable dtype", dtype)
        shape = self.shape(value.get("shape"), f"{part} shape")
        if version == 1:
            listed = [{"offset": [0] * len(shape), "shape": list(shape), "shard": value.get("shard")}]
        else:
            listed = self.items(value.get("pieces"), f"{part} pieces")
        pieces = tuple(self.piece(each, part, shape, shards) for each in listed)
        self.check_whole(pieces, part, shape)
        return TensorEntry(as_dtype(dtype), shape, pieces)

    def piece(self, value: Any, part: str, whole: tuple[int, ...], shards: int) -> PieceEntry:
        value, part = self.mapping(value, f"{part} piece"), f"{part} piece"
        offset, shape = (self.shape(value.get(key), f"{part} {key}") for key in ("offset", "shape"))
        is_inside = len(offset) == len(shape) == len(whole) and all(
            at + size <= limit for at, size, limit in zip(offset, shape, whole, strict=True)
        )
        self.need(is_inside, part, f"a block of {list(whole)}", {"offset": offset, "shape": shape})
        shard = self.count(value.get("shard"), f"{part} shard")
        self.need(shard < shards, f"{part} shard", f"a number below {shards}", shard)
        return PieceEntry(offset, shape, shard)

    def check_whole(self, pieces: Sequence[PieceEntry], part: str, shape: tuple[int, ...]) -> None:
        """Raise `DataLossError` unless ``pieces`` have each element of ``shape`` once."""
        pieces = [piece for piece in pieces if count(piece.shape)]
        if pair := overlapping(pieces):
            found = " and ".join(
                f"{format_slices(slices_of(pieces[i]))} of shard {pieces[i].shard}" for i in pair
            )
            self.need(False, part, "pieces that do not overlap", found)
        held = sum(count(piece.shape) for piece in pieces)
        listed = ", ".join(format_slices(slices_of(piece)) for piece in pieces[:5]) or "no piece"
        expected = f"pieces with all of its {count(shape)} elements"
        self.need(held == count(shape), part, expected, f"{held}, of {listed}")

    def shape(self, value: Any, part: str) -> tuple[int, ...]:
        value = self.items(value, part)
        self.need(len(value) <= MAX_RANK, part, f"at most {MAX_RANK} dimensions", value)
        shape = tuple(self.count(dim, part) for dim in value)
        extent = math.prod(max(dim, 1) for dim in shape)  # NumPy bounds it even where a dimension is 0
        self.need(extent < MAX_EXTENT, part, f"at most {MAX_EXTENT} elements", value)
        return shape
