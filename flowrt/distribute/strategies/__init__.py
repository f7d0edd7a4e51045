"""Strategies: one training script on several devices, tasks or servers, through graph construction.

    with strategy.scope():                       variables created here have copies, or are placed
        model, optimizer = ...                     variables, through the creators of flowrt.variables
    step = strategy.run(fn, args=(batch,))       fn once per replica, under its device
        loss, gradients                              replicas; an ordinary graph
        optimizer.apply_gradients(...)               merge_call: joins all replicas, cross-replica context
                                                       reduce: gradients; StrategyExtended.update: each copy
    strategy.reduce(SUM, step, axis=None)        one tensor from the replicas' values

Values that differ per replica are a `PerReplica` (values): `Strategy.run` unpacks and repacks structures of
them. `flowrt.variables.distribution_context` is a thread's strategy and replica.

    core               common parts of strategies
    kinds              the strategies with replicas
    layouts            the strategy with one global graph, computed in parts
    input              datasets: a global batch, split among replicas
    parameter_server   variables on parameter servers

The result is an ordinary graph: partitioning puts Send/Recv pairs on the edges between replicas.
"""

from flowrt.distribute.strategies.core.extended import StrategyExtended as StrategyExtended
from flowrt.distribute.strategies.core.strategy import RunOptions as RunOptions
from flowrt.distribute.strategies.core.strategy import Strategy as Strategy
from flowrt.distribute.strategies.core.strategy import ValueContext as ValueContext
from flowrt.distribute.strategies.input.distributed_input import DistributedDataset as DistributedDataset
from flowrt.distribute.strategies.input.distributed_input import DistributedIterator as DistributedIterator
from flowrt.distribute.strategies.input.distributed_input import InputContext as InputContext
from flowrt.distribute.strategies.input.distributed_input import InputOptions as InputOptions
from flowrt.distribute.strategies.input.distributed_input import InputReplicationMode as InputReplicationMode
from flowrt.distribute.strategies.kinds.multi_worker import (
    MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy,
)
from flowrt.distribute.strategies.kinds.one_process import CentralStorageStrategy as CentralStorageStrategy
from flowrt.distribute.strategies.kinds.one_process import MirroredStrategy as MirroredStrategy
from flowrt.distribute.strategies.kinds.one_process import OneDeviceStrategy as OneDeviceStrategy
from flowrt.distribute.strategies.layouts.copy_variables import copy_variables as copy_variables
from flowrt.distribute.strategies.layouts.fully_sharded import FullyShardedStrategy as FullyShardedStrategy
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutStrategy as LayoutStrategy
from flowrt.distribute.strategies.layouts.layout_strategy import relayout as relayout
from flowrt.distribute.strategies.layouts.local_shards import LocalShard as LocalShard
from flowrt.distribute.strategies.layouts.local_shards import local_shards as local_shards
from flowrt.distribute.strategies.layouts.multi_worker_layouts import (
    MultiWorkerLayoutStrategy as MultiWorkerLayoutStrategy,
)
from flowrt.distribute.strategies.layouts.pipeline import PipelineStrategy as PipelineStrategy
from flowrt.distribute.strategies.layouts.pipeline import stage as stage
from flowrt.distribute.strategies.layouts.shard_map import all_gather as all_gather
from flowrt.distribute.strategies.layouts.shard_map import axis_index as axis_index
from flowrt.distribute.strategies.layouts.shard_map import pmax as pmax
from flowrt.distribute.strategies.layouts.shard_map import pmean as pmean
from flowrt.distribute.strategies.layouts.shard_map import pmin as pmin
from flowrt.distribute.strategies.layouts.shard_map import ppermute as ppermute
from flowrt.distribute.strategies.layouts.shard_map import psum as psum
from flowrt.distribute.strategies.layouts.shard_map import psum_scatter as psum_scatter
from flowrt.distribute.strategies.layouts.shard_map import shard_map as shard_map
from flowrt.distribute.strategies.layouts.tensor_parallel import (
    TensorParallelStrategy as TensorParallelStrategy,
)
from flowrt.distribute.strategies.reduce.all_reduce_ops import (
    AllReduceCrossDeviceOps as AllReduceCrossDeviceOps,
)
from flowrt.distribute.strategies.reduce.all_reduce_ops import (
    HierarchicalCopyAllReduce as HierarchicalCopyAllReduce,
)
from flowrt.distribute.strategies.reduce.all_reduce_ops import NcclAllReduce as NcclAllReduce
from flowrt.distribute.strategies.reduce.cross_device_ops import CrossDeviceOps as CrossDeviceOps
from flowrt.distribute.strategies.reduce.cross_device_ops import (
    ReductionToEachDevice as ReductionToEachDevice,
)
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
from flowrt.distribute.strategies.replicas.replica_context import ReplicaContext as ReplicaContext
from flowrt.distribute.strategies.replicas.strategy_context import (
    experimental_set_strategy as experimental_set_strategy,
)
from flowrt.distribute.strategies.replicas.strategy_context import get_loss_reduction as get_loss_reduction
from flowrt.distribute.strategies.replicas.strategy_context import get_replica_context as get_replica_context
from flowrt.distribute.strategies.replicas.strategy_context import get_strategy as get_strategy
from flowrt.distribute.strategies.replicas.strategy_context import has_strategy as has_strategy
from flowrt.distribute.strategies.replicas.strategy_context import (
    in_cross_replica_context as in_cross_replica_context,
)
from flowrt.distribute.strategies.values.communication_options import (
    CommunicationImplementation as CommunicationImplementation,
)
from flowrt.distribute.strategies.values.communication_options import (
    CommunicationOptions as CommunicationOptions,
)
from flowrt.distribute.strategies.values.distributed_values import DistributedValues as DistributedValues
from flowrt.distribute.strategies.values.distributed_values import PerReplica as PerReplica
from flowrt.distribute.strategies.values.reduce_op import ReduceOp as ReduceOp
from flowrt.graph.layouts.mesh import Axis as Axis
from flowrt.graph.layouts.mesh import Mesh as Mesh
from flowrt.graph.precision import Precision as Precision
