"""`write_graph`: a graph's message in a file."""

from __future__ import annotations

import os
from typing import Any

from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Graph
from flowrt.storage.durable_files import replace_file


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
