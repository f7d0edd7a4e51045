"""The tasks of a cluster on this host: their addresses, their variables, their share of the cores.

Picking a free port and closing it again for another process is a race: any process may take the port in
between. `ReservedPorts` keeps the sockets bound, without listening, with SO_REUSEADDR. Linux then assigns
these ports to no request for any free port, neither to listen nor for an outgoing connection, but lets a
process listen on one by number with SO_REUSEADDR, as gRPC does. They stay reserved over restarts of the
tasks.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from typing import final

from flowrt.base.closing import Closing
from flowrt.distribute.cluster.cluster_spec import ClusterSpec, parse_address
from flowrt.distribute.elastic.coordinator_client import ElasticPlace, format_place
from flowrt.distribute.resolvers import VARIABLES
from flowrt.distribute.resolvers.flowrt_variables import CLUSTER, ELASTIC, TASK
from flowrt.distribute.resolvers.source import workers
from flowrt.errors import UnavailableError

LOOPBACK = "127.0.0.1"
THREADS = "OMP_NUM_THREADS"


@final
class ReservedPorts(Closing):
    """Free ports of this host, reserved until `close`. A context manager."""

    def __init__(self, number: int, host: str = LOOPBACK) -> None:
        """Raises `UnavailableError` where the system has none left, or ``host`` is not an address of it."""
        self._sockets = contextlib.ExitStack()
        try:
            self.ports = [_reserve(self._sockets, host) for _ in range(number)]
        except OSError as error:
            self.close()
            raise UnavailableError(
                f"local cluster: expected {number} free ports of {host}; got {error}"
            ) from error

    def close(self) -> None:
        self._sockets.close()


def _reserve(stack: contextlib.ExitStack, host: str) -> int:
    held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((host, 0))
    return held.getsockname()[1]


def local_cluster(ports: list[int]) -> ClusterSpec:
    """Workers of this host, one a port."""
    return workers((LOOPBACK, port) for port in ports)


def expand_nodes(nodes: ClusterSpec, per_node: int) -> tuple[ClusterSpec, int]:
    """A cluster of ``per_node`` workers where ``nodes`` has one task, and torchrun's MASTER_PORT.

    The workers listen at the task's port and the next ones; MASTER_PORT is the one after, of the first node.
    Raises `InvalidArgumentError` where the ports of two nodes meet.
    """
    places = [parse_address(address) for _, _, address in nodes.tasks()]
    spec = workers((each.host, each.port + local) for each in places for local in range(per_node))
    return spec, places[0].port + per_node


def task_variables(
    inherited: Mapping[str, str], spec: ClusterSpec, master_port: int, node: int, local: int, per_node: int
) -> dict[str, str]:
    """The environment of task number ``local`` of node number ``node``: flowrt's variables and torchrun's.

    An outer launcher's variables describe its own processes, not these, so they are removed.
    """
    rank = node * per_node + local
    tasks = list(spec.tasks())
    job, index, _ = tasks[rank]
    return {name: value for name, value in inherited.items() if name not in VARIABLES} | {
        CLUSTER: spec.to_json(),
        TASK: f"{job}:{index}",
        "RANK": str(rank),
        "LOCAL_RANK": str(local),
        "WORLD_SIZE": str(len(tasks)),
        "LOCAL_WORLD_SIZE": str(per_node),
        "MASTER_ADDR": parse_address(tasks[0][2]).host,
        "MASTER_PORT": str(master_port),
        "PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1"),  # logs that are not late
    }


def elastic_variables(
    inherited: Mapping[str, str], place: ElasticPlace, local: int, per_node: int
) -> dict[str, str]:
    """The environment of worker number ``local`` of this host in an elastic job. Which rank it has is said in
    each membership epoch.
    """
    return {name: value for name, value in inherited.items() if name not in VARIABLES} | {
        ELASTIC: format_place(place),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(per_node),
        "PYTHONUNBUFFERED": inherited.get("PYTHONUNBUFFERED", "1"),
    }


def threads_each(cores: int, tasks: int) -> int:
    """Number of threads of a task's libraries, if ``tasks`` of them share ``cores``."""
    return max(1, cores // tasks)
