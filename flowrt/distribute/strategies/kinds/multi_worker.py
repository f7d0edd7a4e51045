"""`MultiWorkerMirroredStrategy`: the same script on every worker, variables mirrored on all their devices.

Every worker builds its own graph and runs its own session; they share the collectives in these graphs, which
a group of the workers runs (`flowrt.distribute.collectives.join`). So the workers' graphs must have the same
collectives in the same order: on a mismatch, all raise an error that shows both.

    chief      initial values of variables are those of the first worker: broadcast when they are initialized
    step       gradients are summed on each worker, and in buckets over the workers (group_ops.py)
    input      each worker has its shard of the dataset; workers continue until none has data
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flowrt.distribute import collectives
from flowrt.distribute.cluster.timeouts import connect_timeout_s
from flowrt.distribute.collectives.group import Group, JoinedGroup, join
from flowrt.distribute.resolvers import ResolvedCluster, resolve
from flowrt.distribute.resolvers.cluster_resolver import SimpleClusterResolver
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.input.distributed_input import InputContext
from flowrt.distribute.strategies.kinds.one_process import MirroredExtended, default_devices
from flowrt.distribute.strategies.kinds.watched_worker import group_transport
from flowrt.distribute.strategies.reduce.cross_device_ops import placed_on
from flowrt.distribute.strategies.reduce.group_ops import GroupCrossDeviceOps
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.distribute.strategies.variables.distributed_variables import distributed_variable
from flowrt.errors import DTypeError, InvalidArgumentError
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Operation, Tensor
from flowrt.graph.ops.base.identities import cast
from flowrt.graph.ops.state.iterators import expect_data_op
from flowrt.graph.source import misuse
from flowrt.rendezvous.channel.channel import Transport
from flowrt.variables.variable import Variable
from flowrt.version import VERSION

TEXT_BYTES = 256
"""Size of a worker's announcement."""

_numbers: defaultdict[int, Iterator[int]] = defaultdict(itertools.count)
"""Numbers of the strategies of this process, by membership epoch: all workers create them in one order."""


class MultiWorkerMirroredStrategy(Strategy):
    """Replicas on the devices of all workers of a cluster, which run this same script.

    ``cluster_resolver`` has the cluster and this process's task in it, by default from the environment set by
    ``flowrt-run``, ``TF_CONFIG`` or other launchers; without any it is one worker. The tasks of the jobs
    "chief" and "worker" are the workers, in this order. It returns when all workers have arrived. The session
    is a plain ``Session()``: each worker runs its own graph.

    Raises `InvalidArgumentError` for a task that is not a worker and if workers run different scripts or
    versions of flowrt; `DeadlineExceededError`, naming them, if workers do not arrive in time.
    """

    def __init__(
        self, cluster_resolver: Any = None, communication_options: CommunicationOptions | None = None
    ) -> None:
        cluster = (
            resolve(os.environ)
            if cluster_resolver is None
            else resolved(cluster_resolver, "MultiWorkerMirroredStrategy")
        )
        self._resolver = cluster_resolver or SimpleClusterResolver(
            cluster.spec, task_type=cluster.job, task_id=cluster.task
        )
        addresses, rank = workers_of(cluster, "MultiWorkerMirroredStrategy")
        options = communication_options or CommunicationOptions()
        group = Group(new_key("workers", cluster), len(addresses), (rank,))
        joined = _join(group, addresses, options, group_transport(cluster))
        try:
            _check_alike(joined)
        except BaseException:
            joined.close()
            raise
        self._leave = weakref.finalize(self, joined.close)
        super().__init__(MultiWorkerExtended(self, group, default_devices(), options))

    @property
    def cluster_resolver(self) -> Any:
        return self._resolver


