"""`CuDNNLSTM` and `CuDNNGRU`: cuDNN's formulas on any device, over weights as TensorFlow stores them.

A gate's part of a kernel is stored as ``[inputs, units]``, but in the order of cuDNN's ``[units, inputs]``
matrix; and a gate has two biases, of the input and of the state.
"""

from __future__ import annotations

from typing import Any

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.base.filling import ones
from flowrt.graph.ops.base.shape_manipulation import reshape, transpose
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.source import misuse
from flowrt.keras.layers.cells import Cell, GRUCell, LSTMCell
from flowrt.keras.layers.recurrent import OfCell, constructor_of

__all__ = ["CuDNNGRU", "CuDNNLSTM"]


class _CuDNNCell(Cell):
    """Base of both cells: their kernels, and a bias of two halves."""

    def begin(self, state: Tensor, training: Any) -> None:
        super().begin(state, training)
        self._matrix = self._as_matrix(self.recurrent_kernel)

    def _as_matrix(self, kernel: Any) -> Tensor:
        """``kernel``, ``[inputs, gates * units]``, to multiply with from the right."""
        inputs = kernel.shape.as_list()[0]
        parts = [transpose(reshape(part, [self.units, inputs])) for part in split(kernel, self.gates, 1)]
        return concat(parts, 1)

    def _input_matrix(self) -> Tensor:
        return self._as_matrix(self.kernel)

    def _recurrent_matrix(self) -> Tensor:
        return self._matrix


class CuDNNLSTMCell(_CuDNNCell, LSTMCell):
    """`LSTMCell` with cuDNN's activations, tanh and sigmoid, and its weights."""

    def __init__(
        self, units: int, kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal", bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True, kernel_regularizer: Any = None, recurrent_regularizer: Any = None,
        bias_regularizer: Any = None, kernel_constraint: Any = None, recurrent_constraint: Any = None,
        bias_constraint: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, "tanh", "sigmoid", True, kernel_initializer, recurrent_initializer, bias_initializer,
            unit_forget_bias, kernel_regularizer, recurrent_regularizer, bias_regularizer, kernel_constraint,
            recurrent_constraint, bias_constraint, **options,
        )  # fmt: skip

    def _build_bias(self, width: int) -> Any:
        begin, units = self.bias_initializer, self.units  # type: ignore[attr-defined]

        def initial(_: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
            if not self.unit_forget_bias:
                return begin([width * 2], dtype=dtype)
            forget = ones([units], dtype)  # of the state: one of the two biases
            return concat([begin([units * 5], dtype=dtype), forget, begin([units * 2], dtype=dtype)], 0)

        options = {"regularizer": self.bias_regularizer, "constraint": self.bias_constraint}  # type: ignore[attr-defined]
        return self.add_weight("bias", [width * 2], initializer=initial, **options)

    def _input_bias(self) -> Any:
        first, second = split(self.bias, 2, 0)
        return add(first, second)


class CuDNNGRUCell(_CuDNNCell, GRUCell):
    """`GRUCell` with ``reset_after`` and cuDNN's activations, tanh and sigmoid, and its weights."""

    def __init__(
        self, units: int, kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal", bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None, recurrent_regularizer: Any = None, bias_regularizer: Any = None,
        kernel_constraint: Any = None, recurrent_constraint: Any = None, bias_constraint: Any = None,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, "tanh", "sigmoid", True, kernel_initializer, recurrent_initializer, bias_initializer,
            kernel_regularizer, recurrent_regularizer, bias_regularizer, kernel_constraint,
            recurrent_constraint, bias_constraint, reset_after=True, **options,
        )  # fmt: skip

    def _build_bias(self, width: int) -> Any:
        return self._add_parameter("bias", [width * 2], "bias")

    def _input_bias(self) -> Any:
        return split(self.bias, 2, 0)[0]

    def _recurrent_bias(self) -> Any:
        return split(self.bias, 2, 0)[1]


class _CuDNN(OfCell):
    """Base of both layers: their weights are their own in checkpoints, not a cell's."""

    _cell: Any

    @property
    def cell(self) -> Any:
        return self._cell

    @cell.setter
    def cell(self, cell: Any) -> None:
        self._cell = cell

    def call(
        self, inputs: Tensor, mask: Any = None, training: Any = None, initial_state: Any = None,
        constants: Any = None,
    ) -> Any:  # fmt: skip
        if mask is not None:
            raise misuse(
                f"layer {self.name!r}: expected inputs without a mask; cuDNN has none. Use LSTM or GRU"
            )
        return super().call(inputs, None, training, initial_state, constants)


class CuDNNLSTM(_CuDNN):
    """`LSTM` as cuDNN computes it, for models trained with it: weights have TensorFlow's names and shapes.
    The device need not be a GPU. Raises `InvalidArgumentError` for inputs with a mask.
    """

    cell_class = CuDNNLSTMCell
    __init__ = constructor_of(CuDNNLSTMCell)


class CuDNNGRU(_CuDNN):
    """`GRU` as cuDNN computes it; see `CuDNNLSTM`."""

    cell_class = CuDNNGRUCell
    __init__ = constructor_of(CuDNNGRUCell)
