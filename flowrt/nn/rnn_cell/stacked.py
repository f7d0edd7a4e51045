"""MultiRNNCell: layers of cells, each reading the outputs of the one below."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from flowrt.dtypes import DTypeLike
from flowrt.errors import DTypeError
from flowrt.graph.construction.graph import get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat, split
from flowrt.graph.source import misuse
from flowrt.graph.typing import NumericLike
from flowrt.nest import is_nested
from flowrt.nn.rnn_cell.base import RNNCell, check_cell
from flowrt.variables.variable_scope import variable_scope


class MultiRNNCell(RNNCell):
    """A stack of ``cells``, the first one lowest; their variables are in cell_0, cell_1, ...

    The state is a tuple of theirs, or with ``state_is_tuple=False`` one concatenated tensor. Raises
    `InvalidArgumentError` for no cells, or for states of several tensors without ``state_is_tuple``,
    `DTypeError` for anything but a sequence of cells.
    """

    def __init__(self, cells: Sequence[Any], state_is_tuple: bool = True) -> None:
        super().__init__()
        if not cells:
            raise misuse(f"MultiRNNCell: expected at least one cell; got {cells!r}")
        if not is_nested(cells):
            raise misuse(f"MultiRNNCell: expected a list of cells; got {cells!r}", DTypeError)
        for number, cell in enumerate(cells):
            check_cell(f"MultiRNNCell: cells[{number}]", cell)
        if len({id(cell) for cell in cells}) < len(cells):
            logging.getLogger("flowrt").warning(
                "MultiRNNCell: the same cell is given twice: its layers share weights"
            )
        if not state_is_tuple and any(is_nested(cell.state_size) for cell in cells):
            raise misuse(
                "MultiRNNCell: expected cells with one state tensor each, as state_is_tuple is False; got "
                f"state sizes {[cell.state_size for cell in cells]}"
            )
        self._cells, self._state_is_tuple = list(cells), state_is_tuple

    @property
    def state_size(self) -> Any:
        sizes = tuple(cell.state_size for cell in self._cells)
        return sizes if self._state_is_tuple else sum(sizes)

    @property
    def output_size(self) -> Any:
        return self._cells[-1].output_size

    def zero_state(self, batch_size: Any, dtype: DTypeLike) -> Any:
        """The zero states of the cells."""
        if not self._state_is_tuple:
            return super().zero_state(batch_size, dtype)
        with get_default_graph().name_scope(f"{type(self).__name__}ZeroState"):
            return tuple(cell.zero_state(batch_size, dtype) for cell in self._cells)

    def call(self, inputs: NumericLike, state: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        if self._state_is_tuple and not (is_nested(state) and len(state) == len(self._cells)):
            got = len(state) if is_nested(state) else f"{state!r:.100}"
            message = f"MultiRNNCell: expected a state for each of the {len(self._cells)} cells; got {got}"
            raise misuse(f"{message}. Use the cell's zero_state()", DTypeError)
        states = state if self._state_is_tuple else split(state, [c.state_size for c in self._cells], axis=1)
        new_states = []
        for number, (cell, own) in enumerate(zip(self._cells, states, strict=True)):
            with variable_scope(f"cell_{number}"):
                inputs, new_state = cell(inputs, own)
            new_states.append(new_state)
        return inputs, tuple(new_states) if self._state_is_tuple else concat(new_states, 1)
