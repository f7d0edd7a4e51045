"""Cells of recurrent layers: one step of a sequence.

What a cell computes from its input alone (`Cell.projected`) needs no loop: a layer computes it for all steps
in one product of matrices, and only `Cell.step` runs step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from flowrt.graph.construction.graph import Tensor
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.ops.base.filling import ones, ones_like, zeros
from flowrt.graph.ops.base.shape_manipulation import expand_dims, shape
from flowrt.graph.ops.elementwise.arithmetic import add, multiply, subtract
from flowrt.graph.ops.elementwise.comparison import where
from flowrt.graph.ops.linalg.matmul import matmul
from flowrt.graph.ops.nn.bias import bias_add
from flowrt.graph.ops.nn.bias import dropout as nn_dropout
from flowrt.graph.shapes import TensorShape
from flowrt.keras import activations, constraints, initializers, regularizers
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.core import as_training
from flowrt.keras.state.seeds import op_seed
from flowrt.layers.core import is_symbolic, product
from flowrt.nest import flatten

__all__ = ["AbstractRNNCell", "GRUCell", "LSTMCell", "SimpleRNNCell", "StackedRNNCells"]


class AbstractRNNCell(Layer):
    """Base of a user's cells, which define ``call(inputs, states)``, ``state_size`` and ``output_size``."""

    def call(self, inputs: Any, states: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a method call(inputs, states)")

    @property
    def state_size(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a property state_size")

    @property
    def output_size(self) -> Any:
        raise NotImplementedError(f"{type(self).__name__}: expected a property output_size")


class Cell(Layer):
    """Base of Keras's cells: kernels of ``gates`` parts, side by side."""

    gates: ClassVar[int]

    def __init__(
        self, units: int, activation: Any = "tanh", use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform", recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros", kernel_regularizer: Any = None, recurrent_regularizer: Any = None,
        bias_regularizer: Any = None, kernel_constraint: Any = None, recurrent_constraint: Any = None,
        bias_constraint: Any = None, dropout: float = 0.0, recurrent_dropout: float = 0.0, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(**options)
        self.units, self.use_bias, self.activation = units, use_bias, activations.get(activation)
        for kind, given in (
            ("kernel", (kernel_initializer, kernel_regularizer, kernel_constraint)),
            ("recurrent", (recurrent_initializer, recurrent_regularizer, recurrent_constraint)),
            ("bias", (bias_initializer, bias_regularizer, bias_constraint)),
        ):
            initializer, regularizer, constraint = given
            setattr(self, f"{kind}_initializer", initializers.get(initializer))
            setattr(self, f"{kind}_regularizer", regularizers.get(regularizer))
            setattr(self, f"{kind}_constraint", constraints.get(constraint))
        self.dropout, self.recurrent_dropout = (
            min(1.0, max(0.0, dropout)),
            min(1.0, max(0.0, recurrent_dropout)),
        )
        self.bias: Any = None
        self._state_masks: list[Any] | None = None

    @property
    def state_size(self) -> Any:
        return self.units

    @property
    def output_size(self) -> int:
        return self.units

    def build(self, input_shape: TensorShape) -> None:
        width = self.gates * self.units
        self.kernel = self._add_parameter("kernel", [self._known(input_shape, -1), width], "kernel")
        self.recurrent_kernel = self._add_parameter("recurrent_kernel", [self.units, width], "recurrent")
        if self.use_bias:
            self.bias = self._build_bias(width)

    def _build_bias(self, width: int) -> Any:
        return self._add_parameter("bias", [width], "bias")

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        """States of zeros."""
        rows = shape(inputs)[0] if inputs is not None else batch_size
        sizes = flatten(self.state_size)
        found = [zeros([rows, n], dtype or inputs.dtype) for n in sizes]
        return found if len(found) > 1 else found[0]

    def call(self, inputs: Any, states: Any, training: Any = None) -> tuple[Any, list[Any]]:
        self.begin(states[0], training)
        return self.step(self.projected(inputs, training), list(states))

    def projected(self, inputs: Tensor, training: Any) -> Tensor:
        """``inputs @ kernel + bias``, of one step or of all; each gate has a dropout of its own."""
        if self.dropout:
            sample = ones_like(inputs[:, 0] if inputs.shape.ndims == 3 else inputs)
            masks = drawn_masks(sample, self.dropout, self.gates, training)
            masks = [expand_dims(m, 1) if inputs.shape.ndims == 3 else m for m in masks]
            parts = split(self._input_matrix(), self.gates, 1)
            made = concat(
                [product(multiply(inputs, mask), part) for mask, part in zip(masks, parts, strict=True)], -1
            )
        else:
            made = product(inputs, self._input_matrix())
        return made if self.bias is None else bias_add(made, self._input_bias())

    def _input_matrix(self) -> Any:
        return self.kernel

    def _recurrent_matrix(self) -> Any:
        return self.recurrent_kernel

    def _input_bias(self) -> Any:
        return self.bias

    def begin(self, state: Tensor, training: Any) -> None:
        """Make what all steps share, such as the dropout of the states."""
        self._state_masks = None
        if self.recurrent_dropout:
            self._state_masks = drawn_masks(ones_like(state), self.recurrent_dropout, self.gates, training)

    def _recurrent(self, h: Tensor, gates: Sequence[int]) -> list[Tensor]:
        """``h @ recurrent_kernel`` of each of ``gates``, neighbours in the kernel."""
        kernel = self._recurrent_matrix()
        first, units = gates[0] * self.units, self.units
        own = kernel if len(gates) == self.gates else kernel[:, first : first + len(gates) * units]
        if self._state_masks is None:
            return split(matmul(h, own), len(gates), 1)
        parts = split(own, len(gates), 1)
        return [matmul(multiply(h, self._state_masks[g]), part) for g, part in zip(gates, parts, strict=True)]

    def step(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        """Output and states after the states, for a projected input."""
        raise NotImplementedError


def drawn_masks(sample: Tensor, rate: float, count: int, training: Any) -> list[Tensor]:
    """Dropout of ones, ``count`` times; ones outside of training."""
    training = as_training(training)
    if not is_symbolic(training) and not training:
        return [sample] * count
    found = [nn_dropout(sample, rate=rate, seed=op_seed(None)) for _ in range(count)]
    return [where(training, each, sample) for each in found] if is_symbolic(training) else found


class SimpleRNNCell(Cell):
    """``h = activation(x @ kernel + bias + h @ recurrent_kernel)``."""

    gates = 1

    def step(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        h = self.activation(add(x, self._recurrent(states[0], [0])[0]))
        return h, [h]


class LSTMCell(Cell):
    """A step of long short-term memory (Hochreiter and Schmidhuber 1997); gates: input, forget, cell, output.

    With ``unit_forget_bias`` the bias of the forget gate begins as 1.
    """

    gates = 4

    def __init__(
        self, units: int, activation: Any = "tanh", recurrent_activation: Any = "hard_sigmoid",
        use_bias: bool = True, kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal", bias_initializer: Any = "zeros",
        unit_forget_bias: bool = True, kernel_regularizer: Any = None, recurrent_regularizer: Any = None,
        bias_regularizer: Any = None, kernel_constraint: Any = None, recurrent_constraint: Any = None,
        bias_constraint: Any = None, dropout: float = 0.0, recurrent_dropout: float = 0.0,
        implementation: int = 1, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, activation, use_bias, kernel_initializer, recurrent_initializer, bias_initializer,
            kernel_regularizer, recurrent_regularizer, bias_regularizer, kernel_constraint,
            recurrent_constraint, bias_constraint, dropout, recurrent_dropout, **options,
        )  # fmt: skip
        self.recurrent_activation = activations.get(recurrent_activation)
        self.unit_forget_bias, self.implementation = unit_forget_bias, implementation

    @property
    def state_size(self) -> list[int]:
        return [self.units, self.units]

    def _build_bias(self, width: int) -> Any:
        if not self.unit_forget_bias:
            return super()._build_bias(width)
        begin, units = self.bias_initializer, self.units  # type: ignore[attr-defined]

        def initial(_: Any, dtype: Any = None, partition_info: Any = None) -> Tensor:
            parts = [begin([units], dtype=dtype), ones([units], dtype), begin([units * 2], dtype=dtype)]
            return concat(parts, 0)

        options = {"regularizer": self.bias_regularizer, "constraint": self.bias_constraint}  # type: ignore[attr-defined]
        return self.add_weight("bias", [width], initializer=initial, **options)

    def step(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        h, c = states
        if self._state_masks is None:
            i, f, g, o = split(add(x, matmul(h, self._recurrent_matrix())), 4, 1)
        else:
            pairs = zip(split(x, 4, 1), self._recurrent(h, [0, 1, 2, 3]), strict=True)
            i, f, g, o = (add(a, b) for a, b in pairs)
        gate = self.recurrent_activation
        c = add(multiply(gate(f), c), multiply(gate(i), self.activation(g)))
        h = multiply(gate(o), self.activation(c))
        return h, [h, c]


class GRUCell(Cell):
    """A step of a gated recurrent unit (Cho et al. 2014); gates: update, reset, candidate.

    With ``reset_after`` the reset gate works on the product with the recurrent kernel, which has a bias of
    its own.
    """

    gates = 3

    def __init__(
        self, units: int, activation: Any = "tanh", recurrent_activation: Any = "hard_sigmoid",
        use_bias: bool = True, kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal", bias_initializer: Any = "zeros",
        kernel_regularizer: Any = None, recurrent_regularizer: Any = None, bias_regularizer: Any = None,
        kernel_constraint: Any = None, recurrent_constraint: Any = None, bias_constraint: Any = None,
        dropout: float = 0.0, recurrent_dropout: float = 0.0, implementation: int = 1,
        reset_after: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(
            units, activation, use_bias, kernel_initializer, recurrent_initializer, bias_initializer,
            kernel_regularizer, recurrent_regularizer, bias_regularizer, kernel_constraint,
            recurrent_constraint, bias_constraint, dropout, recurrent_dropout, **options,
        )  # fmt: skip
        self.recurrent_activation = activations.get(recurrent_activation)
        self.implementation, self.reset_after = implementation, reset_after

    def _build_bias(self, width: int) -> Any:
        return self._add_parameter("bias", [2, width] if self.reset_after else [width], "bias")

    def _input_bias(self) -> Any:
        return self.bias[0] if self.reset_after else self.bias

    def _recurrent_bias(self) -> Any:
        return self.bias[1]

    def step(self, x: Tensor, states: list[Any]) -> tuple[Tensor, list[Any]]:
        h = states[0]
        x_z, x_r, x_h = split(x, 3, 1)
        gate = self.recurrent_activation
        if self.reset_after:
            parts = self._recurrent(h, [0, 1, 2])
            if self.bias is not None:
                own = split(self._recurrent_bias(), 3, 0)
                parts = [add(part, b) for part, b in zip(parts, own, strict=True)]
            z, r = gate(add(x_z, parts[0])), gate(add(x_r, parts[1]))
            candidate = self.activation(add(x_h, multiply(r, parts[2])))
        else:
            h_z, h_r = self._recurrent(h, [0, 1])
            z, r = gate(add(x_z, h_z)), gate(add(x_r, h_r))
            candidate = self.activation(add(x_h, self._recurrent(multiply(r, h), [2])[0]))
        h = add(multiply(z, h), multiply(subtract(1.0, z), candidate))
        return h, [h]


class StackedRNNCells(Layer):
    """Cells on top of each other as one."""

    def __init__(self, cells: Sequence[Any], **options: Any) -> None:
        super().__init__(**options)
        self.cells = list(cells)

    @property
    def state_size(self) -> list[Any]:
        return [cell.state_size for cell in self.cells]

    @property
    def output_size(self) -> Any:
        return getattr(self.cells[-1], "output_size", flatten(self.cells[-1].state_size)[0])

    def _inner_copies(self) -> dict[str, Any]:
        return {"cells": [cell.copied() for cell in self.cells]}

    def build(self, input_shape: Any) -> None:
        dims = list(input_shape.as_list())
        for index, cell in enumerate(self.cells):
            build_cell(cell, TensorShape(dims), f"{self._scope_name}cell_{index}/", self.dtype)
            dims[-1] = getattr(cell, "output_size", flatten(cell.state_size)[0])

    def call(self, inputs: Any, states: Any, **options: Any) -> tuple[Any, list[Any]]:
        rest, ends = list(flatten(states)), list[Any]()
        for cell in self.cells:
            count = len(flatten(cell.state_size))
            inputs, after = cell.call(inputs, rest[:count], **options)
            rest, ends = rest[count:], [*ends, *flatten(after)]
        return inputs, ends


def build_cell(cell: Any, input_shape: TensorShape, scope: str, dtype: Any) -> None:
    """Make the variables of ``cell``, named below ``scope``, once."""
    if isinstance(cell, Layer) and not cell.built:
        cell._scope_name, cell.dtype = scope, cell.dtype or dtype
        cell.build(input_shape)
        cell.built = True
