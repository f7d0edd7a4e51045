"""`write_graph`; and the atomic file writes and typed file errors of `flowrt.storage.durable_files`."""

from __future__ import annotations

import os
from typing import Any

from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Graph
from flowrt.storage.durable_files import PathLike as PathLike
from flowrt.storage.durable_files import path_string as path_string
from flowrt.storage.durable_files import replace_file as replace_file
from flowrt.storage.durable_files import sync_directory as sync_directory
from flowrt.storage.durable_files import sync_file as sync_file
from flowrt.storage.durable_files import syncing_early as syncing_early
from flowrt.storage.durable_files import typed_os_errors as typed_os_errors
from flowrt.storage.durable_files import write_synced as write_synced


def write_graph(graph_or_graph_def: Any, logdir: str, name: str, as_text: bool = True) -> str:
    """Write the file ``logdir/name`` and return its path; the directory is created if it is missing.

    Raises `DTypeError` for anything but a `Graph` or a GraphDef. An existing file is replaced atomically.
    """
    message = (
        graph_or_graph_def.as_graph_def() if isinstance(graph_or_graph_def, Graph) else graph_or_graph_def
    )
    if not hasattr(message, "SerializeToString"):
        raise DTypeError(f"write_graph: expected a Graph or a GraphDef; got {graph_or_graph_def!r}")
    data = str(message).encode() if as_text else message.SerializeToString()
    os.makedirs(logdir, exist_ok=True)
    path = os.path.join(logdir, name)
    replace_file(path, data)
    return path
