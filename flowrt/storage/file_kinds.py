"""`described`: what a file is that was given in place of a model, by its first bytes."""

from __future__ import annotations

_PICKLE = "a pickle, which can run any program: save arrays there, as safetensors or .npz"
_ZIP = "a zip archive, as PyTorch's and Keras's: export the model there, to ONNX or a SavedModel"

_KINDS: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\x89HDF\r\n\x1a\n", "HDF5, as Keras's .h5: Model.load_weights of keras reads its weights"),
    (4, b"TFL3", "a model of TensorFlow Lite: take the one from which it was converted"),
    (0, b"PK\x03\x04", _ZIP),
    *((0, bytes([0x80, version]), _PICKLE) for version in range(2, 6)),
    (0, b"version https://git-lfs", "a pointer of Git LFS: fetch the file itself"),
    (0, b"\x1f\x8b", "compressed by gzip: unpack it"),
    (0, b"<", "a web page, or another text with tags"),
    (0, b"\x08\x01\x12", "a SavedModel: saved_model.load_model reads its folder"),
)  # fmt: skip
"""(where, the bytes there, what the file is and what to do)."""


HEAD_BYTES = 32
"""Bytes of a file that are enough."""


def described(data: bytes | None) -> str:
    """``"; it is ..."`` to put behind what was expected; empty if the kind is not known, or no data is."""
    if data is None:
        return ""
    if not data:
        return "; it is empty"
    for start, mark, text in _KINDS:
        if data[start : start + len(mark)] == mark:
            return f"; it is {text}"
    return ""
