"""`PartitionedVariable`: one variable to the script, its rows on several servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np

from flowrt.errors import UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.array.concat_and_split import concat
from flowrt.graph.ops.array.selection import embedding_lookup
from flowrt.graph.ops.array.slicing import strided_slice
from flowrt.graph.ops.elementwise.comparison import logical_and
from flowrt.graph.ops.state.variable_ops import (
    assign_add_variable_op,
    assign_sub_variable_op,
    assign_variable_op,
)
from flowrt.graph.ops.text.python_calls import group
from flowrt.graph.shapes import TensorShape
from flowrt.variables.variable import GraphKeys, Variable

_BY_ELEMENT = (assign_variable_op, assign_add_variable_op, assign_sub_variable_op)


@final
class PartitionedVariable(Variable):
    """The rows of ``parts``, one part after the other.

    The parts are trained on their own devices; the whole is saved, so a checkpoint fits any number of
    servers. Reading it copies all parts to the reader; `sparse_read` copies only the requested rows.
    """

    def __init__(self, name: str, parts: Sequence[Variable], trainable: bool) -> None:
        self._parts = tuple(parts)
        self._dtype, self.trainable, self.constraint = parts[0].dtype, trainable, None
        self.synchronization, self.aggregation = parts[0].synchronization, parts[0].aggregation
        rows = [int(part.shape[0]) for part in parts]
        self._bounds = [sum(rows[:i]) for i in range(len(rows) + 1)]
        graph = parts[0].graph
        with graph.control_dependencies(None):
            self._initializer = group(*(part.initializer for part in parts), name=f"{name}/initializer")
            self._is_initialized = parts[0].is_initialized()
            for part in parts[1:]:
                self._is_initialized = logical_and(self._is_initialized, part.is_initialized())
            self._snapshot = concat([part._as_graph_element() for part in parts], 0, name=f"{name}/")
        graph.add_to_collections([GraphKeys.GLOBAL_VARIABLES, GraphKeys.CONCATENATED_VARIABLES], self)
        if trainable:
            for part in parts:
                graph.add_to_collections([GraphKeys.TRAINABLE_VARIABLES], part)

    # --- properties

    @property
    def copies(self) -> Sequence[Variable]:
        return self._parts

    def value_of_copies(self, values: Sequence[Any]) -> Any:
        return np.concatenate(list(values))

    def value_for_copies(self, value: Any) -> Sequence[Any]:
        return np.split(np.asarray(value), self._bounds[1:-1])

    @property
    def op(self) -> Operation:
        """The operation that concatenates the parts, under the variable's name."""
        return self._snapshot.op

    @property
    def name(self) -> str:
        return self._snapshot.name

    @property
    def handle(self) -> Tensor:
        """The handle of the first part."""
        return self._parts[0].handle

    @property
    def shape(self) -> TensorShape:
        return TensorShape([self._bounds[-1], *self._parts[0].shape.as_list()[1:]])

    @property
    def initial_value(self) -> Tensor:
        return concat([part.initial_value for part in self._parts], 0)

    # --- reading and writing

    def read_value(self) -> Tensor:
        return concat([part.read_value() for part in self._parts], 0)

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        return embedding_lookup(self._parts, indices, "div", name=name)

    def _write(self, op: Any, values: tuple[Any, ...], name: str, read_value: bool) -> Any:
        if op not in _BY_ELEMENT:
            raise UnimplementedError(
                f"variable {self.name!r}: expected assign, assign_add or assign_sub, as it is split over"
                f" servers; got"
                f" {op.name}"
            )
        value = convert_to_tensor(values[0], self._dtype)
        value.shape.assert_is_compatible_with(self.shape)
        writes = [
            part._write(op, (strided_slice(value, [start], [stop]),), name, False)
            for part, start, stop in zip(self._parts, self._bounds, self._bounds[1:], strict=False)
        ]
        written = group(*writes)
        if not read_value:
            return written
        with get_default_graph().control_dependencies([written]):
            return self.read_value()

    def __repr__(self) -> str:
        devices = ", ".join(part.device for part in self._parts)
        kind = f"shape={self.shape} dtype={self.dtype.name}"
        return f"<flowrt.PartitionedVariable {self.name!r} {kind} on {devices}>"
