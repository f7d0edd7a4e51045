"""`ParameterServerStrategy`: variables on servers, one program per worker, and one switch for staleness.

    cluster          tasks of job "ps" keep variables; without that job, the workers' tasks do
    Variable         on the server with the fewest bytes, or split over several: parameter_server/placement.py
    run(fn)          fn once, on this worker's device, after every server allowed the step to begin
    apply_gradients  a push to each server, which updates when it has enough: parameter_server_step.py

Every worker runs the same script with a session on its own server; the servers' tasks only serve
(``server.join()``).
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from flowrt.base.structure import Structure
from flowrt.distribute.cluster.cluster_spec import ClusterSpec
from flowrt.distribute.parameter_server.consistency import Mode, as_mode, policy_of
from flowrt.distribute.parameter_server.placement import ByteBalancer, Part
from flowrt.distribute.resolvers import ALONE, resolve
from flowrt.distribute.resolvers.cluster_resolver import ClusterResolver, SimpleClusterResolver
from flowrt.distribute.server import server_as, task_name
from flowrt.distribute.strategies.core.extended import StrategyExtended
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.parameter_server.parameter_server_session import (
    ParameterServerSessionCreator,
    WorkerHook,
)
from flowrt.distribute.strategies.parameter_server.parameter_server_step import (
    Servers,
    Shard,
    StepBuilder,
    TrainingOperation,
    begun_step,
)
from flowrt.distribute.strategies.reduce.cross_device_ops import ReductionToOneDevice, placed_on
from flowrt.distribute.strategies.replicas.replica_context import InlineReplica
from flowrt.distribute.strategies.variables.partitioned_variable import PartitionedVariable
from flowrt.dtypes import as_dtype
from flowrt.errors import DTypeError, FailedPreconditionError, InvalidArgumentError, OpError
from flowrt.executor.ends.config import ConfigProto
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, Operation, Tensor, get_default_graph
from flowrt.graph.ops.state import parameter_shards as ops
from flowrt.graph.ops.text.python_calls import group
from flowrt.train.checkpoints.scaffold import Scaffold
from flowrt.train.hooks.session_run_hook import SessionRunHook
from flowrt.train.sessions.monitored_session import MonitoredSession
from flowrt.train.sessions.session_manager import MAX_WAIT_S
from flowrt.variables.distribution_context import DistributionContext, entered_context
from flowrt.variables.variable import GraphKeys, Variable

TIMEOUT_S = 60.0
"""Time that a step waits for other workers before it reports the late ones."""


class ParameterServerStrategy(Strategy):
    """Between-graph training with parameter servers.

    ``cluster_resolver`` has the cluster and this worker's task in it; by default from the environment set by
    ``flowrt-run``, ``TF_CONFIG`` or other launchers, and without any there is one worker with its variables
    on the CPU. ``mode`` is a `Mode`, ``"sync"``, ``"async"``, ``("ssp", staleness)`` or ``("backup",
    workers)``. With ``replicas=2`` each server's state is also on the next server before a step counts.
    Raises `InvalidArgumentError` for inconsistent arguments.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        mode: Mode | str | Sequence[Any] = "async",
        replicas: int = 1,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        resolver = _resolver_here() if cluster_resolver is None else cluster_resolver
        place = _place_of(resolver)
        self._resolver, self.mode = resolver, as_mode(mode)
        if replicas not in (1, 2) or (replicas == 2 and len(place.servers) < 2):
            raise InvalidArgumentError(
                "ParameterServerStrategy: expected replicas=1, or 2 with several servers; got"
                f" {replicas} with {len(place.servers)}"
            )
        policy = policy_of(self.mode, len(place.workers), replicas == 2)
        servers = Servers(place.servers, place.worker, place.worker_device, place.workers, policy, timeout_s)
        _meet_servers(resolver.cluster_spec(), place)
        self._parameters = ParameterServerExtended(self, servers)
        super().__init__(self._parameters)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        return self._resolver

    def update_config_proto(self, config_proto: ConfigProto) -> ConfigProto:
        """``config_proto`` for a session of the servers and this worker's task: others may join and leave."""
        servers, updated = self._parameters.servers, copy.deepcopy(config_proto)
        if self._resolver.cluster_spec():
            there = [device for device in servers.devices if device not in self._parameters.lost]
            updated.device_filters = list(dict.fromkeys([servers.worker_device, *there]))
        return updated

    def training_session(
        self,
        master: str,
        is_chief: bool = False,
        scaffold: Scaffold | None = None,
        hooks: Sequence[SessionRunHook] = (),
        config: ConfigProto | None = None,
        checkpoint_dir: str | None = None,
        max_wait_secs: float = MAX_WAIT_S,
    ) -> MonitoredSession:
        """A `MonitoredSession` of this worker that is recreated, and repeats the current step, when a server
        is lost and another one has its state. ``master`` is the target of this worker's own server. Raises
        `FailedPreconditionError` before there is a training operation.
        """
        graph = get_default_graph()
        worker = WorkerHook(self._parameters.training_operations(graph), self.attend(), self.leave())
        creator = ParameterServerSessionCreator(
            self, graph, master, is_chief, scaffold, config, checkpoint_dir, max_wait_secs
        )
        return MonitoredSession(creator, [worker, *hooks], max_wait_secs=max_wait_secs)

    def staleness_histogram(self) -> list[Tensor]:
        """The number of gradients that were 0, 1, 2, ... versions old when applied, per server: int64."""
        return self._of_shards(ops.staleness_histogram_op)

    def shard_status(self) -> list[Tensor]:
        """An int64 vector for each server: role, generation, version, acknowledged version, dropped
        gradients, steps that had to wait, and the clocks of the workers.
        """
        return self._of_shards(ops.shard_status_op)

    def attend(self) -> Operation:
        """An operation to run when a worker has a session: from then on the servers notice when that is
        lost, and not only when the worker's process is.
        """
        return self._told(ops.attend_op)

    def leave(self) -> Operation:
        """An operation to run at a worker's end, so that others stop waiting for it."""
        return self._told(ops.leave_op)

    def _told(self, op: Callable[..., Any]) -> Operation:
        """``op`` of this worker to each server."""
        worker = self._parameters.servers.worker
        return group(*self._of_shards(partial(op, worker=worker)))

    def _of_shards(self, op: Callable[[Tensor], Any]) -> list[Any]:
        made = []
        for shard in self._parameters.shards(get_default_graph()):
            with placed_on(shard.handle.device):
                made.append(op(shard.handle))
        return made

    def __repr__(self) -> str:
        servers = self._parameters.servers
        return f"<ParameterServerStrategy {self.mode} worker {servers.worker} of {servers.policy.workers}>"


