"""`StrategyExtended`: the implementation of a kind of strategy, and its interface for libraries.

A kind of strategy is a subclass; its abstract methods are the differences: placement of variables, and
calling a function for the replicas.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from flowrt.base.structure import Structure
from flowrt.data.dataset import Dataset
from flowrt.distribute.strategies.input.distributed_input import InputContext
from flowrt.distribute.strategies.reduce.cross_device_ops import CrossDeviceOps, devices_of, placed_on
from flowrt.distribute.strategies.values.distributed_values import (
    DistributedValues,
    PerReplica,
    regroup,
    select,
)
from flowrt.distribute.strategies.values.reduce_op import ReduceOp, as_reduce_op
from flowrt.errors import FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.state.iterators import expect_data_op
from flowrt.variables.distribution_context import DistributionContext, distribution_context, entered_context
from flowrt.variables.variable import Variable, global_variables, local_variables
from flowrt.variables.variable_creators import variable_creator_scope

if TYPE_CHECKING:
    from flowrt.distribute.strategies.core.strategy import Strategy


def one_for_all(value: Any) -> InvalidArgumentError:
    """The error for a sum of a ``value`` that is shared by the replicas."""
    return InvalidArgumentError(
        f"strategy.reduce: expected one value per replica to sum; got one for all: {value!r}. Is it already "
        "reduced? If not, multiply it by strategy.num_replicas_in_sync"
    )


class StrategyExtended(ABC):
    """The devices, variables, reductions and updates of ``strategy``.

    ``worker_devices`` are those of the replicas in this graph, in order; ``first_replica_id`` is the number
    of the first of them among all workers' replicas.
    """

    first_replica_id = 0

    def __init__(self, strategy: Strategy, worker_devices: Sequence[str], ops: CrossDeviceOps) -> None:
        self.strategy = strategy
        self._worker_devices = tuple(worker_devices)
        self._cross_device_ops = ops

    # --- implemented by each kind of strategy

    @abstractmethod
    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        """Create a variable for a call of `Variable` in the scope; ``next_creator(**arguments)`` creates one
        plain variable.
        """

    @abstractmethod
    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        """See `Strategy.run`."""

    # --- devices

    @property
    def worker_devices(self) -> tuple[str, ...]:
        return self._worker_devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Devices of variables."""
        return self.worker_devices

    @property
    def num_replicas_in_sync(self) -> int:
        return len(self.worker_devices)

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:
        """Devices of optimizer variables that belong to none of ``var_list``."""
        return self.parameter_devices

    # --- workers

    experimental_between_graph = False
    """Whether each worker builds and runs its own graph."""
    experimental_should_init = True
    """Whether this worker initializes variables."""
    experimental_require_static_shapes = False
    should_checkpoint = True
    """Whether this worker is the one that writes checkpoints."""
    should_save_summary = True

    @property
    def initializes_each_graph(self) -> bool:
        """Whether workers have separate variables, which all of them initialize and restore."""
        return self.experimental_between_graph and self.experimental_should_init

    # --- input

    @property
    def input_context(self) -> InputContext:
        """The input pipeline of this graph among those of the workers."""
        return InputContext(1, 0, self.num_replicas_in_sync)

    def expect_data_somewhere(self, has_data: Tensor) -> Operation:
        """An operation that raises `OutOfRangeError` unless some worker's ``has_data`` is true."""
        return expect_data_op(has_data)

    def reading_input(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which an iterator gets its next element."""
        return contextlib.nullcontext()

    def experimental_make_numpy_dataset(self, numpy_input: Structure, session: Any = None) -> Dataset:
        """See `Strategy.experimental_make_numpy_dataset`."""
        return Dataset.from_tensor_slices(numpy_input)

    # --- contexts

    @contextlib.contextmanager
    def opened_scope(self) -> Iterator[None]:
        """The part of `Strategy.scope` in addition to the context."""
        with variable_creator_scope(self.create_variable):
            yield

    def check_cross_replica(self, what: str) -> None:
        """Raise `FailedPreconditionError` inside a replica."""
        context = distribution_context()
        if context is not None and context.replica is not None:
            raise FailedPreconditionError(
                f"strategy.{what}: expected to be called cross-replica; got a call in the function given to "
                "strategy.run(). Call it outside, or in get_replica_context().merge_call()"
            )

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Structure:
        """See `Strategy.run`."""
        self.check_cross_replica("extended.call_for_each_replica")
        with self.strategy.scope():
            return self._call_for_each_replica(fn, tuple(args), kwargs or {})

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Variable) -> Iterator[None]:
        """Colocate variables with ``colocate_with_variable``, as all of the strategy's are."""
        if not self.variable_created_in_scope(colocate_with_variable):
            raise InvalidArgumentError(
                f"colocate_vars_with: expected a variable of this strategy; got {colocate_with_variable!r}"
            )
        yield

    def variable_created_in_scope(self, v: Any) -> bool:
        return getattr(v, "strategy", None) is self.strategy

    # --- values

    def value_container(self, value: Any) -> Any:
        """The distributed variable that ``value`` is a copy of; any other value itself."""
        if not isinstance(value, Variable):
            return value
        made = global_variables() + local_variables()
        return next((v for v in made if any(value is copy for copy in v.copies)), value)

    def read_var(self, v: Variable) -> Tensor:
        """The value of ``v`` cross-replica."""
        return v.read_value()

    def reduce_to(self, reduce_op: ReduceOp | str, value: Any, destinations: Any, options: Any = None) -> Any:
        """The replicas' ``value`` reduced, on ``destinations``: a device, several, or a variable that is
        there. On several devices the result is `Mirrored`.
        """
        return self.batch_reduce_to(reduce_op, [(value, destinations)], options)[0]

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """`reduce_to` for several values together."""
        self.check_cross_replica("extended.batch_reduce_to")
        op = as_reduce_op(reduce_op)
        pairs = [
            (self._per_replica(op, value), self.worker_devices if to is None else to)
            for value, to in value_destination_pairs
        ]
        return self._cross_device_ops.batch_reduce(op, pairs, options)

    def _per_replica(self, op: ReduceOp, value: Any) -> DistributedValues:
        """``value`` as one value per replica. A shared one, tensor or number, is its own mean. Raises
        `InvalidArgumentError` for its sum, as TensorFlow does, unless it is the number 0 (or zeros).
        """
        if isinstance(value, DistributedValues):
            return value
        count = len(self.worker_devices)
        is_one_tensor = hasattr(value, "graph")
        is_zero = not is_one_tensor and not np.any(value)
        if op is ReduceOp.SUM and count > 1 and not is_zero:
            raise one_for_all(value)
        return PerReplica([value if is_one_tensor else convert_to_tensor(value)] * count)

    def gather_to(self, value: Any, destinations: Any, axis: int, options: Any = None) -> Any:
        """The replicas' ``value`` concatenated along ``axis``, on ``destinations``."""
        self.check_cross_replica("extended.gather_to")
        per_replica = value if isinstance(value, DistributedValues) else PerReplica([value])
        return self._cross_device_ops.gather(per_replica, devices_of(destinations, self), axis)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """``tensor`` on ``destinations``, all worker devices if None."""
        self.check_cross_replica("extended.broadcast_to")
        return self._cross_device_ops.broadcast(tensor, devices_of(destinations, self))

    # --- updates

    def apply_gradients(
        self,
        optimizer: Any,
        pairs: Sequence[tuple[Any, Variable]],
        global_step: Variable | None,
        name: str | None,
    ) -> Operation:
        """`Optimizer.apply_gradients` of the replica that is being built. Raises `FailedPreconditionError`,
        which names it, for a variable that is not the strategy's: every replica would update it.
        """
        for _, variable in pairs:
            if not self.variable_created_in_scope(variable):
                raise FailedPreconditionError(
                    f"apply_gradients: variable {variable.name!r}: expected one of {self.strategy!r}; got "
                    f"{variable!r}. Make it inside strategy.scope() of this strategy"
                )
        context = distribution_context()
        assert context is not None
        return context.replica.merge_call(optimizer._apply_merged, (pairs, global_step, name))

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """``fn(var, *args, **kwargs)`` for each copy of ``var``, on its device: ``var`` refers to that copy
        there, and distributed arguments to their own values.

        Returns one operation, or with ``group=False`` the results, regrouped. Raises
        `FailedPreconditionError` inside a replica.
        """
        self.check_cross_replica("extended.update")
        copies = [copy.device for copy in var.copies]
        return self._updated(copies, partial(fn, var), args, kwargs or {}, group)

    def update_non_slot(
        self,
        colocate_with: Sequence[str],
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """``fn(*args, **kwargs)`` on each of the devices ``colocate_with`` (of `non_slot_devices`). Otherwise
        as `update`.
        """
        self.check_cross_replica("extended.update_non_slot")
        return self._updated(colocate_with, fn, args, kwargs or {}, group)

    def _updated(
        self,
        devices: Sequence[str],
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        grouped: bool,
    ) -> Any:
        results = []
        for i, device in enumerate(devices):
            with entered_context(DistributionContext(self.strategy, updated_copy=i)), placed_on(device):
                results.append(fn(*select(i, tuple(args)), **select(i, dict(kwargs))))
        regrouped = regroup(results)
        return self.strategy.group(regrouped) if grouped else regrouped
