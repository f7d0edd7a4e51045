"""Variables of a strategy: one variable to the script, a copy on each device.

``synchronization`` determines when the copies are equal, ``aggregation`` how the writes of replicas are
combined:

                         in a replica                   cross-replica               saved and restored
    MirroredVariable     read: own copy                 read: the first copy        the first copy;
      ON_WRITE, AUTO     write: aggregated, all copies  write: all copies             all get it
    SyncOnReadVariable   read: own copy                 read: copies aggregated     result of a read;
      ON_READ            write: own copy                write: so that a read         as a write;
                                                          gives the value               by all workers

A write in a replica with ON_WRITE needs an aggregation (SUM, MEAN, ONLY_FIRST_REPLICA) and must be made by
all replicas. While `StrategyExtended.update` updates a copy, the variable refers to that copy alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np

from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.distribute.strategies.values.distributed_values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    select,
)
from flowrt.distribute.strategies.values.reduce_op import ReduceOp
from flowrt.errors import FailedPreconditionError, InvalidArgumentError, UnimplementedError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Tensor, get_default_graph
from flowrt.graph.ops.array.gather_scatter import gather
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.base.indexed_slices import IndexedSlices
from flowrt.graph.ops.elementwise.comparison import logical_and
from flowrt.graph.ops.elementwise.division import div
from flowrt.graph.ops.state.variable_ops import (
    assign_add_variable_op,
    assign_sub_variable_op,
    assign_variable_op,
    resource_scatter_add,
    resource_scatter_sub,
)
from flowrt.graph.ops.text.python_calls import group
from flowrt.variables.distribution_context import DistributionContext, distribution_context, entered_context
from flowrt.variables.variable import GraphKeys, Variable, VariableAggregation, VariableSynchronization

_REDUCTIONS = {VariableAggregation.SUM: ReduceOp.SUM, VariableAggregation.MEAN: ReduceOp.MEAN}
Values = tuple[Any, ...]
"""The values that a write takes after the handle."""

_ADDITIVE = (assign_add_variable_op, assign_sub_variable_op)
_ADDITIVE_SCATTERS = (resource_scatter_add, resource_scatter_sub)


class DistributedVariable(Variable):
    """A variable of ``strategy`` with its values in ``copies``, in the order of the replicas; one copy serves
    all.

    All methods of `Variable` use the context's copy, and outside of contexts work as cross-replica.
    """

    def __init__(
        self,
        strategy: Any,
        copies: Sequence[Variable],
        trainable: bool,
        constraint: Callable[[Tensor], Tensor] | None,
        synchronization: VariableSynchronization,
        aggregation: VariableAggregation,
    ) -> None:
        self.strategy, self._copies = strategy, tuple(copies)
        self._dtype = copies[0].dtype
        self.trainable, self.constraint = trainable, constraint
        self.synchronization, self.aggregation = synchronization, aggregation
        with placed_on(copies[0].device):
            name = f"{copies[0].op.name}/initializers/"
            self._initializer = group(*(copy.initializer for copy in copies), name=name)
            self._is_initialized = reduce(logical_and, (copy.is_initialized() for copy in copies))

    @property
    def copies(self) -> Sequence[Variable]:
        return self._copies

    @property
    def values(self) -> tuple[Variable, ...]:
        """The copies, as of other distributed values."""
        return self._copies

    # --- the copy that is meant here

    def _context(self) -> DistributionContext:
        """The thread's context, or cross-replica where that is of no strategy or of another one."""
        context = distribution_context()
        return (
            context if context and context.strategy is self.strategy else DistributionContext(self.strategy)
        )

    def _copy_number(self) -> int | None:
        """The number of the copy that the context names; None: cross-replica."""
        context = self._context()
        number = context.replica.local_replica_id if context.replica is not None else context.updated_copy
        return number if number is None or len(self._copies) > 1 else 0

    @property
    def handle(self) -> Tensor:
        return self._copies[self._copy_number() or 0].handle

    @property
    def name(self) -> str:
        """The first copy's, in every context."""
        return self._copies[0].name

    @property
    def initial_value(self) -> Tensor:
        return self._copies[0].initial_value

    def _as_graph_element(self) -> Tensor:
        return self._copies[self._copy_number() or 0]._as_graph_element()

    # --- writing

    def check_updated_here(self) -> None:
        context = self._context()
        is_only = len(self._copies) == self.strategy.extended.input_context.num_input_pipelines == 1
        if is_only or context.replica is not None or context.updated_copy is not None:
            return
        raise FailedPreconditionError(
            f"variable {self.name!r}: expected updates to be applied in strategy.run() or merge_call() of "
            f"{self.strategy!r}; got one outside, which would change only one copy. Call minimize() or "
            "apply_gradients() in the function given to strategy.run(), or write all copies by assign()",
            op=self.op.name,
        )

    def _write(self, op: Any, values: Values, name: str, read_value: bool) -> Any:
        context = self._context()
        if context.updated_copy is not None:
            return super()._write(op, select(context.updated_copy, values), name, read_value)
        if context.replica is not None:
            return self._write_in_replica(context.replica, op, values, name, read_value)
        return _first(self._write_cross_replica(op, values, name, read_value))

    @abstractmethod
    def _write_in_replica(self, replica: Any, op: Any, values: Values, name: str, read_value: bool) -> Any:
        """``op`` with ``values`` of this replica."""

    @abstractmethod
    def _write_cross_replica(self, op: Any, values: Values, name: str, read_value: bool) -> Any:
        """``op`` with ``values`` for all copies: the new value on each copy's device, or the operation."""

    def _write_copies(self, op: Any, values: Values, name: str, read_value: bool) -> Any:
        """``op`` on each copy with its part of ``values``; a value is read when all are written."""
        writes = []
        for number in range(len(self._copies)):
            with entered_context(DistributionContext(self.strategy, updated_copy=number)):
                writes.append(super()._write(op, select(number, values), name, False))
        written = writes[0] if len(writes) == 1 else group(*writes, name=name)
        if not read_value:
            return written
        with get_default_graph().control_dependencies([written]):
            return _spread([copy.read_value() for copy in self._copies])

    def count_up_to(self, limit: int, name: str | None = None) -> Tensor:
        if self._context().updated_copy is None and len(self._copies) > 1:
            raise UnimplementedError(
                f"variable {self.name!r}: expected assign_add instead of count_up_to; it has one copy per "
                "replica"
            )
        return super().count_up_to(limit, name)

    def _expected_aggregation(self, op: Any) -> FailedPreconditionError:
        return FailedPreconditionError(
            f"variable {self.name!r}: expected an aggregation for {op.name} in a replica; got "
            f"{self.aggregation.name}. Create it with aggregation=VariableAggregation.SUM, MEAN or "
            "ONLY_FIRST_REPLICA, or write it cross-replica",
            op=self.op.name,
        )

    def __repr__(self) -> str:
        return (
            f"<flowrt.{type(self).__name__} {self.name!r} shape={self.shape} dtype={self.dtype.name} on "
            f"{', '.join(copy.device for copy in self._copies)}>"
        )