class ParameterServerExtended(StrategyExtended):
    """One replica, on this worker; variables on ``servers``."""

    def __init__(self, strategy: Strategy, servers: Servers) -> None:
        super().__init__(strategy, [servers.worker_device], ReductionToOneDevice())
        self.servers = servers
        self._balancer = ByteBalancer(len(servers.devices))
        self._trained: dict[Graph, list[TrainingOperation]] = {}
        self._begin: Operation | None = None
        self.lost: set[str] = set()
        """Devices of servers that did not answer when the last session was made."""

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        return tuple(self.servers.devices)

    @property
    def loads(self) -> Sequence[int]:
        """Bytes of variables that each server has."""
        return tuple(self._balancer.loads)

    def training_operations(self, graph: Graph) -> Sequence[TrainingOperation]:
        """Raises `FailedPreconditionError` before there is one."""
        if graph not in self._trained:
            raise FailedPreconditionError(
                "ParameterServerStrategy: expected a training operation in the graph; got none. Call"
                " minimize() or"
                " apply_gradients() in the function given to strategy.run() first"
            )
        return self._trained[graph]

    def shards(self, graph: Graph) -> list[Shard]:
        """Shards of all training operations. Raises as `training_operations`."""
        return [shard for trained in self.training_operations(graph) for shard in trained.shards]

    def variable_created_in_scope(self, v: Any) -> bool:
        return isinstance(v, Variable) and all(copy.device in self.servers.devices for copy in v.copies)

    # --- variables

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        """Create a variable on the server with the fewest bytes; slots on their variable's device, local
        variables on the worker.
        """
        collections = arguments["collections"]
        is_local = collections is not None and GraphKeys.LOCAL_VARIABLES in collections
        if is_local or get_default_graph().scopes.colocation:
            return next_creator(**arguments)
        shape, item_bytes = _size_of(arguments)
        parts = self._balancer.place(shape, item_bytes)
        if len(parts) == 1:
            with placed_on(self.servers.devices[parts[0].server]):
                return next_creator(**arguments)
        return self._split(next_creator, parts, arguments)

    def _split(
        self, next_creator: Callable[..., Variable], parts: Sequence[Part], arguments: dict[str, Any]
    ) -> Variable:
        """The initial value is drawn once, so a split variable begins as a whole one does."""
        graph = get_default_graph()
        name, initial = arguments["name"] or "Variable", arguments["initial_value"]
        with graph.root.name_scope(name) as scope, placed_on(self.servers.devices[parts[0].server]):
            whole = convert_to_tensor(initial() if callable(initial) else initial, arguments["dtype"])
        made = []
        for number, part in enumerate(parts):
            changed = {
                "initial_value": whole[part.start : part.stop],
                "name": f"{scope}part_{number}/",
                "collections": (),
                "trainable": False,
            }
            with placed_on(self.servers.devices[part.server]):
                made.append(next_creator(**{**arguments, **changed}))
        return PartitionedVariable(scope[:-1], made, arguments["trainable"] is not False)

    # --- steps

    def _call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Structure:
        graph = get_default_graph()
        replica = InlineReplica(self.strategy)
        with (
            entered_context(DistributionContext(self.strategy, replica=replica)),
            graph.device(self.servers.worker_device),
            begun_step(graph) as begin,
        ):
            outer, self._begin = self._begin, begin
            try:
                return fn(*args, **kwargs)
            finally:
                self._begin = outer

    def apply_gradients(
        self,
        optimizer: Any,
        pairs: Sequence[tuple[Any, Variable]],
        global_step: Variable | None,
        name: str | None,
    ) -> Operation:
        """See `Optimizer.apply_gradients`; called in a replica."""
        graph = get_default_graph()
        if graph is not graph.root or self._begin is None:
            raise InvalidArgumentError(
                "apply_gradients: expected a call in the function given to strategy.run(), outside "
                "branches and loops; servers update once per step"
            )
        builder = StepBuilder(self.servers, graph, self._begin)
        trained = builder.apply_gradients(optimizer, pairs, global_step, name or optimizer.get_name())
        self._trained.setdefault(graph, []).append(trained)
        graph.add_to_collections(GraphKeys.TRAIN_OP, trained.operation)
        return trained.operation


