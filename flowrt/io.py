"""``flowrt.io``: files, under the names of later TensorFlow 1 versions."""

from flowrt import gfile as gfile
from flowrt.graph.ops.strings import decode_raw as decode_raw
from flowrt.train.graph_files import write_graph as write_graph
