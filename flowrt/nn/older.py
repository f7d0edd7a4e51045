"""Older names in ``flowrt.nn``, with another order of arguments."""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.nn.conv_functions import depthwise_conv2d
from flowrt.graph.ops.nn.moments import batch_normalization


def depthwise_conv2d_native(
    input: Any, filter: Any, strides: Any, padding: str, data_format: str = "NHWC",
    dilations: Any = (1, 1, 1, 1), name: str | None = None,
) -> Tensor:  # fmt: skip
    """See `depthwise_conv2d`."""
    rate = list(dilations)[1:3] if data_format == "NHWC" else list(dilations)[2:]
    return depthwise_conv2d(input, filter, strides, padding, rate, name, data_format)


def batch_norm_with_global_normalization(
    t: Any, m: Any, v: Any, beta: Any, gamma: Any, variance_epsilon: float, scale_after_normalization: bool,
    name: str | None = None,
) -> Tensor:  # fmt: skip
    """See `batch_normalization`."""
    scale = gamma if scale_after_normalization else None
    return batch_normalization(t, m, v, beta, scale, variance_epsilon, name)
