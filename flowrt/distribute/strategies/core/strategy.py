"""`Strategy`: the interface for scripts.

A strategy does not affect how a graph runs. It places the variables created in its scope, calls a function
once per replica under the replica's device, and builds the operations that combine the replicas' values.
Kinds of strategies differ in their `StrategyExtended`.
"""

from __future__ import annotations

import contextlib
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from flowrt.base.in_notebook import InNotebook
from flowrt.base.structure import Structure, flatten, map_structure
from flowrt.data.dataset import Dataset
from flowrt.distribute.strategies.core.extended import StrategyExtended, one_for_all
from flowrt.distribute.strategies.core.multi_steps import run_steps
from flowrt.distribute.strategies.input.distributed_input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    InputOptions,
    InputReplicationMode,
    distribute_dataset,
    distribute_datasets_from_function,
)
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.distribute.strategies.values.distributed_values import (
    DistributedValues,
    PerReplica,
    regroup,
    select,
)
from flowrt.distribute.strategies.values.reduce_op import ReduceOp, as_reduce_op
from flowrt.distribute.strategies.values.reduced_values import ReducedValues
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.array.reductions import reduce_sum
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.base.shape_manipulation import shape
from flowrt.graph.ops.elementwise.division import truediv
from flowrt.graph.ops.text.python_calls import group
from flowrt.variables.distribution_context import DistributionContext, distribution_context, entered_context
from flowrt.variables.variable import Variable


