"""distribute knows machines: one graph over several processes and hosts.

A cluster has jobs, a job has tasks. Each task runs a `Server`, which is a *master* for the sessions that
connect to it and a *worker* for the masters of all tasks. The way of
``Session("grpc://host:port").run(...)``:

    session      extract: what the fetches need                                cluster_runtime.py
       | ExtendSession by what is new, MakeCallable once, then RunStep
    master       place on the devices of all tasks, cut by task                master.py, part.py
       | RegisterGraph once, then RunGraph: one small message a task and step
    worker       cut by device, bind, run                                      worker.py, part.py, steps.py
       | RecvTensor: the consumer asks the producer's task, the bytes come back
    worker ...

Modules, from pure to thread-safe:

    cluster_spec, resolvers/  which tasks there are, and which of them this is
    messages                  `Message`: a body of cluster.proto with its tensors; message <-> frame
    session_graph, sent_constants   what a master has of a session's graph, a task of its constants
    events                    what the state machines are told, and what they decide
    worker, master            the state machines, ``handle(event) -> actions``: no thread, clock or socket
    rounds, registered_steps, partial_runs   a master's: what it waits for; steps; steps in several calls
    kept_tensors              a worker's: what later calls of such a step read
    response_cache            what was asked on a connection: done once, however often it comes
    waits                     how long tasks wait for each other
    part                      `cut_by_task`, and `CompiledPart`: a task's part of a callable, ready to run
    containers                the variables that the sessions of a task share, and what is each one's own
    steps                     the steps that run here; tensors for others and from others
    coalescing                small tensors for one task as one message
    step_progress             what a step does here, in words for a task that waits for its tensors
    step_trace, clock         what a traced step did in this task, in the time of who asked for it
    departures                which tasks are missed: they came, and did not end well
    peer, links               a connection's requests and answers; a task's peers, dialling, heartbeats
    server                    `Server`: puts them together and does what the state machines decide
    cluster_runtime, cluster_steps   what a session of a cluster has in the place of plans
    launcher, check, drain    ``flowrt-run``, ``flowrt-worker --check`` and ``--drain``
    strategies/               a front end, and the only one here: training on several replicas

What always holds:

 - A step is done once: a request that comes twice is known by its number and has the first one's answer.
   What fails is never tried again, so an update is made once or not at all.
 - All survivors of a step that failed raise the same error: the root cause, with the task where it began.
 - A task that was started again has another incarnation, which is part of every key: what is meant for the
   life before is refused.
 - No wait is without an end: connecting, steps and peers have deadlines, and the errors say who is missing.
 - Nothing that arrives is executed: graphs are of registered operations, all else is data.
"""

import importlib
from typing import Any

from flowrt.distribute import cluster_resolver as cluster_resolver
from flowrt.distribute.cluster_runtime import ClusterRuntime as ClusterRuntime
from flowrt.distribute.cluster_spec import ClusterSpec as ClusterSpec
from flowrt.distribute.ray_cluster import RayCluster as RayCluster
from flowrt.distribute.server import Server as Server
from flowrt.missing_names import missing_name

_SHOWN = ("ClusterSpec", "RayCluster", "Server", "cluster_resolver", "experimental")

# What stands on the front ends, which stand on this package: loaded when it is first asked for.
_STRATEGIES = (
    "AllReduceCrossDeviceOps", "CommunicationImplementation", "CommunicationOptions", "CrossDeviceOps",
    "DistributedDataset", "DistributedIterator", "DistributedValues", "HierarchicalCopyAllReduce",
    "InputContext", "InputOptions", "InputReplicationMode", "MirroredStrategy", "MultiWorkerMirroredStrategy",
    "NcclAllReduce", "OneDeviceStrategy", "PerReplica", "ReduceOp", "ReductionToEachDevice",
    "ReductionToOneDevice", "ReplicaContext", "RunOptions", "Strategy", "StrategyExtended", "ValueContext",
    "experimental_set_strategy", "get_loss_reduction", "get_replica_context", "get_strategy", "has_strategy",
    "in_cross_replica_context",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "experimental":
        return importlib.import_module("flowrt.distribute.strategies.experimental")
    if name in _STRATEGIES:
        return getattr(importlib.import_module("flowrt.distribute.strategies"), name)
    raise missing_name("distribute", name, __dir__())


def __dir__() -> list[str]:
    return sorted([*_SHOWN, *_STRATEGIES])
