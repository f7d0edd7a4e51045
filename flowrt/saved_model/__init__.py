"""``flowrt.saved_model``: graphs of TensorFlow's that run, from files, and such files of graphs.

graph_model                         `GraphModel`: a graph with named inputs and outputs that runs
frozen_graph                        GraphDef files with constants in place of variables
tfjs                                graph models of TensorFlow.js
file_writes                         what a graph from a file may not do
constants                           names of files and collections
tag_constants, signature_constants  names that TensorFlow's servers know
signatures                          inputs and outputs by name, as messages
loader                              `loader.load`, `load_model`
builder                             `SavedModelBuilder`, `simple_save`
"""

from flowrt.saved_model import builder as builder
from flowrt.saved_model import constants as constants
from flowrt.saved_model import loader as loader
from flowrt.saved_model import signature_constants as signature_constants
from flowrt.saved_model import signatures
from flowrt.saved_model import tag_constants as tag_constants
from flowrt.saved_model.builder import Builder, SavedModelBuilder, simple_save
from flowrt.saved_model.frozen_graph import freeze, load_frozen_graph
from flowrt.saved_model.graph_model import GraphModel
from flowrt.saved_model.loader import LoadedModel, load_model
from flowrt.saved_model.loader import maybe_saved_model_directory as contains_saved_model
from flowrt.saved_model.signature_constants import *
from flowrt.saved_model.signatures import *
from flowrt.saved_model.tag_constants import *
from flowrt.saved_model.tfjs import load_graph_model
from flowrt.tf1.missing_names import missing_from

utils = signature_def_utils = signatures

__getattr__ = missing_from("saved_model")
