"""Wrappers of cells: dropout, residual connections, a device.

A wrapper has no scope: the variables have the same names as without it. Its states and sizes are the cell's.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any

from flowrt.dtypes import DTypeLike
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.base.filling import zeros_like
from flowrt.graph.ops.elementwise.arithmetic import add
from flowrt.graph.ops.elementwise.comparison import greater_equal, where_v2
from flowrt.graph.ops.elementwise.division import realdiv
from flowrt.graph.ops.nn.bias import dropout
from flowrt.graph.ops.random.random_ops import random_uniform
from flowrt.graph.shapes import as_shape, compatible
from flowrt.graph.source import misuse
from flowrt.nest import flatten, is_nested, map_structure, pack_sequence_as
from flowrt.nn.rnn_cell.base import RNNCell, check_cell
from flowrt.nn.rnn_cell.lstm import LSTMStateTuple
from flowrt.variables.variable import Variable


class CellWrapper(RNNCell):
    """Base of the wrappers: forwards everything to ``cell``."""

    def __init__(self, cell: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        check_cell(type(self).__name__, cell)
        self.cell = cell

    @property
    def wrapped_cell(self) -> Any:
        return self.cell

    @property
    def state_size(self) -> Any:
        return self.cell.state_size

    @property
    def output_size(self) -> Any:
        return self.cell.output_size

    @property
    def trainable_weights(self) -> list[Variable]:
        return self.cell.trainable_weights

    @property
    def non_trainable_weights(self) -> list[Variable]:
        return self.cell.non_trainable_weights

    def zero_state(self, batch_size: Any, dtype: Any) -> Any:
        """The cell's zero state."""
        with get_default_graph().name_scope(f"{type(self).__name__}ZeroState"):
            return self.cell.zero_state(batch_size, dtype)


class ResidualWrapper(CellWrapper):
    """``outputs + inputs``, or ``residual_fn(inputs, outputs)``, in place of the cell's outputs.

    Raises `InvalidArgumentError` for inputs of another size than the outputs.
    """

    def __init__(self, cell: Any, residual_fn: Callable[..., Any] | None = None, **kwargs: Any) -> None:
        super().__init__(cell, **kwargs)
        self._residual_fn = residual_fn or _sum

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        outputs, new_state = self.cell(inputs, state, scope=scope)
        return self._residual_fn(inputs, outputs), new_state


def _sum(inputs: Any, outputs: Any) -> Any:
    for i, o in zip(flatten(inputs), flatten(outputs), strict=False):
        if not compatible(as_shape(i.shape), as_shape(o.shape)):
            raise misuse(f"ResidualWrapper: expected inputs of the outputs' shape {o.shape}; got {i.shape}")
    return map_structure(add, inputs, outputs)


class DeviceWrapper(CellWrapper):
    """The cell, with its operations and zero states on ``device``."""

    def __init__(self, cell: Any, device: Any, **kwargs: Any) -> None:
        super().__init__(cell, **kwargs)
        self._device = device

    def zero_state(self, batch_size: Any, dtype: DTypeLike) -> Any:
        """The cell's zero state, on the device."""
        with get_default_graph().device(self._device):
            return super().zero_state(batch_size, dtype)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        with get_default_graph().device(self._device):
            return self.cell(inputs, state, scope=scope)


def _all_but_memory(state: Any) -> Any:
    """The parts of a state to drop: of an LSTM's the output, not the memory."""
    return LSTMStateTuple(c=False, h=True) if isinstance(state, LSTMStateTuple) else True


