"""``flowrt.feature_column``: how the raw features of an example become numbers of a model.

A column is data; `input_layer` and `linear_model` build what a batch of features gives.

columns       `DenseColumn`, `CategoricalColumn`, and the features of a batch
dense         numbers; buckets of numbers
categorical   numbers of categories: from identities, vocabularies, hashes, crosses
categories    categories as vectors: embeddings, indicators
layers        `input_layer`, `linear_model`, `make_parse_example_spec`
"""

from flowrt.feature_column.categorical import *
from flowrt.feature_column.categories import *
from flowrt.feature_column.dense import *
from flowrt.feature_column.layers import *
from flowrt.tf1.missing_names import missing_from

__getattr__ = missing_from("feature_column")
