"""More cells of `flowrt.contrib.rnn`; as loops of cells, networks that TensorFlow computes by one kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowrt.dtypes import DTypeLike
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.derivatives.custom_gradient import clip_by_value_preserving_gradient
from flowrt.graph.ops.array.concat_and_split import split
from flowrt.graph.ops.array.tile_and_reverse import reverse, reverse_sequence
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.activations import relu
from flowrt.graph.shapes import TensorShape
from flowrt.initializers import Ones, Zeros
from flowrt.layers.base import Layer
from flowrt.nn.recurrent import dynamic_rnn
from flowrt.nn.rnn_cell.base import LayerRNNCell, affine
from flowrt.nn.rnn_cell.basic import GRUCell
from flowrt.nn.rnn_cell.lstm import LSTMCell, LSTMStateTuple


class NASCell(LayerRNNCell):
    """The cell that an architecture search found: Zoph and Le, "Neural architecture search with reinforcement
    learning" (2017), appendix A. With ``num_proj`` the output is projected to that size.
    """

    def __init__(
        self, num_units: int, num_proj: int | None = None, use_bias: bool = False, reuse: Any = None,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(_reuse=reuse, **kwargs)
        self._num_units, self._num_proj, self._use_bias = num_units, num_proj, use_bias

    @property
    def state_size(self) -> LSTMStateTuple:
        return LSTMStateTuple(self._num_units, self.output_size)

    @property
    def output_size(self) -> int:
        return self._num_units if self._num_proj is None else self._num_proj

    def build(self, input_shape: TensorShape) -> None:
        columns = 8 * self._num_units
        self._recurrent = self.add_weight("recurrent_kernel", [self.output_size, columns])
        self._kernel = self.add_weight("kernel", [self._known(input_shape, -1), columns])
        if self._use_bias:
            self._bias = self.add_weight("bias", [columns], initializer=Zeros())
        if self._num_proj is not None:
            self._projection = self.add_weight("projection_weights", [self._num_units, self._num_proj])

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, LSTMStateTuple]:
        c, h = state
        by_state: Any = matmul(h, self._recurrent)
        by_state = split(by_state + self._bias if self._use_bias else by_state, 8, axis=1)
        pairs = list(zip(split(matmul(inputs, self._kernel), 8, axis=1), by_state, strict=True))
        x = [i * m if place == 3 else i + m for place, (i, m) in enumerate(pairs)]
        first = tanh(tanh(sigmoid(x[0]) * relu(x[1])) + c)
        new_c = first * tanh(sigmoid(x[2]) + relu(x[3]))
        last = tanh(tanh(tanh(x[4]) * sigmoid(x[5])) + sigmoid(tanh(x[6]) + sigmoid(x[7])))
        new_h = tanh(new_c * last)
        if self._num_proj is not None:
            new_h = matmul(new_h, self._projection)
        return new_h, LSTMStateTuple(new_c, new_h)


class UGRNNCell(LayerRNNCell):
    """A cell with one gate: Collins et al., "Capacity and trainability in recurrent neural networks" (2017).

    With ``g, c = [inputs, state] @ kernel + bias`` and ``u = sigmoid(g + forget_bias)`` the output, which is
    the new state, is ``u * state + (1 - u) * activation(c)``.
    """

    def __init__(
        self,
        num_units: int,
        initializer: Any = None,
        forget_bias: float = 1.0,
        activation: Callable[[Tensor], Tensor] = tanh,
        reuse: Any = None,
    ) -> None:
        super().__init__(_reuse=reuse, name="ugrnn_cell")
        self._num_units, self._initializer = num_units, initializer
        self._forget_bias, self._activation = forget_bias, activation

    @property
    def state_size(self) -> int:
        return self._num_units

    @property
    def output_size(self) -> int:
        return self._num_units

    def build(self, input_shape: TensorShape) -> None:
        depth, columns = self._known(input_shape, -1) + self._num_units, 2 * self._num_units
        self._kernel = self.add_weight("kernel", [depth, columns], initializer=self._initializer)
        self._bias = self.add_weight("bias", [columns], initializer=self._initializer or Zeros())

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        gate, candidate = split(affine([inputs, state], self._kernel, self._bias), 2, axis=1)
        kept: Any = sigmoid(gate + self._forget_bias)
        output = kept * state + (1 - kept) * self._activation(candidate)
        return output, output


class GRUBlockCellV2(GRUCell):
    """`GRUCell` with the arguments of TensorFlow's kernel of this name; loops are compiled here anyway."""

    def __init__(
        self, num_units: int | None = None, cell_size: int | None = None, reuse: Any = None,
        name: str = "gru_cell",
    ) -> None:  # fmt: skip
        super().__init__(num_units if cell_size is None else cell_size, reuse=reuse, name=name)  # type: ignore[arg-type]


