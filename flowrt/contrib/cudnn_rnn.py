"""``flowrt.contrib.cudnn_rnn``: recurrent networks of several layers, as NVIDIA's cuDNN has them.

They run on any device, by the same loops as other cells. Each layer's variables are those of a compatible
cell, under the names under which TensorFlow's checkpoints have them: "cudnn_lstm/rnn/multi_rnn_cell/cell_0/
cudnn_compatible_lstm_cell/kernel", or with two directions "cudnn_lstm/stack_bidirectional_rnn/cell_0/
bidirectional_rnn/fw/...". TensorFlow has one variable of all of them, with a layout that only cuDNN knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from flowrt import dtypes
from flowrt.contrib.rnn import stack_bidirectional_dynamic_rnn
from flowrt.dtypes import DTypeLike
from flowrt.errors import DTypeError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split, stack, unstack
from flowrt.graph.ops.base.shape_manipulation import transpose
from flowrt.graph.ops.elementwise.math import sigmoid
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.initializers import GlorotUniform, Ones, Zeros
from flowrt.layers.base import Layer
from flowrt.nn.recurrent import dynamic_rnn
from flowrt.nn.rnn_cell.base import RNNCell, affine
from flowrt.nn.rnn_cell.basic import GRUCell
from flowrt.nn.rnn_cell.lstm import LSTMCell, LSTMStateTuple
from flowrt.nn.rnn_cell.stacked import MultiRNNCell
from flowrt.nn.rnn_cell.wrappers import DropoutWrapper
from flowrt.tf1.missing_names import missing_from

__all__ = [
    "CUDNN_INPUT_LINEAR_MODE", "CUDNN_RNN_BIDIRECTION", "CUDNN_RNN_UNIDIRECTION", "CudnnCompatibleGRUCell",
    "CudnnCompatibleLSTMCell", "CudnnGRU", "CudnnLSTM",
]  # fmt: skip

__getattr__ = missing_from("contrib.cudnn_rnn")

CUDNN_RNN_UNIDIRECTION, CUDNN_RNN_BIDIRECTION = "unidirectional", "bidirectional"
CUDNN_INPUT_LINEAR_MODE = "linear_input"

# --- cells


class CudnnCompatibleLSTMCell(LSTMCell):
    """An LSTM that computes what a layer of `CudnnLSTM` does: without ``forget_bias``."""

    def __init__(self, num_units: int, reuse: Any = None, *, kernel: Any = None, bias: Any = None) -> None:
        super().__init__(num_units, forget_bias=0.0, reuse=reuse, name="cudnn_compatible_lstm_cell")
        self._kernel_initializer, self._bias_initializer = kernel, bias

    def build(self, input_shape: TensorShape) -> None:
        depth, units = self._known(input_shape, -1), self._num_units
        kernel = self._kernel_initializer and _by_gate(self._kernel_initializer, [depth, units], 4)
        bias = _both_biases(self._bias_initializer) if self._bias_initializer else Zeros()
        self._kernel = self.add_weight("kernel", [depth + units, 4 * units], initializer=kernel)
        self._bias = self.add_weight("bias", [4 * units], initializer=bias)


class CudnnCompatibleGRUCell(GRUCell):
    """A GRU that computes what a layer of `CudnnGRU` does: the reset gate scales the projected state,
    ``c = tanh(inputs @ W + b + r * (state @ R + d))``.
    """

    def __init__(
        self, num_units: int, reuse: Any = None, kernel_initializer: Any = None, *, bias: Any = None
    ) -> None:
        super().__init__(num_units, None, reuse, kernel_initializer, name="cudnn_compatible_gru_cell")
        self._is_by_gate, self._bias = bias is not None, bias

    def build(self, input_shape: TensorShape) -> None:
        depth, units = self._known(input_shape, -1), self._num_units
        given, bias = self._kernel_initializer, self._bias

        def kernel(parts: Sequence[int], gates: int) -> Any:
            return _by_gate(given, parts, gates) if self._is_by_gate else given

        def weights(name: str, parts: Sequence[int], gates: int) -> Any:
            shape = [sum(parts), gates * units]
            return self.add_weight(f"{name}/kernel", shape, initializer=kernel(parts, gates))

        def biases(name: str, gates: int, start: Any) -> Any:
            return self.add_weight(f"{name}/bias", [gates * units], initializer=start)

        both, one = (Ones(), Zeros()) if bias is None else (_both_biases(bias), bias)
        names = [f"candidate/{part}_projection" for part in ("input", "hidden")]
        self._gates = weights("gates", [depth, units], 2), biases("gates", 2, both)
        kernels = [weights(name, [rows], 1) for name, rows in zip(names, (depth, units), strict=True)]
        pairs = zip(kernels, [biases(name, 1, one) for name in names], strict=True)
        self._from_input, self._from_state = pairs

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        reset, update = split(sigmoid(affine([inputs, state], *self._gates)), 2, axis=1)
        projected = affine([inputs], *self._from_input) + reset * affine([state], *self._from_state)
        output = update * state + (1 - update) * self._activation(projected)
        return output, output


def _by_gate(initializer: Any, parts: Sequence[int], gates: int) -> Callable[..., Tensor]:
    """``initializer`` for each gate's matrix ``[units, depth]`` of each of ``parts``, as cuDNN has them; a
    cell has them transposed, in one kernel.
    """

    def kernel(shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        units = shape[-1] // gates
        columns = [
            concat([transpose(initializer([units, depth], dtype=dtype)) for depth in parts], 0)
            for _ in range(gates)
        ]
        return concat(columns, 1)

    return kernel


def _both_biases(initializer: Any) -> Callable[..., Tensor]:
    """cuDNN adds a bias to the input and one to the state; a cell has their sum."""

    def bias(shape: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
        return initializer(shape, dtype=dtype) + initializer(shape, dtype=dtype)

    return bias


# --- layers


class _CudnnRNN(Layer):
    """Base of the networks: ``num_layers`` layers of ``num_units``, each in one direction or in both.

    ``dropout`` is the share of a layer's inputs that is dropped in training, but for the first layer's.
    ``kernel_initializer`` (Glorot's by default) is called for the matrix ``[units, depth]`` of each gate,
    ``bias_initializer`` (zeros by default) for each of its two biases. Raises `InvalidArgumentError` for
    another direction, `UnimplementedError` for an ``input_mode`` that leaves the first projection out.
    """

    rank = 3
    _states: ClassVar[int]
    """The number of tensors of a state."""

    def __init__(
        self,
        num_layers: int,
        num_units: int,
        input_mode: str = CUDNN_INPUT_LINEAR_MODE,
        direction: str = CUDNN_RNN_UNIDIRECTION,
        dropout: float = 0.0,
        seed: int | None = None,
        dtype: DTypeLike = dtypes.float32,
        kernel_initializer: Any = None,
        bias_initializer: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        sizes: tuple[Any, Any] = num_layers, num_units
        for size in sizes:
            if not isinstance(size, (int, np.integer)) or size < 1:
                raise self._error(
                    InvalidArgumentError,
                    f"expected num_layers and num_units of at least 1; got {num_layers!r} and {num_units!r}",
                )
        if direction not in (CUDNN_RNN_UNIDIRECTION, CUDNN_RNN_BIDIRECTION):
            raise self._error(
                InvalidArgumentError,
                f"expected direction 'unidirectional' or 'bidirectional'; got {direction!r}",
            )
        if input_mode != CUDNN_INPUT_LINEAR_MODE:
            raise self._error(UnimplementedError, f"expected input_mode 'linear_input'; got {input_mode!r}")
        self.num_layers, self.num_units, self.direction = num_layers, num_units, direction
        self._dropout, self._seed = dropout, seed
        kernel = kernel_initializer or GlorotUniform(seed=seed)
        bias = bias_initializer or Zeros()
        self._cells = [[self._cell(kernel, bias) for _ in range(num_layers)] for _ in range(self.num_dirs)]

    @property
    def num_dirs(self) -> int:
        return 1 if self.direction == CUDNN_RNN_UNIDIRECTION else 2

    def _cell(self, kernel: Any, bias: Any) -> RNNCell:
        raise NotImplementedError

    def state_shape(self, batch_size: int) -> tuple[list[int], ...]:
        """The shape of each tensor of the state: ``[layers * directions, batch, units]``."""
        return ([self.num_layers * self.num_dirs, batch_size, self.num_units],) * self._states

    def call(
        self,
        inputs: Tensor,
        initial_state: Any = None,
        sequence_lengths: Any = None,
        time_major: bool = True,
        training: bool = True,
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """``(outputs, states)`` of ``inputs [time, batch, depth]``, or ``[batch, time, depth]`` with
        ``time_major=False``.

        Outputs are ``[time, batch, directions * units]``; ``states`` and ``initial_state`` are tuples, ``(h,
        c)`` of an LSTM and ``(h,)`` of a GRU, of tensors ``[layers * directions, batch, units]`` (with
        ``time_major=False`` batch first). After its length a sequence's outputs are zeros, its state stays.
        Raises `DTypeError` for an ``initial_state`` that is no such tuple.
        """
        starts = self._split(initial_state, time_major)
        rate = self._dropout if training else 0.0
        cells = [self._with_dropout(each, rate) for each in self._cells]
        options: dict[str, Any] = {
            "dtype": self.dtype, "sequence_length": sequence_lengths, "time_major": time_major,
        }  # fmt: skip
        finals: list[Any]
        if self.num_dirs == 1:
            start = None if starts is None else tuple(starts[0])
            outputs, *finals = dynamic_rnn(MultiRNNCell(cells[0]), inputs, initial_state=start, **options)
        else:
            forward, backward = (None, None) if starts is None else starts
            outputs, *finals = stack_bidirectional_dynamic_rnn(
                cells[0], cells[1], inputs, forward, backward, **options
            )
        owned = [weight for each in self._cells for cell in each for weight in cell.weights]
        self._weights = list(dict.fromkeys(owned))
        return outputs, self._joined(finals, time_major)

    def _with_dropout(self, cells: Sequence[RNNCell], rate: float) -> list[Any]:
        if not rate:
            return list(cells)
        return [cells[0], *(DropoutWrapper(c, input_keep_prob=1 - rate, seed=self._seed) for c in cells[1:])]

    def _split(self, state: Any, time_major: bool) -> list[list[Any]] | None:
        """The state of each cell, by direction and layer."""
        if state is None:
            return None
        if not isinstance(state, tuple) or len(state) != self._states:
            raise misuse(
                f"{type(self).__name__}: expected initial_state to be a tuple of {self._states} tensors; got "
                f"{state!r:.100}",
                DTypeError,
            )
        axis, count = 0 if time_major else 1, self.num_layers * self.num_dirs
        parts = [unstack(convert_to_tensor(part, self.dtype), count, axis) for part in state]
        each = [LSTMStateTuple(c[0], h) if c else h for h, *c in zip(*parts, strict=True)]
        return [each[direction :: self.num_dirs] for direction in range(self.num_dirs)]

    def _joined(self, finals: Sequence[Sequence[Any]], time_major: bool) -> tuple[Tensor, ...]:
        """The state as cuDNN has it, of those of the cells by direction and layer."""
        each = [state for layer in zip(*finals, strict=True) for state in layer]
        parts = [each] if self._states == 1 else [[s.h for s in each], [s.c for s in each]]
        return tuple(stack(part, axis=0 if time_major else 1) for part in parts)


class CudnnLSTM(_CudnnRNN):
    """Layers of LSTM.

    Example:
        >>> lstm = tf.contrib.cudnn_rnn.CudnnLSTM(num_layers=2, num_units=8, direction="bidirectional")
        >>> outputs, (h, c) = lstm(tf.zeros([5, 3, 4]))
        >>> outputs.shape.as_list(), h.shape.as_list()
        ([5, 3, 16], [4, 3, 8])
    """

    _states = 2

    def _cell(self, kernel: Any, bias: Any) -> RNNCell:
        return CudnnCompatibleLSTMCell(self.num_units, kernel=kernel, bias=bias)


class CudnnGRU(_CudnnRNN):
    """Layers of GRU, with the reset gate after the projection: see `CudnnCompatibleGRUCell`.

    Example:
        >>> gru = tf.contrib.cudnn_rnn.CudnnGRU(num_layers=1, num_units=8)
        >>> outputs, (h,) = gru(tf.zeros([5, 3, 4]), training=False)
        >>> outputs.shape.as_list(), h.shape.as_list()
        ([5, 3, 8], [1, 3, 8])
    """

    _states = 1

    def _cell(self, kernel: Any, bias: Any) -> RNNCell:
        return CudnnCompatibleGRUCell(self.num_units, None, kernel, bias=bias)
