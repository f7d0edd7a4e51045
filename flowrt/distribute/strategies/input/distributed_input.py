"""Datasets of a strategy: each replica's part of every element, on its device.

Dataset      SplitBatch or DealBatches                                      replica_batches.py
               a tuple of the replicas' batches, prefetched by a thread
Iterator     one for the replicas of a graph, on the host
get_next     PerReplica: each part is returned on its replica's device; unless that is a CPU, the copy
               of the next part overlaps with the step             graph/ops/state/staged_iterators.py
               with other workers: all continue until none has data
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, final

from flowrt.base.structure import Structure, flatten, map_structure, pack_as
from flowrt.data.auto_shard import AutoShardPolicy, shard
from flowrt.data.dataset import Dataset
from flowrt.data.iterator import Iterator, make_initializable_iterator, make_one_shot_iterator
from flowrt.data.node import Node
from flowrt.data.pipeline import AUTOTUNE, Prefetch
from flowrt.data.spec import TensorSpec
from flowrt.device.spec import parse_device
from flowrt.distribute.strategies.input.replica_batches import DealBatches, SplitBatch, UntilAllEnd, share_of
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.distribute.strategies.values.distributed_values import regroup
from flowrt.dtypes import string
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.construction.graph import Operation, Tensor, get_default_graph
from flowrt.graph.ops.base.identities import identity
from flowrt.graph.ops.state import staged_iterators as ops


class InputReplicationMode(Enum):
    """Number of calls of an input function: once per worker."""

    PER_WORKER = "PER_WORKER"


@final
class InputContext:
    """Argument of a function that creates a worker's dataset: its number among ``num_input_pipelines``."""

    def __init__(
        self, num_input_pipelines: int = 1, input_pipeline_id: int = 0, num_replicas_in_sync: int = 1
    ) -> None:
        self.num_input_pipelines, self.input_pipeline_id = num_input_pipelines, input_pipeline_id
        self.num_replicas_in_sync = num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Raises `InvalidArgumentError` for a size that the replicas do not divide."""
        count = self.num_replicas_in_sync
        if global_batch_size % count:
            raise InvalidArgumentError(
                f"get_per_replica_batch_size: expected a global batch size divisible by {count} replicas; "
                f"got {global_batch_size}. Use {global_batch_size + count - global_batch_size % count}"
            )
        return global_batch_size // count

    def __repr__(self) -> str:
        return f"<InputContext {self.input_pipeline_id} of {self.num_input_pipelines}>"


@final
class InputOptions:
    """Options for distributing a dataset. ``auto_shard_policy``: division between workers. Unless
    ``experimental_fetch_to_device`` is False, parts are prefetched to their replicas' devices. With
    ``experimental_uneven_shares``, of batches that the replicas do not divide the last ones get one row less:
    the loss must be a sum over rows, divided by the global batch size, since a mean in each replica would
    give the rows different weights.
    """

    def __init__(
        self,
        auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO,
        experimental_fetch_to_device: bool | None = None,
        experimental_uneven_shares: bool = False,
    ) -> None:
        if not isinstance(auto_shard_policy, AutoShardPolicy):
            raise DTypeError(f"InputOptions: expected an AutoShardPolicy; got {auto_shard_policy!r}")
        self.auto_shard_policy = auto_shard_policy
        self.experimental_fetch_to_device = experimental_fetch_to_device in (None, True)
        self.experimental_uneven_shares = experimental_uneven_shares


@final
class DistributedDataset:
    """The elements of ``node``, each a tuple of the replicas' batches, for the replicas of ``extended``.

    ``votes``: other workers' datasets may have more elements than this one. ``fetches``: parts are prefetched
    to the replicas' devices.
    """

    def __init__(self, extended: Any, node: Node, votes: bool, fetches: bool) -> None:
        self._extended, self._votes = extended, votes
        self._is_staged = fetches and _can_be_staged(extended.worker_devices, flatten(node.spec))
        self._batches = node.spec
        self._dataset = Dataset(Prefetch(UntilAllEnd(node) if votes else node, AUTOTUNE))

    def make_initializable_iterator(self, shared_name: str | None = None) -> DistributedIterator:
        """An iterator that begins, and begins again, when its ``initializer`` runs."""
        return self._iterator(make_initializable_iterator(self._dataset, shared_name))

    def make_one_shot_iterator(self) -> DistributedIterator:
        """An iterator that needs no initializer and ends for good."""
        return self._iterator(make_one_shot_iterator(self._dataset))

    def _iterator(self, iterator: Iterator) -> DistributedIterator:
        stages = _Stages(iterator, self._extended.worker_devices, self._votes) if self._is_staged else None
        return DistributedIterator(self._extended, iterator, self._votes, stages)

    @property
    def element_spec(self) -> Structure:
        """Spec of the first replica's batch."""
        return self._batches[0]

    def __iter__(self) -> Any:
        raise FailedPreconditionError(
            "distributed dataset: expected get_next() of make_initializable_iterator() in a graph; got a "
            "loop over it"
        )