class DropoutWrapper(CellWrapper):
    """Dropout of a cell's inputs, outputs and state, each kept with its ``keep_prob`` (a number or a scalar).

    The state is dropped after the step, for the next one; of an LSTM's only h, unless
    ``dropout_state_filter_visitor`` (from a structure of the state to True, False, or a structure of them)
    selects other parts. With ``variational_recurrent`` one mask per `Session.run` serves all time steps and
    all rows of the batch: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent
    neural networks" (2016). This needs ``dtype``, and ``input_size`` if inputs are dropped. Raises
    `InvalidArgumentError` if they are missing, and for a probability outside [0, 1].
    """

    def __init__(
        self,
        cell: Any,
        input_keep_prob: Any = 1.0,
        output_keep_prob: Any = 1.0,
        state_keep_prob: Any = 1.0,
        variational_recurrent: bool = False,
        input_size: Any = None,
        dtype: DTypeLike | None = None,
        seed: int | None = None,
        dropout_state_filter_visitor: Callable[[Any], Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(cell, dtype=dtype, **kwargs)
        if dropout_state_filter_visitor is not None and not callable(dropout_state_filter_visitor):
            raise misuse(
                "DropoutWrapper: expected dropout_state_filter_visitor to be a function; got "
                f"{dropout_state_filter_visitor!r}",
                DTypeError,
            )
        self._visit, self._seed = dropout_state_filter_visitor or _all_but_memory, seed
        self._keep = {
            "input": _probability("input_keep_prob", input_keep_prob),
            "state": _probability("state_keep_prob", state_keep_prob),
            "output": _probability("output_keep_prob", output_keep_prob),
        }
        self._draws: dict[str, list[Tensor]] = {}
        if variational_recurrent:
            self._draws = self._draw(
                {"input": input_size, "state": cell.state_size, "output": cell.output_size}
            )

    def _draw(self, sizes: dict[str, Any]) -> dict[str, list[Tensor]]:
        """Draw one uniform number per element of every dropped tensor, the same in all time steps."""
        wanted = {part: size for part, size in sizes.items() if self._keep[part] != 1.0}
        if self.dtype is None or wanted.get("input", 0) is None:
            missing = "a dtype" if self.dtype is None else "an input_size to drop inputs"
            raise misuse(f"DropoutWrapper: expected {missing} with variational_recurrent; got None")
        return {
            part: [
                random_uniform([1, *(as_shape(one) or ())], dtype=self.dtype, seed=self._seed_of(part, i))
                for i, one in enumerate(flatten(size))
            ]
            for part, size in wanted.items()
        }

    def _seed_of(self, part: str, index: int) -> int | None:
        """A seed for each tensor, so that their masks differ."""
        if self._seed is None:
            return None
        return zlib.crc32(f"{self._seed}{part}_{index}".encode()) & 0x7FFFFFFF

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
        inputs = self._dropped("input", inputs, [True] * len(flatten(inputs)))
        outputs, new_state = self.cell(inputs, state, scope=scope)
        new_state = self._dropped("state", new_state, _chosen(self._visit, new_state))
        return self._dropped("output", outputs, [True] * len(flatten(outputs))), new_state

    def _dropped(self, part: str, values: Any, chosen: list[bool]) -> Any:
        """``values`` with dropout of the chosen leaves."""
        if self._keep[part] == 1.0:
            return values
        leaves = [
            self._dropout(part, i, value) if wanted else value
            for i, (value, wanted) in enumerate(zip(flatten(values), chosen, strict=True))
        ]
        return pack_sequence_as(values, leaves)

    def _dropout(self, part: str, index: int, value: Any) -> Tensor:
        keep = self._keep[part]
        if part not in self._draws:
            return dropout(value, keep, seed=self._seed_of(part, index))
        kept = greater_equal(self._draws[part][index] + keep, 1.0)
        return where_v2(kept, realdiv(value, keep), zeros_like(value))


def _probability(where: str, value: Any) -> Any:
    """``value`` as a float, if it is known, or as it is."""
    if isinstance(value, (Tensor, Variable)):
        return value
    if not 0 <= value <= 1:
        raise misuse(f"DropoutWrapper: expected {where} between 0 and 1; got {value!r}")
    return float(value)


def _chosen(visit: Callable[[Any], Any], state: Any) -> list[bool]:
    """A flag for every leaf of ``state``: whether ``visit``, called from the root inwards, selects it."""
    wanted = visit(state)
    if not is_nested(state):
        return [bool(wanted)]
    branches = [state[key] for key in sorted(state)] if isinstance(state, Mapping) else list(state)
    each = [wanted] * len(branches) if isinstance(wanted, bool) else flatten(wanted)
    found: list[bool] = []
    for branch, inside in zip(branches, each, strict=True):
        found += _chosen(visit, branch) if inside else [False] * len(flatten(branch))
    return found
