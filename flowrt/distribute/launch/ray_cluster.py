"""`RayCluster`: workers as Ray actors. The only module that imports Ray (the extra ``ray``).

Every actor first reserves a port on its host and reports it; when all are known, each starts its server with
the whole cluster. So no port is guessed, and none is lost between the choice and the server's start.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, final

from flowrt.base.closing import Closing
from flowrt.distribute.cluster.bind_policy import check_bind
from flowrt.distribute.cluster.cluster_spec import parse_cluster
from flowrt.distribute.launch.local_cluster import LOOPBACK, ReservedPorts
from flowrt.distribute.resolvers.source import WORKER, workers
from flowrt.distribute.server import Server
from flowrt.errors import FailedPreconditionError, UnavailableError
from flowrt.rendezvous.channel.security import load_security

START_S = 60.0
"""Time for Ray to place and start all actors."""
STOP_S = 5.0


def load_ray() -> Any:
    """The module. Raises `FailedPreconditionError` where it is not installed."""
    try:
        import ray
    except ImportError as error:
        raise FailedPreconditionError(
            f"RayCluster: expected Ray; got {error}. Install it with: pip install flowrt[ray]"
        ) from None
    return ray


class RayWorker:
    """Actor that first calls `reserve`, then `serve`."""

    def __init__(self) -> None:
        self._ports: ReservedPorts | None = None
        self._server: Server | None = None

    def node(self) -> str:
        """The id of the Ray node that this actor runs on."""
        return str(load_ray().get_runtime_context().get_node_id())

    def reserve(self, is_local: bool) -> tuple[str, int]:
        """Host and reserved port. ``is_local``: all tasks share a host, so its loopback suffices."""
        host = LOOPBACK if is_local else str(load_ray().util.get_node_ip_address())
        self._ports = ReservedPorts(1, host)
        return host, self._ports.ports[0]

    def serve(self, cluster: str, index: int) -> str:
        """Start the server of a task; its target."""
        spec, security = parse_cluster(cluster), load_security(os.environ, Path.home())
        check_bind(spec.task_address(WORKER, index), security)
        self._server = Server(spec, WORKER, index, security=security)
        return self._server.target

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()
        if self._ports is not None:
            self._ports.close()


@final
class RayCluster(Closing):
    """``num_workers`` workers, each a Ray actor with ``num_cpus`` and ``num_gpus``. A context manager.

    ``cluster_spec`` is their cluster, ``target`` the session target of the first of them. Call ``ray.init``
    before. Raises `FailedPreconditionError` without Ray or a connection to it, and `UnavailableError`, with
    no actor left, if they do not all start within `START_S` seconds.
    """

    def __init__(self, num_workers: int, num_cpus: float = 1, num_gpus: float = 0) -> None:
        self._ray = load_ray()
        if not self._ray.is_initialized():
            raise FailedPreconditionError("RayCluster: expected a connection to Ray. Call ray.init() before")
        actor = self._ray.remote(num_cpus=num_cpus, num_gpus=num_gpus, max_restarts=0)(RayWorker)
        self._actors = [actor.remote() for _ in range(num_workers)]
        try:
            nodes = self._wait([actor.node.remote() for actor in self._actors])
            is_local = set(nodes) == {self._ray.get_runtime_context().get_node_id()}
            self.cluster_spec = workers(self._wait([each.reserve.remote(is_local) for each in self._actors]))
            cluster = self.cluster_spec.to_json()
            targets = self._wait([each.serve.remote(cluster, i) for i, each in enumerate(self._actors)])
        except BaseException:
            self.close()
            raise
        self.target: str = targets[0]

    def close(self) -> None:
        """End the servers and the actors. Idempotent."""
        actors, self._actors = self._actors, []
        if actors:
            self._ray.wait([each.stop.remote() for each in actors], num_returns=len(actors), timeout=STOP_S)
        for actor in actors:
            self._ray.kill(actor)

    def _wait(self, answers: list[Any]) -> list[Any]:
        """The results of the actors, in order."""
        _, missing = self._ray.wait(answers, num_returns=len(answers), timeout=START_S)
        if missing:
            raise UnavailableError(
                f"RayCluster: expected {len(answers)} workers within {START_S:.0f} s; {len(missing)} did "
                "not answer. `ray status` shows the free resources of the Ray cluster"
            )
        return list(self._ray.get(answers))
