"""`export_meta_graph`: a graph's message with its collections and its saver.

A variable or a queue runner is written as the names of its operations (VariableDef, QueueRunnerDef). A
collection of other things than those, tensors, operations, numbers and strings is left out, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from flowrt import protos
from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.source import misuse
from flowrt.storage.durable_files import PathLike, path_string, replace_file, typed_os_errors
from flowrt.train.checkpoints.saver_nodes import add_saver
from flowrt.train.coordination.queue_runner import QueueRunner
from flowrt.variables.imported_variable import variable_def
from flowrt.variables.variable import GraphKeys, Variable

LOGGER = logging.getLogger(__name__)


def export_meta_graph(
    filename: PathLike | None = None,
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Collection[str] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: str | None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
) -> Any:
    """The MetaGraphDef of ``graph`` (or the default graph): its operations, and the collections in
    ``collection_list`` (all if None); written to ``filename`` too, if that is given, and as text if the name
    ends in ``.pbtxt`` or with ``as_text``.

    ``saver_def`` names operations that save and restore; without it there are ones for all global variables,
    which are in the message only. TensorFlow imports it, as far as it has the operations.

    Raises `UnimplementedError` for ``export_scope``, and for an operation that a message cannot hold.
    """
    if export_scope:
        raise misuse(
            "export_meta_graph: expected no export_scope; the whole graph is exported", UnimplementedError
        )
    message = meta_graph_of(graph or get_default_graph(), collection_list, graph_def, saver_def)
    if meta_info_def is not None:
        message.meta_info_def.MergeFromString(meta_info_def.SerializeToString())
    if clear_devices:
        for node in message.graph_def.node:
            node.device = ""
    if filename is not None:
        write_meta_graph(message, path_string(filename, "export_meta_graph"), as_text)
    return message


def write_meta_graph(message: Any, path: str, as_text: bool = False) -> None:
    """Write a message to a file. Raises file system errors."""
    text = as_text or path.endswith(".pbtxt")
    with typed_os_errors(path):
        replace_file(path, str(message).encode() if text else message.SerializeToString())


def meta_graph_of(
    graph: Graph,
    collection_list: Collection[str] | None = None,
    graph_def: Any = None,
    saver_def: Any = None,
    variables: Mapping[str, Variable] | None = None,
) -> Any:
    """The MetaGraphDef of ``graph``. Without ``saver_def`` it has a saver for ``variables`` by their names in
    checkpoints, or, if None, for all global ones.
    """
    message = protos.meta_graph_pb2.MetaGraphDef()
    message.graph_def.CopyFrom(graph.as_graph_def(add_shapes=True) if graph_def is None else graph_def)
    if saver_def is not None:
        message.saver_def.MergeFromString(saver_def.SerializeToString())
    else:
        if variables is None:
            variables = {v.op.name: v for v in graph.get_collection(GraphKeys.GLOBAL_VARIABLES)}
        if variables:
            message.saver_def.CopyFrom(add_saver(message.graph_def, variables))
    for key in graph.get_all_collection_keys() if collection_list is None else collection_list:
        _write_collection(message.collection_def, key, graph.get_collection(key))
    return message


def _write_collection(collections: Any, key: str, items: Sequence[Any]) -> None:
    if not items:
        return
    if all(isinstance(item, Variable) for item in items):
        collections[key].bytes_list.value.extend(variable_def(v).SerializeToString() for v in items)
    elif all(isinstance(item, QueueRunner) for item in items):
        collections[key].bytes_list.value.extend(item.to_proto().SerializeToString() for item in items)
    elif all(isinstance(item, Operation | Tensor) for item in items):
        collections[key].node_list.value.extend(item.name for item in items)
    elif all(isinstance(item, str | bytes) for item in items):
        texts = (item.encode() if isinstance(item, str) else item for item in items)
        collections[key].bytes_list.value.extend(texts)
    elif all(isinstance(item, int) for item in items):
        collections[key].int64_list.value.extend(items)
    elif all(isinstance(item, int | float) for item in items):
        collections[key].float_list.value.extend(items)
    else:
        LOGGER.warning("collection %r is left out: a message cannot hold %r", key, items[0])
