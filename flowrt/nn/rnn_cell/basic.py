"""BasicRNNCell and GRUCell: the state is one tensor ``[batch, num_units]``, which is also the output."""

from __future__ import annotations

from typing import Any

from flowrt.dtypes import DTypeLike
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import split
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.shapes import TensorShape
from flowrt.initializers import Ones, Zeros
from flowrt.layers.base import activation_function
from flowrt.nn.rnn_cell.base import LayerRNNCell, affine
from flowrt.variables.variable import Variable


class _OneStateCell(LayerRNNCell):
    """A cell of ``num_units``, with ``activation`` (tanh if None) and ``reuse`` as in a variable scope."""

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(_reuse=reuse, name=name, dtype=dtype, **kwargs)
        self._num_units = int(num_units)
        self._activation = activation_function(activation) or tanh

    @property
    def state_size(self) -> int:
        return self._num_units

    @property
    def output_size(self) -> int:
        return self._num_units


class BasicRNNCell(_OneStateCell):
    """``output = new_state = activation([inputs, state] @ kernel + bias)``.

    ``activation`` is a function or the name of one in `flowrt.nn`, tanh if None.
    """

    def build(self, input_shape: TensorShape) -> None:
        depth = self._known(input_shape, -1) + self._num_units
        self._kernel: Variable = self.add_weight("kernel", [depth, self._num_units])
        self._bias: Variable = self.add_weight("bias", [self._num_units], initializer=Zeros())

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        output = self._activation(affine([inputs, state], self._kernel, self._bias))
        return output, output


class GRUCell(_OneStateCell):
    """Gated recurrent units: Cho et al., "Learning phrase representations using RNN encoder-decoder" (2014).

    With ``r, u = sigmoid([inputs, state] @ gates/kernel + gates/bias)`` and
    ``c = activation([inputs, r * state] @ candidate/kernel + candidate/bias)`` the output, which is the new
    state, is ``u * state + (1 - u) * c``. The gates' bias begins at one.
    """

    def __init__(
        self,
        num_units: int,
        activation: Any = None,
        reuse: Any = None,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_units, activation, reuse, name, dtype, **kwargs)
        self._kernel_initializer, self._bias_initializer = kernel_initializer, bias_initializer

    def build(self, input_shape: TensorShape) -> None:
        depth, units = self._known(input_shape, -1) + self._num_units, self._num_units
        kernel, bias = self._kernel_initializer, self._bias_initializer
        self._gate_kernel = self.add_weight("gates/kernel", [depth, 2 * units], initializer=kernel)
        self._gate_bias = self.add_weight("gates/bias", [2 * units], initializer=bias or Ones())
        self._candidate_kernel = self.add_weight("candidate/kernel", [depth, units], initializer=kernel)
        self._candidate_bias = self.add_weight("candidate/bias", [units], initializer=bias or Zeros())

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        gates = sigmoid(affine([inputs, state], self._gate_kernel, self._gate_bias))
        reset, update = split(gates, 2, axis=1)
        affine_candidate = affine([inputs, reset * state], self._candidate_kernel, self._candidate_bias)
        candidate = self._activation(affine_candidate)
        output = update * state + (1 - update) * candidate
        return output, output