class MultiWorkerExtended(MirroredExtended):
    """Variables have a copy on each device of each worker. ``group`` has a rank a worker; the first one
    saves, since the others have the same values.
    """

    experimental_between_graph = True

    def __init__(
        self, strategy: Strategy, group: Group, devices: tuple[str, ...], options: CommunicationOptions
    ) -> None:
        self._group, (self._rank,) = group, group.ranks
        self._reduction = GroupCrossDeviceOps(group, devices, group.size * len(devices), options)
        super().__init__(strategy, devices, self._reduction)
        self.first_replica_id = self._rank * len(devices)
        self.should_checkpoint = self.should_save_summary = self._rank == 0

    @property
    def num_replicas_in_sync(self) -> int:
        return self._group.size * len(self.worker_devices)

    @property
    def input_context(self) -> InputContext:
        return InputContext(self._group.size, self._rank, self.num_replicas_in_sync)

    def expect_data_somewhere(self, has_data: Tensor) -> Operation:
        with placed_on(self.worker_devices[0]):
            (has_any,) = collectives.all_reduce([cast(has_data, "int32")], "max", self._group, name="Vote")
            operation: Operation = expect_data_op(cast(has_any, "bool"))
        return operation

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        given = arguments["initial_value"]

        def from_chief() -> Tensor:
            value = given() if callable(given) else given
            value = value.initialized_value() if isinstance(value, Variable) else value
            value = convert_to_tensor(value, arguments["dtype"])
            if not value.shape.is_fully_defined():
                raise InvalidArgumentError(
                    f"variable {arguments['name']!r}: expected an initial value of static shape, which is "
                    f"sent to all workers; got {value.shape}"
                )
            return self._reduction.from_chief(value)

        changed = {**arguments, "initial_value": from_chief}
        return distributed_variable(self.strategy, self.worker_devices, next_creator, **changed)


def new_key(what: str, cluster: ResolvedCluster) -> str:
    """The key of a new group of all workers; theirs are equal, also if some have been in other epochs."""
    epoch = f"_of_epoch_{cluster.epoch}" if cluster.epoch else ""
    return f"{what}{next(_numbers[cluster.epoch])}{epoch}"


def resolved(resolver: Any, strategy: str) -> ResolvedCluster:
    """The cluster and the task of a ``resolver`` of the script. Raises `DTypeError`, which names the
    ``strategy``, for what is none.
    """
    if not hasattr(resolver, "cluster_spec"):
        raise misuse(
            f"{strategy}: cluster_resolver: expected a ClusterResolver; got {resolver!r}", DTypeError
        )
    source = type(resolver).__name__
    return ResolvedCluster(
        resolver.cluster_spec(), resolver.task_type or "worker", resolver.task_id or 0, source
    )


def workers_of(cluster: ResolvedCluster, strategy: str) -> tuple[list[str], int]:
    """The addresses of all workers, and which of them this is. Raises `InvalidArgumentError`, which names the
    ``strategy``, if it is none.
    """
    tasks: list[tuple[str, int]] = [
        (job, task)
        for job in ("chief", "worker")
        if job in cluster.spec.jobs
        for task in cluster.spec.task_indices(job)
    ]
    if (cluster.job, cluster.task) not in tasks:
        raise InvalidArgumentError(f"{strategy}: expected a task of the jobs chief or worker; got {cluster}")
    return [cluster.spec.task_address(*each) for each in tasks], tasks.index((cluster.job, cluster.task))


def _join(
    group: Group, addresses: list[str], options: CommunicationOptions, transport: Transport | None
) -> JoinedGroup:
    timeout_s = connect_timeout_s() if options.timeout_seconds is None else options.timeout_seconds
    if len(addresses) == 1:
        return join(group, kind="local", timeout_s=timeout_s)
    return join(group, addresses, options.implementation.value, timeout_s, transport)


def _check_alike(joined: JoinedGroup) -> None:
    """Raise `InvalidArgumentError` unless all workers run one script with one version of flowrt. That their
    first steps have the same collectives is compared when these begin.
    """
    (member,) = joined.members
    member.compare_first_plan()
    encoded = f"flowrt {VERSION}, {_script()}".encode()[:TEXT_BYTES].ljust(TEXT_BYTES)
    gathered = member.communicator.all_gather(np.frombuffer(encoded, np.uint8)[None], name="script")
    texts = [row.tobytes().decode(errors="replace").rstrip() for row in gathered]
    own = texts[joined.group.ranks[0]]
    for rank, text in enumerate(texts):
        if text != own:
            raise InvalidArgumentError(
                "MultiWorkerMirroredStrategy: expected all workers to run one script with one version of "
                f"flowrt; got {own} here, worker {joined.group.ranks[0]}, and {text} in worker {rank}"
            )


def _script() -> str:
    """The running script's name, and a digest of its contents."""
    path = Path(sys.argv[0])
    text = path.read_bytes() if path.is_file() else b""
    return f"{path.name or 'no script'} {hashlib.sha256(text).hexdigest()[:12]}"
