"""Recurrent layers: cells along the time of sequences."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.filling import zeros
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.shapes import TensorShape
from flowrt.graph.source import misuse
from flowrt.graph.tf1_signatures import parameters_of, with_parameters
from flowrt.keras.engine.layer import Layer
from flowrt.keras.layers.cells import Cell, GRUCell, LSTMCell, SimpleRNNCell, StackedRNNCells, build_cell
from flowrt.keras.layers.recurrence import rnn
from flowrt.keras.state.graph_state import tracked
from flowrt.keras.state.sessions import batch_set_value
from flowrt.nest import flatten
from flowrt.variables.variable import Variable

__all__ = ["GRU", "LSTM", "RNN", "SimpleRNN"]


class RNN(Layer):
    """``cell``, or a list of cells, along the time of ``[batch, time, features]``: the last output ``[batch,
    units]``, or all with ``return_sequences``, and with ``return_state`` the states.

    A cell has ``call(inputs, states) -> (output, states)`` and ``state_size``. ``stateful`` keeps the states
    of one batch for the next.
    """

    def __init__(
        self, cell: Any, return_sequences: bool = False, return_state: bool = False,
        go_backwards: bool = False, stateful: bool = False, unroll: bool = False, time_major: bool = False,
        **options: Any,
    ) -> None:  # fmt: skip
        if "input_length" in options or ("input_dim" in options and "input_shape" not in options):
            options["input_shape"] = (options.pop("input_length", None), options.pop("input_dim", None))
        super().__init__(**options)
        self.cell = StackedRNNCells(cell) if isinstance(cell, (list, tuple)) else cell
        if not hasattr(self.cell, "call") or not hasattr(self.cell, "state_size"):
            raise misuse(f"RNN: expected a cell with call and state_size; got {cell!r}")
        self.return_sequences, self.return_state, self.go_backwards = (
            return_sequences,
            return_state,
            go_backwards,
        )
        self.stateful, self.unroll, self.time_major = stateful, unroll, time_major
        self.supports_masking = True
        self._states: list[Variable] | None = None

    @property
    def _sizes(self) -> list[int]:
        return [int(getattr(n, "value", n)) for n in flatten(self.cell.state_size)]

    @property
    def states(self) -> list[Any]:
        """The variables of the states of a stateful layer."""
        return [None] * len(self._sizes) if self._states is None else list(self._states)

    def build(self, input_shape: Any) -> None:
        shape_ = input_shape[0] if isinstance(input_shape, list) else input_shape
        if (shape_.ndims or 3) < 3:
            raise misuse(f"layer {self.name!r}: expected inputs [batch, time, features]; got shape {shape_}")
        dims = shape_.as_list()
        build_cell(self.cell, TensorShape([dims[0], *dims[2:]]), self._scope_name, self.dtype)
        if self.stateful:
            if dims[0] is None:
                raise misuse(
                    f"layer {self.name!r}: expected a batch_input_shape with a known batch, as it is stateful"
                )
            self._states = [self._state_variable(dims[0], n) for n in self._sizes]

    def _state_variable(self, rows: int, size: int) -> Variable:
        assert self.dtype is not None  # since it was built
        with get_default_graph().root.name_scope(None):
            name = f"{self._scope_name}state"
            return tracked(Variable(zeros([rows, size], self.dtype), trainable=False, name=name))

    def _own_weights(self) -> list[Variable]:
        own = set(self._states or ())
        return [w for w in super()._own_weights() if w not in own]

    def __call__(self, inputs: Any, initial_state: Any = None, constants: Any = None, **options: Any) -> Any:
        """Apply the layer; the tensors ``initial_state`` may follow the inputs in a list."""
        if isinstance(inputs, (list, tuple)) and len(inputs) > 1 and initial_state is None:
            inputs, initial_state = inputs[0], list(inputs[1:])
        if initial_state is not None:
            options["initial_state"] = (
                list(initial_state) if isinstance(initial_state, (list, tuple)) else [initial_state]
            )
        if constants is not None:
            options["constants"] = list(constants) if isinstance(constants, (list, tuple)) else [constants]
        return super().__call__(inputs, **options)

    def call(
        self, inputs: Tensor, mask: Any = None, training: Any = None, initial_state: Any = None,
        constants: Any = None,
    ) -> Any:  # fmt: skip
        states = self._first_states(inputs, initial_state)
        cell = self.cell
        if isinstance(cell, Cell):
            cell.begin(states[0], training)
            sequence, step = cell.projected(inputs, training), cell.step
        else:
            sequence, step = inputs, self._step_of(cell, len(states), training)
        last, outputs, ends = rnn(
            step, sequence, states, self.go_backwards, mask, constants, self.unroll, None, self.time_major,
            return_all_outputs=self.return_sequences,
        )  # fmt: skip
        if self._states is not None:
            for variable, value in zip(self._states, ends, strict=True):
                self.add_update((variable, value))
        found = outputs if self.return_sequences else last
        return [found, *ends] if self.return_state else found

    def _step_of(self, cell: Any, count: int, training: Any) -> Any:
        accepts = getattr(cell, "_accepts", {})
        options = {"training": training} if accepts.get("training") else {}

        def step(x: Any, states: list[Any]) -> Any:
            own: Any = list(states[:count])
            more = {"constants": states[count:]} if len(states) > count else {}
            output, after = cell.call(x, own, **options, **more)
            return output, list(flatten(after))

        return step

    def _first_states(self, inputs: Tensor, given: Any) -> list[Any]:
        if given is not None:
            if len(given) != len(self._sizes):
                raise misuse(f"layer {self.name!r}: expected {len(self._sizes)} states; got {len(given)}")
            return list(given)
        if self._states is not None:
            return [variable.read_value() for variable in self._states]
        own = getattr(self.cell, "get_initial_state", None)
        if own is not None and not isinstance(self.cell, Cell):
            return list(flatten(own(inputs=inputs, batch_size=shape(inputs)[0], dtype=inputs.dtype)))
        axis = 1 if self.time_major else 0
        rows = inputs.shape.as_list()[axis] or shape(inputs)[axis]
        return [zeros([rows, n], inputs.dtype) for n in self._sizes]

    def _inner_copies(self) -> dict[str, Any]:
        return {} if isinstance(self, OfCell) else {"cell": self.cell.copied()}

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        own = mask if self.return_sequences else None
        return [own, *[None] * len(self._sizes)] if self.return_state else own

    def reset_states(self, states: Any = None) -> None:
        """Set the states of a stateful layer, to zeros if None. Raises `InvalidArgumentError` for others."""
        if self._states is None:
            raise misuse(f"layer {self.name!r}: reset_states: expected a stateful layer that is built")
        values = (
            [np.zeros([n or 0 for n in v.shape.as_list()]) for v in self._states]
            if states is None
            else states
        )
        values = values if isinstance(values, (list, tuple)) else [values]
        batch_set_value(list(zip(self._states, values, strict=True)))


class OfCell(RNN):
    """A layer with a cell of its own: the arguments are the cell's and the layer's."""

    cell_class: ClassVar[type[Cell]]

    def __getattr__(self, name: str) -> Any:
        """Attributes of the cell, such as ``units`` and ``kernel``, are the layer's."""
        cell = self.__dict__.get("cell", self.__dict__.get("_cell"))
        if cell is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(cell, name)


def constructor_of(cell_class: type[Cell]) -> Any:
    """A constructor with the arguments of the cell, then those of `RNN`."""
    of_cell = [p for p in parameters_of(cell_class.__init__) if p.kind is not p.VAR_KEYWORD]
    of_layer = [p for p in parameters_of(RNN.__init__)[2:] if p.name != "time_major"]

    def construct(given: dict[str, Any]) -> None:
        self, names = given.pop("self"), {p.name for p in of_cell}
        own = {name: given.pop(name) for name in list(given) if name in names}
        RNN.__init__(self, cell_class(**own, name=f"{cell_class.__name__}_of_layer"), **given)

    return with_parameters(RNN.__init__, [*of_cell, *of_layer], construct)


class SimpleRNN(OfCell):
    """`SimpleRNNCell` along time; see `RNN`."""

    cell_class = SimpleRNNCell
    __init__ = constructor_of(SimpleRNNCell)


class LSTM(OfCell):
    """`LSTMCell` along time; see `RNN`."""

    cell_class = LSTMCell
    __init__ = constructor_of(LSTMCell)


class GRU(OfCell):
    """`GRUCell` along time; see `RNN`."""

    cell_class = GRUCell
    __init__ = constructor_of(GRUCell)
