"""`load`: a SavedModel of TensorFlow's, old or new: a directory of graphs with variables and assets.

    DIR/saved_model.pb           graphs with tags: collections, signatures, savers
    DIR/variables/variables.*    a checkpoint
    DIR/assets/*                 files that the graph reads, for tables

A graph is a program: loading it runs the operations that restore it and initialize its tables, so it must
not write files, and what it restores is in the directory.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np

from flowrt import protos
from flowrt.errors import InvalidArgumentError, NotFoundError, nearest
from flowrt.executor.session.session import Session
from flowrt.graph.construction.graph import Graph, Operation, Tensor
from flowrt.saved_model import constants
from flowrt.saved_model.file_writes import check_writes_no_files
from flowrt.saved_model.graph_model import GraphModel
from flowrt.saved_model.signatures import tensor_name
from flowrt.storage.durable_files import PathLike, path_string
from flowrt.tf1.message_files import parsed, read_message
from flowrt.train.checkpoints.import_meta_graph import Imported, imported
from flowrt.train.checkpoints.open_checkpoint import checkpoint_exists


def maybe_saved_model_directory(export_dir: PathLike) -> bool:
    """Whether the directory has a SavedModel."""
    names = (constants.SAVED_MODEL_FILENAME_PB, constants.SAVED_MODEL_FILENAME_PBTXT)
    return any(os.path.isfile(os.path.join(export_dir, name)) for name in names)


def load(
    sess: Any,
    tags: Collection[str],
    export_dir: PathLike,
    import_scope: str | None = None,
    *,
    allow_files: bool = False,
    **saver_kwargs: Any,
) -> Any:
    """Add the graph with exactly ``tags`` to the graph of ``sess``, restore its variables and initialize its
    tables. Returns its MetaGraphDef, which has the signatures.

    >>> meta_graph = tf.saved_model.loader.load(session, ["serve"], "model")
    >>> session.run(meta_graph.signature_def["serving_default"].outputs["y"].name, {"x:0": x})

    Raises `NotFoundError` for no such directory or tags, and as `import_meta_graph` and ``Session.run``;
    `PermissionDeniedError` for a graph that writes files other than its checkpoints, unless ``allow_files``.
    """
    path = path_string(export_dir, "saved_model.load")
    message = _tagged(read_saved_model(path), set(tags), path)
    with sess.graph.as_default():
        _load_message(sess, message, path, import_scope, allow_files)
    return message


class _Signatures(dict[str, GraphModel]):
    """Signatures of the model at ``path`` by name. Raises `NotFoundError`, which names them, for another."""

    def __init__(self, path: str, signatures: Mapping[str, GraphModel]) -> None:
        super().__init__(signatures)
        self._path = path

    def __missing__(self, name: Any) -> GraphModel:
        known, hint = ", ".join(self) or "none", nearest(str(name), self)
        raise NotFoundError(f"{self._path}: expected one of its signatures ({known}); got {name!r}.{hint}")


class LoadedModel(NamedTuple):
    """A SavedModel in a session of its own: `signatures` are functions of arrays, by name; another name
    raises `NotFoundError`.
    """

    session: Any
    signatures: Mapping[str, GraphModel]

    @property
    def graph(self) -> Graph:
        graph: Graph = self.session.graph
        return graph

    def close(self) -> None:
        self.session.close()


def load_model(
    export_dir: PathLike, tags: Collection[str] | None = None, *, allow_files: bool = False
) -> LoadedModel:
    """A SavedModel that runs, with a graph and a session of its own. ``tags`` may be left out if it has one
    graph.

    >>> model = tf.saved_model.load_model("model")
    >>> model.signatures["serving_default"](x=x)["y"]

    Raises as `load`.
    """
    path = path_string(export_dir, "saved_model.load_model")
    saved = read_saved_model(path)
    if tags is None and len(saved.meta_graphs) == 1:
        tags = saved.meta_graphs[0].meta_info_def.tags
    message = _tagged(saved, set(() if tags is None else tags), path)
    with Graph() as graph:
        session = Session(graph=graph)
        found = _load_message(session, message, path, None, allow_files)
        signatures = {
            name: GraphModel(session, _tensors(found, each.inputs), _tensors(found, each.outputs))
            for name, each in message.signature_def.items()
            if name != constants.INIT_OP_SIGNATURE_KEY
        }
    return LoadedModel(session, _Signatures(path, signatures))


def read_saved_model(path: str) -> Any:
    """The SavedModel message of a directory. Raises `NotFoundError` if there is none."""
    for name in (constants.SAVED_MODEL_FILENAME_PB, constants.SAVED_MODEL_FILENAME_PBTXT):
        file = os.path.join(path, name)
        if os.path.isfile(file):
            return read_message(file, protos.meta_graph_pb2.SavedModel)
    got = "it is a file: give its folder" if os.path.isfile(path) else "there is none"
    raise NotFoundError(f"{path}: expected a SavedModel ({constants.SAVED_MODEL_FILENAME_PB}); {got}")


def _tagged(saved: Any, tags: set[str], path: str) -> Any:
    for message in saved.meta_graphs:
        if set(message.meta_info_def.tags) == tags:
            return message
    known = "; ".join(", ".join(each.meta_info_def.tags) or "no tags" for each in saved.meta_graphs)
    wanted = ", ".join(sorted(tags)) or "no tags"
    raise NotFoundError(f"{path}: expected a graph with tags {wanted}; it has graphs with: {known}")


def _load_message(sess: Any, message: Any, path: str, scope: str | None, allow_files: bool) -> Imported:
    if not allow_files:
        _check_files(message)
    assets = [(each.tensor_info, _asset(path, each.filename)) for each in _asset_files(message)]
    found = imported(message, import_scope=scope)
    feeds = dict(_place_asset(_found(found, tensor_name(info)), file) for info, file in assets)
    variables = os.path.join(path, constants.VARIABLES_DIRECTORY, constants.VARIABLES_FILENAME)
    if found.saver is not None and checkpoint_exists(variables):
        found.saver.restore(sess, variables)
    for op in _init_ops(found):
        sess.run(op, feeds)
    return found


def _asset_files(message: Any) -> list[Any]:
    """The AssetFileDefs; older graphs have them in a collection."""
    if message.asset_file_def or constants.ASSETS_KEY not in message.collection_def:
        return list(message.asset_file_def)
    kind = protos.meta_graph_pb2.AssetFileDef
    found = message.collection_def[constants.ASSETS_KEY].any_list.value
    return [parsed("SavedModel: assets", each.value, kind) for each in found]


def _asset(path: str, name: str) -> str:
    """The path of an asset, which is in the directory."""
    if os.path.basename(name) != name or name in ("", ".", ".."):
        raise InvalidArgumentError(f"{path}: expected assets by their names; got {name[:200]!r}")
    return os.path.join(path, constants.ASSETS_DIRECTORY, name)


def _found(found: Imported, name: str) -> Any:
    element = found.find(name)
    if element is None:
        raise InvalidArgumentError(f"SavedModel: expected a name in its graph; got {name[:200]!r}")
    return element


def _place_asset(tensor: Tensor, file: str) -> tuple[Tensor, str]:
    """The feed with the path of an asset; a constant has it from now on, for later runs."""
    if tensor.op.type == "Const":
        value = np.array(os.fsencode(file), object)
        tensor.op.mutate(attrs={**tensor.op.node.attrs, "value": value})
    return tensor, file


def _tensors(found: Imported, infos: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: _found(found, tensor_name(infos[name])) for name in sorted(infos)}


def _init_ops(found: Imported) -> list[Operation]:
    """The operations that initialize what is not a variable."""
    message = found.message
    for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY):
        if key in message.collection_def:
            return [_found(found, name) for name in message.collection_def[key].node_list.value]
    if constants.INIT_OP_SIGNATURE_KEY in message.signature_def:
        outputs = message.signature_def[constants.INIT_OP_SIGNATURE_KEY].outputs
        return [_found(found, tensor_name(info)) for info in outputs.values()]
    return []


# --- what it may do


def _check_files(message: Any) -> None:
    """Raise `PermissionDeniedError` for a node that writes files, if loading or a signature runs it."""
    infos = [
        info
        for each in message.signature_def.values()
        for info in each.outputs.values()
        if info.WhichOneof("encoding") == "name"
    ]
    keys = [
        key for key in (constants.MAIN_OP_KEY, constants.LEGACY_INIT_OP_KEY) if key in message.collection_def
    ]
    inits = [name for key in keys for name in message.collection_def[key].node_list.value]
    check_writes_no_files(
        message.graph_def, [message.saver_def.restore_op_name, *inits, *(info.name for info in infos)]
    )