class MirroredVariable(DistributedVariable):
    """Variable with copies that are equal after every write: synchronization ON_WRITE."""

    def _write_in_replica(self, replica: Any, op: Any, values: Values, name: str, read_value: bool) -> Any:
        if self.aggregation is VariableAggregation.NONE:
            raise self._expected_aggregation(op)
        given = tuple(values[:-1]) + (convert_to_tensor(values[-1], self.dtype),)
        return replica.merge_call(self._write_merged, (op, given, name, read_value))

    def _write_merged(self, _: Any, op: Any, values: Values, name: str, read_value: bool) -> Any:
        """A write that all replicas make, with the values of all."""
        aggregated = self._aggregated(values[0]) if len(values) == 1 else self._rows(op, values)
        return self._write_cross_replica(op, aggregated, name, read_value)

    def _aggregated(self, value: Any) -> tuple[Any, ...]:
        extended = self.strategy.extended
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return (extended.broadcast_to(select(0, value), self),)
        if not isinstance(value, DistributedValues):  # the same tensor in each replica
            value = PerReplica([value] * len(extended.worker_devices))
        return (extended.reduce_to(_REDUCTIONS[self.aggregation], value, self),)

    def _rows(self, op: Any, values: Values) -> tuple[Any, Any]:
        """The (indices, updates) of all replicas as one."""
        extended = self.strategy.extended
        if self.aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            indices, updates = (extended.broadcast_to(select(0, value), self) for value in values)
            return indices, updates
        if op not in _ADDITIVE_SCATTERS:
            raise UnimplementedError(
                f"variable {self.name!r}: expected aggregation ONLY_FIRST_REPLICA for {op.name} in a "
                f"replica; got {self.aggregation.name}"
            )
        count = len(extended.worker_devices)
        slices = PerReplica([IndexedSlices(select(i, values[1]), select(i, values[0])) for i in range(count)])
        total = extended.reduce_to(_REDUCTIONS[self.aggregation], slices, self)
        parts = total.values if isinstance(total, Mirrored) else (total,)
        return _spread([part.indices for part in parts]), _spread([part.values for part in parts])

    def _write_cross_replica(self, op: Any, values: Values, name: str, read_value: bool) -> Any:
        return self._write_copies(op, values, name, read_value)

    def value_for_copies(self, value: Any) -> Sequence[Any]:
        return [value] * len(self._copies)


