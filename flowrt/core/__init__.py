"""``flowrt.core``: TensorFlow's paths of messages that scripts import from, as in ``from
flowrt.core.framework import summary_pb2``. The modules have no files (`flowrt.tf1.inner_paths`).
"""

from flowrt.tf1.inner_paths import make_paths, read_paths
from flowrt.tf1.missing_names import missing_from

_PATHS = """
example: example_pb2 feature_pb2 -> train
framework: attr_value_pb2 graph_pb2 node_def_pb2 step_stats_pb2 summary_pb2 -> flowrt
framework: variable_pb2 -> protos.meta_graph_pb2
protobuf: config_pb2 meta_graph_pb2 -> flowrt
protobuf: saver_pb2 -> protos.meta_graph_pb2
util: event_pb2 -> flowrt summary
"""

make_paths("core", read_paths(_PATHS), {})
__getattr__ = missing_from("core")
