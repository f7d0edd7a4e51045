"""Tensors in pieces: read whole or in part, from version 1 too; refused if pieces are missing or damaged."""

from __future__ import annotations

import json
import zlib
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from flowrt.dtypes import as_dtype
from flowrt.errors import DataLossError, InvalidArgumentError, NotFoundError
from flowrt.train.checkpoints import shard_file
from flowrt.train.checkpoints.checkpoint import write_pieces
from flowrt.train.checkpoints.open_checkpoint import read_checkpoint
from flowrt.train.checkpoints.shard_file import BLOCK_BYTES, HeldPiece, ShardFile
from flowrt.train.checkpoints.shard_reader import ShardReader
from flowrt.train.checkpoints.together import ALONE
from tests.train.checkpoint_cases import shard_paths
from tests.train.test_checkpoint import edit_manifest, seal

W = np.arange(40, dtype=np.float32).reshape(5, 8)
QUARTERS = list(product([slice(0, 3), slice(3, 5)], [slice(0, 4), slice(4, 8)]))


def held(name: str, array: np.ndarray, part: tuple[slice, ...]) -> HeldPiece:
    piece = np.ascontiguousarray(array[part])
    offset = tuple(s.start for s in part)
    dtype = as_dtype(array.dtype)
    return HeldPiece(name, dtype, array.shape, offset, piece.shape, piece.nbytes, lambda: nullcontext(piece))


def save(prefix: str, *pieces: HeldPiece, max_shard_bytes: int = 1) -> None:
    write_pieces(prefix, lambda: pieces, ALONE, max_shard_bytes)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    return str(tmp_path / "model")


def test_pieces_in_four_files_are_read_as_one_tensor(prefix: str) -> None:
    scalar = HeldPiece.of_array("s", np.array(3.0))
    save(prefix, *[held("w", W, part) for part in QUARTERS], scalar)
    assert len(shard_paths(prefix)) == 5
    np.testing.assert_array_equal(read_checkpoint(prefix)["w"], W)
    assert read_checkpoint(prefix)["s"] == 3
    assert ShardReader(prefix).get_variable_to_shape_map() == {"w": [5, 8], "s": []}
    part, out = (slice(2, 5), slice(3, 6)), np.zeros((3, 3), np.float32)
    stored = ShardReader(prefix).stored("w")
    stored.check(part)
    stored.read(part, out)
    np.testing.assert_array_equal(out, W[part])


def test_a_part_needs_only_the_files_with_its_elements(prefix: str) -> None:
    save(prefix, *[held("w", W, part) for part in QUARTERS])
    shard_paths(prefix)[3].unlink()
    stored, out = ShardReader(prefix).stored("w"), np.zeros((5, 4), np.float32)
    left = (slice(0, 5), slice(0, 4))
    stored.check(left)
    stored.read(left, out)
    np.testing.assert_array_equal(out, W[left])
    lost = r"-00003-of-00004.safetensors: tensor 'w', piece \[3:5, 4:8\]"
    with pytest.raises(NotFoundError, match=lost):
        stored.check((slice(0, 5), slice(0, 5)))
    with pytest.raises(NotFoundError, match=lost):
        read_checkpoint(prefix)


def test_others_can_read_the_pieces(prefix: str) -> None:
    save(prefix, *[held("w", W, part) for part in QUARTERS], max_shard_bytes=1000)
    (path,) = shard_paths(prefix)
    found = safetensors.numpy.load_file(path)
    assert sorted(found) == ["w[0:3, 0:4]", "w[0:3, 4:8]", "w[3:5, 0:4]", "w[3:5, 4:8]"]
    np.testing.assert_array_equal(found["w[3:5, 0:4]"], W[3:5, 0:4])


def test_a_hole_and_an_overlap_are_data_loss(prefix: str) -> None:
    more = (slice(2, 4), slice(0, 1))
    for pieces, message in (
        (QUARTERS[:3], r"pieces with all of its 40 elements; got '32, of \[0:3, 0:4\], "),
        ([*QUARTERS, more], r"do not overlap; got '\[0:3, 0:4\] of shard 0 and \[2:4, 0:1\] of shard 4'"),
    ):
        with pytest.raises(DataLossError, match=f"tensor 'w': expected .*{message}"):
            save(prefix, *[held("w", W, part) for part in pieces])
        assert shard_paths(prefix) == []
    save(prefix, *[held("w", W, part) for part in QUARTERS])
    edit_manifest(prefix, lambda m: m["tensors"]["w"]["pieces"].pop())
    with pytest.raises(DataLossError, match=r"model.index.json: tensor 'w': expected pieces with all"):
        ShardReader(prefix)


@pytest.mark.parametrize(
    "change",
    [{"offset": [3, 5]}, {"offset": [3]}, {"offset": [-1, 4]}, {"shape": [2, 5]}, {"shape": 0}, {"shard": 4}],
)
def test_a_piece_that_is_no_part_of_its_tensor_is_data_loss(prefix: str, change: dict) -> None:
    save(prefix, *[held("w", W, part) for part in QUARTERS])
    edit_manifest(prefix, lambda m: m["tensors"]["w"]["pieces"][3].update(change))
    with pytest.raises(DataLossError, match=r"tensor 'w' piece.*expected"):
        ShardReader(prefix)