class Strategy(InNotebook):
    """Runs a function on several replicas that share variables. See the module."""

    def __init__(self, extended: StrategyExtended) -> None:
        self._extended, self._reduced = extended, ReducedValues()

    @property
    def extended(self) -> Any:
        """Interface for libraries: the strategy's devices, reductions and updates."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas on all workers, by which a global batch is divided."""
        return self._extended.num_replicas_in_sync

    @property
    def cluster_resolver(self) -> Any:
        """The resolver of the cluster it was made for, or None."""
        return None

    # --- contexts

    @contextlib.contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Variables made inside are the strategy's, and the thread builds cross-replica.

        Raises `FailedPreconditionError` inside the scope of another strategy and inside a replica.
        """
        with self._opened("scope"):
            yield self

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[Strategy]:
        """`scope`, for the method ``what``, named in errors."""
        context = distribution_context()
        self._check_not_nested(context, what)
        if context is not None:
            yield self
            return
        with self._extended.opened_scope(), entered_context(DistributionContext(self)):
            yield self

    def _check_not_nested(self, context: DistributionContext | None, what: str) -> None:
        if context is None:
            return
        if context.strategy is not self:
            raise FailedPreconditionError(
                f"{type(self).__name__}.{what}: expected a call outside other strategies' scopes; got one "
                f"inside that of {context.strategy!r}. Use one strategy, or leave the first scope"
            )
        self._extended.check_cross_replica(what)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Structure:
        """Call ``fn(*args, **kwargs)`` once per replica, under its device, and return the results regrouped:
        values that differ between replicas are `PerReplica`.

        Each replica gets its own values of `PerReplica` arguments. Raises `FailedPreconditionError` inside a
        replica, `InvalidArgumentError` if the replicas return different structures, `DTypeError` unless
        ``args`` is a tuple or list. ``options`` are accepted.
        """
        if not callable(fn):
            raise InvalidArgumentError(f"strategy.run: expected a function; got {fn!r}")
        if not isinstance(args, tuple | list):
            raise DTypeError(f"strategy.run: expected args to be a tuple, as args=(x,); got {args!r}")
        with self._opened("run"):
            results = self._extended.call_for_each_replica(fn, args, kwargs)
        self._reduced.note_of_replicas(results)
        return results

    experimental_run_v2 = run

    # --- values of replicas

    def reduce(self, reduce_op: ReduceOp | str, value: Structure, axis: int | None = None) -> Structure:
        """The sum or mean of the replicas' values; with ``axis`` of their elements along it too.

        A mean with ``axis`` divides by the number of all elements, so that replicas with fewer weigh less.
        One value for all replicas, tensor or number, is its own mean. Raises `InvalidArgumentError` for its
        sum, unless it is the number 0; `FailedPreconditionError` inside a replica.
        """
        op = as_reduce_op(reduce_op)
        with self._opened("reduce"):
            if axis is None:
                reduced = map_structure(partial(self._reduce_leaf, op), value)
            else:
                of_all = self._sum_along if op is ReduceOp.SUM else self._mean_along
                reduced = map_structure(partial(of_all, axis), value)
        self._reduced.note_reduced(reduced)
        return reduced

    def _reduce_leaf(self, op: ReduceOp, value: Any) -> Tensor:
        if op is ReduceOp.SUM and self.num_replicas_in_sync > 1 and self._reduced.is_for_all(value):
            raise one_for_all(value)
        return self._extended.reduce_to(op, value, self._extended.worker_devices[0])

    def _sum_along(self, axis: int, value: Any) -> Tensor:
        return self._reduce_leaf(ReduceOp.SUM, self._each(lambda v: reduce_sum(v, axis), value))

    def _mean_along(self, axis: int, value: Any) -> Tensor:
        total = self._sum_along(axis, value)
        count = self._reduce_leaf(ReduceOp.SUM, self._each(lambda v: shape(v, out_type="int64")[axis], value))
        if not (total.dtype.is_floating or total.dtype.is_complex):
            total = cast(total, "float64")
        return truediv(total, cast(count, total.dtype))

    def _each(self, fn: Callable[[Any], Any], value: Any) -> PerReplica:
        """``fn`` of the value of each replica, on its device."""
        found = []
        for i, device in enumerate(self._extended.worker_devices):
            with placed_on(device):
                found.append(fn(convert_to_tensor(select(i, value))))
        return PerReplica(found)

    def gather(self, value: Structure, axis: int) -> Structure:
        """The replicas' values concatenated along ``axis``. They may differ in that dimension only."""
        with self._opened("gather"):
            device = self._extended.worker_devices[0]
            return map_structure(lambda leaf: self._extended.gather_to(leaf, device, axis), value)

    def experimental_local_results(self, value: Structure) -> tuple[Any, ...]:
        """The values of the replicas in this graph, in order; of one value that itself."""
        if isinstance(value, DistributedValues):
            return value.values
        if isinstance(value, Variable):
            return tuple(value.copies)
        leaves = flatten(value)
        if leaves and any(isinstance(leaf, DistributedValues) for leaf in leaves):
            return tuple(select(i, value) for i in range(len(self._extended.worker_devices)))
        return (value,)

    unwrap = experimental_local_results

    def group(self, value: Structure, name: str | None = None) -> Operation:
        """One operation that runs everything in ``value``."""
        everything = [v for leaf in flatten(value) for v in self.experimental_local_results(leaf)]
        return group(*everything, name=name)

    def experimental_distribute_values_from_function(self, value_fn: Callable[[Any], Any]) -> Structure:
        """``value_fn(ValueContext)`` for each replica, regrouped."""
        count = self.num_replicas_in_sync
        first = self._extended.first_replica_id
        local = range(len(self._extended.worker_devices))
        return regroup([value_fn(ValueContext(first + i, count)) for i in local])

    # --- input

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset:
        """The elements of ``dataset``, batches of the global size, divided among the replicas.

        In each step every replica gets its part: full ones in order, then the rest of the last batch, then
        empty batches. Raises `InvalidArgumentError` for elements that are not batches and for a batch size
        not divisible by the replicas.
        """
        self._extended.check_cross_replica("experimental_distribute_dataset")
        return distribute_dataset(self._extended, dataset, options or InputOptions())

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """The elements of ``dataset_fn(InputContext)``, called once per worker: batches of a replica's size,
        dealt out to the replicas in turn. The function does the sharding, regardless of ``options``.
        """
        self._extended.check_cross_replica("distribute_datasets_from_function")
        return distribute_datasets_from_function(self._extended, dataset_fn, options or InputOptions())

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def make_dataset_iterator(self, dataset: Any) -> DistributedIterator:
        """An initializable iterator over `experimental_distribute_dataset`."""
        return self.experimental_distribute_dataset(dataset).make_initializable_iterator()

    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> DistributedIterator:
        """An initializable iterator over `distribute_datasets_from_function`."""
        return self.distribute_datasets_from_function(input_fn).make_initializable_iterator()

    def experimental_make_numpy_dataset(self, numpy_input: Structure, session: Any = None) -> Dataset:
        """The rows of ``numpy_input`` as a dataset. ``session`` is accepted: arrays need none."""
        return self._extended.experimental_make_numpy_dataset(numpy_input, session)

    def experimental_run(
        self, fn: Callable[..., Any], input_iterator: Any = None, steps_per_loop: int = 1
    ) -> Structure:
        """`run` of ``fn`` with the next element of ``input_iterator``, or without arguments.

        With ``steps_per_loop`` that many steps are one loop in the graph, so a session call runs all of them;
        the result is the last one's. Raises `InvalidArgumentError` for less than one step.
        """
        is_whole = isinstance(steps_per_loop, numbers.Integral)
        if not is_whole or steps_per_loop < 1:
            raise InvalidArgumentError(
                f"experimental_run: expected steps_per_loop >= 1; got {steps_per_loop!r}"
            )

        def step() -> Structure:
            return self.run(fn, () if input_iterator is None else (input_iterator.get_next(),))

        with self._opened("experimental_run"):
            return step() if steps_per_loop == 1 else run_steps(self._extended, step, steps_per_loop)

    def colocate_vars_with(self, colocate_with_variable: Variable) -> contextlib.AbstractContextManager[None]:
        """See `StrategyExtended.colocate_vars_with`."""
        manager: contextlib.AbstractContextManager[None]
        manager = self._extended.colocate_vars_with(colocate_with_variable)
        return manager

    def update_config_proto(self, config_proto: Any) -> Any:
        """``config_proto`` as a session for this strategy needs it."""
        return config_proto

    def configure(
        self, session_config: Any = None, cluster_spec: Any = None, task_type: Any = None, task_id: Any = None
    ) -> None:
        """Accepted: a strategy is fully configured when it is created."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.num_replicas_in_sync} replicas>"


class RunOptions(NamedTuple):
    """TensorFlow's options of `Strategy.run` for TPUs, which are ignored."""

    experimental_enable_dynamic_batch_size: bool = True
    experimental_bucketizing_dynamic_shape: bool = False
    experimental_xla_options: Any = None


class ValueContext:
    """Argument of a function that creates one replica's value."""

    def __init__(self, replica_id_in_sync_group: int = 0, num_replicas_in_sync: int = 1) -> None:
        self.replica_id_in_sync_group, self.num_replicas_in_sync = (
            replica_id_in_sync_group,
            num_replicas_in_sync,
        )
