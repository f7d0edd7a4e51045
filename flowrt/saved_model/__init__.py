"""``flowrt.saved_model``: graphs of TensorFlow's that run, from files, and such files of graphs.

graph_model    `GraphModel`: a graph with named inputs and outputs that runs
frozen_graph   GraphDef files with constants in place of variables
"""

from flowrt.saved_model.frozen_graph import freeze, load_frozen_graph
from flowrt.saved_model.graph_model import GraphModel
from flowrt.tf1.missing_names import missing_from

__all__ = ["GraphModel", "freeze", "load_frozen_graph"]

__getattr__ = missing_from("saved_model")
