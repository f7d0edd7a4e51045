"""Blocks of residual units, at a chosen resolution, and the default arguments of residual networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from flowrt.contrib.framework import add_arg_scope, arg_scope
from flowrt.contrib.layers import batch_norm, conv2d, l2_regularizer, max_pool2d, variance_scaling_initializer
from flowrt.contrib.named_outputs import collect_named_outputs
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.padding import pad
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.source import misuse
from flowrt.variables.variable import GraphKeys
from flowrt.variables.variable_scope import variable_scope

__all__ = ["Block", "conv2d_same", "resnet_arg_scope", "stack_blocks_dense", "subsample"]


class Block(NamedTuple):
    """Units in a row: ``unit_fn(inputs, **arguments)`` for each dict of arguments in ``args``."""

    scope: str
    unit_fn: Callable[..., Tensor]
    args: Sequence[dict[str, Any]]


def bottlenecks(
    unit_fn: Callable[..., Tensor], scope: str, base_depth: int, num_units: int, stride: int
) -> Block:
    """A block of ``num_units`` bottleneck units, of which the last has the ``stride``."""
    one = {"depth": 4 * base_depth, "depth_bottleneck": base_depth}
    return Block(scope, unit_fn, [{**one, "stride": 1}] * (num_units - 1) + [{**one, "stride": stride}])


def subsample(inputs: Tensor, factor: int, scope: str | None = None) -> Tensor:
    """Each ``factor``-th pixel along height and width."""
    return inputs if factor == 1 else max_pool2d(inputs, [1, 1], stride=factor, scope=scope)


def conv2d_same(
    inputs: Tensor, num_outputs: int, kernel_size: int, stride: int, rate: int = 1, scope: Any = None
) -> Tensor:
    """A convolution with the same zeros around the image for any size, whatever the ``stride``; SAME padding
    depends on the size.
    """
    if stride == 1:
        return conv2d(inputs, num_outputs, kernel_size, stride=1, rate=rate, padding="SAME", scope=scope)
    around = (kernel_size - 1) * rate
    edge = [around // 2, around - around // 2]
    padded = pad(inputs, [[0, 0], edge, edge, [0, 0]])
    return conv2d(padded, num_outputs, kernel_size, stride=stride, rate=rate, padding="VALID", scope=scope)


@add_arg_scope
def stack_blocks_dense(
    net: Tensor, blocks: Sequence[Block], output_stride: int | None = None, outputs_collections: Any = None
) -> Tensor:
    """The ``blocks`` in a row. The images that come out are not more than ``output_stride`` times smaller:
    from there on units have stride 1, and convolutions as much more dilation.

    Raises `InvalidArgumentError` unless strides multiply to ``output_stride`` somewhere.
    """
    stride, rate = 1, 1
    for block in blocks:
        with variable_scope(block.scope, "block", [net]) as scope:
            for i, arguments in enumerate(block.args, 1):
                if output_stride is not None and stride > output_stride:
                    raise _misfit(output_stride)
                with variable_scope(f"unit_{i}", values=[net]):
                    if output_stride is not None and stride == output_stride:
                        net = block.unit_fn(net, rate=rate, **{**arguments, "stride": 1})
                        rate *= arguments.get("stride", 1)
                    else:
                        net = block.unit_fn(net, rate=1, **arguments)
                        stride *= arguments.get("stride", 1)
            net = collect_named_outputs(outputs_collections, scope.original_name_scope.rstrip("/"), net)
    if output_stride is not None and stride != output_stride:
        raise _misfit(output_stride)
    return net


def _misfit(output_stride: int) -> Exception:
    return misuse(
        f"output_stride: expected a product of the first strides; got {output_stride}", InvalidArgumentError
    )


def resnet_arg_scope(
    weight_decay: float = 0.0001,
    batch_norm_decay: float = 0.997,
    batch_norm_epsilon: float = 1e-5,
    batch_norm_scale: bool = True,
) -> Any:
    """The default arguments of the layers of residual networks, for `arg_scope`."""
    normalizer = {
        "decay": batch_norm_decay, "epsilon": batch_norm_epsilon, "scale": batch_norm_scale,
        "updates_collections": GraphKeys.UPDATE_OPS,
    }  # fmt: skip
    with (
        arg_scope(
            [conv2d],
            weights_regularizer=l2_regularizer(weight_decay),
            weights_initializer=variance_scaling_initializer(),
            activation_fn=relu,
            normalizer_fn=batch_norm,
            normalizer_params=normalizer,
        ),
        arg_scope([batch_norm], **normalizer),
        arg_scope([max_pool2d], padding="SAME") as scope,
    ):
        return scope
