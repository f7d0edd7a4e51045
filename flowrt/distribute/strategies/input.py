"""Datasets of a strategy: each replica's part of every element, on its device.

Dataset      SplitBatch or DealBatches                                      replica_batches.py
               a tuple of the replicas' batches, made ahead by a thread
Iterator     one for the replicas of a graph, on the host
get_next     PerReplica: each part is given out on its replica's device; the copy is part of the step
               with other workers: all go on until none has data
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, final

from flowrt.data.auto_shard import AutoShardPolicy, shard
from flowrt.data.dataset import Dataset
from flowrt.data.iterator import Iterator, make_initializable_iterator, make_one_shot_iterator
from flowrt.data.node import Node
from flowrt.data.pipeline import AUTOTUNE, Prefetch
from flowrt.distribute.strategies.cross_device_ops import placed_on
from flowrt.distribute.strategies.replica_batches import DealBatches, SplitBatch, UntilAllEnd, share_of
from flowrt.distribute.strategies.values import regroup
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError
from flowrt.graph.graph import Operation, get_default_graph
from flowrt.graph.ops.identities import identity
from flowrt.structure import Structure, flatten, map_structure, pack_as


class InputReplicationMode(Enum):
    """How often an input function is called: once a worker."""

    PER_WORKER = "PER_WORKER"


@final
class InputContext:
    """What a function that makes a worker's dataset knows: which of ``num_input_pipelines`` it is for."""

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
                f"get_per_replica_batch_size: expected a global batch size that the {count} replicas "
                "divide; got "
                f"{global_batch_size}. Use {global_batch_size + count - global_batch_size % count}"
            )
        return global_batch_size // count

    def __repr__(self) -> str:
        return f"<InputContext {self.input_pipeline_id} of {self.num_input_pipelines}>"


@final
class InputOptions:
    """How a dataset is distributed. ``auto_shard_policy``: how several workers divide it."""

    def __init__(self, auto_shard_policy: AutoShardPolicy = AutoShardPolicy.AUTO) -> None:
        if not isinstance(auto_shard_policy, AutoShardPolicy):
            raise DTypeError(f"InputOptions: expected an AutoShardPolicy; got {auto_shard_policy!r}")
        self.auto_shard_policy = auto_shard_policy


@final
class DistributedDataset:
    """The elements of ``node``, a tuple of the replicas' batches each, for the replicas of ``extended``.

    ``votes``: other workers' datasets may have more elements than this one.
    """

    def __init__(self, extended: Any, node: Node, votes: bool) -> None:
        self._extended, self._votes = extended, votes
        self._batches = node.spec
        self._dataset = Dataset(Prefetch(UntilAllEnd(node) if votes else node, AUTOTUNE))

    def make_initializable_iterator(self, shared_name: str | None = None) -> DistributedIterator:
        """An iterator that begins, and begins again, when its ``initializer`` runs."""
        return self._iterator(make_initializable_iterator(self._dataset, shared_name))

    def make_one_shot_iterator(self) -> DistributedIterator:
        """An iterator that needs no initializer and ends for good."""
        return self._iterator(make_one_shot_iterator(self._dataset))

    def _iterator(self, iterator: Iterator) -> DistributedIterator:
        return DistributedIterator(self._extended, iterator, self._votes)

    @property
    def element_spec(self) -> Structure:
        """Of the first replica's batch."""
        return self._batches[0]

    def __iter__(self) -> Any:
        raise FailedPreconditionError(
            "distributed dataset: expected get_next() of make_initializable_iterator() in a graph; got a "
            "loop over it"
        )


@final
class DistributedIterator:
    """Gives each replica its batch."""

    def __init__(self, extended: Any, iterator: Iterator, votes: bool) -> None:
        self._extended, self._iterator, self._votes = extended, iterator, votes

    @property
    def initializer(self) -> Operation:
        """Raises `FailedPreconditionError` for an iterator that begins by itself."""
        return self._iterator.initializer

    def initialize(self) -> Operation:
        """`initializer`, as older scripts ask for it."""
        return self.initializer

    def get_next(self, name: str | None = None) -> Structure:
        """The replicas' next batches, `PerReplica`, each on its device.

        When run, raises `OutOfRangeError` when no replica of any worker has data left.
        """
        element = self._iterator.get_next(name)
        if self._votes:
            has_rows, element = element
            after = [self._extended.expect_data_somewhere(has_rows)]
        else:
            after = []
        parts = []
        for device, part in zip(self._extended.worker_devices, element, strict=True):
            with placed_on(device), get_default_graph().control_dependencies(after):
                parts.append(pack_as(part, [identity(tensor) for tensor in flatten(part)]))
        return regroup(parts)

    @property
    def element_spec(self) -> Structure:
        """Of the first replica's batch."""
        spec = self._iterator.element_spec
        return spec[1][0] if self._votes else spec[0]

    @property
    def output_types(self) -> Structure:
        return map_structure(lambda leaf: leaf.dtype, self.element_spec)

    @property
    def output_shapes(self) -> Structure:
        return map_structure(lambda leaf: leaf.shape, self.element_spec)


def distribute_dataset(extended: Any, dataset: Any, options: InputOptions) -> DistributedDataset:
    """Global batches of ``dataset``, each divided among the replicas of all workers.

    Raises `DTypeError` for what is no dataset, `InvalidArgumentError` for elements that are no batches or
    that the replicas do not divide.
    """
    if not isinstance(dataset, Dataset):
        raise DTypeError(f"distribute_dataset: expected a flowrt.data.Dataset; got {dataset!r}")
    context: InputContext = extended.input_context
    replicas, local = extended.num_replicas_in_sync, len(extended.worker_devices)
    share = share_of(dataset.node, replicas)
    if context.num_input_pipelines == 1:
        return DistributedDataset(extended, SplitBatch(dataset.node, local, 0, local, share), votes=False)
    own = shard(
        dataset.node, context.num_input_pipelines, context.input_pipeline_id, options.auto_shard_policy
    )
    if own is None:  # all read the same batches, and each takes its replicas' shares
        node = SplitBatch(dataset.node, replicas, extended.first_replica_id, local, share)
        return DistributedDataset(extended, node, votes=False)
    return DistributedDataset(extended, SplitBatch(own, local, 0, local, share), votes=True)


def distribute_datasets_from_function(
    extended: Any, dataset_fn: Callable[[InputContext], Any]
) -> DistributedDataset:
    """``dataset_fn(InputContext)``, whose elements are the replicas' batches, dealt out to them in turn.

    Raises `DTypeError` unless it returns a dataset.
    """
    context: InputContext = extended.input_context
    dataset = dataset_fn(context)
    if not isinstance(dataset, Dataset):
        raise DTypeError(f"dataset_fn: expected a flowrt.data.Dataset; got {dataset!r}")
    node = DealBatches(dataset.node, len(extended.worker_devices))
    return DistributedDataset(extended, node, votes=context.num_input_pipelines > 1)