def test_pieces_that_would_have_one_name_in_a_file_are_refused(prefix: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"different names .*'w\[0:3, 0:4\]' of 'w' and 'w\["):
        save(prefix, *[held("w", W, part) for part in QUARTERS], HeldPiece.of_array("w[0:3, 0:4]", W))


def test_damage_names_the_tensor_the_piece_and_the_file_and_hurts_no_other_rows(prefix: str) -> None:
    """A file has a checksum for each block: rows in other blocks can be read."""
    rows = 3 * BLOCK_BYTES // 1024
    w = np.arange(2 * rows * 256, dtype=np.float32).reshape(2 * rows, 256)
    save(prefix, *[held("w", w, (slice(i * rows, (i + 1) * rows), slice(0, 256))) for i in range(2)])
    path = shard_paths(prefix)[1]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    message = rf"00001-of-00002.safetensors: tensor 'w', piece \[{rows}:{2 * rows}, 0:256\]: expected CRC-32"
    stored = ShardReader(prefix).stored("w")
    for part in ((slice(2 * rows - 1, 2 * rows), slice(255, 256)), (slice(0, 2 * rows), slice(0, 256))):
        with pytest.raises(DataLossError, match=message):
            stored.check(part)
    out = np.zeros((2, 256), np.float32)
    stored.check((slice(rows - 1, rows + 1), slice(0, 256)))
    stored.read((slice(rows - 1, rows + 1), slice(0, 256)), out)
    np.testing.assert_array_equal(out, w[rows - 1 : rows + 1])


@pytest.mark.parametrize("row", [0, 1, 4])
def test_each_row_is_checked_and_no_other(prefix: str, row: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of 32 bytes is four blocks of 8."""
    monkeypatch.setattr(shard_file, "BLOCK_BYTES", 8)
    save(prefix, held("w", W, (slice(0, 5), slice(0, 8))))
    (path,) = shard_paths(prefix)
    whole = path.read_bytes()
    begin = len(whole) - W.nbytes + row * 32
    for at in range(begin, begin + 32):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for other in range(5):
            part, stored = (slice(other, other + 1), slice(0, 8)), ShardReader(prefix).stored("w")
            with pytest.raises(DataLossError, match="CRC-32") if other == row else nullcontext():
                stored.check(part)


def test_files_of_many_blocks_have_a_checksum_for_each(prefix: str) -> None:
    w = np.random.default_rng(0).integers(0, 255, 2 * BLOCK_BYTES + 12345, np.uint8)
    save(prefix, HeldPiece.of_array("w", w), HeldPiece.of_array("v", w[:7]), max_shard_bytes=1 << 30)
    (path,) = shard_paths(prefix)
    data, reader = path.read_bytes(), ShardReader(prefix)
    (entry,) = reader._entries
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    assert entry.crc32 == tuple(f"{zlib.crc32(block):08x}" for block in blocks)
    np.testing.assert_array_equal(reader.get_tensor("w"), w)
    np.testing.assert_array_equal(reader.get_tensor("v"), w[:7])


def write_version_1(prefix: str, tensors: dict[str, np.ndarray]) -> None:
    """What flowrt wrote before there were pieces: one shard with one checksum."""
    data, save_id = safetensors.numpy.save(tensors), "0123456789abcdef"
    Path(f"{prefix}.{save_id}-00000-of-00001.safetensors").write_bytes(data)
    body = {
        "format": "flowrt.checkpoint",
        "version": 1,
        "save_id": save_id,
        "shards": [{"bytes": len(data), "crc32": f"{zlib.crc32(data):08x}"}],
        "tensors": {
            name: {"dtype": value.dtype.name, "shape": list(value.shape), "shard": 0}
            for name, value in tensors.items()
        },
    }
    Path(f"{prefix}.index.json").write_bytes(seal(json.dumps(body, indent=1)[1:].encode() + b"\n"))


def test_version_1_is_read_and_replaced_by_version_2(prefix: str) -> None:
    old = {"w": W, "none": np.zeros((0, 3)), "step": np.array(7)}
    write_version_1(prefix, old)
    found = read_checkpoint(prefix)
    assert found.keys() == old.keys()
    for name, value in old.items():
        np.testing.assert_array_equal(found[name], value)
    (path,) = shard_paths(prefix)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(DataLossError, match=r"00000-of-00001.safetensors.*expected CRC-32"):
        read_checkpoint(prefix, ["step"])
    save(prefix, HeldPiece.of_array("w", W))
    assert json.loads(Path(f"{prefix}.index.json").read_bytes())["version"] == 2
    assert not path.exists()


def test_an_empty_file_is_no_shard(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(DataLossError, match="expected a safetensors file"):
        ShardFile(str(tmp_path / "a"))
