"""``flowrt.io``: files, under the names of later TensorFlow 1 versions."""

from flowrt import gfile
from flowrt.graph.ops.text.strings import decode_raw
from flowrt.tf1.missing_names import missing_from
from flowrt.train.checkpoints.graph_file import write_graph

__all__ = ["decode_raw", "gfile", "write_graph"]


__getattr__ = missing_from("io")
