"""`ImportedVariable`: a variable of a graph that was imported, and the message that names its operations."""

from __future__ import annotations

from typing import Any, cast

from flowrt import protos
from flowrt.errors import InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.effects import AT_END
from flowrt.graph.ops.state import variable_ops
from flowrt.variables.variable import Variable, VariableAggregation, VariableSynchronization


class ImportedVariable(Variable):
    """A variable around operations that are there already: its handle, an assignment and what that assigns.

    Raises `InvalidArgumentError` for a handle of something else.
    """

    def __init__(
        self,
        handle: Tensor,
        initializer: Operation,
        initial_value: Tensor,
        trainable: bool = True,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
    ) -> None:
        if handle.op.type != "VarHandleOp":
            raise InvalidArgumentError(
                f"variable {handle.name!r}: expected the handle of a variable; got a {handle.op.type}"
            )
        self.trainable, self.synchronization, self.aggregation = trainable, synchronization, aggregation
        self.constraint = None
        self._handle, self._initializer, self._initial_value = handle, initializer, initial_value
        self._dtype = handle.op.get_attr("dtype")
        self._snapshot = self._read_at_end()

    def _read_at_end(self) -> Tensor:
        """The read that is fetched for the variable."""
        name = f"{self.op.name}/Read/ReadVariableOp"
        found = self.graph.operations.get(name)
        if found is None or found.node.inputs != (self.handle.ref,):
            with self.graph, self.graph.control_dependencies(None), self._beside():
                full_name = f"{self.graph.unique_absolute(name)}/"
                return variable_ops.read_variable_op(
                    self.handle, dtype=self._dtype, name=full_name, **{AT_END: True}
                )
        if not found.node.attrs.get(AT_END):
            found.mutate(attrs={**found.node.attrs, AT_END: True})
        return found.outputs[0]

    def is_initialized(self) -> Tensor:
        if not hasattr(self, "_is_initialized"):
            with self.graph, self.graph.control_dependencies(None), self._beside():
                name = f"{self.op.name}/IsInitialized/VarIsInitializedOp"
                full_name = f"{self.graph.unique_absolute(name)}/"
                self._is_initialized = variable_ops.var_is_initialized_op(self.handle, name=full_name)
        return self._is_initialized


def variable_def(variable: Variable) -> Any:
    """The VariableDef of a variable: the names of its operations."""
    made = protos.meta_graph_pb2.VariableDef(
        variable_name=variable.name,
        initial_value_name=variable.initial_value.name,
        initializer_name=variable.initializer.name,
        snapshot_name=variable._as_graph_element().name,
        is_resource=True,
        trainable=variable.trainable,
    )
    made.synchronization = cast(Any, variable.synchronization.value)
    made.aggregation = cast(Any, variable.aggregation.value)
    return made
