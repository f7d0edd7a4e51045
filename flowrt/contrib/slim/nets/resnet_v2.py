"""Residual networks with normalization and activation before each convolution. K. He et al., Identity
Mappings in Deep Residual Networks, ECCV (2016).

Images are [batch, height, width, 3]; `resnet_arg_scope` has the defaults of the paper.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from flowrt.contrib.framework import add_arg_scope, arg_scope
from flowrt.contrib.layers import batch_norm, conv2d, max_pool2d
from flowrt.contrib.named_outputs import collect_named_outputs
from flowrt.contrib.slim.nets import resnet_utils
from flowrt.contrib.slim.nets.resnet_v1 import end_points, stride_of_blocks
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.reductions import reduce_mean
from flowrt.graph.ops.nn.activations import relu
from flowrt.variables.variable_scope import variable_scope

resnet_arg_scope = resnet_utils.resnet_arg_scope


@add_arg_scope
def bottleneck(
    inputs: Tensor, depth: int, depth_bottleneck: int, stride: int, rate: int = 1,
    outputs_collections: Any = None, scope: str | None = None,
) -> Tensor:  # fmt: skip
    """A residual unit as in `resnet_v1`, but its inputs are normalized first, and not its sum."""
    with variable_scope(scope, "bottleneck_v2", [inputs]) as unit:
        before = batch_norm(inputs, activation_fn=relu, scope="preact")
        plain = {"normalizer_fn": None, "activation_fn": None}
        if depth == inputs.shape.as_list()[-1]:
            shortcut = resnet_utils.subsample(inputs, stride, "shortcut")
        else:
            shortcut = conv2d(before, depth, [1, 1], stride=stride, scope="shortcut", **plain)
        residual = conv2d(before, depth_bottleneck, [1, 1], stride=1, scope="conv1")
        residual = resnet_utils.conv2d_same(residual, depth_bottleneck, 3, stride, rate, "conv2")
        residual = conv2d(residual, depth, [1, 1], stride=1, scope="conv3", **plain)
        name = unit.original_name_scope.rstrip("/")
        return collect_named_outputs(outputs_collections, name, shortcut + residual)


def resnet_v2(
    inputs: Tensor, blocks: Sequence[resnet_utils.Block], num_classes: int | None = None,
    is_training: Any = True, global_pool: bool = True, output_stride: int | None = None,
    include_root_block: bool = True, reuse: Any = None, scope: str | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
    """A residual network of ``blocks``; see `resnet_v1`."""
    with variable_scope(scope, "resnet_v2", [inputs], reuse=reuse) as network:
        outputs = f"{network.original_name_scope}_end_points"
        collecting = [conv2d, bottleneck, resnet_utils.stack_blocks_dense]
        with (
            arg_scope(collecting, outputs_collections=outputs),
            arg_scope([batch_norm], is_training=is_training),
        ):
            net = inputs
            if include_root_block:
                output_stride = stride_of_blocks(output_stride)
                with arg_scope([conv2d], activation_fn=None, normalizer_fn=None):
                    net = resnet_utils.conv2d_same(net, 64, 7, stride=2, scope="conv1")
                net = max_pool2d(net, [3, 3], stride=2, scope="pool1")
            net = resnet_utils.stack_blocks_dense(net, blocks, output_stride)
            net = batch_norm(net, activation_fn=relu, scope="postnorm")
            if global_pool:
                net = reduce_mean(net, [1, 2], name="pool5", keepdims=True)
            if num_classes is not None:
                net = conv2d(net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope="logits")
            return net, end_points(outputs, net, num_classes)


resnet_v2_block = functools.partial(resnet_utils.bottlenecks, bottleneck)


def _network(name: str, units: Sequence[int]) -> Any:
    def network(
        inputs: Tensor, num_classes: int | None = None, is_training: Any = True, global_pool: bool = True,
        output_stride: int | None = None, reuse: Any = None, scope: str = name,
    ) -> tuple[Tensor, dict[str, Tensor]]:  # fmt: skip
        sizes = zip((64, 128, 256, 512), units, (2, 2, 2, 1), strict=True)
        blocks = [
            resnet_v2_block(f"block{i}", base_depth=depth, num_units=count, stride=stride)
            for i, (depth, count, stride) in enumerate(sizes, 1)
        ]
        return resnet_v2(
            inputs, blocks, num_classes, is_training, global_pool, output_stride, True, reuse, scope
        )

    network.__name__ = network.__qualname__ = name
    network.__doc__ = f"`resnet_v2` with blocks of {', '.join(map(str, units))} units."
    network.default_image_size = 224  # type: ignore[attr-defined]
    return network


resnet_v2_50 = _network("resnet_v2_50", (3, 4, 6, 3))
resnet_v2_101 = _network("resnet_v2_101", (3, 4, 23, 3))
resnet_v2_152 = _network("resnet_v2_152", (3, 8, 36, 3))
resnet_v2_200 = _network("resnet_v2_200", (3, 24, 36, 3))
