"""``flowrt.contrib.rnn``: the cells of `flowrt.nn.rnn_cell`, more of them, stacks of bidirectional layers.

rnn_cells    the rarer cells, and networks that TensorFlow computes by one kernel
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from flowrt.contrib.rnn.rnn_cells import (
    GRUBlockCell,
    GRUBlockCellV2,
    LSTMBlockCell,
    LSTMBlockFusedCell,
    NASCell,
    TimeReversedFusedRNN,
    UGRNNCell,
)
from flowrt.dtypes import float16
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.base.shape_manipulation import reshape
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.bias import bias_add, dropout
from flowrt.graph.ops.nn.normalization import layer_norm as normalize
from flowrt.graph.source import misuse
from flowrt.initializers import Constant, RandomUniform, Zeros
from flowrt.nest import flatten
from flowrt.nn.recurrent import bidirectional_dynamic_rnn, transpose_batch_time
from flowrt.nn.rnn_cell.base import LayerRNNCell, RNNCell, check_cell
from flowrt.nn.rnn_cell.basic import BasicRNNCell, GRUCell
from flowrt.nn.rnn_cell.lstm import BasicLSTMCell, LSTMCell, LSTMStateTuple
from flowrt.nn.rnn_cell.stacked import MultiRNNCell
from flowrt.nn.rnn_cell.wrappers import DeviceWrapper, DropoutWrapper, ResidualWrapper
from flowrt.nn.unrolled import static_bidirectional_rnn, static_rnn
from flowrt.tf1.missing_names import missing_from
from flowrt.variables.get_variable import get_variable
from flowrt.variables.variable_scope import get_variable_scope, variable_scope

__all__ = [
    "BasicLSTMCell", "BasicRNNCell", "DeviceWrapper", "DropoutWrapper", "EmbeddingWrapper", "GRUBlockCell",
    "GRUBlockCellV2", "GRUCell", "InputProjectionWrapper", "LSTMBlockCell", "LSTMBlockFusedCell", "LSTMCell",
    "LSTMStateTuple", "LayerNormBasicLSTMCell", "LayerRNNCell", "MultiRNNCell", "NASCell",
    "OutputProjectionWrapper", "RNNCell", "ResidualWrapper", "TimeReversedFusedRNN", "UGRNNCell",
    "stack_bidirectional_dynamic_rnn", "stack_bidirectional_rnn", "static_bidirectional_rnn", "static_rnn",
    "transpose_batch_time",
]  # fmt: skip

# --- cells


class LayerNormBasicLSTMCell(RNNCell):
    """An LSTM with layer normalization of gates and memory: Ba et al., "Layer normalization" (2016).

    With ``layer_norm=False`` there is a bias instead. The candidate is dropped out with
    ``dropout_keep_prob``: Semeniuta et al., "Recurrent dropout without memory loss" (2016). ``input_size`` is
    not used.
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        input_size: Any = None,
        activation: Callable[[Tensor], Tensor] = tanh,
        layer_norm: bool = True,
        norm_gain: float = 1.0,
        norm_shift: float = 0.0,
        dropout_keep_prob: Any = 1.0,
        dropout_prob_seed: int | None = None,
        reuse: Any = None,
    ) -> None:
        super().__init__(_reuse=reuse)
        self._num_units, self._forget_bias, self._activation = num_units, forget_bias, activation
        self._layer_norm, self._gain, self._shift = layer_norm, norm_gain, norm_shift
        self._keep_prob, self._seed = dropout_keep_prob, dropout_prob_seed

    @property
    def state_size(self) -> LSTMStateTuple:
        return LSTMStateTuple(self._num_units, self._num_units)

    @property
    def output_size(self) -> int:
        return self._num_units

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, LSTMStateTuple]:
        c, h = state
        gates = linear(concat([inputs, h], 1), 4 * self._num_units, has_bias=not self._layer_norm)
        parts = zip(("input", "transform", "forget", "output"), split(gates, 4, axis=1), strict=True)
        i, j, f, o = (self._normalized(name, part) for name, part in parts)
        candidate = self._activation(j)
        if not isinstance(self._keep_prob, (int, float)) or self._keep_prob < 1:
            candidate = dropout(candidate, self._keep_prob, seed=self._seed)
        new_c = self._normalized("state", c * sigmoid(f + self._forget_bias) + sigmoid(i) * candidate)
        new_h = self._activation(new_c) * sigmoid(o)
        return new_h, LSTMStateTuple(new_c, new_h)

    def _normalized(self, name: str, value: Tensor) -> Tensor:
        if not self._layer_norm:
            return value
        epsilon = 1e-3 if value.dtype is float16 else 1e-12  # TensorFlow's
        with variable_scope(name):
            gamma, beta = (
                get_variable(part, [self._num_units], value.dtype, Constant(begin))
                for part, begin in (("gamma", self._gain), ("beta", self._shift))
            )
        return normalize(value, gamma, beta, epsilon=epsilon)


def linear(inputs: Tensor, size: int, has_bias: bool = True) -> Tensor:
    """``inputs @ kernel + bias``, with variables in the open scope."""
    depth = inputs.shape.as_list()[-1]
    outputs: Tensor = matmul(inputs, get_variable("kernel", [depth, size], inputs.dtype))
    if not has_bias:
        return outputs
    return bias_add(outputs, get_variable("bias", [size], inputs.dtype, Zeros()))


# --- wrapper cells with their own variables


