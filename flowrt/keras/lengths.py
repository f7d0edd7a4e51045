"""``flowrt.keras.utils.conv_utils``: lengths before and after convolutions, arguments for each dimension;
for layers of a user's own.
"""

from __future__ import annotations

from typing import Any

from flowrt.graph.source import misuse
from flowrt.keras.state.settings import image_data_format


def normalize_tuple(value: Any, n: int, name: str) -> tuple[int, ...]:
    """``value`` as ``n`` integers: one stands for all. Raises `InvalidArgumentError` for others."""
    if isinstance(value, int):
        return (value,) * n
    found = tuple(value) if isinstance(value, (list, tuple)) else ()
    if len(found) != n or not all(isinstance(each, int) for each in found):
        raise misuse(f"{name}: expected an integer or {n} of them; got {value!r}")
    return found


def normalize_data_format(value: str | None) -> str:
    """``value``, or the setting if it is None. Raises `InvalidArgumentError` for another format."""
    found = (value or image_data_format()).lower()
    if found not in ("channels_first", "channels_last"):
        raise misuse(f"data_format: expected channels_first or channels_last; got {value!r}")
    return found


def normalize_padding(value: str) -> str:
    """``value`` in lower case. Raises `InvalidArgumentError` for another padding."""
    found = value.lower()
    if found not in ("valid", "same", "causal"):
        raise misuse(f"padding: expected valid, same or causal; got {value!r}")
    return found


def conv_output_length(
    input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """The length after a convolution; None of an unknown one. ``padding`` may also be "full"."""
    if input_length is None:
        return None
    reach = (filter_size - 1) * dilation
    added = {"same": 0, "causal": 0, "valid": -reach, "full": reach}[padding]
    return (input_length + added + stride - 1) // stride


def conv_input_length(output_length: int | None, filter_size: int, padding: str, stride: int) -> int | None:
    """The length before a convolution of `conv_output_length`."""
    if output_length is None:
        return None
    pad = {"same": filter_size // 2, "valid": 0, "full": filter_size - 1}[padding]
    return (output_length - 1) * stride - 2 * pad + filter_size


def deconv_output_length(
    input_length: int | None, filter_size: int, padding: str, output_padding: int | None = None,
    stride: int = 0, dilation: int = 1,
) -> int | None:  # fmt: skip
    """The length after a transposed convolution, with ``output_padding`` elements at its end."""
    if input_length is None:
        return None
    size = filter_size + (filter_size - 1) * (dilation - 1)
    if output_padding is not None:
        pad = {"same": size // 2, "valid": 0, "full": size - 1}[padding]
        return (input_length - 1) * stride + size - 2 * pad + output_padding
    more = {"same": 0, "valid": max(size - stride, 0), "full": -(stride + size - 2)}[padding]
    return input_length * stride + more
