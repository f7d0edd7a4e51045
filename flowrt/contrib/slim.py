"""``flowrt.contrib.slim``: layers, `arg_scope` and variables under the name that model definitions import."""

from flowrt.contrib import layers, losses, model_analyzer
from flowrt.contrib.framework import (
    add_arg_scope,
    arg_scope,
    get_model_variables,
    get_or_create_global_step,
    get_trainable_variables,
    get_variables,
    get_variables_to_restore,
    model_variable,
)
from flowrt.contrib.layers import (
    avg_pool2d,
    batch_norm,
    bias_add,
    conv2d,
    conv2d_transpose,
    convolution2d,
    convolution2d_transpose,
    dropout,
    flatten,
    fully_connected,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    layer_norm,
    max_pool2d,
    one_hot_encoding,
    repeat,
    softmax,
    stack,
    variance_scaling_initializer,
    xavier_initializer,
)
from flowrt.tf1.missing_names import missing_from

initializers = layers  # which has them too

__all__ = [
    "add_arg_scope", "arg_scope", "avg_pool2d", "batch_norm", "bias_add", "conv2d", "conv2d_transpose",
    "convolution2d", "convolution2d_transpose", "dropout", "flatten", "fully_connected",
    "get_model_variables", "get_or_create_global_step", "get_trainable_variables", "get_variables",
    "get_variables_to_restore", "initializers", "l1_l2_regularizer", "l1_regularizer",
    "l2_regularizer", "layer_norm", "layers", "losses", "max_pool2d", "model_analyzer", "model_variable",
    "one_hot_encoding", "repeat", "softmax", "stack", "variance_scaling_initializer", "xavier_initializer",
]  # fmt: skip

__getattr__ = missing_from("contrib.slim")
