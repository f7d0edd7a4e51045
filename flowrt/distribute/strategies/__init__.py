"""Strategies: one training script on several devices, tasks or servers, by how its graph is built.

    with strategy.scope():                       variables made here have copies, or a place of their own
        model, optimizer = ...                     variables.py, through the creators of flowrt.variables
    step = strategy.run(fn, args=(batch,))       fn once a replica, under its device
                                                   replica_threads.py; inline_replica.py for only one
        loss, gradients                              ordinary graph
        optimizer.apply_gradients(...)               merge_call: all replicas meet, then cross-replica
                                                       cross_device_ops.py: gradients reduced
                                                       StrategyExtended.update: each copy updated
    strategy.reduce(SUM, step, axis=None)        one tensor of the replicas' values

What differs from replica to replica is a `PerReplica` (values.py): `Strategy.run` takes structures of them
apart and puts them together. What a thread is building, and as which replica, is its `DistributionContext`
(flowrt/distribution_context.py); context.py has what scripts ask.

    strategy, extended                         what all have in common: for scripts, for libraries
    mirrored, one_device, central_storage      the kinds for one process
    multi_worker                               the same script on every worker: group_ops.py, buckets.py
    all_reduce_ops                             reductions by flowrt.distribute.collectives
    input, replica_batches                     datasets: a global batch to each replica's part of it
    steps                                      several steps in one session call

The result is a graph like any other: placement puts a Send/Recv pair on every edge between replicas.
"""

from flowrt.distribute.strategies.all_reduce_ops import AllReduceCrossDeviceOps as AllReduceCrossDeviceOps
from flowrt.distribute.strategies.all_reduce_ops import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from flowrt.distribute.strategies.all_reduce_ops import NcclAllReduce as NcclAllReduce
from flowrt.distribute.strategies.central_storage import CentralStorageStrategy as CentralStorageStrategy
from flowrt.distribute.strategies.communication_options import (
    CommunicationImplementation as CommunicationImplementation,
)
from flowrt.distribute.strategies.communication_options import CommunicationOptions as CommunicationOptions
from flowrt.distribute.strategies.context import experimental_set_strategy as experimental_set_strategy
from flowrt.distribute.strategies.context import get_loss_reduction as get_loss_reduction
from flowrt.distribute.strategies.context import get_replica_context as get_replica_context
from flowrt.distribute.strategies.context import get_strategy as get_strategy
from flowrt.distribute.strategies.context import has_strategy as has_strategy
from flowrt.distribute.strategies.context import in_cross_replica_context as in_cross_replica_context
from flowrt.distribute.strategies.cross_device_ops import CrossDeviceOps as CrossDeviceOps
from flowrt.distribute.strategies.cross_device_ops import ReductionToEachDevice as ReductionToEachDevice
from flowrt.distribute.strategies.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
from flowrt.distribute.strategies.extended import StrategyExtended as StrategyExtended
from flowrt.distribute.strategies.input import DistributedDataset as DistributedDataset
from flowrt.distribute.strategies.input import DistributedIterator as DistributedIterator
from flowrt.distribute.strategies.input import InputContext as InputContext
from flowrt.distribute.strategies.input import InputOptions as InputOptions
from flowrt.distribute.strategies.input import InputReplicationMode as InputReplicationMode
from flowrt.distribute.strategies.mirrored import MirroredStrategy as MirroredStrategy
from flowrt.distribute.strategies.multi_worker import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from flowrt.distribute.strategies.one_device import OneDeviceStrategy as OneDeviceStrategy
from flowrt.distribute.strategies.reduce_op import ReduceOp as ReduceOp
from flowrt.distribute.strategies.replica_context import ReplicaContext as ReplicaContext
from flowrt.distribute.strategies.strategy import RunOptions as RunOptions
from flowrt.distribute.strategies.strategy import Strategy as Strategy
from flowrt.distribute.strategies.strategy import ValueContext as ValueContext
from flowrt.distribute.strategies.values import DistributedValues as DistributedValues
from flowrt.distribute.strategies.values import PerReplica as PerReplica
