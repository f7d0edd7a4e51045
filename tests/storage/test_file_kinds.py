"""A file of another kind is told by every reader, with what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import flowrt as tf
import flowrt.onnx
from flowrt.errors import OpError

FILES = {
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "TensorFlow Lite": b"\x1c\0\0\0TFL3" + bytes(40),
    "a zip archive": b"PK\x03\x04" + bytes(40),
    "a pickle": pickle.dumps({"weights": [1.0, 2.0]}),
    "Git LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "a web page": b"<!DOCTYPE html><html>404</html>",
}


def _safetensors(path: Path) -> None:
    with tf.Graph(), tf.Session() as session:
        tf.train.load_safetensors(path, {}, session)


READERS: dict[str, Any] = {
    "onnx": flowrt.onnx.load, "frozen": tf.saved_model.load_frozen_graph, "safetensors": _safetensors,
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", FILES)
def test_a_file_of_another_kind(tmp_path: Path, kind: str, reader: str) -> None:
    path = tmp_path / "model"
    path.write_bytes(FILES[kind])
    with pytest.raises(OpError, match=f"/model: expected .*; it is .*{kind}"):
        READERS[reader](path)
