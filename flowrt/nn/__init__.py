"""``flowrt.nn``: TensorFlow's names of this namespace.

average_loss              losses of one replica, scaled for the whole batch
rnn_cell                  cells: one step of a recurrent network
sequences                 sequences of different lengths in one batch
recurrent, unrolled       recurrent networks as a loop; with one cell per time step
ctc                       labels from logits over time: loss and decoders
sampled                   losses over a sample of the classes
"""

import importlib as _importlib
from typing import Any

from flowrt.functions.arrangements import batch_to_space, space_to_batch
from flowrt.functions.sparse_embeddings import *
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.sorting import top_k
from flowrt.graph.ops.array.tile_and_reverse import depth_to_space, space_to_depth
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.ops.nn.activations import *
from flowrt.graph.ops.nn.batch_norm import fused_batch_norm
from flowrt.graph.ops.nn.bias import bias_add, dropout, relu_layer, xw_plus_b
from flowrt.graph.ops.nn.conv_functions import *
from flowrt.graph.ops.nn.losses import *
from flowrt.graph.ops.nn.moments import *
from flowrt.graph.ops.nn.normalization import layer_norm, local_response_normalization, lrn
from flowrt.graph.ops.nn.pooling import *
from flowrt.graph.ops.nn.pooling_places import max_pool_with_argmax
from flowrt.graph.ops.nn.softmax import log_softmax, softmax
from flowrt.nn.average_loss import compute_average_loss, scale_regularization_loss
from flowrt.nn.ctc import *
from flowrt.nn.sampled import *
from flowrt.tf1.missing_names import missing_name

# Names that depend on layers, which depend on this module: loaded on first use.
_RECURRENT = ("bidirectional_dynamic_rnn", "dynamic_rnn", "raw_rnn")
_UNROLLED = ("static_bidirectional_rnn", "static_rnn")


def __getattr__(name: str) -> Any:
    if name == "rnn_cell":
        return _importlib.import_module("flowrt.nn.rnn_cell")
    if name in _RECURRENT:
        return getattr(_importlib.import_module("flowrt.nn.recurrent"), name)
    if name in _UNROLLED:
        return getattr(_importlib.import_module("flowrt.nn.unrolled"), name)
    raise missing_name("nn", name)


def __dir__() -> list[str]:
    return sorted({*globals(), "rnn_cell", *_RECURRENT, *_UNROLLED})
