"""Configuration of TensorBoard's projector: variables to show, and their labels.

The messages have the fields of TensorBoard's ``projector_config.proto`` and are in a separate pool, so that
TensorBoard in the same process can register its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from flowrt.storage.durable_files import typed_os_errors
from flowrt.summary.writer import FileWriter

_MESSAGES = {
    "SpriteMetadata": "string image_path, uint32* single_image_dim",
    "EmbeddingInfo": "string tensor_name, string metadata_path, string bookmarks_path, uint32* tensor_shape, "
    "SpriteMetadata sprite, string tensor_path",
    "ProjectorConfig": "string model_checkpoint_path, EmbeddingInfo* embeddings, string model_checkpoint_dir",
}
"""Message -> its fields in the order of their numbers; * is repeated."""


def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="flowrt/projector_config.proto", package="flowrt", syntax="proto3")
    scalars = {"string": FieldDescriptorProto.TYPE_STRING, "uint32": FieldDescriptorProto.TYPE_UINT32}
    for message, fields in _MESSAGES.items():
        made = file.message_type.add(name=message)
        for number, text in enumerate(fields.split(", "), 1):
            kind, name = text.split()
            field = made.field.add(name=name, number=number)
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            field.type = scalars.get(kind, field.TYPE_MESSAGE)
            if kind not in scalars:
                field.type_name = f".flowrt.{kind}"
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return pool


_POOL = _pool()
SpriteMetadata, EmbeddingInfo, ProjectorConfig = (
    GetMessageClass(_POOL.FindMessageTypeByName(f"flowrt.{name}")) for name in _MESSAGES
)


def visualize_embeddings(summary_writer: FileWriter, config: Any) -> None:
    """Write ``config`` as ``projector_config.pbtxt`` into the directory of ``summary_writer``. Raises as
    `gfile.GFile` where it cannot be written.
    """
    path = Path(summary_writer.get_logdir()) / "projector_config.pbtxt"
    with typed_os_errors(f"visualize_embeddings {str(path)!r}"):
        path.write_text(text_format.MessageToString(config), "utf-8")
