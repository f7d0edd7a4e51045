"""`ConvLSTM2D`: long short-term memory of images, with convolutions for products."""

from __future__ import annotations

from typing import Any

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.base.filling import ones_like, zeros, zeros_like
from flowrt.graph.ops.base.shape_manipulation import expand_dims, reshape, shape
from flowrt.graph.ops.elementwise.arithmetic import add, multiply
from flowrt.graph.ops.nn.conv_functions import conv2d
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.keras.layers.cells import LSTMCell, drawn_masks
from flowrt.keras.layers.recurrent import OfCell, constructor_of
from flowrt.keras.state.settings import image_data_format
from flowrt.layers.geometry import layout, padding_mode, sizes

__all__ = ["ConvLSTM2D", "ConvLSTM2DCell"]


class ConvLSTM2DCell(LSTMCell):
    """`LSTMCell` of images (Shi et al. 2015): ``kernel`` is convolved with the input, ``recurrent_kernel``
    with the output before, by ``padding="same"``.
    """

    def __init__(
        self, filters: int, kernel_size: Any, strides: Any = (1, 1), padding: str = "valid",
        data_format: str | None = None, dilation_rate: Any = (1, 1), activation: Any = "tanh",
        recurrent_activation: Any = "hard_sigmoid", use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform", recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros", unit_forget_bias: bool = True, kernel_regularizer: Any = None,
        recurrent_regularizer: Any = None, bias_regularizer: Any = None, kernel_constraint: Any = None,
        recurrent_constraint: Any = None, bias_constraint: Any = None, dropout: float = 0.0,
        recurrent_dropout: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            filters, activation, recurrent_activation, use_bias, kernel_initializer, recurrent_initializer,
            bias_initializer, unit_forget_bias, kernel_regularizer, recurrent_regularizer, bias_regularizer,
            kernel_constraint, recurrent_constraint, bias_constraint, dropout, recurrent_dropout, **options,
        )  # fmt: skip
        self.filters, self.data_format = filters, data_format or image_data_format()
        self.kernel_size = sizes(kernel_size, 2, "kernel_size")
        self.strides = sizes(strides, 2, "strides")
        self.dilation_rate = sizes(dilation_rate, 2, "dilation_rate")
        self.padding: Any = padding_mode(padding)
        self._layout: Any = layout(self.data_format, 2)

    @property
    def _channels(self) -> int:
        """The axis of the channels of one step."""
        return 1 if self._layout == "NCHW" else 3

    def build(self, input_shape: TensorShape) -> None:
        depth, width = self._known(input_shape, self._channels), self.gates * self.filters
        self.kernel = self._add_parameter("kernel", [*self.kernel_size, depth, width], "kernel")
        own = [*self.kernel_size, self.filters, width]
        self.recurrent_kernel = self._add_parameter("recurrent_kernel", own, "recurrent")
        if self.use_bias:
            self.bias = self._build_bias(width)

    def projected(self, inputs: Tensor, training: Any) -> Tensor:
        """The convolution with the inputs, of one step ``[batch, ...]`` or of all ``[batch, time, ...]``."""
        is_sequence = inputs.shape.ndims == 5
        if not self.dropout:
            made = self._of_steps(inputs, self.kernel)
        else:
            sample = ones_like(inputs[:, 0] if is_sequence else inputs)
            masks = drawn_masks(sample, self.dropout, self.gates, training)
            masks = [expand_dims(mask, 1) if is_sequence else mask for mask in masks]
            parts = zip(masks, split(self.kernel, self.gates, 3), strict=True)
            axis = self._channels + is_sequence
            made = concat([self._of_steps(multiply(inputs, mask), part) for mask, part in parts], axis)
        if self.bias is None:
            return made
        return add(made, self.bias if self._layout == "NHWC" else reshape(self.bias, [-1, 1, 1]))

    def _of_steps(self, inputs: Tensor, kernel: Any) -> Tensor:
        if inputs.shape.ndims == 4:
            return self.input_conv(inputs, kernel)
        dims = shape(inputs)
        made = self.input_conv(reshape(inputs, concat([[-1], dims[2:]], 0)), kernel)
        found = reshape(made, concat([dims[:2], shape(made)[1:]], 0))
        found.set_shape([*inputs.shape.as_list()[:2], *made.shape.as_list()[1:]])
        return found

    def input_conv(self, inputs: Tensor, kernel: Any) -> Tensor:
        return conv2d(
            inputs, kernel, self.strides, self.padding, data_format=self._layout, dilations=self.dilation_rate
        )

    def _recurrent(self, h: Tensor, gates: Any) -> list[Tensor]:
        if self._state_masks is None:
            return split(self._with_state(h, self.recurrent_kernel), self.gates, self._channels)
        parts = zip(self._state_masks, split(self.recurrent_kernel, self.gates, 3), strict=True)
        return [self._with_state(multiply(h, mask), part) for mask, part in parts]

    def _with_state(self, h: Tensor, kernel: Any) -> Tensor:
        return conv2d(h, kernel, 1, "SAME", data_format=self._layout)

    def step(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        h, c = states
        pairs = zip(split(x, 4, self._channels), self._recurrent(h, range(4)), strict=True)
        i, f, g, o = (add(a, b) for a, b in pairs)
        gate = self.recurrent_activation
        c = add(multiply(gate(f), c), multiply(gate(i), self.activation(g)))
        h = multiply(gate(o), self.activation(c))
        return h, [h, c]


class ConvLSTM2D(OfCell):
    """`ConvLSTM2DCell` along the time of ``[batch, time, height, width, channels]``: the last output, or all
    with ``return_sequences``; see `RNN`. Raises `UnimplementedError` with ``stateful``.
    """

    cell_class = ConvLSTM2DCell
    __init__ = constructor_of(ConvLSTM2DCell)

    def build(self, input_shape: Any) -> None:
        if self.stateful:
            raise misuse(f"layer {self.name!r}: stateful=True is not supported", UnimplementedError)
        first = input_shape[0] if isinstance(input_shape, list) else input_shape
        if first.ndims not in (None, 5):
            raise misuse(f"layer {self.name!r}: expected sequences of images, of rank 5; got shape {first}")
        super().build(input_shape)

    def _first_states(self, inputs: Tensor, given: Any) -> list[Any]:
        if given is not None:
            return super()._first_states(inputs, given)
        cell: Any = self.cell
        kernel = zeros([*cell.kernel_size, *cell.kernel.shape.as_list()[2:3], cell.filters], inputs.dtype)
        state = zeros_like(cell.input_conv(inputs[:, 0], kernel))  # of the shape that the convolution gives
        return [state, state]
