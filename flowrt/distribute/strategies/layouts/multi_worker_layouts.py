"""`MultiWorkerLayoutStrategy`: a layout's mesh over the devices of several processes, which run one script.

Every process builds the same global graph and runs its own session on its own part of it
(`flowrt.graph.passes.layouts.own_part`). So all of them run the same steps, with the same feeds, in the same
order; what differs is found before a step runs first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from flowrt.device.spec import parse_device
from flowrt.distribute.cluster.timeouts import connect_timeout_s
from flowrt.distribute.collectives.group import Group, JoinedGroup, join
from flowrt.distribute.collectives.member import GroupMember
from flowrt.distribute.resolvers import resolve
from flowrt.distribute.strategies.core.strategy import Strategy
from flowrt.distribute.strategies.kinds.multi_worker import new_key, resolved, workers_of
from flowrt.distribute.strategies.kinds.one_process import default_devices
from flowrt.distribute.strategies.kinds.watched_worker import group_transport
from flowrt.distribute.strategies.layouts.layout_strategy import LayoutExtended, LayoutStrategy, check_mesh
from flowrt.distribute.strategies.values.communication_options import CommunicationOptions
from flowrt.graph.construction.build import convert_to_tensor
from flowrt.graph.construction.graph import Graph, get_default_graph
from flowrt.graph.layouts.attributes import attributes_of
from flowrt.graph.layouts.layout import Entry, Layout
from flowrt.graph.layouts.mesh import Mesh
from flowrt.graph.ops.base.identities import relayout_op
from flowrt.graph.ops.text.python_calls import py_func
from flowrt.graph.precision import Precision
from flowrt.graph.source import misuse
from flowrt.rendezvous.channel.channel import Transport
from flowrt.variables.distribution_context import unopened_strategies
from flowrt.variables.variable import Variable

_MAX_SEED = 2**31 - 1

_KEPT = ("layouts", "strategies")
"""The collection of the strategies of a graph: it runs only as long as their groups last."""


class MultiWorkerLayoutStrategy(LayoutStrategy):
    """`LayoutStrategy` over the devices of all workers of a cluster, which run this same script.

    ``mesh``, ``batch``, ``rules`` and ``policy`` are those of `LayoutStrategy`. The mesh's devices are those
    of the first worker, then of the second and so on, equally many of each: GPUs if there are any, else CPUs.
    ``cluster_resolver`` and ``communication_options`` are those of `MultiWorkerMirroredStrategy`. It returns
    when all workers have arrived. The session is a plain ``Session()`` in each of them.

        $ flowrt-run --standalone --nproc 2 train.py

        strategy = tf.distribute.MultiWorkerLayoutStrategy(tf.distribute.Mesh([("dp", 2)]), batch="dp")

    All workers feed the same arrays and make the same datasets, and each takes its parts; all get whole
    results. In the scope a graph without a seed gets one, equal for all: so draws and shuffled datasets are
    equal, too.

    Raises `InvalidArgumentError` for a mesh that does not have equally many devices of each worker, for
    devices named in ``mesh``, and for a task that is not a worker; `DeadlineExceededError`, naming them, if
    workers do not arrive in time.
    """

    def __init__(
        self,
        mesh: Mesh,
        batch: Entry = None,
        rules: Mapping[str, Entry] | None = None,
        cluster_resolver: Any = None,
        communication_options: CommunicationOptions | None = None,
        policy: Precision | None = None,
    ) -> None:
        where = type(self).__name__
        check_mesh(mesh, where)
        cluster = resolve(os.environ) if cluster_resolver is None else resolved(cluster_resolver, where)
        addresses, worker = workers_of(cluster, where)
        self._worker, self._is_alone = worker, len(addresses) == 1
        self._seed = secrets.randbelow(_MAX_SEED)
        if not self._is_alone:
            key = new_key("layouts", cluster)
            mesh = mesh_of_workers(mesh, key, len(addresses), where)
            options, transport = communication_options or CommunicationOptions(), group_transport(cluster)
            joined = _join(mesh, key, addresses, worker, options, transport)
            self._leave = weakref.finalize(self, joined.close)
            self._seed = _agreed(joined, self._seed)
        super().__init__(mesh, batch, rules, policy)
        unopened_strategies.add(self)

    def _extended_over(self, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry]) -> LayoutExtended:
        if self._is_alone:
            return super()._extended_over(mesh, batch, rules)
        return MultiWorkerLayoutExtended(self, mesh, batch, rules, self._worker)

    @contextlib.contextmanager
    def _opened(self, what: str) -> Iterator[Strategy]:
        unopened_strategies.discard(self)
        if not self._is_alone:
            self._share_seed(get_default_graph())
        with super()._opened(what):
            yield self

    def _share_seed(self, graph: Graph) -> None:
        if graph.seed is None:
            graph.seed = self._seed
        kept = graph.get_collection_ref(_KEPT)
        kept += [] if self in kept else [self]


class MultiWorkerLayoutExtended(LayoutExtended):
    """The part of one ``worker``: the first one writes checkpoints and summaries, of what all have."""

    experimental_between_graph = True

    def __init__(
        self, strategy: LayoutStrategy, mesh: Mesh, batch: Layout, rules: Mapping[str, Entry], worker: int
    ) -> None:
        super().__init__(strategy, mesh, batch, rules)
        self.should_checkpoint = self.should_save_summary = worker == 0

    def create_variable(self, next_creator: Callable[..., Variable], **arguments: Any) -> Variable:
        variable = super().create_variable(next_creator, **arguments)
        variable.strategy = self.strategy
        return variable

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """The first worker's ``tensor`` in all: Python is called in the first one only."""
        given = convert_to_tensor(tensor)
        (found,) = py_func(lambda value: value, [given], [given.dtype], name="first_worker")
        found.set_shape(given.shape)
        return relayout_op(found, **attributes_of(Layout.replicated(self._mesh)))


