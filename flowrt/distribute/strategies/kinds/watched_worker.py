"""Watching of workers that run sessions of their own: ``FLOWRT_METRICS`` gives each a `Server`.

The server listens at the worker's address, where its groups then listen too. It serves the metrics, answers
health checks, and tells ``flowrt top`` and ``flowrt profile`` of the worker's steps.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path

from flowrt.distribute.cluster.metrics_address import is_asked_for
from flowrt.distribute.resolvers import ResolvedCluster
from flowrt.distribute.server import Server, server_as, task_name
from flowrt.executor.ends.config import ConfigProto
from flowrt.rendezvous.channel.channel import Transport
from flowrt.rendezvous.channel.security import load_security
from flowrt.rendezvous.transport import new_transport

_servers: dict[str, Server] = {}
"""Servers of this process, by the workers' addresses, until it ends."""


def group_transport(cluster: ResolvedCluster) -> Transport | None:
    """The transport by which this worker of ``cluster`` joins groups; None for the default. If metrics are
    asked for it starts the worker's server, unless there is one. Raises as `Server`.
    """
    if not is_asked_for():
        return None
    if server_as(cluster.spec, task_name(cluster.job, cluster.task)) is None:
        if (earlier := _servers.pop(cluster.address, None)) is not None:  # of an elastic job's last epoch
            earlier.stop()
        config = ConfigProto(device_count={"GPU": 0})  # its sessions have the GPUs
        server = _servers[cluster.address] = Server(cluster.spec, cluster.job, cluster.task, config=config)
        atexit.register(server.stop)
    return new_transport(load_security(os.environ, Path.home()))
