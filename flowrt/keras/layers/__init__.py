"""``flowrt.keras.layers``.

options                 names such as "relu" for the objects that they stand for
core                    Dense, Dropout, Flatten, Reshape, Lambda, Masking and so on
convolutional           convolutions; paddings, crops and enlargements
local                   convolutions without shared weights
pooling                 pooling over windows and over all positions
merge                   layers of several inputs
attention               Attention, AdditiveAttention
normalization           BatchNormalization, LayerNormalization
advanced_activations    activations with parameters
embeddings              Embedding
noise                   noise in training
products, recurrence     products of samples; a step along time
cells, recurrent        recurrent layers and their steps
convolutional_recurrent ConvLSTM2D
cudnn_recurrent         CuDNNLSTM, CuDNNGRU
wrappers                TimeDistributed, Bidirectional
"""

from flowrt.keras.engine.input_layer import Input as Input
from flowrt.keras.engine.input_layer import InputLayer as InputLayer
from flowrt.keras.engine.layer import Layer as Layer
from flowrt.keras.layers.advanced_activations import *
from flowrt.keras.layers.attention import *
from flowrt.keras.layers.cells import *
from flowrt.keras.layers.convolutional import *
from flowrt.keras.layers.convolutional_recurrent import *
from flowrt.keras.layers.core import *
from flowrt.keras.layers.cudnn_recurrent import *
from flowrt.keras.layers.embeddings import *
from flowrt.keras.layers.local import *
from flowrt.keras.layers.merge import *
from flowrt.keras.layers.noise import *
from flowrt.keras.layers.normalization import *
from flowrt.keras.layers.pooling import *
from flowrt.keras.layers.recurrent import *
from flowrt.keras.layers.wrappers import *
from flowrt.layers.base import InputSpec as InputSpec
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("keras.layers")