@final
class DistributedIterator:
    """Gives each replica its batch."""

    def __init__(self, extended: Any, iterator: Iterator, votes: bool, stages: _Stages | None) -> None:
        self._extended, self._iterator, self._votes, self._stages = extended, iterator, votes, stages

    @property
    def initializer(self) -> Operation:
        """The initializer. Raises `FailedPreconditionError` for an iterator that initializes itself."""
        return self._iterator.initializer

    def initialize(self) -> Operation:
        """`initializer`, under the name in older scripts."""
        return self.initializer

    def get_next(self, name: str | None = None) -> Structure:
        """The replicas' next batches, `PerReplica`, each on its device.

        When run, raises `OutOfRangeError` when no replica of any worker has data left.
        """
        with self._extended.reading_input():
            if self._stages is not None:
                head, element = self._stages.get_next(name)
            else:
                element = self._iterator.get_next(name)
                head, element = ([element[0]], element[1]) if self._votes else ([], element)
        after = [self._extended.expect_data_somewhere(has_rows) for has_rows in head]
        parts = []
        for device, part in zip(self._extended.worker_devices, element, strict=True):
            with placed_on(device), get_default_graph().control_dependencies(after):
                parts.append(pack_as(part, [identity(tensor) for tensor in flatten(part)]))
        return regroup(parts)

    @property
    def element_spec(self) -> Structure:
        """Spec of the first replica's batch."""
        spec = self._iterator.element_spec
        return spec[1][0] if self._votes else spec[0]

    @property
    def output_types(self) -> Structure:
        return map_structure(lambda leaf: leaf.dtype, self.element_spec)

    @property
    def output_shapes(self) -> Structure:
        return map_structure(lambda leaf: leaf.shape, self.element_spec)


def _can_be_staged(devices: Sequence[str], specs: Sequence[TensorSpec]) -> bool:
    """Whether a copy ahead is of use, and possible: to other devices than CPUs, of this process."""
    places = [parse_device(device) for device in devices]
    is_here = all(place.job is None and place.task is None for place in places)
    is_numeric = all(spec.dtype is not string for spec in specs)
    return is_here and is_numeric and any(place.device_type not in (None, "CPU") for place in places)


@final
class _Stages:
    """A stage on each of ``devices`` for its part of ``iterator``. ``votes``: a bool precedes the parts."""

    def __init__(self, iterator: Iterator, devices: Sequence[str], votes: bool) -> None:
        self._iterator, self._devices, self._votes = iterator, devices, votes
        spec = iterator.element_spec
        self._head, self._parts = ([spec[0]], spec[1]) if votes else ([], spec)
        with placed_on(iterator.device):
            self._dealer = ops.dealer_op()
        self._handles, first = [], len(self._head)
        for device, part in zip(devices, self._parts, strict=True):
            with placed_on(device):
                self._handles.append(ops.stage_op(first=first, count=len(flatten(part))))
            first += len(flatten(part))

    def get_next(self, name: str | None) -> tuple[list[Tensor], list[Structure]]:
        """The values before the parts, and the parts."""
        with placed_on(self._iterator.device):
            deal, number, *head = ops.deal_next_op(
                self._dealer, self._iterator.resource, output_types=[s.dtype for s in self._head], name=name
            )
        parts = []
        for device, handle, spec in zip(self._devices, self._handles, self._parts, strict=True):
            leaves = flatten(spec)
            types, shapes = [leaf.dtype for leaf in leaves], [leaf.shape for leaf in leaves]
            with placed_on(device):
                taken = ops.staged_next_op(handle, deal, number, output_types=types, output_shapes=shapes)
                parts.append(pack_as(spec, taken))
        return head, parts


def distribute_dataset(extended: Any, dataset: Any, options: InputOptions) -> DistributedDataset:
    """Global batches of ``dataset``, each divided among the replicas of all workers.

    Raises `DTypeError` for anything but a dataset, `InvalidArgumentError` for elements that are not batches
    or not divisible by the replicas.
    """
    if not isinstance(dataset, Dataset):
        raise DTypeError(f"distribute_dataset: expected a flowrt.data.Dataset; got {dataset!r}")
    context: InputContext = extended.input_context
    replicas, local = extended.num_replicas_in_sync, len(extended.worker_devices)
    share = share_of(dataset.node, replicas, options.experimental_uneven_shares)
    fetches = options.experimental_fetch_to_device
    if context.num_input_pipelines == 1:
        node = SplitBatch(dataset.node, local, 0, local, share)
        return DistributedDataset(extended, node, votes=False, fetches=fetches)
    own = shard(
        dataset.node, context.num_input_pipelines, context.input_pipeline_id, options.auto_shard_policy
    )
    if own is None:  # all workers read the same batches, and each takes its replicas' shares
        node = SplitBatch(dataset.node, replicas, extended.first_replica_id, local, share)
        return DistributedDataset(extended, node, votes=False, fetches=fetches)
    node = SplitBatch(own, local, 0, local, share)
    return DistributedDataset(extended, node, votes=True, fetches=fetches)


def distribute_datasets_from_function(
    extended: Any, dataset_fn: Callable[[InputContext], Any], options: InputOptions
) -> DistributedDataset:
    """The elements of ``dataset_fn(InputContext)``, which are the replicas' batches, dealt out to them in
    turn.

    Raises `DTypeError` unless it returns a dataset.
    """
    context: InputContext = extended.input_context
    dataset = dataset_fn(context)
    if not isinstance(dataset, Dataset):
        raise DTypeError(f"dataset_fn: expected a flowrt.data.Dataset; got {dataset!r}")
    node = DealBatches(dataset.node, len(extended.worker_devices))
    fetches = options.experimental_fetch_to_device
    return DistributedDataset(extended, node, votes=context.num_input_pipelines > 1, fetches=fetches)
