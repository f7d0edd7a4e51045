"""``flowrt.contrib.slim``: layers, `arg_scope` and variables under the name that model definitions import.

nets         published networks for images
data         examples in files; queues: the threads that fill them
learning     training; evaluation: metrics of checkpoints; summaries
"""

from flowrt.contrib import layers, losses, metrics, model_analyzer
from flowrt.contrib import named_outputs as utils
from flowrt.contrib.framework import (
    add_arg_scope,
    add_model_variable,
    arg_scope,
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    create_global_step,
    filter_variables,
    get_global_step,
    get_local_variables,
    get_model_variables,
    get_or_create_global_step,
    get_trainable_variables,
    get_unique_variable,
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
    instance_norm,
    l1_l2_regularizer,
    l1_regularizer,
    l2_regularizer,
    layer_norm,
    max_pool2d,
    one_hot_encoding,
    repeat,
    separable_conv2d,
    separable_convolution2d,
    softmax,
    stack,
    variance_scaling_initializer,
    xavier_initializer,
    xavier_initializer_conv2d,
)
from flowrt.contrib.slim import evaluation, learning, nets, queues, summaries
from flowrt.contrib.slim.data import (
    dataset,
    dataset_data_provider,
    parallel_reader,
    prefetch_queue,
    tfexample_decoder,
)
from flowrt.tf1.missing_names import missing_from

initializers = layers  # which has them too

__all__ = [
    "add_arg_scope", "arg_scope", "avg_pool2d", "batch_norm", "bias_add", "conv2d", "conv2d_transpose",
    "convolution2d", "convolution2d_transpose", "dropout", "flatten", "fully_connected",
    "get_model_variables", "get_or_create_global_step", "get_trainable_variables", "get_variables",
    "get_variables_to_restore", "initializers", "l1_l2_regularizer", "l1_regularizer",
    "l2_regularizer", "layer_norm", "layers", "losses", "max_pool2d", "model_analyzer", "model_variable",
    "nets", "utils", "instance_norm", "one_hot_encoding", "repeat", "separable_conv2d",
    "separable_convolution2d", "softmax", "stack", "variance_scaling_initializer", "xavier_initializer",
    "xavier_initializer_conv2d",
    "add_model_variable", "assign_from_checkpoint", "assign_from_checkpoint_fn", "assign_from_values",
    "assign_from_values_fn", "create_global_step", "dataset", "dataset_data_provider", "evaluation",
    "filter_variables", "get_global_step", "get_local_variables", "get_unique_variable", "learning",
    "metrics", "parallel_reader", "prefetch_queue", "queues", "summaries", "tfexample_decoder",
]  # fmt: skip

__getattr__ = missing_from("contrib.slim")
