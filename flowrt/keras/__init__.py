"""``flowrt.keras``: models of layers, as TensorFlow 1.15's ``tf.keras`` has them in graph mode.

Three ways were weighed. As a backend of Keras 3, flowrt would not run programs of TensorFlow 1: its
symbolic tensors are no tensors of a graph, and ``K.get_session``, ``K.function`` and TensorFlow's
optimizers in ``compile`` are gone. ``tf_keras`` over an alias imports the insides of TensorFlow in 262
modules. So the layers are flowrt's own, those of `flowrt.layers` with Keras's protocol: a symbolic tensor
is a tensor of the default graph, a model is also a part of it, and a step of `Model.fit` is a run of a
session.

state                   the session and the state of a graph
identifiers             objects by name
activations, constraints, initializers, regularizers, losses, metrics, optimizers, callbacks
progress_bar            a line that shows how far an epoch is
lengths                 ``utils.conv_utils``: lengths of convolutions, arguments for each dimension
labels, sequences       ``utils``: one-hot labels; data with numbered batches
preprocessing           texts, images and sequences of several lengths as arrays
model_graph             ``utils``: models as pictures; inputs of a tensor
array_pickles           pickled arrays, without their code
local_files             files that Keras would download
local_datasets          ``datasets``: those in ``~/.keras/datasets``
applications            networks for images
saving                  models and weights as files
engine                  `Layer`, `Model`, `Sequential`
layers                  the layers
models                  models from their data; copies
estimator               models as estimators
scikit_learn            models as scikit-learn's estimators
backend                 flowrt's operations under Keras's names
network_functions       its convolutions, pooling, losses
"""

from flowrt.keras import activations as activations
from flowrt.keras import applications as applications
from flowrt.keras import array_pickles as array_pickles
from flowrt.keras import backend as backend
from flowrt.keras import callbacks as callbacks
from flowrt.keras import constraints as constraints
from flowrt.keras import estimator as estimator
from flowrt.keras import identifiers as identifiers
from flowrt.keras import initializers as initializers
from flowrt.keras import labels as labels
from flowrt.keras import layers as layers
from flowrt.keras import lengths as lengths
from flowrt.keras import local_datasets as local_datasets
from flowrt.keras import local_files as local_files
from flowrt.keras import losses as losses
from flowrt.keras import metrics as metrics
from flowrt.keras import model_graph as model_graph
from flowrt.keras import models as models
from flowrt.keras import network_functions as network_functions
from flowrt.keras import optimizers as optimizers
from flowrt.keras import preprocessing as preprocessing
from flowrt.keras import progress_bar as progress_bar
from flowrt.keras import regularizers as regularizers
from flowrt.keras import scikit_learn as scikit_learn
from flowrt.keras import sequences as sequences
from flowrt.keras.engine.input_layer import Input as Input
from flowrt.keras.engine.model import Model as Model
from flowrt.keras.engine.sequential import Sequential as Sequential
from flowrt.tf1.inner_paths import make_paths, read_paths
from flowrt.tf1.missing_names import missing_from

__version__ = "2.2.4-tf"

_PATHS = """
: utils -> keras.labels keras.sequences keras.identifiers keras.progress_bar
    keras.local_files keras.model_graph
utils: data_utils generic_utils layer_utils np_utils vis_utils -> keras.utils
utils: conv_utils -> keras.lengths
wrappers: scikit_learn -> keras.scikit_learn
datasets: boston_housing cifar10 cifar100 fashion_mnist imdb mnist reuters -> keras.local_datasets
engine: base_layer topology training -> keras keras.layers
"""
_RENAMED = {"utils": {"serialize_keras_object": "serialize_object"}} | {
    f"datasets.{name}": {"load_data": f"load_{name}", "get_word_index": f"load_{name}_words"}
    for name in ("boston_housing", "cifar10", "cifar100", "fashion_mnist", "imdb", "mnist", "reuters")
}

# A layer may contain a model, so they are built by `models`, which comes after `layers`.
layers.deserialize, layers.serialize = models.layer_from_config, identifiers.serialize_object
make_paths("keras", read_paths(_PATHS), _RENAMED)
__getattr__ = missing_from("keras")