class GRUBlockCell(GRUBlockCellV2):
    """`GRUBlockCellV2` with variables of other names: w_ru and b_ru of the gates, w_c and b_c."""

    def build(self, input_shape: TensorShape) -> None:
        depth, units = self._known(input_shape, -1) + self._num_units, self._num_units
        self._gate_kernel = self.add_weight("w_ru", [depth, 2 * units])
        self._gate_bias = self.add_weight("b_ru", [2 * units], initializer=Ones())
        self._candidate_kernel = self.add_weight("w_c", [depth, units])
        self._candidate_bias = self.add_weight("b_c", [units], initializer=Zeros())


class _BlockLSTM(LSTMCell):
    """An LSTM as TensorFlow's kernels compute it."""

    _peephole_order = "ifo"

    def _clipped_memory(self, c: Tensor) -> Tensor:
        bound = self._cell_clip
        return c if bound is None else clip_by_value_preserving_gradient(c, -bound, bound)


class LSTMBlockCell(_BlockLSTM):
    """`LSTMCell` with the arguments of TensorFlow's kernel of this name; loops are compiled here anyway. As
    there, gradients pass where ``cell_clip`` bounds the memory.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        dtype: Any = None,
        reuse: Any = None,
        name: str = "lstm_cell",
    ) -> None:
        super().__init__(
            num_units, use_peephole, cell_clip, forget_bias=forget_bias, dtype=dtype, reuse=reuse, name=name
        )


class LSTMBlockFusedCell(Layer):
    """An LSTM over all steps: ``(outputs, state)`` of inputs ``[time, batch, depth]``.

    Example:
        >>> outputs, (c, h) = tf.contrib.rnn.LSTMBlockFusedCell(8)(tf.zeros([5, 2, 4]), dtype=tf.float32)
        >>> outputs.shape.as_list(), h.shape.as_list()
        ([5, 2, 8], [2, 8])
    """

    rank = 3

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        cell_clip: float | None = None,
        use_peephole: bool = False,
        reuse: Any = None,
        dtype: DTypeLike | None = None,
        name: str = "lstm_fused_cell",
    ) -> None:
        super().__init__(name=name, dtype=dtype, _reuse=reuse)
        self.num_units, self._forget_bias = num_units, forget_bias
        self._cell_clip, self._use_peephole = cell_clip, use_peephole

    def build(self, input_shape: TensorShape) -> None:
        self._cell = _BlockLSTM(
            self.num_units, self._use_peephole, self._cell_clip, forget_bias=self._forget_bias,
            reuse=self._reuse, _scope=self._scope,
        )  # fmt: skip

    def call(
        self, inputs: Tensor, initial_state: Any = None, dtype: Any = None, sequence_length: Any = None
    ) -> tuple[Tensor, LSTMStateTuple]:
        """``initial_state`` is ``(c, h)``, zeros if None; ``sequence_length`` the steps of each row."""
        start = None if initial_state is None else LSTMStateTuple(*initial_state)
        outputs, state = dynamic_rnn(
            self._cell, inputs, sequence_length, start, dtype or inputs.dtype, time_major=True
        )
        self._weights = self._cell.weights
        return outputs, state


class TimeReversedFusedRNN:
    """``cell``, a network such as `LSTMBlockFusedCell`, on sequences from their ends to their beginnings."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def __call__(
        self,
        inputs: Any,
        initial_state: Any = None,
        dtype: Any = None,
        sequence_length: Any = None,
        scope: Any = None,
    ) -> tuple[Tensor, Any]:
        def turned(values: Any) -> Tensor:
            if sequence_length is None:
                return reverse(values, [0])
            return reverse_sequence(values, sequence_length, seq_axis=0, batch_axis=1)

        outputs, state = self._cell(
            turned(convert_to_tensor(inputs)), initial_state, dtype=dtype, sequence_length=sequence_length
        )
        return turned(outputs), state