class SyncOnReadVariable(DistributedVariable):
    """Each replica writes its own copy; a read cross-replica combines them: synchronization ON_READ."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._snapshot = self._combined([copy._as_graph_element() for copy in self._copies])

    # --- reading

    def read_value(self) -> Tensor:
        if self._copy_number() is not None:
            return super().read_value()
        self._check_read_cross_replica()
        return self._combined([copy.read_value() for copy in self._copies])

    def _check_read_cross_replica(self) -> None:
        """Raise `FailedPreconditionError` where the copies have no value together."""
        if self.aggregation is VariableAggregation.NONE:
            raise FailedPreconditionError(
                f"variable {self.name!r}: expected an aggregation to read it cross-replica; got NONE. "
                "Create it with aggregation=VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or read "
                "it in a replica",
                op=self.op.name,
            )

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        if self._copy_number() is not None:
            return super().sparse_read(indices, name)
        return gather(self.read_value(), indices, name=name)

    def _combined(self, values: Sequence[Tensor]) -> Tensor:
        """The value, from those of the copies."""
        op = _REDUCTIONS.get(self.aggregation)
        if op is None:
            return values[0]
        return self.strategy.extended.reduce_to(op, PerReplica(values), values[0].device)

    def _as_graph_element(self) -> Tensor:
        if self._copy_number() is not None:
            return super()._as_graph_element()
        self._check_read_cross_replica()
        return self._snapshot

    # --- writing

    def _write_in_replica(self, replica: Any, op: Any, values: Values, name: str, read_value: bool) -> Any:
        with entered_context(DistributionContext(self.strategy, updated_copy=replica.local_replica_id)):
            return self._write(op, values, name, read_value)

    def _write_cross_replica(self, op: Any, values: Values, name: str, read_value: bool) -> Any:
        is_sum = self.aggregation is VariableAggregation.SUM
        if op is not assign_variable_op and (is_sum or op not in _ADDITIVE):
            raise FailedPreconditionError(
                f"variable {self.name!r}: expected assign() to write it cross-replica; got {op.name}, which "
                f"is undefined for a value that is the {self.aggregation.name} of its copies. Call it in a "
                "replica"
            )
        value = convert_to_tensor(values[0], self.dtype)
        parts = self._parts_of_sum(value) if is_sum else value
        written = self._write_copies(op, (parts,), name, False)
        if not read_value:
            return written
        with get_default_graph().control_dependencies([written]):
            return self.read_value()

    def _parts_of_sum(self, value: Any) -> Any:
        """One value per copy: with the copies of other workers they add up to ``value``. They are equal
        except for the remainder of integers, which the first replica of all gets.
        """
        count = self.strategy.extended.num_replicas_in_sync
        share: Any = div(value, count)
        return _spread(self._with_rest(share, value - share * (count - 1)))

    def _with_rest(self, share: Any, rest: Any) -> list[Any]:
        has_first = self.strategy.extended.first_replica_id == 0 and self.dtype.is_integer
        return [rest if has_first else share] + [share] * (len(self._copies) - 1)

    # --- saving and restoring

    @property
    def shared_value(self) -> Tensor | None:
        has_all = len(self._copies) == self.strategy.extended.num_replicas_in_sync
        return None if has_all or self.aggregation not in _REDUCTIONS else self._snapshot

    def value_of_copies(self, values: Sequence[Any]) -> Any:
        if self.aggregation not in _REDUCTIONS:
            return values[0]
        total = np.sum(values, axis=0, dtype=values[0].dtype)
        if self.aggregation is VariableAggregation.SUM:
            return total
        return (total // len(values) if self.dtype.is_integer else total / len(values)).astype(total.dtype)

    def value_for_copies(self, value: Any) -> Sequence[Any]:
        if self.aggregation is not VariableAggregation.SUM:
            return [value] * len(self._copies)
        value, count = np.asarray(value, self.dtype.np), self.strategy.extended.num_replicas_in_sync
        share = value // count if self.dtype.is_integer else (value / count).astype(value.dtype)
        return self._with_rest(share, value - share * (count - 1))


def _first(value: Any) -> Any:
    return value.values[0] if isinstance(value, DistributedValues) else value


def _spread(values: Sequence[Any]) -> Any:
    return values[0] if len(values) == 1 else Mirrored(values)


# --- making them


def distributed_variable(
    strategy: Any, devices: Sequence[str], next_creator: Callable[..., Variable], **arguments: Any
) -> DistributedVariable:
    """A variable with a copy on each of ``devices``: the result of `Variable` with ``arguments`` in a scope.

    The first copy has the given initial value, the others the same one, so that a random value is drawn once.
    Raises `InvalidArgumentError` for an unknown synchronization or aggregation.
    """
    synchronization, aggregation, trainable = _checked_policy(arguments)
    copies = _make_copies(devices, next_creator, arguments)
    kind = SyncOnReadVariable if synchronization is VariableSynchronization.ON_READ else MirroredVariable
    graph = copies[0].graph
    with graph, graph.control_dependencies(None), entered_context(DistributionContext(strategy)):
        variable = kind(strategy, copies, trainable, arguments["constraint"], synchronization, aggregation)
    keys = arguments["collections"]
    keys = [GraphKeys.GLOBAL_VARIABLES] if keys is None else list(keys)
    graph.add_to_collections([*keys, *([GraphKeys.TRAINABLE_VARIABLES] if trainable else ())], variable)
    return variable


def _checked_policy(arguments: dict[str, Any]) -> tuple[VariableSynchronization, VariableAggregation, bool]:
    """The synchronization and aggregation in ``arguments``, and whether the variable is trainable."""
    synchronization, aggregation = arguments["synchronization"], arguments["aggregation"]
    name, trainable = arguments["name"] or "Variable", arguments["trainable"]
    if not isinstance(synchronization, VariableSynchronization) or not isinstance(
        aggregation, VariableAggregation
    ):
        raise InvalidArgumentError(
            f"variable {name!r}: expected a VariableSynchronization and a VariableAggregation; got "
            f"{synchronization!r} and {aggregation!r}"
        )
    if synchronization is VariableSynchronization.NONE:
        raise InvalidArgumentError(
            f"variable {name!r}: expected synchronization AUTO, ON_WRITE or ON_READ in a strategy's scope; "
            "got NONE"
        )
    if synchronization is VariableSynchronization.AUTO:
        synchronization = VariableSynchronization.ON_WRITE
    is_on_read = synchronization is VariableSynchronization.ON_READ
    if trainable and is_on_read:
        raise InvalidArgumentError(
            f"variable {name!r}: expected trainable=False with synchronization ON_READ; got True"
        )
    return synchronization, aggregation, not is_on_read if trainable is None else bool(trainable)


def _make_copies(
    devices: Sequence[str], next_creator: Callable[..., Variable], arguments: dict[str, Any]
) -> list[Variable]:
    plain = {
        **arguments,
        "trainable": False,
        "collections": (),
        "constraint": None,
        "synchronization": VariableSynchronization.AUTO,
        "aggregation": VariableAggregation.NONE,
    }
    root = get_default_graph().root
    with root, placed_on(devices[0]):
        first = next_creator(**plain)
    copies = [first]
    for number, device in enumerate(devices[1:], 1):
        changed = {
            "initial_value": lambda: identity(first.initial_value),
            "name": f"{first.op.name}/replica_{number}/",
        }
        with root, placed_on(device):
            copies.append(next_creator(**{**plain, **changed}))
    return copies
