"""Long short-term memory: Hochreiter and Schmidhuber (1997), with a forget gate, Gers et al. (1999).

The state is `LSTMStateTuple`: ``c``, the memory, and ``h``, the output of the step; or with
``state_is_tuple=False`` one tensor of both, concatenated. The kernel's columns are four gates in TensorFlow's
order: input, candidate, forget, output.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from flowrt.dtypes import DType, DTypeLike
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.elementwise.arithmetic import clip_by_value
from flowrt.graph.ops.elementwise.math import sigmoid, tanh
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.initializers import Zeros
from flowrt.layers.base import activation_function
from flowrt.nest import is_nested
from flowrt.nn.rnn_cell.base import LayerRNNCell, affine


class LSTMStateTuple(NamedTuple):
    """The state of an LSTM: ``c`` is the memory, ``h`` the output."""

    c: Any
    h: Any

    @property
    def dtype(self) -> DType:
        """The dtype of both. Raises `DTypeError` when they differ."""
        if self.c.dtype is not self.h.dtype:
            message = f"LSTMStateTuple: expected c and h of one dtype; got {self.c!r} and {self.h!r}"
            raise misuse(message, DTypeError)
        return self.c.dtype


class _LSTM(LayerRNNCell):
    """Base of the LSTM cells. Its state is a tuple or one tensor."""

    _peephole_order = "fio"
    """The gates in the order of their vectors in the graph's collections."""

    def __init__(
        self, num_units: int, forget_bias: float, state_is_tuple: bool, activation: Any, *,
        use_peepholes: bool = False, cell_clip: float | None = None, initializer: Any = None,
        num_proj: int | None = None, proj_clip: float | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self._num_units, self._state_is_tuple = int(num_units), state_is_tuple
        self._output_units = self._num_units if num_proj is None else int(num_proj)
        self._activation = activation_function(activation) or tanh
        self._use_peepholes, self._project = use_peepholes, num_proj is not None
        self._cell_clip, self._proj_clip = cell_clip, proj_clip
        self._initializer, self._forget_bias = initializer, forget_bias

    @property
    def state_size(self) -> Any:
        sizes = LSTMStateTuple(self._num_units, self._output_units)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> int:
        return self._output_units

    def _unpacked(self, state: Any) -> tuple[Any, Any]:
        if self._state_is_tuple != is_nested(state) or (is_nested(state) and len(state) != 2):
            wanted = "an LSTMStateTuple(c, h)" if self._state_is_tuple else f"one tensor of {self.state_size}"
            message = f"{type(self).__name__}: expected {wanted} as the state; got {state!r:.100}"
            raise misuse(f"{message}. Use the cell's zero_state()", DTypeError)
        if not self._state_is_tuple:
            state = split(state, [self._num_units, self._output_units], axis=1)
        c, h = state
        return c, h

    def _packed(self, c: Tensor, h: Tensor) -> Any:
        return LSTMStateTuple(c, h) if self._state_is_tuple else concat([c, h], 1)

    def build(self, input_shape: TensorShape) -> None:
        units, initializer = self._num_units, self._initializer
        depth = self._known(input_shape, -1) + self._output_units
        self._kernel = self.add_weight("kernel", [depth, 4 * units], initializer=initializer)
        self._bias = self.add_weight("bias", [4 * units], initializer=Zeros())
        if self._use_peepholes:
            vectors = {
                gate: self.add_weight(f"w_{gate}_diag", [units], initializer=initializer)
                for gate in self._peephole_order
            }
            self._w_f_diag, self._w_i_diag, self._w_o_diag = (vectors[gate] for gate in "fio")
        if self._project:
            self._proj_kernel = self.add_weight(
                "projection/kernel", [units, self._output_units], initializer=initializer
            )

    def call(self, inputs: Tensor, state: Any, *args: Any, **kwargs: Any) -> tuple[Tensor, Any]:
        c, h = self._unpacked(state)
        i, j, f, o = split(affine([inputs, h], self._kernel, self._bias), 4, axis=1)
        f = f + self._forget_bias
        if self._use_peepholes:
            f, i = f + self._w_f_diag * c, i + self._w_i_diag * c
        new_c = self._clipped_memory(sigmoid(f) * c + sigmoid(i) * self._activation(j))
        if self._use_peepholes:
            o = o + self._w_o_diag * new_c
        new_h = sigmoid(o) * self._activation(new_c)
        if self._project:
            new_h = _clipped(matmul(new_h, self._proj_kernel), self._proj_clip)
        return new_h, self._packed(new_c, new_h)

    def _clipped_memory(self, c: Tensor) -> Tensor:
        return _clipped(c, self._cell_clip)


class BasicLSTMCell(_LSTM):
    """An LSTM without peepholes, clipping or projection.

    ``forget_bias`` is added to the forget gate, so that the memory persists at the beginning of training.
    ``activation`` is tanh if None.

    Example:
        >>> cell = tf.nn.rnn_cell.BasicLSTMCell(8)
        >>> output, state = cell(tf.zeros([2, 4]), cell.zero_state(2, tf.float32))
        >>> output.shape.as_list(), [part.shape.as_list() for part in state]
        ([2, 8], [[2, 8], [2, 8]])
    """

    def __init__(
        self,
        num_units: int,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_units, forget_bias, state_is_tuple, activation, _reuse=reuse, name=name, dtype=dtype, **kwargs
        )


class LSTMCell(_LSTM):
    """An LSTM with options: Sak et al., "Long short-term memory recurrent neural network architectures for
    large scale acoustic modeling" (2014).

    With ``use_peepholes`` the gates see the memory, through the vectors w_f_diag, w_i_diag and w_o_diag.
    ``num_proj`` projects the output to that size, by projection/kernel. ``cell_clip`` and ``proj_clip`` bound
    the absolute values of memory and projected output. ``num_unit_shards`` and ``num_proj_shards`` are
    accepted: variables are not partitioned. ``initializer`` is for all but the bias.
    """

    def __init__(
        self,
        num_units: int,
        use_peepholes: bool = False,
        cell_clip: float | None = None,
        initializer: Any = None,
        num_proj: int | None = None,
        proj_clip: float | None = None,
        num_unit_shards: int | None = None,
        num_proj_shards: int | None = None,
        forget_bias: float = 1.0,
        state_is_tuple: bool = True,
        activation: Any = None,
        reuse: Any = None,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_units, forget_bias, state_is_tuple, activation, use_peepholes=use_peepholes,
            cell_clip=cell_clip, initializer=initializer, num_proj=num_proj, proj_clip=proj_clip,
            _reuse=reuse, name=name, dtype=dtype, **kwargs,
        )  # fmt: skip


def _clipped(value: Tensor, bound: float | None) -> Tensor:
    return value if bound is None else clip_by_value(value, -bound, bound)
