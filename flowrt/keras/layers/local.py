"""Convolutions with kernels of their own at each place: `LocallyConnected1D`, `LocallyConnected2D`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import stack
from flowrt.graph.ops.base.shape_manipulation import reshape, shape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.options import by_name
from flowrt.keras.state.settings import image_data_format
from flowrt.layers.core import KernelLayer
from flowrt.layers.geometry import count, layout, sizes

__all__ = ["LocallyConnected1D", "LocallyConnected2D"]


def local_conv(
    inputs: Any, kernel: Any, kernel_size: Sequence[int], strides: Sequence[int], output_shape: Sequence[int],
    data_format: str | None = None,
) -> Tensor:  # fmt: skip
    """``inputs`` convolved with a kernel for each place: ``kernel`` is ``[places, window, filters]``, with
    the ``places`` of ``output_shape`` in order, and the elements of a window as they follow in ``inputs``.
    """
    first = (data_format or image_data_format()) == "channels_first"
    windows = _windows(convert_to_tensor(inputs), kernel_size, strides, output_shape, first)
    made = matmul(transpose(windows, [1, 0, 2]), kernel)
    filters = kernel.shape.as_list()[-1]
    rows = shape(inputs)[0]
    if first:
        found = reshape(transpose(made, [1, 2, 0]), [rows, filters, *output_shape])
    else:
        found = reshape(transpose(made, [1, 0, 2]), [rows, *output_shape, filters])
    return found


def local_conv1d(
    inputs: Any, kernel: Any, kernel_size: Sequence[int], strides: Sequence[int],
    data_format: str | None = None,
) -> Tensor:  # fmt: skip
    """`local_conv` of sequences, with as many places as ``kernel`` has entries."""
    places: list[Any] = convert_to_tensor(kernel).shape.as_list()[:1]
    return local_conv(inputs, kernel, kernel_size, strides, places, data_format)


def local_conv2d(
    inputs: Any, kernel: Any, kernel_size: Sequence[int], strides: Sequence[int],
    output_shape: Sequence[int], data_format: str | None = None,
) -> Tensor:  # fmt: skip
    """`local_conv` of images."""
    return local_conv(inputs, kernel, kernel_size, strides, output_shape, data_format)


def _windows(
    inputs: Tensor, size: Sequence[int], strides: Sequence[int], places: Sequence[int], first: bool
) -> Tensor:
    """The window of each place, ``[batch, places, window]``: a strided slice for each element of it."""
    channels = int(inputs.shape[1 if first else -1])
    around: tuple[list[Any], list[Any]] = ([slice(None)] * 2, []) if first else ([slice(None)], [slice(None)])
    parts = []
    for offset in itertools.product(*map(range, size)):
        spans = [
            slice(start, start + step * (n - 1) + 1, step)
            for start, step, n in zip(offset, strides, places, strict=True)
        ]
        parts.append(inputs[(*around[0], *spans, *around[1])])
    width, total = len(parts) * channels, math.prod(places)
    if first:
        return transpose(reshape(stack(parts, 2), [-1, width, total]), [0, 2, 1])
    return reshape(stack(parts, -2), [-1, total, width])


class _LocallyConnected(KernelLayer, Layer):
    """Base of both layers: a kernel and a bias for each place."""

    spatial: ClassVar[int]

    def __init__(
        self, filters: int, kernel_size: Any, strides: Any = 1, padding: str = "valid",
        data_format: str | None = None, activation: Any = None, use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform", bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None, bias_regularizer: Any = None, activity_regularizer: Any = None,
        kernel_constraint: Any = None, bias_constraint: Any = None, implementation: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        _kernel_layer(
            self, activation=activation, use_bias=use_bias, kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer, kernel_regularizer=kernel_regularizer,
            bias_regularizer=bias_regularizer, activity_regularizer=activity_regularizer,
            kernel_constraint=kernel_constraint, bias_constraint=bias_constraint, **options,
        )  # fmt: skip
        if padding.lower() != "valid" or implementation != 1:
            raise misuse(
                f"{type(self).__name__}: expected padding 'valid' and implementation 1; got {padding!r} and"
                f" {implementation}", UnimplementedError,
            )  # fmt: skip
        self.filters = count(filters, "filters")
        self.kernel_size = sizes(kernel_size, self.spatial, "kernel_size")
        self.strides = sizes(strides, self.spatial, "strides")
        self.data_format = data_format or image_data_format()
        layout(self.data_format, self.spatial)  # which checks it

    def build(self, input_shape: TensorShape) -> None:
        first = 2 if self.data_format == "channels_first" else 1
        lengths = [self._known(input_shape, first + i) for i in range(self.spatial)]
        window = math.prod(self.kernel_size) * self._known(input_shape, 1 if first == 2 else -1)
        self._places = [
            (length - size) // step + 1
            for length, size, step in zip(lengths, self.kernel_size, self.strides, strict=True)
        ]
        if min(self._places) < 1:
            raise misuse(
                f"layer {self.name!r}: expected inputs of at least {list(self.kernel_size)}; got"
                f" {input_shape}"
            )
        kernel = [math.prod(self._places), window, self.filters]
        self.kernel = self._add_parameter("kernel", kernel, "kernel")
        if self.use_bias:
            self.bias = self._add_parameter("bias", [*self._places, self.filters], "bias")

    def call(self, inputs: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        found = local_conv(
            inputs, self.kernel, self.kernel_size, self.strides, self._places, self.data_format
        )
        if self.bias is not None:
            bias: Any = self.bias
            if self.data_format == "channels_first":
                bias = reshape(bias, [self.filters, *self._places])  # not transposed, as in TensorFlow
            found = add(found, bias)
        return found if self.activation is None else self.activation(found)


_kernel_layer = by_name(KernelLayer.__init__)


class LocallyConnected1D(_LocallyConnected):
    """`Conv1D` of sequences ``[n, w, c]`` of a known length, without shared weights: ``kernel`` is
    ``[places, kernel_size * c, filters]`` and ``bias`` ``[places, filters]``.

    Raises `UnimplementedError` for a padding other than "valid" and an implementation other than 1.
    """

    spatial, rank = 1, 3


class LocallyConnected2D(_LocallyConnected):
    """`Conv2D` of images ``[n, h, w, c]`` of a known size, without shared weights: ``kernel`` is ``[places,
    kernel_size * c, filters]`` and ``bias`` ``[rows, columns, filters]``.

    Raises `UnimplementedError` for a padding other than "valid" and an implementation other than 1.
    """

    spatial, rank = 2, 4
