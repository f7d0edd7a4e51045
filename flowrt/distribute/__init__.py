"""Distributed execution: one graph over several processes and hosts.

A cluster has jobs, a job has tasks. Each task runs a `Server`: a *master* for the sessions that connect to
it, and a *worker* for the masters of all tasks. ``Session("grpc://host:port").run(...)`` takes this path:

    session      extract the subgraph that the fetches need                    client
       | ExtendSession with new nodes, MakeCallable once, then RunStep
    master       place on the devices of all tasks, partition by task          master
       | RegisterGraph once, then RunGraph: one small message per task and step
    worker       partition by device, bind, run                                worker
       | RecvTensor: the consumer requests the tensor from the producer's task
    worker ...

    cluster, resolvers                 the tasks, and which of them this process is
    wire                               messages, peers, at-most-once
    machines, master, worker           state machines, ``handle(event) -> actions``: no thread, clock, socket
    connection_manager                 the peers of a task
    server                             `Server`: performs the actions of the state machines
    client                             a cluster session's replacement of plans
    observe                            flight records, stalls
    launch                             ``flowrt-run``, ``flowrt-worker --check``, ``--drain``
    collectives                        collectives between devices, tasks and sessions
    elastic                            groups of workers that change
    parameter_server, strategies       logic of parameter servers; training on replicas (a front end)

Invariants:

 - A step runs once: a repeated request is recognised by its number and gets the first response. Failures are
   not retried, so an update is applied once or not at all.
 - All survivors of a failed step raise the same error: the root cause, and the task where it began.
 - A restarted task has a new incarnation, which is part of every key; messages for the old one are rejected.
 - Every wait ends: connections, steps and peers have deadlines, and errors name the missing peers.
 - Received data is never executed: graphs use registered ops, everything else is data.
"""

import importlib
from typing import Any

from flowrt.distribute.client.cluster_runtime import ClusterRuntime as ClusterRuntime
from flowrt.distribute.cluster.cluster_spec import ClusterSpec as ClusterSpec
from flowrt.distribute.launch.ray_cluster import RayCluster as RayCluster
from flowrt.distribute.resolvers import cluster_resolver
from flowrt.distribute.server import Server as Server
from flowrt.tf1.missing_names import missing_name

_SHOWN = ("ClusterSpec", "RayCluster", "Server", "cluster_resolver", "experimental")

# Built on the front ends, which are built on this package: loaded on first use.
_STRATEGIES = (
    "AllReduceCrossDeviceOps", "AutoStrategy", "Axis", "CommunicationImplementation", "CommunicationOptions",
    "CrossDeviceOps", "DistributedDataset", "DistributedIterator", "DistributedValues",
    "FullyShardedStrategy", "HierarchicalCopyAllReduce", "InputContext", "InputOptions",
    "InputReplicationMode", "LayoutStrategy", "LocalShard", "Mesh", "MirroredStrategy",
    "MultiWorkerLayoutStrategy", "MultiWorkerMirroredStrategy", "NcclAllReduce", "OneDeviceStrategy",
    "PerReplica", "PipelineStrategy", "Precision", "ReduceOp", "ReductionToEachDevice",
    "ReductionToOneDevice", "ReplicaContext", "RunOptions", "Strategy", "StrategyExtended",
    "TensorParallelStrategy", "ValueContext", "all_gather", "axis_index", "copy_variables",
    "experimental_set_strategy", "get_loss_reduction", "get_replica_context", "get_strategy",
    "has_strategy", "in_cross_replica_context", "local_shards", "pmax", "pmean", "pmin", "ppermute", "psum",
    "psum_scatter", "relayout", "shard_map", "stage",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module("flowrt.distribute.strategies.kinds.experimental")
    if name == "AutoStrategy":
        return importlib.import_module("flowrt.plan.auto_strategy").AutoStrategy
    if name in _STRATEGIES:
        return getattr(importlib.import_module("flowrt.distribute.strategies"), name)
    raise missing_name("distribute", name)


def __dir__() -> list[str]:
    return sorted([*_SHOWN, *_STRATEGIES])
