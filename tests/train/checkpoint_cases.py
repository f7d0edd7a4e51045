"""Checkpoints that the tests save, and what is in a directory."""

import os
from pathlib import Path

import numpy as np

from flowrt.train.checkpoints.shard_reader import ShardReader

SMALL = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "c": np.array([1 + 2j, 3 - 4j]),
    "s": np.array([[b"a\0", b""]], object),
    "step": np.array(7, np.int64),
}
OTHER = {name: np.array(value[..., ::-1] if value.ndim else value + 1) for name, value in SMALL.items()}


def assert_equal(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(got) == list(expected)
    for name, value in expected.items():
        array = got[name]
        native = value.dtype.newbyteorder("=")
        assert (array.dtype, array.shape) == (native, value.shape), name
        as_bytes = [a.tolist() if a.dtype.hasobject else a.tobytes() for a in (array, value.astype(native))]
        assert as_bytes[0] == as_bytes[1], name


def files(prefix: str) -> list[str]:
    return sorted(os.listdir(os.path.dirname(prefix)))


def shard_paths(prefix: str) -> list[Path]:
    return sorted(Path(prefix).parent.glob("*.safetensors"))


def shard_files(prefix: str) -> list[str]:
    return [path.name for path in shard_paths(prefix)]


def named_files(prefix: str) -> list[str]:
    """The files that the manifest under ``prefix`` stands for."""
    reader = ShardReader(prefix)
    count = len({piece.shard for entry in reader.tensors.values() for piece in entry.pieces})
    base = f"{os.path.basename(prefix)}.{reader.save_id}"
    shards = [f"{base}-{i:05d}-of-{count:05d}.safetensors" for i in range(count)]
    return sorted([*shards, f"{os.path.basename(prefix)}.index.json"])
