"""Inception networks as tables: end points in a row, each a layer or branches side by side.

The name of a layer tells its kind and its kernel: ``Conv2d_0b_3x3`` is a convolution of 3 x 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flowrt.contrib.framework import arg_scope
from flowrt.contrib.layers import (
    avg_pool2d,
    batch_norm,
    conv2d,
    dropout,
    fully_connected,
    l2_regularizer,
    max_pool2d,
    separable_conv2d,
    variance_scaling_initializer,
)
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.base.shape_manipulation import squeeze
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.source import misuse
from flowrt.initializers import TruncatedNormal
from flowrt.variables.variable import GraphKeys
from flowrt.variables.variable_scope import variable_scope

Depth = Callable[[int], int]
"""The number of channels that stand for a depth of the table."""


class Layer(NamedTuple):
    """A layer and its name: what it makes of its inputs."""

    name: str
    apply: Callable[[Tensor, Depth], Tensor]


Branch = Sequence[Layer | tuple[Layer, Layer]]
"""Layers in a row. Two side by side have the same input, and their outputs are concatenated."""

Network = Mapping[str, Layer | Sequence[Branch]]
"""End points by name: a layer, or branches of which the outputs are concatenated."""


def conv(
    name: str, channels: int, std: float | None = None, kernel_size: Any = None, **options: Any
) -> Layer:
    """A convolution, of which the weights start with the standard deviation ``std`` if it is given, and the
    kernel is ``kernel_size`` where the name does not tell it.
    """
    size = kernel_size or kernel_in(name)
    initial = {} if std is None else {"weights_initializer": TruncatedNormal(stddev=std)}
    return Layer(
        name, lambda net, depth: conv2d(net, depth(channels), size, scope=name, **initial, **options)
    )


def pool(name: str, **options: Any) -> Layer:
    pooling = max_pool2d if name.startswith("Max") else avg_pool2d
    return Layer(name, lambda net, _: pooling(net, kernel_in(name), scope=name, **options))


def kernel_in(name: str) -> list[int]:
    """The kernel that a layer's name tells, as [3, 1] of ``Conv2d_0b_3x1``."""
    return [int(size) for size in name.rpartition("_")[2].split("x")]


def stem(*layers: Layer) -> dict[str, Layer]:
    """End points of one layer each."""
    return {layer.name: layer for layer in layers}


def scaled(depth_multiplier: float, min_depth: int) -> Depth:
    """Depths times a number, at least ``min_depth``. Raises `InvalidArgumentError` if it is not positive."""
    if depth_multiplier <= 0:
        raise misuse(
            f"depth_multiplier: expected a positive number; got {depth_multiplier}", InvalidArgumentError
        )
    return lambda depth: max(int(depth * depth_multiplier), min_depth)


def build(
    net: Tensor, network: Network, final_endpoint: str, depth: Depth = int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The output of ``network`` up to ``final_endpoint``, and those of all end points until there."""
    if final_endpoint not in network:
        raise misuse(
            f"final_endpoint: expected one of {', '.join(network)}; got {final_endpoint!r}",
            InvalidArgumentError,
        )
    ends: dict[str, Tensor] = {}
    with arg_scope([conv2d, separable_conv2d, max_pool2d, avg_pool2d], stride=1, padding="SAME"):
        for name, what in network.items():
            net = what.apply(net, depth) if isinstance(what, Layer) else _branches(net, name, what, depth)
            ends[name] = net
            if name == final_endpoint:
                break
    return net, ends


def _branches(net: Tensor, name: str, branches: Sequence[Branch], depth: Depth) -> Tensor:
    outputs = []
    with variable_scope(name):
        for i, branch in enumerate(branches):
            with variable_scope(f"Branch_{i}"):
                output = net
                for step in branch:
                    if isinstance(step, Layer):
                        output = step.apply(output, depth)
                    else:
                        output = concat([layer.apply(output, depth) for layer in step], 3)
                outputs.append(output)
        return concat(outputs, 3)


def whole(net: Tensor, kernel: int) -> list[int]:
    """The kernel, or the whole image if that is smaller."""
    return [kernel if size is None else min(size, kernel) for size in net.shape.as_list()[1:3]]


def logits(net: Tensor, num_classes: int, spatial_squeeze: bool, scope: str, **options: Any) -> Tensor:
    """A convolution to ``num_classes``; of [batch, 1, 1, num_classes] without the ones in the middle."""
    net = conv2d(net, num_classes, [1, 1], activation_fn=None, normalizer_fn=None, scope=scope, **options)
    return squeeze(net, [1, 2], name="SpatialSqueeze") if spatial_squeeze else net


def averaged(net: Tensor, kernel: int, dropout_keep_prob: float) -> Tensor:
    """The mean of an image's features, some of them dropped."""
    size = whole(net, kernel)
    net = avg_pool2d(net, size, padding="VALID", scope="AvgPool_1a_{}x{}".format(*size))
    return dropout(net, dropout_keep_prob, scope="Dropout_1b")


def normalization(
    collection: str, decay: float = 0.9997, epsilon: float = 0.001,
    updates_collections: Any = GraphKeys.UPDATE_OPS, **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """Arguments of `batch_norm`, of which the moving averages are in ``collection``."""
    moving = {"moving_mean": [collection], "moving_variance": [collection], "beta": None, "gamma": None}
    return {
        "decay": decay, "epsilon": epsilon, "updates_collections": updates_collections,
        "variables_collections": moving, **options,
    }  # fmt: skip


def inception_arg_scope(weight_decay: float, normalizer_params: Mapping[str, Any] | None) -> Any:
    """The default arguments of layers, which are normalized if there are ``normalizer_params``."""
    with (
        arg_scope([conv2d, fully_connected], weights_regularizer=l2_regularizer(weight_decay)),
        arg_scope(
            [conv2d],
            weights_initializer=variance_scaling_initializer(),
            activation_fn=relu,
            normalizer_fn=None if normalizer_params is None else batch_norm,
            normalizer_params=normalizer_params or {},
        ) as scope,
    ):
        return scope