def mesh_of_workers(mesh: Mesh, key: str, workers: int, where: str) -> Mesh:
    """``mesh`` on the devices of ``workers``, the tasks of the job ``key``. Raises `InvalidArgumentError`, of
    the strategy ``where``.
    """
    if mesh.devices is not None:
        raise misuse(
            f"{where}: expected a mesh without devices, which are those of all workers; got {mesh!r}"
        )
    count, left = divmod(mesh.num_devices, workers)
    if left or not count:
        raise misuse(
            f"{where}: expected a mesh with equally many devices of each of {workers} workers; got {mesh}, "
            f"of {mesh.num_devices} devices"
        )
    kind = parse_device(default_devices()[0]).device_type
    return mesh.with_devices(
        [f"/job:{key}/task:{worker}/device:{kind}:{i}" for worker in range(workers) for i in range(count)]
    )


def _join(
    mesh: Mesh,
    key: str,
    addresses: list[str],
    worker: int,
    options: CommunicationOptions,
    transport: Transport | None,
) -> JoinedGroup:
    """The group of the mesh's devices, those of this ``worker`` in this process."""
    count = mesh.num_devices // len(addresses)
    group = Group(key, mesh.num_devices, tuple(range(worker * count, (worker + 1) * count)))
    timeout_s = connect_timeout_s() if options.timeout_seconds is None else options.timeout_seconds
    of_ranks = [address for address in addresses for _ in range(count)]
    return join(group, of_ranks, options.implementation.value, timeout_s, transport, _names(mesh))


def _names(mesh: Mesh) -> list[str]:
    """The coordinates of the devices, in words."""
    axes = [axis.name for axis in mesh.device_axes]
    return [
        f"rank ({', '.join(f'{name}={index}' for name, index in zip(axes, indices, strict=True))})"
        for indices in mesh.device_indices()
    ]


def _agreed(joined: JoinedGroup, seed: int) -> int:
    """The first rank's ``seed``, which all ranks get."""

    def of(member: GroupMember) -> int:
        return int(member.communicator.broadcast(np.array(seed), name="seed"))

    with ThreadPoolExecutor(len(joined.members)) as pool:  # each waits for the others
        return next(iter(list(pool.map(of, joined.members))))