# --- the cluster


class _Place(NamedTuple):
    """``servers`` are devices, in ``server_tasks``; ``workers`` are tasks, ``worker`` is this one."""

    servers: list[str]
    server_tasks: list[str]
    workers: list[str]
    worker: int
    worker_device: str


def _resolver_here() -> ClusterResolver:
    """The resolver for the environment; a cluster without tasks if it has none."""
    cluster = resolve(os.environ)
    if cluster.source == ALONE.source:
        return SimpleClusterResolver(ClusterSpec({}))
    return SimpleClusterResolver(cluster.spec, task_type=cluster.job, task_id=cluster.task)


def _place_of(resolver: ClusterResolver) -> _Place:
    """The task's role. Raises `InvalidArgumentError` for a task that is not a worker, `DTypeError` for
    another ``resolver``.
    """
    if not isinstance(resolver, ClusterResolver):
        raise DTypeError(
            f"ParameterServerStrategy: expected a ClusterResolver as cluster_resolver; got {resolver!r}"
        )
    spec = resolver.cluster_spec()
    if not spec:
        return _Place(["/device:CPU:0"], [], [""], 0, "/device:CPU:0")
    workers = [(job, index) for job in ("chief", "worker") for index in _indices(spec, job)]
    here = (resolver.task_type, resolver.task_id)
    if here not in workers:
        raise InvalidArgumentError(
            "ParameterServerStrategy: expected a worker or chief of the cluster; this process is"
            f" {here[0]} {here[1]}. Let a ps task run server.join()"
        )
    servers = [("ps", index) for index in _indices(spec, "ps")] or workers
    return _Place(
        [_device(*server) for server in servers],
        [task_name(*server) for server in servers],
        [task_name(*worker) for worker in workers],
        workers.index(here),
        _device(*here),
    )


def _meet_servers(cluster: ClusterSpec, place: _Place) -> None:
    """Have the servers notice from now on when this worker dies, if it has a `Server` already."""
    own = server_as(cluster, place.workers[place.worker])
    if own is not None:
        own.greet(place.server_tasks)


def _indices(spec: ClusterSpec, job: str) -> list[int]:
    return sorted(spec.task_indices(job)) if job in spec.jobs else []


def _device(job: str, index: int) -> str:
    return f"/job:{job}/task:{index}"


def _size_of(arguments: Mapping[str, Any]) -> tuple[Sequence[int], int]:
    """The shape of the variable with these ``arguments``, and the bytes of an element; ((), 0) if the shape
    may vary or is unknown until the variable is created.
    """
    initial = arguments["initial_value"]
    if not arguments["validate_shape"]:
        return (), 0
    try:
        if callable(initial):
            with Graph():
                initial = convert_to_tensor(initial(), arguments["dtype"])
        known = initial.shape.as_list() if hasattr(initial.shape, "as_list") else initial.shape
        return known, as_dtype(arguments["dtype"] or initial.dtype).size
    except (OpError, AttributeError, ValueError):
        value = np.asarray(initial) if isinstance(initial, list | tuple | float | int) else np.zeros(())
        return value.shape, value.itemsize
