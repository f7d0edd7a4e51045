"""TensorFlow's helpers for writers of layers: ``tensorflow.python.layers.utils`` and
``framework.smart_cond``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.control_flow import cond
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Tensor
from flowrt.layers.geometry import padding_mode, sizes
from flowrt.tf1.aliases import get_static_value

__all__ = [
    "constant_value", "conv_output_length", "convert_data_format", "deconv_output_length",
    "normalize_data_format", "normalize_padding", "normalize_tuple", "smart_cond", "smart_constant_value",
]  # fmt: skip


def constant_value(pred: Any) -> bool | None:
    """The value of ``pred``, a bool, 0, 1 or a scalar tensor; None if the graph does not determine it."""
    known = get_static_value(pred) if isinstance(pred, Tensor) else pred
    return None if known is None else bool(known)


smart_constant_value = constant_value


def smart_cond(
    pred: Any,
    true_fn: Callable[[], Any] | None = None,
    false_fn: Callable[[], Any] | None = None,
    name: str | None = None,
) -> Any:
    """`cond`, or just the result of one function if ``pred`` is known when the graph is built."""
    if true_fn is None or false_fn is None:
        raise InvalidArgumentError("smart_cond: expected the functions true_fn and false_fn; got None")
    known = constant_value(pred)
    if known is None:
        return cond(pred, true_fn, false_fn, name=name)
    return true_fn() if known else false_fn()


def normalize_tuple(value: Any, n: int, name: str) -> tuple[int, ...]:
    """``value``, one positive number or ``n`` of them, as a tuple. Raises `InvalidArgumentError`."""
    return sizes(value, n, name)


def normalize_padding(value: str) -> str:
    """``value`` in lower case: "valid" or "same". Raises `InvalidArgumentError`."""
    return padding_mode(value).lower()


def normalize_data_format(value: str) -> str:
    """``value`` in lower case: "channels_first" or "channels_last". Raises `InvalidArgumentError`."""
    normal = str(value).lower()
    if normal not in ("channels_first", "channels_last"):
        raise InvalidArgumentError(f"data_format: expected channels_first or channels_last; got {value!r}")
    return normal


def convert_data_format(data_format: str, ndim: int) -> str:
    """The format of an op on tensors of ``ndim`` dimensions (3 to 5): ("channels_last", 4) is "NHWC"."""
    spatial = {3: "W", 4: "HW", 5: "DHW"}.get(ndim)
    if spatial is None:
        raise InvalidArgumentError(f"ndim: expected 3, 4 or 5; got {ndim}")
    is_last = normalize_data_format(data_format) == "channels_last"
    return f"N{spatial}C" if is_last else f"NC{spatial}"


def conv_output_length(
    input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """The length of a convolution's output; None if the input's is unknown."""
    if input_length is None:
        return None
    extent = 0 if padding in ("same", "causal") else (filter_size - 1) * dilation
    if padding == "full":
        extent = -extent
    return (input_length - extent + stride - 1) // stride


def deconv_output_length(input_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:
    """The length of a transposed convolution's output; None if the input's is unknown."""
    if input_length is None:
        return None
    extra = {"valid": max(filter_size - stride, 0), "full": -(stride + filter_size - 2)}.get(padding, 0)
    return input_length * stride + extra