class _Around(RNNCell):
    def __init__(self, cell: Any, reuse: Any = None) -> None:
        super().__init__(_reuse=reuse)
        check_cell(type(self).__name__, cell)
        self._cell = cell

    @property
    def state_size(self) -> Any:
        return self._cell.state_size

    @property
    def output_size(self) -> Any:
        return self._cell.output_size

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The cell's zero state."""
        return self._cell.zero_state(batch_size, dtype)


class EmbeddingWrapper(_Around):
    """A cell that reads integers, rows of the variable embedding ``[embedding_classes, embedding_size]``."""

    def __init__(
        self,
        cell: Any,
        embedding_classes: int,
        embedding_size: int,
        initializer: Any = None,
        reuse: Any = None,
    ) -> None:
        super().__init__(cell, reuse)
        if embedding_classes <= 0 or embedding_size <= 0:
            raise misuse(
                "EmbeddingWrapper: expected embedding_classes and embedding_size above 0; got "
                f"{embedding_classes} and {embedding_size}"
            )
        self._shape, self._initializer = [embedding_classes, embedding_size], initializer

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> Any:
        unit = RandomUniform(-math.sqrt(3), math.sqrt(3))  # of variance 1
        initializer = self._initializer or get_variable_scope().initializer or unit
        embedding = get_variable("embedding", self._shape, flatten(state)[0].dtype, initializer)
        return self._cell(embedding_lookup(embedding, reshape(inputs, [-1])), state)


class InputProjectionWrapper(_Around):
    """A cell with inputs projected to ``num_proj``. ``input_size`` is not used."""

    def __init__(
        self, cell: Any, num_proj: int, activation: Any = None, input_size: Any = None, reuse: Any = None
    ) -> None:
        super().__init__(cell, reuse)
        self._num_proj, self._activation = num_proj, activation

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> Any:
        projected = linear(inputs, self._num_proj)
        return self._cell(self._activation(projected) if self._activation else projected, state)


class OutputProjectionWrapper(_Around):
    """A cell with outputs projected to ``output_size``."""

    def __init__(self, cell: Any, output_size: int, activation: Any = None, reuse: Any = None) -> None:
        super().__init__(cell, reuse)
        self._output_size, self._activation = output_size, activation

    @property
    def output_size(self) -> int:
        return self._output_size

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> Any:
        outputs, new_state = self._cell(inputs, state)
        projected = linear(outputs, self._output_size)
        return self._activation(projected) if self._activation else projected, new_state


# --- stacks of bidirectional layers


def stack_bidirectional_dynamic_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Any,
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    parallel_iterations: int | None = None,
    time_major: bool = False,
    scope: Any = None,
    swap_memory: bool = False,
) -> tuple[Any, tuple[Any, ...], tuple[Any, ...]]:
    """``(outputs, states_fw, states_bw)`` of layers of `bidirectional_dynamic_rnn`, each reading the
    concatenated outputs of the one below. Raises `InvalidArgumentError` for lists of different lengths.
    """
    states: tuple[list[Any], list[Any]] = ([], [])
    layers = _layers(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    outputs = convert_to_tensor(inputs)
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (fw, bw, state_fw, state_bw) in enumerate(layers):
            with variable_scope(f"cell_{number}"):
                both, finals = bidirectional_dynamic_rnn(
                    fw, bw, outputs, sequence_length, state_fw, state_bw, dtype, parallel_iterations,
                    swap_memory, time_major,
                )  # fmt: skip
            outputs = concat(both, 2)
            for known, final in zip(states, finals, strict=True):
                known.append(final)
    return outputs, tuple(states[0]), tuple(states[1])


def stack_bidirectional_rnn(
    cells_fw: Sequence[Any],
    cells_bw: Sequence[Any],
    inputs: Sequence[Any],
    initial_states_fw: Sequence[Any] | None = None,
    initial_states_bw: Sequence[Any] | None = None,
    dtype: Any = None,
    sequence_length: Any = None,
    scope: Any = None,
) -> tuple[list[Any], tuple[Any, ...], tuple[Any, ...]]:
    """The same as `stack_bidirectional_dynamic_rnn`, over a list of time steps."""
    states: tuple[list[Any], list[Any]] = ([], [])
    layers = _layers(cells_fw, cells_bw, initial_states_fw, initial_states_bw)
    outputs = list(inputs)
    with variable_scope(scope or "stack_bidirectional_rnn"):
        for number, (fw, bw, state_fw, state_bw) in enumerate(layers):
            with variable_scope(f"cell_{number}"):
                outputs, *finals = static_bidirectional_rnn(
                    fw, bw, outputs, state_fw, state_bw, dtype, sequence_length
                )
            for known, final in zip(states, finals, strict=True):
                known.append(final)
    return outputs, tuple(states[0]), tuple(states[1])


def _layers(cells_fw: Any, cells_bw: Any, states_fw: Any, states_bw: Any) -> list[tuple[Any, ...]]:
    """The two cells and the two initial states of each layer."""
    given = [cells_fw, cells_bw, states_fw or [None] * len(cells_fw), states_bw or [None] * len(cells_bw)]
    if not cells_fw or len({len(one) for one in given}) > 1:
        raise misuse(
            "stack_bidirectional_rnn: expected equal numbers of forward and backward cells and states; got "
            f"{[len(one) for one in given]}"
        )
    return list(zip(*given, strict=True))


__getattr__ = missing_from("contrib.rnn")
