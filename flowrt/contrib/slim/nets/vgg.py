"""VGG. K. Simonyan and A. Zisserman, Very Deep Convolutional Networks for Large-Scale Image Recognition
(2014).

Images are [batch, 224, 224, 3].
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import conv2d, dropout, fully_connected, l2_regularizer, max_pool2d, repeat
from flowrt.contrib.named_outputs import convert_collection_to_dict
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.nn.activations import relu
from flowrt.initializers import Zeros
from flowrt.variables.variable_scope import variable_scope

__all__ = ["vgg_16", "vgg_19", "vgg_a", "vgg_arg_scope"]


def vgg_arg_scope(weight_decay: float = 0.0005) -> Any:
    """The default arguments of the layers of VGG, for `arg_scope`."""
    with (
        arg_scope(
            [conv2d, fully_connected],
            activation_fn=relu,
            weights_regularizer=l2_regularizer(weight_decay),
            biases_initializer=Zeros(),
        ),
        arg_scope([conv2d], padding="SAME") as scope,
    ):
        return scope


def _network(name: str, convolutions: Sequence[int]) -> Any:
    def network(
        inputs: Tensor, num_classes: int | None = 1000, is_training: Any = True,
        dropout_keep_prob: float = 0.5, spatial_squeeze: bool = True, scope: str = name,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        with variable_scope(scope, name, [inputs]) as own:
            outputs = f"{own.original_name_scope}_end_points"
            with arg_scope([conv2d, fully_connected, max_pool2d], outputs_collections=outputs):
                net = inputs
                sizes = zip(convolutions, (64, 128, 256, 512, 512), strict=True)
                for i, (count, channels) in enumerate(sizes, 1):
                    net = repeat(net, count, conv2d, channels, [3, 3], scope=f"conv{i}")
                    net = max_pool2d(net, [2, 2], scope=f"pool{i}")
                for i, size in ((6, [7, 7]), (7, [1, 1])):
                    padding = "VALID" if i == 6 else "SAME"
                    net = conv2d(net, 4096, size, padding=padding, scope=f"fc{i}")
                    net = dropout(net, dropout_keep_prob, is_training=is_training, scope=f"dropout{i}")
                net = conv2d(net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope="fc8")
            found = convert_collection_to_dict(outputs, clear_collection=True)
            if spatial_squeeze:
                net = squeeze(net, [1, 2], name="fc8/squeezed")
                found[f"{own.original_name_scope}fc8"] = net
            return net, found

    network.__name__ = network.__qualname__ = name
    network.__doc__ = f"VGG of {sum(convolutions) + 3} layers: logits, [batch, num_classes], and all outputs."
    network.default_image_size = 224  # type: ignore[attr-defined]
    return network


vgg_a = _network("vgg_a", (1, 1, 2, 2, 2))
vgg_16 = _network("vgg_16", (2, 2, 3, 3, 3))
vgg_19 = _network("vgg_19", (2, 2, 4, 4, 4))
