"""Weights in a file beside the model: a protobuf message has at most 2 GiB.

model.onnx        the graph; a tensor there says where its bytes are
model.onnx.data   the bytes
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from flowrt.onnx.proto import onnx
from flowrt.storage.durable_files import replacing

SUFFIX = ".data"
MIN_BYTES = 1 << 10
"""Smaller tensors, shapes and axes among them, stay in the model."""
ALIGNMENT = 1 << 12
"""Tensors begin at pages, so that a reader may map them."""


class Piece(NamedTuple):
    """The bytes of a tensor, and where they begin in the file."""

    begin: int
    content: bytes


def move_out(tensors: Iterable[Any], location: str) -> list[Piece]:
    """Leave of the large TensorProtos where their bytes are, in the file ``location``; return these."""
    pieces, end = list[Piece](), 0
    for tensor in tensors:
        content = tensor.raw_data
        if len(content) < MIN_BYTES:
            continue
        begin = -(-end // ALIGNMENT) * ALIGNMENT
        end = begin + len(content)
        pieces.append(Piece(begin, content))
        tensor.ClearField("raw_data")
        tensor.data_location = onnx().TensorProto.EXTERNAL
        for key, value in (("location", location), ("offset", begin), ("length", len(content))):
            tensor.external_data.add(key=key, value=str(value))
    return pieces


def write_pieces(path: str, pieces: Sequence[Piece]) -> None:
    """Atomically replace the file at ``path``. Raises `OSError`."""
    with replacing(path) as file:
        for begin, content in pieces:
            file.seek(begin)
            file.write(content)


def without_outside(model: Any) -> Any:
    """A copy of ``model`` that takes the tensors outside as inputs, for checks that do not read them."""
    copy = onnx().ModelProto()
    copy.CopyFrom(model)
    inside = [each for each in copy.graph.initializer if not each.external_data]
    for each in copy.graph.initializer:
        if each.external_data:
            copy.graph.input.append(
                onnx().helper.make_tensor_value_info(each.name, each.data_type, list(each.dims))
            )
    del copy.graph.initializer[:]
    copy.graph.initializer.extend(inside)
    return copy
