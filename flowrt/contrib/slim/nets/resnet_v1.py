"""Residual networks. K. He et al., Deep Residual Learning for Image Recognition, CVPR (2016).

Images are [batch, height, width, 3]; `resnet_arg_scope` has the defaults of the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flowrt.contrib.framework import add_arg_scope, arg_scope
from flowrt.contrib.layers import batch_norm, conv2d, max_pool2d, softmax
from flowrt.contrib.named_outputs import collect_named_outputs, convert_collection_to_dict
from flowrt.contrib.slim.nets import resnet_utils
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_mean
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.source import misuse
from flowrt.variables.variable_scope import variable_scope

resnet_arg_scope = resnet_utils.resnet_arg_scope


@add_arg_scope
def bottleneck(
    inputs: Tensor, depth: int, depth_bottleneck: int, stride: int, rate: int = 1,
    outputs_collections: Any = None, scope: str | None = None,
) -> Tensor:  # fmt: skip
    """A residual unit of three convolutions: the one of 3 x 3 has ``depth_bottleneck`` channels, the result
    ``depth``.
    """
    with variable_scope(scope, "bottleneck_v1", [inputs]) as unit:
        if depth == inputs.shape.as_list()[-1]:
            shortcut = resnet_utils.subsample(inputs, stride, "shortcut")
        else:
            shortcut = conv2d(inputs, depth, [1, 1], stride=stride, activation_fn=None, scope="shortcut")
        residual = conv2d(inputs, depth_bottleneck, [1, 1], stride=1, scope="conv1")
        residual = resnet_utils.conv2d_same(residual, depth_bottleneck, 3, stride, rate, "conv2")
        residual = conv2d(residual, depth, [1, 1], stride=1, activation_fn=None, scope="conv3")
        name = unit.original_name_scope.rstrip("/")
        return collect_named_outputs(outputs_collections, name, relu(shortcut + residual))


def resnet_v1(
    inputs: Tensor, blocks: Sequence[resnet_utils.Block], num_classes: int | None = None,
    is_training: Any = True, global_pool: bool = True, output_stride: int | None = None,
    include_root_block: bool = True, reuse: Any = None, scope: str | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """A residual network of ``blocks``: its output, and the outputs of its layers by name.

    The output is [batch, 1, 1, num_classes], of logits, or without ``num_classes`` the features; without
    ``global_pool`` there is one at each place of an image ``output_stride`` times smaller, by default 32.
    Raises `InvalidArgumentError` for an ``output_stride`` that the blocks do not reach.
    """
    with variable_scope(scope, "resnet_v1", [inputs], reuse=reuse) as network:
        outputs = f"{network.original_name_scope}_end_points"
        collecting = [conv2d, bottleneck, resnet_utils.stack_blocks_dense]
        with (
            arg_scope(collecting, outputs_collections=outputs),
            arg_scope([batch_norm], is_training=is_training),
        ):
            net = inputs
            if include_root_block:
                output_stride = stride_of_blocks(output_stride)
                net = resnet_utils.conv2d_same(net, 64, 7, stride=2, scope="conv1")
                net = max_pool2d(net, [3, 3], stride=2, scope="pool1")
            net = resnet_utils.stack_blocks_dense(net, blocks, output_stride)
            if global_pool:
                net = reduce_mean(net, [1, 2], name="pool5", keepdims=True)
            if num_classes is not None:
                net = conv2d(net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope="logits")
            return net, end_points(outputs, net, num_classes)


def stride_of_blocks(output_stride: int | None) -> int | None:
    """The stride of the blocks where the root makes images 4 times smaller."""
    if output_stride is not None and output_stride % 4:
        raise misuse(f"output_stride: expected a multiple of 4; got {output_stride}", InvalidArgumentError)
    return None if output_stride is None else output_stride // 4


def end_points(collection: str, net: Tensor, num_classes: int | None) -> dict[str, Tensor]:
    """The collected outputs by name, and of classes the ``predictions``."""
    found = convert_collection_to_dict(collection, clear_collection=True)
    return found if num_classes is None else {**found, "predictions": softmax(net, scope="predictions")}


resnet_v1_block = functools.partial(resnet_utils.bottlenecks, bottleneck)


def _network(name: str, units: Sequence[int]) -> Any:
    def network(
        inputs: Tensor, num_classes: int | None = None, is_training: Any = True, global_pool: bool = True,
        output_stride: int | None = None, reuse: Any = None, scope: str = name,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        sizes = zip((64, 128, 256, 512), units, (2, 2, 2, 1), strict=True)
        blocks = [
            resnet_v1_block(f"block{i}", base_depth=depth, num_units=count, stride=stride)
            for i, (depth, count, stride) in enumerate(sizes, 1)
        ]
        return resnet_v1(
            inputs, blocks, num_classes, is_training, global_pool, output_stride, True, reuse, scope
        )

    network.__name__ = network.__qualname__ = name
    network.__doc__ = f"`resnet_v1` with blocks of {', '.join(map(str, units))} units."
    network.default_image_size = 224  # type: ignore[attr-defined]
    return network


resnet_v1_50 = _network("resnet_v1_50", (3, 4, 6, 3))
resnet_v1_101 = _network("resnet_v1_101", (3, 4, 23, 3))
resnet_v1_152 = _network("resnet_v1_152", (3, 8, 36, 3))
resnet_v1_200 = _network("resnet_v1_200", (3, 24, 36, 3))
