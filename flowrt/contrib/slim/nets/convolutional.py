"""Dense layers as convolutions, for networks that take images of any size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import conv2d, dropout, fully_connected, l2_regularizer, max_pool2d
from flowrt.contrib.named_outputs import convert_collection_to_dict
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.nn.activations import relu
from flowrt.initializers import Constant, TruncatedNormal, Zeros
from flowrt.variables.variable_scope import variable_scope

__all__ = ["convolutional_arg_scope", "convolutional_network"]

SMALL: Mapping[str, Any] = {
    "weights_initializer": TruncatedNormal(stddev=0.005), "biases_initializer": Constant(0.1),
}  # fmt: skip
"""Initial values of dense layers behind ImageNet's features."""


def convolutional_arg_scope(weight_decay: float, bias: float = 0.0, pool_padding: str | None = None) -> Any:
    """Default arguments of layers: relu, weights that decay, biases that start from ``bias``."""
    pooling = {} if pool_padding is None else {"padding": pool_padding}
    with (
        arg_scope(
            [conv2d, fully_connected],
            activation_fn=relu,
            weights_regularizer=l2_regularizer(weight_decay),
            biases_initializer=Constant(bias) if bias else Zeros(),
        ),
        arg_scope([max_pool2d], **pooling),
        arg_scope([conv2d], padding="SAME") as scope,
    ):
        return scope


def convolutional_network(
    inputs: Tensor, features: Callable[[Tensor], Tensor], kernel_size: int, hidden: tuple[int, int],
    num_classes: int | None, is_training: Any, dropout_keep_prob: float, spatial_squeeze: bool,
    scope: Any, name: str, dense: Mapping[str, Any] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """Logits of the ``features`` of images, and the outputs of all layers by name.

    The logits are [batch, num_classes] with ``spatial_squeeze``, which needs images that the features shrink
    to ``kernel_size``, and else [batch, height, width, num_classes]. ``dense`` are arguments of the two
    ``hidden`` layers; the one of logits starts from biases of 0.
    """
    with variable_scope(scope, name, [inputs]) as own:
        outputs = f"{own.original_name_scope}_end_points"
        with arg_scope([conv2d, fully_connected, max_pool2d], outputs_collections=outputs):
            net = features(inputs)
            with arg_scope([conv2d], **(dense or {})):
                sizes = ((6, kernel_size, "VALID"), (7, 1, "SAME"))
                for (i, size, padding), channels in zip(sizes, hidden, strict=True):
                    net = conv2d(net, channels, [size, size], padding=padding, scope=f"fc{i}")
                    net = dropout(net, dropout_keep_prob, is_training=is_training, scope=f"dropout{i}")
                plain = {"biases_initializer": Zeros()} if dense else {}
                net = conv2d(
                    net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope="fc8", **plain
                )
        found = convert_collection_to_dict(outputs)
        if spatial_squeeze:
            net = squeeze(net, [1, 2], name="fc8/squeezed")
            found[f"{own.name}/fc8"] = net
        return net, found
