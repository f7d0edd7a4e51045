"""Ops that write and read checkpoints of TensorFlow's, as the savers of its graphs use them.

A task of a cluster does not run them for others unless it is told to: see `Privilege`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from flowrt.dtypes import DType
from flowrt.errors import InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.graph import Operation
from flowrt.graph.op_def import NONDIFFERENTIABLE, Effect, Effects, OpDef, Privilege, define_op, sample
from flowrt.graph.ops.text.strings import each_string, host_array, words
from flowrt.storage import tensor_files

_WRITES = Effects(Effect.STATEFUL, privilege=lambda attrs: Privilege.FILES)
_READS = Effects(Effect.STATEFUL, privilege=lambda attrs: Privilege.READS_FILES)


def path_of(text: Any) -> str:
    """The path in a scalar string."""
    array = host_array(text)
    if array.shape != ():
        raise InvalidArgumentError(f"expected one path; got shape {list(array.shape)}")
    path: bytes = array.item()
    if not path or b"\0" in path:
        raise InvalidArgumentError(f"expected a path; got {path!r:.200}")
    return path.decode("utf-8", "surrogateescape")


def _texts(strings: Any, count: int | None = None) -> list[str]:
    found = [each.decode("utf-8", "replace") for each in host_array(strings).reshape(-1).tolist()]
    if count is not None and len(found) != count:
        raise InvalidArgumentError(f"expected {count} strings, one for each tensor; got {len(found)}")
    return found


def _save(
    xp: Any, prefix: Any, tensor_names: Any, shape_and_slices: Any, tensors: Sequence[Any]
) -> tuple[()]:
    count = len(tensors)
    arrays = [x if isinstance(x, bytes) else x.get() if hasattr(x, "get") else x for x in tensors]
    tensor_files.save(
        path_of(prefix), _texts(tensor_names, count), _texts(shape_and_slices, count),
        [host_array(x) for x in arrays],
    )  # fmt: skip
    return ()


save_op: OpDef[Operation] = define_op(
    "SaveV2",
    "prefix: string, tensor_names: string, shape_and_slices: string, tensors: *dtypes in ANY ->",
    kernel=_save,
    effects=_WRITES,
    doc="Writes tensors, or slices of such, as a checkpoint of TensorFlow's (version 2).",
)


def _restore(
    xp: Any, prefix: Any, tensor_names: Any, shape_and_slices: Any, dtypes: Sequence[DType]
) -> list[Any]:
    count = len(dtypes)
    checkpoint = tensor_files.open_tensors(path_of(prefix))
    names, places = _texts(tensor_names, count), _texts(shape_and_slices, count)
    return [
        xp.asarray(tensor_files.restored(checkpoint, name, place, dtype))
        for name, place, dtype in zip(names, places, dtypes, strict=True)
    ]


restore_op: OpDef[list[Any]] = define_op(
    "RestoreV2",
    "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: *dtypes in ANY",
    attrs="dtypes: list(type)",
    shape=lambda s: [None] * len(s.attrs["dtypes"]),
    kernel=_restore,
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=_READS,
    doc="Tensors, or slices of such, of a checkpoint of TensorFlow's, of either version.",
)

restore_slice_op = define_op(
    "RestoreSlice",
    "file_pattern: string, tensor_name: string, shape_and_slice: string -> tensor: dt in ANY",
    attrs="dt: type, preferred_shard: int = -1",
    shape=lambda s: [None],
    kernel=lambda xp, file_pattern, tensor_name, shape_and_slice, dt: _restore(
        xp, file_pattern, tensor_name, shape_and_slice, [dt]
    )[0],
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=_READS,
    doc="A slice of a tensor of a checkpoint, as older graphs read it.",
)

restore_v1_op = define_op(
    "Restore",
    "file_pattern: string, tensor_name: string -> tensor: dt in ANY",
    attrs="dt: type, preferred_shard: int = -1",
    shape=lambda s: [None],
    kernel=lambda xp, file_pattern, tensor_name, dt: _restore(xp, file_pattern, tensor_name, b"", [dt])[0],
    vjp=NONDIFFERENTIABLE,
    samples=lambda rng: (),
    effects=_READS,
    doc="A tensor of a checkpoint, as older graphs read it.",
)


def _refuse(name: str) -> Any:
    def kernel(xp: Any, filename: Any, tensor_names: Any, *others: Any) -> None:
        raise UnimplementedError(
            f"{name} writes checkpoints of version 1, which flowrt only reads. Save with tf.train.Saver()"
        )

    return kernel


save_v1_op: OpDef[Operation] = define_op(
    "Save",
    "filename: string, tensor_names: string, data: *T in ANY ->",
    kernel=_refuse("Save"),
    effects=_WRITES,
    doc="An operation of older graphs, which can be imported with it: it is an error when it runs.",
)
save_slices_op: OpDef[Operation] = define_op(
    "SaveSlices",
    "filename: string, tensor_names: string, shapes_and_slices: string, data: *T in ANY ->",
    kernel=_refuse("SaveSlices"),
    effects=_WRITES,
    doc="An operation of older graphs, which can be imported with it: it is an error when it runs.",
)


def _merge(xp: Any, checkpoint_prefixes: Any, destination_prefix: Any, delete_old_dirs: bool) -> tuple[()]:
    tensor_files.merge(_texts(checkpoint_prefixes), path_of(destination_prefix), delete_old_dirs)
    return ()


merge_op: OpDef[Operation] = define_op(
    "MergeV2Checkpoints",
    "checkpoint_prefixes: string, destination_prefix: string ->",
    attrs="delete_old_dirs: bool = True, allow_missing_files: bool = False",
    kernel=_merge,
    effects=_WRITES,
    doc="Makes one checkpoint of the parts that several devices wrote.",
)

sharded_filename_op = define_op(
    "ShardedFilename",
    "basename: string, shard: int32, num_shards: int32 -> filename: string",
    shape=lambda s: [()],
    kernel=lambda xp, basename, shard, num_shards: each_string(
        lambda name, i, n: b"%s-%05d-of-%05d" % (name, i, n),
        basename,
        np.asarray(shard),
        np.asarray(num_shards),
    ),
    samples=lambda rng: [sample(words(b"model")[0], np.int32(1), np.int32(12))],
    doc="The name of a file of a checkpoint in several.",
)
sharded_filespec_op = define_op(
    "ShardedFilespec",
    "basename: string, num_shards: int32 -> filename: string",
    shape=lambda s: [()],
    kernel=lambda xp, basename, num_shards: each_string(
        lambda name, n: b"%s-?????-of-%05d" % (name, n), basename, np.asarray(num_shards)
    ),
    samples=lambda rng: [sample(words(b"model")[0], np.int32(12))],
    doc="The pattern of the names of a checkpoint's files.",
)
