"""``flowrt.io``: files, under the names of later TensorFlow 1 versions."""

from flowrt import gfile
from flowrt.graph.ops.strings import decode_raw
from flowrt.train.graph_files import write_graph

__all__ = [
    "decode_raw",
    "gfile",
    "write_graph",
]
